package client_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"penstock.dev/loadtest/client"
)

// TestClientKeepsItsConnections guarantees that the load's own client sends what
// was prepared, reads every form of body to its end, keeps a connection for the
// next request, and gives up one that the server closes.
func TestClientKeepsItsConnections(t *testing.T) {
	t.Parallel()
	var opened atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		switch r.URL.Path {
		case "/echo":
			_, _ = fmt.Fprintf(w, "%s %s %s %s", r.Method, r.Header.Get("X-Test"), r.Header.Get("Content-Type"), body)
		case "/chunked":
			_, _ = io.WriteString(w, strings.Repeat("a", 5000))
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, strings.Repeat("b", 5000))
		case "/close":
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	c, err := client.New(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseIdle()

	for i, tt := range []struct {
		request []byte
		status  int
		body    string
		opened  int64 // connections so far
	}{
		{c.Prepare(http.MethodPost, "/echo", []byte(`{"a":1}`), "X-Test: yes"), 200, `POST yes application/json {"a":1}`, 1},
		{c.Prepare(http.MethodGet, "/echo", nil), 200, "GET   ", 1},
		{c.Prepare(http.MethodGet, "/chunked", nil), 200, strings.Repeat("a", 5000) + strings.Repeat("b", 5000), 1},
		{c.Prepare(http.MethodGet, "/echo", nil), 200, "GET   ", 1},
		{c.Prepare(http.MethodGet, "/close", nil), 418, "", 1},
		{c.Prepare(http.MethodGet, "/echo", nil), 200, "GET   ", 2},
	} {
		err := c.Do(t.Context(), tt.request, func(status int, body []byte) error {
			if status != tt.status || string(body) != tt.body {
				t.Errorf("answer %d = %d %.80q, want %d %.80q", i, status, body, tt.status, tt.body)
			}
			return nil
		})
		if err != nil || opened.Load() != tt.opened {
			t.Errorf("request %d: %v, %d connections, want %d", i, err, opened.Load(), tt.opened)
		}
	}
	refused := errors.New("refused")
	if err := c.Do(t.Context(), c.Prepare(http.MethodGet, "/echo", nil), func(int, []byte) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("Do = %v, want what use returned", err)
	}
	if opened.Load() != 2 {
		t.Error("an answer that was not liked cost the connection")
	}
	if _, err := client.New("https://127.0.0.1:1"); err == nil {
		t.Error("https is accepted and not spoken")
	}
}
