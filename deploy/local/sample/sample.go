package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	maxWait  = time.Minute // longest that /v1/slow waits
	maxBody  = 1 << 20     // of a request that is echoed, bytes
	maxCount = 1000        // rows of an export, events of a stream
)

// A sample counts what reaches it. It is safe for concurrent use.
type sample struct {
	mu   sync.Mutex
	hits map[string]int // requests by method and path, without the service's prefix
}

func newSample() *sample { return &sample{hits: map[string]int{}} }

// handler serves every endpoint. The comments are what GET / prints.
func (s *sample) handler() http.Handler {
	endpoints := []struct {
		pattern, says string
		serve         http.HandlerFunc
	}{
		{"POST /v1/pay", "light: takes a payment", pay},
		{"GET /v1/payments/{id}", "light: shows a payment", payment},
		{"GET /v1/search", "light: searches for ?q=", search},
		{"POST /v1/search/deep", "heavy: searches everything, 50 ms", deepSearch},
		{"POST /v1/export", "heavy: starts an export", startExport},
		{"GET /v1/exports/{id}", "light: an export as CSV, ?rows= up to 1000", export},
		{"GET /v1/events", "server-sent events, ?count= of them, one each ?every=200ms", events},
		{"/v1/slow", "answers after ?wait=2s, at most a minute", slow},
		{"/v1/status/{code}", "answers with that status, 200-599", status},
		{"/v1/echo", "shows the request that arrived here", echo},
	}
	mux := http.NewServeMux()
	index := &strings.Builder{}
	for _, e := range endpoints {
		mux.HandleFunc(e.pattern, s.counted(e.serve))
		fmt.Fprintf(index, "%-24s %s\n", e.pattern, e.says)
	}
	fmt.Fprintf(index, "%-24s %s\n", "GET /hits", "how many requests arrived, by path; DELETE starts again")
	mux.HandleFunc("GET /hits", s.showHits)
	mux.HandleFunc("DELETE /hits", s.clearHits)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, index.String())
	})
	return withoutPrefix(mux)
}

// withoutPrefix removes the name of a service from the front of the path.
func withoutPrefix(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, service := range []string{"/payments", "/search", "/export"} {
			if strings.HasPrefix(r.URL.Path, service+"/v1/") {
				http.StripPrefix(service, next).ServeHTTP(w, r)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func (s *sample) counted(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.hits[r.Method+" "+r.URL.Path]++
		s.mu.Unlock()
		next(w, r)
	}
}

func (s *sample) showHits(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	hits := maps.Clone(s.hits)
	s.mu.Unlock()
	total := 0
	for _, n := range hits {
		total += n
	}
	answer(w, http.StatusOK, map[string]any{"total": total, "by_path": hits})
}

func (s *sample) clearHits(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	s.hits = map[string]int{}
	s.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // a client that left needs no answer
}

func pay(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		answer(w, http.StatusRequestEntityTooLarge, map[string]any{"error": err.Error()})
		return
	}
	answer(w, http.StatusOK, map[string]any{"payment": "p-1", "status": "accepted", "bytes": n})
}

func payment(w http.ResponseWriter, r *http.Request) {
	answer(w, http.StatusOK, map[string]any{"payment": r.PathValue("id"), "status": "settled"})
}

func search(w http.ResponseWriter, r *http.Request) {
	q := r.FormValue("q")
	answer(w, http.StatusOK, map[string]any{"query": q, "results": []string{q + " one", q + " two"}})
}

func deepSearch(w http.ResponseWriter, r *http.Request) {
	if waited(r, 50*time.Millisecond) {
		answer(w, http.StatusOK, map[string]any{"query": r.FormValue("q"), "scanned": 1_000_000})
	}
}

func startExport(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{"export": "e-1", "status": "started"})
}

func export(w http.ResponseWriter, r *http.Request) {
	rows := number(r, "rows", 100, maxCount)
	w.Header().Set("Content-Type", "text/csv")
	_, _ = io.WriteString(w, "row,export\n")
	for i := range rows {
		if _, err := fmt.Fprintf(w, "%d,%q\n", i+1, r.PathValue("id")); err != nil {
			return
		}
	}
}

func events(w http.ResponseWriter, r *http.Request) {
	count, every := number(r, "count", 5, maxCount), span(r, "every", 200*time.Millisecond)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	flush := http.NewResponseController(w)
	for i := range count {
		if i > 0 && !waited(r, every) {
			return
		}
		if _, err := fmt.Fprintf(w, "id: %d\ndata: {\"event\": %d}\n\n", i+1, i+1); err != nil {
			return
		}
		if err := flush.Flush(); err != nil {
			return
		}
	}
}

func slow(w http.ResponseWriter, r *http.Request) {
	wait := span(r, "wait", 2*time.Second)
	if waited(r, wait) {
		answer(w, http.StatusOK, map[string]any{"waited": wait.String()})
	}
}

func status(w http.ResponseWriter, r *http.Request) {
	code, err := strconv.Atoi(r.PathValue("code"))
	if err != nil || code < 200 || code > 599 {
		answer(w, http.StatusBadRequest, map[string]any{"error": "the status must be 200-599"})
		return
	}
	if code == http.StatusNoContent || code == http.StatusNotModified {
		w.WriteHeader(code)
		return
	}
	answer(w, code, map[string]any{"status": code})
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		answer(w, http.StatusRequestEntityTooLarge, map[string]any{"error": err.Error()})
		return
	}
	answer(w, http.StatusOK, map[string]any{
		"method": r.Method, "host": r.Host, "uri": r.RequestURI, "proto": r.Proto,
		"headers": r.Header, "body": string(body),
	})
}

// waited reports whether the wait was had; a client that leaves ends it.
func waited(r *http.Request, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

// number reads a whole number from the query, within 0 and most.
func number(r *http.Request, name string, otherwise, most int) int {
	n, err := strconv.Atoi(r.FormValue(name))
	if err != nil {
		n = otherwise
	}
	return max(0, min(n, most))
}

// span reads a duration from the query, within 0 and maxWait.
func span(r *http.Request, name string, otherwise time.Duration) time.Duration {
	d, err := time.ParseDuration(r.FormValue(name))
	if err != nil {
		d = otherwise
	}
	return max(0, min(d, maxWait))
}
