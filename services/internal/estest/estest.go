// Package estest gives tests a real Elasticsearch and a real OpenSearch.
//
// Either takes ten seconds or more to start, so the tests of a binary share one of
// each: Shared, and Each for tests that both must pass. Start is for tests that
// kill or freeze the server. What tests share they keep apart by Prefix. A machine
// that cannot run them fails the test; nothing is skipped.
package estest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock.dev/deploy/local/server"
)

// A Flavor is which of the two stores.
type Flavor string

// The flavors.
const (
	Elasticsearch Flavor = "elasticsearch"
	OpenSearch    Flavor = "opensearch"
)

// Flavors are both stores, which promise the same.
var Flavors = []Flavor{Elasticsearch, OpenSearch}

// A Server is one node without security. Its methods fail the test rather than
// return an error.
type Server struct {
	URL    string
	Flavor Flavor

	t       testing.TB
	process *server.Process
}

// Start returns a server of the test's own, which ends with the test. Settings are
// the store's own, name=value.
func Start(t testing.TB, f Flavor, settings ...string) *Server {
	t.Helper()
	dir, err := tempDir()
	if err != nil {
		t.Fatalf("estest: %v", err)
	}
	p, err := start(t, f, dir, settings)
	if err != nil {
		t.Fatalf("estest: %v", errors.Join(err, os.RemoveAll(dir)))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.Tail())
		}
		if err := errors.Join(p.Kill(), os.RemoveAll(dir)); err != nil {
			t.Errorf("estest: %v", err)
		}
	})
	return &Server{URL: p.URL, Flavor: f, t: t, process: p}
}

// Shared returns the server that the tests of this binary share. Nobody may stop
// it; it ends with the binary, however that ends.
func Shared(t testing.TB, f Flavor) *Server {
	t.Helper()
	b := &binary[0]
	if f == OpenSearch {
		b = &binary[1]
	}
	b.once.Do(func() { b.process, b.err = startShared(t, f) })
	if b.err != nil {
		t.Fatalf("estest: %v", b.err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(b.process.Tail())
		}
	})
	return &Server{URL: b.process.URL, Flavor: f, t: t}
}

// Each runs f on the shared server of either flavor, as parallel subtests.
func Each(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	for _, flavor := range Flavors {
		t.Run(string(flavor), func(t *testing.T) {
			t.Parallel()
			f(t, Shared(t, flavor))
		})
	}
}

// binary holds the servers that the tests of this binary share.
var binary [2]struct {
	once    sync.Once
	process *server.Process
	err     error
}

func start(t testing.TB, f Flavor, dir string, settings []string) (*server.Process, error) {
	run := server.Run{Say: func(s string) { t.Log(s) }}
	if f == OpenSearch {
		return server.StartOpenSearch(t.Context(), dir, server.OpenSearchOptions{Settings: settings, Run: run})
	}
	return server.StartElasticsearch(t.Context(), dir, server.ElasticsearchOptions{Settings: settings, Run: run})
}

// startShared leaves the end to the kernel: the server is killed when this binary
// ends, and a shell that waits for the same moment removes its data.
func startShared(t testing.TB, f Flavor) (*server.Process, error) {
	dir, err := tempDir()
	if err != nil {
		return nil, err
	}
	p, err := start(t, f, dir, nil)
	if err == nil {
		err = removeWhenOrphaned(context.WithoutCancel(t.Context()), dir, p.PID())
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return p, nil
}

// tempDir is not the test's: a server that is shared outlives the test that
// started it, and nobody's user must be able to enter.
func tempDir() (string, error) { return os.MkdirTemp("", "penstock-estest-") }

// removeWhenOrphaned starts a process that reads a pipe that only this process
// writes to. It reads the end of file when this process has ended, waits for the
// server to be gone, and removes dir.
func removeWhenOrphaned(ctx context.Context, dir string, pid int) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	const script = `read -r _
i=0
while [ -e "/proc/$1" ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done
rm -rf -- "$0"`
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", script, dir, strconv.Itoa(pid))
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return errors.Join(err, w.Close())
	}
	pipes.Lock()
	defer pipes.Unlock()
	pipes.held = append(pipes.held, w)
	return nil
}

// pipes holds the write ends open for the life of this process.
var pipes struct {
	sync.Mutex
	held []io.Closer
}

var prefixes atomic.Int64

// Prefix returns the beginning of index names that no other test of this binary
// has.
func Prefix() string { return fmt.Sprintf("test%d", prefixes.Add(1)) }

