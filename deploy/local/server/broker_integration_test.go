//go:build integration

package server_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"penstock.dev/deploy/local/server"
)

func request(t *testing.T, method, url, body string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/vnd.schemaregistry.v1+json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestIntegrationBrokerLives guarantees that the development broker is built
// from this clone, serves Kafka and the registry, and keeps both over a kill.
func TestIntegrationBrokerLives(t *testing.T) {
	t.Parallel()

	p, err := server.StartBroker(t.Context(), t.TempDir(), server.BrokerOptions{Run: logged(t)})
	if err != nil {
		t.Fatal(err)
	}
	stopLater(t, p)
	subject := p.URL + "/subjects/s-value/versions"
	if got := request(t, http.MethodPost, subject, `{"schema": "\"string\""}`); !strings.Contains(got, `"id"`) {
		t.Fatalf("register: %s", got)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := request(t, http.MethodGet, subject, ""); strings.TrimSpace(got) != "[1]" {
		t.Errorf("after a kill the versions are %s, want [1]", got)
	}
}
