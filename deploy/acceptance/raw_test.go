//go:build acceptance

package acceptance_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// raw sends a request whose target goes out as it is spelled.
func (s system) raw(base, method, target, key string) reply {
	s.Helper()
	addr := strings.TrimPrefix(base, "http://")
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(s.Context(), "tcp", addr)
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\nX-API-Key: %s\r\nConnection: close\r\n\r\n", method, target, addr, key); err != nil {
		s.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, string(b)}
}
