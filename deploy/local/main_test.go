package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/deploy/local/proof"
)

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

// TestVariables guarantees what the variables of make mean, and that every one
// that makes no sense is named.
func TestVariables(t *testing.T) {
	t.Parallel()

	c, err := parseConfig(env())
	want := config{estate: estate.Options{PortBase: estate.DefaultPortBase, Gateways: 1, Samples: true, Kafka: estate.Embedded, Search: estate.WithElasticsearch}}
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("without variables: %+v, %v; want %+v", c, err, want)
	}
	c, err = parseConfig(env("PORT_BASE", "20000", "GATEWAYS", "2", "SAMPLES", "0", "KAFKA", "real", "OPENSEARCH", "1", "CI", "true", "WIPE", "1"))
	want = config{
		estate:   estate.Options{PortBase: 20_000, Gateways: 2, Kafka: estate.Real, Search: estate.WithOpenSearch},
		portBase: true, wipe: true, unguarded: true,
	}
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("with variables: %+v, %v; want %+v", c, err, want)
	}
	_, err = parseConfig(env("PORT_BASE", "many", "SAMPLES", "maybe", "GATEWAYS", "9", "OPENSEARCH", "1", "SEARCH", "0"))
	for _, name := range []string{"PORT_BASE=many", "SAMPLES=maybe", "GATEWAYS=9", "OPENSEARCH=1 and SEARCH=0"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("err = %v, want it to name %s", err, name)
		}
	}
}

// TestWrongUsage guarantees that a wrong command shows the usage and fails.
func TestWrongUsage(t *testing.T) {
	t.Parallel()

	for _, args := range [][]string{nil, {"restart"}, {"up", "down"}} {
		var out bytes.Buffer
		if code := run(t.Context(), args, env(), &out); code != 2 || !strings.HasPrefix(out.String(), "usage:") {
			t.Errorf("%q: code %d, %q", args, code, out.String())
		}
	}
}

// TestScreenKeepsToItsWidth guarantees lines of at most 80 columns, and no
// escape sequences where nobody looks at a terminal.
func TestScreenKeepsToItsWidth(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	s := newScreen(&out, env())
	s.heading("Proof 1")
	s.labelled("done", strings.Repeat("forty payments × one gateway, ", 12))
	s.failure(errProof)
	s.result(proof.Result{Title: "It breaks", Err: errors.New(strings.Repeat("no route to host ", 12))})
	s.result(proof.Result{Finding: proof.Finding{Done: strings.Repeat("40 × 200, ", 20), Expected: "200", Measured: "200", Held: true}})
	e := &estate.Estate{Env: map[string]string{
		"DATABASE_URL":      "postgres://postgres@127.0.0.1:18511/rule_admin?sslmode=disable",
		"ELASTICSEARCH_URL": "http://127.0.0.1:18516", "GATEWAY_GRPC": "127.0.0.1:18505", "GATEWAY_GRPC_2": "127.0.0.1:18506",
	}}
	showTries(s, e, ".run/"+demoDir, true)
	showAddresses(s, e)
	for _, want := range []string{"could not be finished: no route", "FAILED", "held", "gateway (gRPC)", "127.0.0.1:18506"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the screen lacks %q", want)
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("escape sequences in %q", out.String())
	}
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > width {
			t.Errorf("%d columns: %q", n, line)
		}
	}
}

// TestWipeKeepsResults guarantees that make down WIPE=1 forgets the estate and keeps what
// runs have found out, and the demo's own estate.
func TestWipeKeepsResults(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	kept := []string{"bench.json", "demo", "loadtest-propagation.json", "proof.html"}
	for _, name := range append([]string{"estate.json", "keys.env", "gateway.log", "gateway.pid", "data"}, kept...) {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(wipe(dir), wipe(filepath.Join(dir, "nowhere"))); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	if !slices.Equal(left, kept) {
		t.Errorf("left are %q, want %q", left, kept)
	}
}

// TestKnobs guarantees that of the caller's environment services get their own variables.
func TestKnobs(t *testing.T) {
	t.Parallel()

	got := knobs([]string{"HOME=/", "PENSTOCK_GRPC_ENGINE=grpc-go", "MY_PENSTOCK_LISTEN=1", "PENSTOCK_LISTEN=:1"})
	if want := []string{"PENSTOCK_GRPC_ENGINE=grpc-go", "PENSTOCK_LISTEN=:1"}; !slices.Equal(got, want) {
		t.Errorf("knobs %q, want %q", got, want)
	}
}
