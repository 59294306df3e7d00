package esindex_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock.dev/services/usage-indexer/esindex"
	"penstock.dev/services/usage-indexer/esindex/storetest"
	"penstock.dev/services/usage-indexer/usagedoc"
)

const prefix = "ratelimit-usage"

// noon is when the tests take place, wherever they do not ask for another time.
var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func clock() time.Time { return noon }

// A rig is a store that writes to a fake.
type rig struct {
	*esindex.Store
	fake *storetest.Store
	reg  *prometheus.Registry
	log  *bytes.Buffer
}

func newRig(t *testing.T, change ...func(*esindex.Config)) *rig {
	t.Helper()
	r := &rig{fake: storetest.New(), reg: prometheus.NewRegistry(), log: &bytes.Buffer{}}
	cfg := esindex.Config{
		URLs: []string{"http://store.invalid:9200"}, Prefix: prefix, Retention: 30, Refresh: 5 * time.Second,
		BatchDocs: 5000, BatchBytes: 8 << 20, Timeout: 30 * time.Second, Transport: r.fake,
	}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	if r.Store, err = esindex.New(cfg, slog.New(slog.NewTextHandler(r.log, nil)), r.reg, clock); err != nil {
		t.Fatal(err)
	}
	return r
}

// entry is document n, of today.
func entry(n int) usagedoc.Entry {
	e := usagedoc.Entry{Day: usagedoc.DayOf(noon.UnixMicro()), Doc: fmt.Appendf(nil, `{"n":%d}`, n)}
	e.ID[6], e.ID[8], e.ID[14], e.ID[15] = 0x70, 0x80, byte(n>>8), byte(n)
	return e
}

func batch(n int) []usagedoc.Entry {
	var all []usagedoc.Entry
	for i := 1; i <= n; i++ {
		all = append(all, entry(i))
	}
	return all
}

// numbers are the documents of a call by their numbers.
func numbers(docs []storetest.Doc) []int {
	var all []int
	for _, d := range docs {
		var doc struct{ N int }
		if json.Unmarshal(d.Body, &doc) != nil {
			doc.N = -1
		}
		all = append(all, doc.N)
	}
	return all
}

func verdicts(outcomes []usagedoc.Outcome) string {
	var b strings.Builder
	for _, o := range outcomes {
		b.WriteByte("?cdr"[o.Verdict])
	}
	return b.String()
}

// shows fails the test unless a metric has a value.
func (r *rig) shows(t *testing.T, series string, want float64) {
	t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	name, label, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			if strings.Join(labels, ",") == label {
				if got := m.GetCounter().GetValue() + m.GetGauge().GetValue(); got != want {
					t.Errorf("%s is %v, want %v", series, got, want)
				}
				return
			}
		}
	}
	t.Errorf("there is no metric %s", series)
}

// TestFC20PartialFailure guarantees case FC-20 for both stores' names: of ten
// documents in a request that "succeeded", those with 429 are sent again and no
// others, the one that can never be stored ends as refused, once, and nothing is
// dropped.
func TestFC20PartialFailure(t *testing.T) {
	t.Parallel()
	for flavor, names := range map[string]struct{ full, bad string }{
		"elasticsearch": {"es_rejected_execution_exception", "document_parsing_exception"},
		"opensearch":    {"rejected_execution_exception", "mapper_parsing_exception"},
	} {
		t.Run(flavor, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.fake.Script(func(call int, _ []storetest.Doc) storetest.Answer {
					if call > 1 {
						return storetest.Answer{}
					}
					full := storetest.Item{Status: 429, Type: names.full, Reason: "queue full"}
					return storetest.Answer{Items: map[int]storetest.Item{
						3: full, 6: full, 8: {Status: 400, Type: names.bad, Reason: "failed to parse field [cost]"},
					}}
				})
				outcomes, err := r.Write(t.Context(), batch(10))
				if err != nil {
					t.Fatal(err)
				}
				calls := r.fake.Calls()
				if len(calls) != 2 || !slices.Equal(numbers(calls[1]), []int{4, 7}) {
					t.Fatalf("%d calls, the second of %v, want exactly items 4 and 7", len(calls), numbers(calls[len(calls)-1]))
				}
				if got := verdicts(outcomes); got != "ccccccccrc" {
					t.Errorf("outcomes %s, want item 9 refused and the others created", got)
				}
				if want := names.bad + ": failed to parse field [cost]"; outcomes[8].Cause != want {
					t.Errorf("item 9 was refused for %q, want %q", outcomes[8].Cause, want)
				}
				if n := len(r.fake.Docs()); n != 9 {
					t.Errorf("the index holds %d documents, want 9", n)
				}
				r.shows(t, "penstock_usage_indexer_documents_total{result=created}", 9)
				r.shows(t, "penstock_usage_indexer_documents_total{result=rejected}", 1)
				r.shows(t, "penstock_usage_indexer_retries_total{cause=rejected}", 1)
				r.shows(t, "penstock_usage_indexer_store_state{state=ok}", 1)
			})
		})
	}
}

