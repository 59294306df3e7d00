package estate

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"penstock.dev/deploy/local/server"
)

// Files below an estate's directory.
const (
	dataDir   = "data"
	stateFile = "estate.json"
	envFile   = "estate.env"
	keysFile  = "keys.env"
	lockFile  = "lock"
)

// A state is what an estate must remember: a process that was killed comes back
// on the same port, and tokens that people have copied go on working.
type state struct {
	Variables variables         `json:"variables"`
	Ports     map[string]int    `json:"ports"`
	Tokens    map[string]string `json:"tokens"`
	// ReceiptKey signs the receipts of all gateways. It is not for people, and so
	// not in estate.env.
	ReceiptKey string `json:"receipt_key"`
	// PortalKey signs the portal's tokens: 32 bytes in base64.
	PortalKey string `json:"portal_key"`
}

// Names of tokens, as in estate.env.
const (
	decisionToken = "DECISION_TOKEN"
	adminToken    = "ADMIN_TOKEN"
	readonlyToken = "READONLY_TOKEN"
	billingToken  = "BILLING_TOKEN"
)

func readState(dir string) (state, error) {
	var s state
	path := filepath.Join(dir, stateFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// loadState returns the state below dir for the wanted variables, with ports and
// tokens for whatever has none yet, and keeps it.
func loadState(ctx context.Context, dir string, want variables) (state, error) {
	s, err := readState(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return s, err
	}
	if s.Variables.PortBase != want.PortBase {
		s.Ports = nil
	}
	s.Variables = want
	if s.Ports, err = assignPorts(ctx, want.PortBase, s.Ports); err != nil {
		return s, err
	}
	if s.Tokens == nil {
		s.Tokens = map[string]string{}
	}
	for _, name := range []string{decisionToken, adminToken, readonlyToken, billingToken} {
		if s.Tokens[name] == "" {
			s.Tokens[name] = rand.Text() // 130 random bits
		}
	}
	if s.ReceiptKey == "" {
		s.ReceiptKey = rand.Text()
	}
	if s.PortalKey == "" {
		seed := make([]byte, 32)
		_, _ = rand.Read(seed) // never fails: see its documentation
		s.PortalKey = base64.StdEncoding.EncodeToString(seed)
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return s, err
	}
	return s, replaceFile(filepath.Join(dir, stateFile), append(b, '\n'))
}

func assignPorts(ctx context.Context, base int, have map[string]int) (map[string]int, error) {
	ports := map[string]int{}
	for name, offset := range offsets() {
		switch {
		case have[name] != 0:
			ports[name] = have[name]
		case base != 0:
			ports[name] = base + offset
		default:
			port, err := server.FreePort(ctx)
			if err != nil {
				return nil, err
			}
			ports[name] = port
		}
	}
	return ports, nil
}

// replaceFile writes a file that holds secrets; a reader sees the old or the new.
func replaceFile(path string, b []byte) error {
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// writeEnv writes name=value lines that a shell can read.
func writeEnv(path, heading string, env map[string]string) error {
	var b strings.Builder
	b.WriteString("# " + heading + "\n")
	for _, name := range slices.Sorted(maps.Keys(env)) {
		b.WriteString(name + "=" + quote(env[name]) + "\n")
	}
	return replaceFile(path, []byte(b.String()))
}

// readEnv reads what writeEnv wrote. A file that is not there is empty.
func readEnv(path string) (map[string]string, error) {
	env := map[string]string{}
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return env, nil
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			env[name] = strings.ReplaceAll(strings.Trim(value, "'"), `'\''`, "'")
		}
	}
	return env, err
}

// quote leaves a value bare when a shell and a simple reader would both take it
// as it is.
func quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:/@?=,%+", r)
	}
	if strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