// Kill ends the server at once (SIGKILL). It must be the test's own.
func (s *Server) Kill() {
	s.t.Helper()
	s.must(s.own().Kill())
}

// Restart stops the server if it runs and starts it on the same port and data.
func (s *Server) Restart() {
	s.t.Helper()
	s.must(s.own().Restart(context.WithoutCancel(s.t.Context())))
}

// Freeze suspends the server: connections stay open and nothing is answered.
func (s *Server) Freeze() {
	s.t.Helper()
	s.must(s.own().Freeze())
}

// Thaw ends a Freeze; what was sent meanwhile is answered now.
func (s *Server) Thaw() {
	s.t.Helper()
	s.must(s.own().Thaw())
}

// PID is the process id of the current run.
func (s *Server) PID() int { return s.own().PID() }

func (s *Server) own() *server.Process {
	s.t.Helper()
	if s.process == nil {
		s.t.Fatal("estest: a shared server is everybody's: Start one")
	}
	return s.process
}

func (s *Server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("estest: %v", err)
	}
}

// Call sends a request with an optional JSON body and decodes the answer, which
// must be of status 2xx, into out unless that is nil.
func (s *Server) Call(method, path string, body, out any) {
	s.t.Helper()
	if status, answer := s.Try(method, path, body); status >= 300 {
		s.t.Fatalf("estest: %s %s: %d %s", method, path, status, answer)
	} else if out != nil {
		if err := json.Unmarshal(answer, out); err != nil {
			s.t.Fatalf("estest: %s %s: %v: %s", method, path, err, answer)
		}
	}
}

// Try sends a request with an optional JSON body and returns what was answered.
func (s *Server) Try(method, path string, body any) (status int, answer []byte) {
	s.t.Helper()
	var text io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		s.must(err)
		text = bytes.NewReader(b)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.URL+"/"+strings.TrimPrefix(path, "/"), text)
	s.must(err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	s.must(err)
	defer func() { _ = resp.Body.Close() }()
	answer, err = io.ReadAll(resp.Body)
	s.must(err)
	return resp.StatusCode, answer
}

// A Hit is one document that was found.
type Hit struct {
	Index  string         `json:"_index"`
	ID     string         `json:"_id"`
	Source map[string]any `json:"_source"`
}

// Search refreshes the indices and returns what they answer: all hits that match,
// up to 10,000, and the aggregations.
func (s *Server) Search(indices string, query map[string]any) (hits []Hit, aggregations map[string]any) {
	s.t.Helper()
	s.Call(http.MethodPost, indices+"/_refresh", nil, nil)
	if _, ok := query["size"]; !ok {
		query["size"] = 10_000
	}
	var answer struct {
		Hits struct {
			Hits []Hit `json:"hits"`
		} `json:"hits"`
		Aggregations map[string]any `json:"aggregations"`
	}
	s.Call(http.MethodPost, indices+"/_search", query, &answer)
	return answer.Hits.Hits, answer.Aggregations
}

// Count refreshes the indices and returns how many documents they hold; those of
// a pattern that matches nothing hold none.
func (s *Server) Count(indices string) int {
	s.t.Helper()
	s.Call(http.MethodPost, indices+"/_refresh", nil, nil)
	var answer struct {
		Count int `json:"count"`
	}
	s.Call(http.MethodGet, indices+"/_count", nil, &answer)
	return answer.Count
}

// Indices returns the names of the indices that match, ascending.
func (s *Server) Indices(pattern string) []string {
	s.t.Helper()
	var listed []struct {
		Index string `json:"index"`
	}
	s.Call(http.MethodGet, "_cat/indices/"+pattern+"?format=json&h=index&s=index&expand_wildcards=all", nil, &listed)
	var names []string
	for _, l := range listed {
		names = append(names, l.Index)
	}
	return names
}

// MappedFields returns how many fields the mapping of an index has, objects
// included.
func (s *Server) MappedFields(index string) int {
	s.t.Helper()
	var answer map[string]struct {
		Mappings map[string]any `json:"mappings"`
	}
	s.Call(http.MethodGet, index+"/_mapping", nil, &answer)
	n := 0
	for _, m := range answer {
		n = max(n, fields(m.Mappings))
	}
	return n
}

func fields(m map[string]any) int {
	properties, _ := m["properties"].(map[string]any)
	n := 0
	for _, p := range properties {
		inner, _ := p.(map[string]any)
		n += 1 + fields(inner)
	}
	return n
}