// TestFC20FullForEver guarantees the end of case FC-20: while the store answers
// 429, Write does not return, asks ever less often, and the service says that it
// is not ready; and it gives up only when it is told to.
func TestFC20FullForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now
		r := newRig(t)
		r.Clock(now)
		r.fake.Script(func(_ int, docs []storetest.Doc) storetest.Answer {
			items := map[int]storetest.Item{}
			for i := range docs {
				items[i] = storetest.Item{Status: 429, Type: "es_rejected_execution_exception", Reason: "queue full"}
			}
			return storetest.Answer{Items: items}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		done := make(chan error, 1)
		go func() { _, err := r.Write(ctx, batch(3)); done <- err }()
		time.Sleep(time.Minute)
		if err := r.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "queue full") {
			t.Errorf("after a minute of refusals Ready = %v, want the reason", err)
		}
		r.shows(t, "penstock_usage_indexer_store_state{state=retrying}", 1)
		early := len(r.fake.Calls())
		time.Sleep(58 * time.Minute)
		select {
		case err := <-done:
			t.Fatalf("Write gave up: %v", err)
		default:
		}
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Write = %v, want the end of its context", err)
		}
		late := len(r.fake.Calls()) - early
		if early > 20 || late < 200 || late > 500 {
			t.Errorf("%d calls in the first minute and %d in the next hour, want at most 20 and 200 to 500", early, late)
		}
		if err := r.Ready(t.Context()); err != nil {
			t.Errorf("with nobody writing Ready = %v", err)
		}
	})
}

// TestWriteUntilItIsStored guarantees that whatever befalls a request as a whole,
// every document of it ends in the index exactly once.
func TestWriteUntilItIsStored(t *testing.T) {
	t.Parallel()
	whole := func(status int, kind string) storetest.Answer {
		return storetest.Answer{Status: status, Body: fmt.Sprintf(`{"error":{"type":%q,"reason":"because"},"status":%d}`, kind, status)}
	}
	item := func(status int, kind, reason string) storetest.Answer {
		return storetest.Answer{Items: map[int]storetest.Item{2: {Status: status, Type: kind, Reason: reason}}}
	}
	tests := []struct {
		name   string
		answer storetest.Answer
		twice  bool // documents were stored and the answer was lost: repeats are answered 409
		cause  string
		within time.Duration
	}{
		{"a connection that breaks", storetest.Answer{Err: errors.New("reset")}, true, "transport", time.Second},
		{"an answer that is no JSON", storetest.Answer{Text: "<html>"}, true, "unreadable", time.Second},
		{"an answer for some documents only", storetest.Answer{Text: `{"errors":false,"items":[{"create":{"status":201}}]}`}, true, "unreadable", time.Second},
		{"answers without a status", storetest.Answer{Text: `{"errors":false,"items":[{},{},{},{},{}]}`}, true, "unreadable", time.Second},
		{"a full queue", whole(429, "es_rejected_execution_exception"), false, "rejected", time.Second},
		{"a proxy without a store", storetest.Answer{Status: 502, Body: "bad gateway"}, false, "unavailable", time.Second},
		{"a store without a master", whole(503, "cluster_block_exception"), false, "unavailable", time.Second},
		{"missing rights", whole(403, "security_exception"), false, "paused", 2 * time.Second},
		{"a wrong password", whole(401, "security_exception"), false, "paused", 2 * time.Second},
		{"a shard that is away", item(503, "unavailable_shards_exception", "primary"), false, "unavailable", time.Second},
		{"a full disk", item(429, "cluster_block_exception", "index [x] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark]"), false, "rejected", time.Second},
		{"a read-only index", item(403, "cluster_block_exception", "index [x] blocked by: [FORBIDDEN/8/index write (api)]"), false, "paused", 2 * time.Second},
		{"an index that was deleted", item(404, "index_not_found_exception", "no such index"), false, "paused", 2 * time.Second},
		{"no room for a shard", item(400, "validation_exception", "this action would add [2] shards"), false, "paused", 2 * time.Second},
		{"a closed index", item(400, "index_closed_exception", "closed"), false, "paused", 2 * time.Second},
		{"an alias without an index", item(400, "illegal_argument_exception", "no write index is defined for alias [x]"), false, "paused", 2 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.fake.Script(func(call int, _ []storetest.Doc) storetest.Answer {
					if call == 1 {
						return tt.answer
					}
					return storetest.Answer{}
				})
				began := time.Now()
				outcomes, err := r.Write(t.Context(), batch(5))
				if err != nil {
					t.Fatal(err)
				}
				want := "ccccc"
				if tt.twice {
					want = "ddddd"
				}
				if got := verdicts(outcomes); got != want {
					t.Errorf("outcomes %s, want %s", got, want)
				}
				if n := len(r.fake.Docs()); n != 5 {
					t.Errorf("the index holds %d documents, want 5", n)
				}
				if took := time.Since(began); took > tt.within {
					t.Errorf("took %v, want at most %v", took, tt.within)
				}
				r.shows(t, "penstock_usage_indexer_retries_total{cause="+tt.cause+"}", 1)
				r.shows(t, "penstock_usage_indexer_store_state{state=ok}", 1)
			})
		})
	}
}

