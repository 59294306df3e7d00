package counters

import (
	"crypto/sha1" // Redis names scripts by it
	"embed"
	"encoding/hex"
	"strconv"
	"strings"
)

//go:embed lua
var lua embed.FS

// algorithmsMark is the line of frame.lua that the algorithms replace.
const algorithmsMark = "-- ALGORITHMS --"

// A script is a Lua program and the name that the server's cache has for it.
type script struct {
	text, sha string
}

func newScript(text string) script {
	sum := sha1.Sum([]byte(text))
	return script{text: text, sha: hex.EncodeToString(sum[:])}
}

func newScripts(decide string) scripts {
	return scripts{
		decide: newScript(decide), correct: newScript(source("correct")),
		adopt: newScript(source("adopt")), presence: newScript(source("presence")),
		claim: newScript(source("claim")), vouch: newScript(source("vouch")),
		restore: newScript(source("restore")), remember: newScript(source("remember")),
	}
}

// algorithms are the files algo_*.lua. The plan names them by their place here,
// from 1.
var algorithms = []string{"bucket", "quota", "fixed_window", "sliding_window_log", "sliding_window_counter", "wallet"}

// decideText assembles the deciding script from its files.
func decideText() string {
	var b strings.Builder
	for i, name := range algorithms {
		b.WriteString([]string{"if", "elseif"}[min(i, 1)] + " algorithm == " + strconv.Itoa(i+1) + " then\n")
		b.WriteString(source("algo_" + name))
	}
	b.WriteString("end\n")
	return strings.Replace(source("frame"), algorithmsMark, b.String(), 1)
}

// source returns a file without its comments: the server keeps every byte.
func source(name string) string {
	text, err := lua.ReadFile("lua/" + name + ".lua")
	if err != nil {
		return "error('" + name + " is not embedded')"
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if trimmed := strings.TrimSpace(line); trimmed == algorithmsMark || trimmed != "" && !strings.HasPrefix(trimmed, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}
