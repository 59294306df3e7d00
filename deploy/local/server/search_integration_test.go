//go:build integration

package server_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock.dev/deploy/local/server"
)

// rest sends one call to a search server and returns the status and the answer.
func rest(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// keepsDocuments writes a document, kills the server, restarts it, and wants
// the document back at the same address. It then freezes the server and wants it
// to answer again when thawed.
func keepsDocuments(t *testing.T, p *server.Process) {
	t.Helper()
	url := p.URL + "/things/_doc/1?refresh=true"
	if status, answer := rest(t, http.MethodPut, url, `{"name": "valve"}`); status != http.StatusCreated {
		t.Fatalf("PUT answers %d: %s", status, answer)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	status, answer := rest(t, http.MethodPost, p.URL+"/things/_search", `{"query": {"match": {"name": "valve"}}}`)
	var found struct {
		Hits struct{ Total struct{ Value int } }
	}
	if err := json.Unmarshal([]byte(answer), &found); err != nil || status != http.StatusOK || found.Hits.Total.Value != 1 {
		t.Errorf("after a kill and a restart the search answers %d (%v): %s", status, err, answer)
	}

	if err := p.Freeze(); err != nil {
		t.Fatal(err)
	}
	if resp, err := (&http.Client{Timeout: 200 * time.Millisecond}).Get(p.URL + "/_cluster/health"); err == nil {
		t.Errorf("a frozen server answers %s", resp.Status)
		_ = resp.Body.Close()
	}
	if err := p.Thaw(); err != nil {
		t.Fatal(err)
	}
	if status, answer := rest(t, http.MethodGet, p.URL+"/_cluster/health", ""); status != http.StatusOK {
		t.Errorf("after the thaw health answers %d: %s", status, answer)
	}
}

// neverRoot wants a server to belong to another user than root.
func neverRoot(t *testing.T, p *server.Process) {
	t.Helper()
	info, err := os.Stat("/proc/" + strconv.Itoa(p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid == 0 {
		t.Error("the server runs as root")
	}
}

// TestIntegrationElasticsearchKeepsItsDocuments guarantees that Elasticsearch is
// fetched and verified, never runs as root, and has its documents after a kill,
// a restart and a freeze.
func TestIntegrationElasticsearchKeepsItsDocuments(t *testing.T) {
	t.Parallel()

	p, err := server.StartElasticsearch(t.Context(), t.TempDir(), server.ElasticsearchOptions{Run: logged(t)})
	if err != nil {
		t.Fatal(err)
	}
	stopLater(t, p)
	neverRoot(t, p)
	keepsDocuments(t, p)
}

// TestIntegrationElasticsearchSaysWhatIsWrong guarantees that a refusal to start
// is reported in the server's own words.
func TestIntegrationElasticsearchSaysWhatIsWrong(t *testing.T) {
	t.Parallel()

	_, err := server.StartElasticsearch(t.Context(), t.TempDir(), server.ElasticsearchOptions{Settings: []string{"no.such.setting=1"}})
	if !errors.Is(err, server.ErrExited) || !strings.Contains(err.Error(), "no.such.setting") {
		t.Errorf("err = %v, want ErrExited and the server's complaint", err)
	}
}

// TestIntegrationOpenSearchKeepsItsDocuments guarantees the same of OpenSearch,
// and that its starter is compiled once.
func TestIntegrationOpenSearchKeepsItsDocuments(t *testing.T) {
	t.Parallel()

	p, err := server.StartOpenSearch(t.Context(), t.TempDir(), server.OpenSearchOptions{Run: logged(t)})
	if err != nil {
		t.Fatal(err)
	}
	stopLater(t, p)
	neverRoot(t, p)
	keepsDocuments(t, p)
}

// TestIntegrationOpenSearchSaysWhatIsWrong guarantees the same of OpenSearch.
func TestIntegrationOpenSearchSaysWhatIsWrong(t *testing.T) {
	t.Parallel()

	_, err := server.StartOpenSearch(t.Context(), t.TempDir(), server.OpenSearchOptions{Settings: []string{"no.such.setting=1"}})
	if !errors.Is(err, server.ErrExited) || !strings.Contains(err.Error(), "no.such.setting") {
		t.Errorf("err = %v, want ErrExited and the server's complaint", err)
	}
}