// TestWriteFindsTheCulprit guarantees that a document for which the store refuses
// a whole request is found and refused alone, wherever it stands, and that a store
// which refuses every request makes no document guilty.
func TestWriteFindsTheCulprit(t *testing.T) {
	t.Parallel()
	spoil := func(culprits ...int) func(int, []storetest.Doc) storetest.Answer {
		return func(_ int, docs []storetest.Doc) storetest.Answer {
			for _, n := range numbers(docs) {
				if slices.Contains(culprits, n) {
					return storetest.Answer{Status: 400, Body: `{"error":{"type":"illegal_argument_exception","reason":"Malformed action/metadata line"}}`}
				}
			}
			return storetest.Answer{}
		}
	}
	for _, culprits := range [][]int{{1}, {100}, {37}, {1, 2, 50, 99, 100}, {}} {
		t.Run(fmt.Sprint(culprits), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.fake.Script(spoil(culprits...))
				outcomes, err := r.Write(t.Context(), batch(100))
				if err != nil {
					t.Fatal(err)
				}
				for i, o := range outcomes {
					want := usagedoc.Created
					if slices.Contains(culprits, i+1) {
						want = usagedoc.Rejected
					}
					if o.Verdict != want {
						t.Errorf("document %d ended as %v, want %v", i+1, o.Verdict, want)
					}
				}
				if n, most := len(r.fake.Calls()), 2+len(culprits)*26; n > most {
					t.Errorf("%d requests for %d culprits, want at most %d", n, len(culprits), most)
				}
			})
		})
	}
	t.Run("a store that refuses everything", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			var mended atomic.Bool
			r.fake.Script(func(int, []storetest.Doc) storetest.Answer {
				if mended.Load() {
					return storetest.Answer{}
				}
				return storetest.Answer{Status: 400, Body: "no handler found"}
			})
			time.AfterFunc(10*time.Minute, func() { mended.Store(true) })
			outcomes, err := r.Write(t.Context(), batch(4))
			if got := verdicts(outcomes); err != nil || got != "cccc" {
				t.Errorf("outcomes %s (%v), want all created once the store is mended", got, err)
			}
			if !strings.Contains(r.log.String(), "until an operator helps") {
				t.Errorf("the log does not call for help:\n%s", r.log)
			}
		})
	})
}

