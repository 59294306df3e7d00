package proof

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"penstock.dev/deploy/local/estate"
)

// TestMissingDocumentsAreSeen guarantees that the proof of the search store can
// fail: numbers of a stream that have no document are counted, and an answer that
// is none is an error.
func TestMissingDocumentsAreSeen(t *testing.T) {
	t.Parallel()

	broken := false
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case broken:
			http.Error(w, `{"error": "all shards failed"}`, http.StatusServiceUnavailable)
		case r.URL.Path == "/ratelimit-usage-*/_count":
			_, _ = io.WriteString(w, `{"count": 30}`)
		default:
			_, _ = io.WriteString(w, `{"hits": {"total": {"value": 11}}, "aggregations": {"streams": {"buckets": [
				{"doc_count": 7, "last": {"value": 9.0}}, {"doc_count": 4, "last": {"value": 4.0}}]}}}`)
		}
	}))
	defer store.Close()
	e := &estate.Estate{Env: map[string]string{"ELASTICSEARCH_URL": store.URL}}
	got, err := find(t.Context(), e, "acme", time.Now())
	if want := (found{refused: 30, documents: 11, streams: 2, missing: 2}); err != nil || got != want {
		t.Errorf("found %+v, %v; want %+v", got, err, want)
	}
	broken = true
	if _, err := find(t.Context(), e, "acme", time.Now()); err == nil || !strings.Contains(err.Error(), "all shards failed") {
		t.Errorf("err = %v, want what the store said", err)
	}
}
