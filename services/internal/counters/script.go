package counters

import (
	"crypto/sha1" // Redis names scripts by it
	"embed"
	"encoding/hex"
	"strings"
)

//go:embed lua
var lua embed.FS

// algorithmsMark is the line of frame.lua that the algorithms replace.
const algorithmsMark = "-- ALGORITHMS --\n"

// A script is a Lua program and the name that the server's cache has for it.
type script struct {
	text, sha string
}

func newScript(text string) script {
	sum := sha1.Sum([]byte(text))
	return script{text: text, sha: hex.EncodeToString(sum[:])}
}

// decideText assembles the deciding script from its files.
func decideText() string {
	var algorithms strings.Builder
	for _, name := range []string{"algo_gcra", "algo_quota"} {
		algorithms.WriteString(source(name))
	}
	return strings.Replace(source("frame"), algorithmsMark, algorithms.String(), 1)
}

// source returns a file without its comments: the server keeps every byte.
func source(name string) string {
	text, err := lua.ReadFile("lua/" + name + ".lua")
	if err != nil {
		return "error('" + name + " is not embedded')"
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if trimmed := strings.TrimSpace(line); line == algorithmsMark || trimmed != "" && !strings.HasPrefix(trimmed, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}