// TestWriteSplitsWhatIsTooLarge guarantees that requests shrink until the store
// takes them, that the size is remembered, and that only a document which is too
// large by itself is refused.
func TestWriteSplitsWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]storetest.Answer{
		"413 of a proxy, without a body": {Status: http.StatusRequestEntityTooLarge},
		"429 for want of memory":         {Status: 429, Body: `{"error":{"type":"es_rejected_execution_exception","reason":"rejected execution of coordinating operation [coordinating_operation_bytes=9000, max_coordinating_bytes=8000]"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.fake.Script(func(_ int, docs []storetest.Doc) storetest.Answer {
					size := 0
					for _, d := range docs {
						size += len(d.Body)
					}
					if size > 200_000 {
						return answer
					}
					return storetest.Answer{}
				})
				entries := batch(100)
				for i := range entries {
					entries[i].Doc = fmt.Appendf(nil, `{"n":%d,"pad":%q}`, i+1, strings.Repeat("x", 10_000))
				}
				outcomes, err := r.Write(t.Context(), entries)
				if got := verdicts(outcomes); err != nil || got != strings.Repeat("c", 100) {
					t.Fatalf("outcomes %s (%v), want all created", got, err)
				}
				first := len(r.fake.Calls())
				more := batch(200)[100:]
				for i := range more {
					more[i].Doc = entries[i].Doc
				}
				if _, err := r.Write(t.Context(), more); err != nil {
					t.Fatal(err)
				}
				if n := len(r.fake.Calls()) - first; n > first {
					t.Errorf("%d requests after %d: the size was not remembered", n, first)
				}
			})
		})
	}
	t.Run("a document that is too large by itself", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.fake.Script(func(_ int, docs []storetest.Doc) storetest.Answer {
				if slices.Contains(numbers(docs), 3) {
					return storetest.Answer{Status: http.StatusRequestEntityTooLarge}
				}
				return storetest.Answer{}
			})
			outcomes, err := r.Write(t.Context(), batch(5))
			if got := verdicts(outcomes); err != nil || got != "ccrcc" {
				t.Errorf("outcomes %s (%v), want the third refused", got, err)
			}
		})
	})
}

// TestWriteDoubtful guarantees that an error nobody has a name for is the
// document's fault only when others are taken beside it.
func TestWriteDoubtful(t *testing.T) {
	t.Parallel()
	immense := storetest.Item{Status: 400, Type: "illegal_argument_exception", Reason: "Document contains at least one immense term"}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.fake.Script(func(int, []storetest.Doc) storetest.Answer {
			return storetest.Answer{Items: map[int]storetest.Item{1: immense}}
		})
		outcomes, err := r.Write(t.Context(), batch(3))
		if got := verdicts(outcomes); err != nil || got != "crc" {
			t.Errorf("outcomes %s (%v), want the second refused", got, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.fake.Script(func(call int, docs []storetest.Doc) storetest.Answer {
			items := map[int]storetest.Item{}
			for i := range docs {
				if call < 5 {
					items[i] = storetest.Item{Status: 400, Type: "illegal_argument_exception", Reason: "pipeline with id [x] does not exist"}
				}
			}
			return storetest.Answer{Items: items}
		})
		outcomes, err := r.Write(t.Context(), batch(3))
		if got := verdicts(outcomes); err != nil || got != "ccc" {
			t.Errorf("outcomes %s (%v), want all created in the end", got, err)
		}
	})
}

// TestWriteKeepsToItsBounds guarantees how much one request holds, and that a
// document larger than the bound goes alone.
func TestWriteKeepsToItsBounds(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *esindex.Config) { c.BatchDocs, c.BatchBytes = 7, 64<<10 })
	entries := batch(60)
	for i := 40; i < 50; i++ {
		entries[i].Doc = fmt.Appendf(nil, `{"n":%d,"pad":%q}`, i+1, strings.Repeat("x", 20_000))
	}
	entries[50].Doc = fmt.Appendf(nil, `{"n":51,"pad":%q}`, strings.Repeat("x", 100_000))
	outcomes, err := r.Write(t.Context(), entries)
	if got := verdicts(outcomes); err != nil || got != strings.Repeat("c", 60) {
		t.Fatalf("outcomes %s (%v)", got, err)
	}
	var all []int
	for _, call := range r.fake.Calls() {
		size := 0
		for _, d := range call {
			size += len(d.Body)
		}
		if len(call) > 7 || size > 64<<10 && len(call) > 1 {
			t.Errorf("a request of %d documents and %d bytes", len(call), size)
		}
		all = append(all, numbers(call)...)
	}
	if len(all) != 60 || !slices.IsSorted(all) {
		t.Errorf("documents went as %v", all)
	}
	if _, err := r.Write(t.Context(), nil); err != nil {
		t.Errorf("nothing to write: %v", err)
	}
}

// TestFlavor guarantees that either store is taken unless one is insisted on.
func TestFlavor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		flavor  esindex.Flavor
		elastic bool
		ok      bool
	}{
		{esindex.Either, true, true},
		{esindex.Either, false, true},
		{esindex.Elasticsearch, true, true},
		{esindex.Elasticsearch, false, false},
		{esindex.OpenSearch, true, false},
		{esindex.OpenSearch, false, true},
	} {
		r := newRig(t, func(c *esindex.Config) { c.Flavor = tt.flavor })
		r.fake.Elastic = tt.elastic
		if err := r.Ready(t.Context()); (err == nil) != tt.ok {
			t.Errorf("%s with Elasticsearch %v: Ready = %v, want ok %v", tt.flavor, tt.elastic, err, tt.ok)
		}
	}
}

// TestMetricsAreThereFromTheStart guarantees that an alert on a rate sees the
// first event, not the second.
func TestMetricsAreThereFromTheStart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, want := range map[string]int{
		"penstock_usage_indexer_documents_total": 3, "penstock_usage_indexer_retries_total": 7,
		"penstock_usage_indexer_maintenance_failures_total": 3, "penstock_usage_indexer_store_state": 3,
	} {
		if n, err := testutil.GatherAndCount(r.reg, name); err != nil || n != want {
			t.Errorf("%s has %d series (%v), want %d", name, n, err, want)
		}
	}
}
