package esindex_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/usage-indexer/esindex"
	"penstock.dev/services/usage-indexer/usagedoc"
)

// answers gives every bulk request the same answer.
type answers struct{ text string }

func (a answers) RoundTrip(req *http.Request) (*http.Response, error) {
	text := a.text
	if req.Body != nil {
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return nil, err
		}
	}
	if !strings.HasSuffix(req.URL.Path, "_bulk") {
		text = "{}"
	}
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text))}, nil
}

// BenchmarkWrite is what it costs to make one bulk request and to judge its
// answer, per document, without a store: where all are new, and where all are there
// already.
func BenchmarkWrite(b *testing.B) {
	const batch = 5000
	e := usagedoc.Event{Tenant: "acme", Counters: []usagedoc.Counter{{Key: strings.Repeat("k", 300)}}}
	doc := usagedoc.Append(nil, &e)
	entries := make([]usagedoc.Entry, batch)
	for i := range entries {
		entries[i] = usagedoc.Entry{ID: [16]byte{14: byte(i >> 8), 15: byte(i)}, Day: usagedoc.DayOf(noon.UnixMicro()), Doc: doc}
	}
	there := `{"create":{"status":409,"error":{"type":"version_conflict_engine_exception","reason":"[01998d3a-5e43-7c11-9a52-3f0d6be0c1a7]: version conflict, document already exists (current version [1])"}}}`
	for name, item := range map[string]string{"created": `{"create":{"status":201}}`, "duplicate": there} {
		b.Run(name, func(b *testing.B) {
			text := fmt.Appendf(nil, `{"errors":%v,"items":[`, name != "created")
			for range batch {
				text = append(append(text, item...), ',')
			}
			text = append(bytes.TrimSuffix(text, []byte(",")), "]}"...)
			store, err := esindex.New(esindex.Config{
				URLs: []string{"http://store.invalid:9200"}, Prefix: prefix, BatchDocs: batch, BatchBytes: 8 << 20, Timeout: time.Minute,
				Transport: answers{string(text)},
			}, slog.New(slog.DiscardHandler), nil, clock)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if outcomes, err := store.Write(b.Context(), entries); err != nil || outcomes[0].Verdict == usagedoc.Pending {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/doc")
		})
	}
}
