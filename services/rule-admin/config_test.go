package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/conf/conftest"
)

// TestREADME guarantees that README lists the knobs that the service has.
func TestREADME(t *testing.T) {
	t.Parallel()
	var c config
	conftest.README(t, "README.md", knobs(&c, func(string) string { return "" }).Knobs())
}

func parse(env map[string]string, args ...string) (config, error) {
	return parseConfig(args, func(name string) string { return env[name] })
}

func good() map[string]string {
	return map[string]string{
		"PENSTOCK_DATABASE_URL": "postgres://h/d",
		"PENSTOCK_TOKENS":       "ops:admin:0123456789abcdef, dash:readonly:fedcba9876543210",
	}
}

// TestConfigNamesEveryFault guarantees that an operator sees all that is wrong
// at once, and never a token.
func TestConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := parse(map[string]string{"PENSTOCK_TOKENS": "ops:root:0123456789abcdef"},
		"-listen", "", "-admin-listen", "", "-database-connections", "1", "-schema-registry", "", "-schema-registry-password", "fedcba9876543210", "-request-timeout", "1ms", "-outbox-keep", "1s", "-redis-url", "http://h", "-redis-cluster")
	if !errors.Is(err, boot.ErrConfig) {
		t.Fatalf("parseConfig = %v, want a refused configuration", err)
	}
	for _, want := range []string{
		"-listen", "-admin-listen", "-database-url", "-database-connections", "-schema-registry", "-schema-registry-password", "-tokens", "-request-timeout", "-outbox-keep", "-redis-url",
	} {
		if !strings.Contains(err.Error(), want+" (PENSTOCK_") {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "0123456789abcdef") {
		t.Errorf("%q repeats a token", err)
	}
}

// TestConfigCounterStore guarantees that a counter store is optional, and that one
// of which nothing is said is no cluster.
func TestConfigCounterStore(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		args []string
		want string // empty: accepted
	}{
		{"none", nil, ""},
		{"one", []string{"-redis-url", "redis://:secret@h:6379/2"}, ""},
		{"a cluster", []string{"-redis-url", "redis://:secret@h:6379?addr=i:6379", "-redis-cluster"}, ""},
		{"a cluster of none", []string{"-redis-cluster"}, "-redis-cluster"},
		{"what is no Redis", []string{"-redis-url", "http://:secret@h"}, "-redis-url"},
		{"a cluster on a socket", []string{"-redis-url", "unix:///secret", "-redis-cluster"}, "-redis-url"},
	} {
		_, err := parse(good(), tt.args...)
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want+" (PENSTOCK_") || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: %v, want %q named and no secret", tt.name, err, tt.want)
		}
	}
}

// TestConfigTokens guarantees what a list of tokens may be.
func TestConfigTokens(t *testing.T) {
	t.Parallel()
	c, err := parse(good())
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := parseTokens(c.tokens)
	if err != nil || len(tokens) != 2 || tokens[0].Actor != "ops" || tokens[0].Role != "admin" || tokens[1].Secret != "fedcba9876543210" {
		t.Errorf("parseTokens = %v, %v", tokens, err)
	}
	if text := fmt.Sprintf("%v %+v", c, c); strings.Contains(text, "fedcba") {
		t.Errorf("printed configuration has a token: %s", text)
	}
	tests := []struct {
		name, tokens, want string
	}{
		{"none", "", "empty"},
		{"no role", "ops:0123456789abcdef", "name:role:token"},
		{"a token of 15", "ops:admin:0123456789abcde", "16"},
		{"a token with a space", "ops:admin:0123456789 abcdef", "printable"},
		{"an unknown role", "ops:owner:0123456789abcdef", "admin or readonly"},
		{"a name with a space", "o ps:admin:0123456789abcdef", "name"},
		{"one token for two", "a:admin:0123456789abcdef,b:readonly:0123456789abcdef", "another's"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			env := good()
			env["PENSTOCK_TOKENS"] = tt.tokens
			_, err := parse(env)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("parseConfig = %v, want %q in it", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "0123456789") {
				t.Errorf("%q repeats a token", err)
			}
		})
	}
}

// TestCheck guarantees that -check judges the configuration and starts nothing.
func TestCheck(t *testing.T) {
	t.Parallel()
	env := good()
	p := boot.Process{Args: []string{"-check"}, Getenv: func(name string) string { return env[name] }}
	if err := run(t.Context(), p); err != nil {
		t.Errorf("run -check = %v, want nil", err)
	}
	env["PENSTOCK_TOKENS"] = ""
	if err := run(t.Context(), p); !errors.Is(err, boot.ErrConfig) {
		t.Errorf("run -check = %v, want a refused configuration", err)
	}
}
