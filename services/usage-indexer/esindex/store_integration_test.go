//go:build integration

package esindex_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/services/internal/estest"
	"penstock.dev/services/usage-indexer/esindex"
	"penstock.dev/services/usage-indexer/usagedoc"
)

// onStore returns a store on a real server with indices of its own.
func onStore(t *testing.T, s *estest.Server, change ...func(*esindex.Config)) (*esindex.Store, string) {
	t.Helper()
	cfg := esindex.Config{
		URLs: []string{s.URL}, Flavor: esindex.Flavor(s.Flavor), Prefix: estest.Prefix(), Refresh: 5 * time.Second,
		BatchDocs: 5000, BatchBytes: 8 << 20, Timeout: 30 * time.Second,
	}
	for _, c := range change {
		c(&cfg)
	}
	store, err := esindex.New(cfg, slog.New(slog.DiscardHandler), nil, clock)
	if err != nil {
		t.Fatal(err)
	}
	return store, cfg.Prefix
}

// event is event n, of noon and n microseconds.
func event(n int) usagedoc.Event {
	e := usagedoc.Event{
		TS: noon.UnixMicro() + int64(n), Sequence: int64(n), Decision: "ALLOW", Status: 200, Tenant: "acme",
		Service: "payments", Endpoint: "pay", RuleID: "acme-burst", Algorithm: "gcra", Cost: 1, LatencyUS: 412,
	}
	e.EventID = [16]byte{6: 0x70, 8: 0x80, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}
	e.DecisionID = e.EventID
	return e
}

func entryOf(e usagedoc.Event) usagedoc.Entry {
	return usagedoc.Entry{ID: e.EventID, Day: usagedoc.DayOf(e.TS), Doc: usagedoc.Append(nil, &e)}
}

func entriesOf(n int, change func(i int, e *usagedoc.Event)) []usagedoc.Entry {
	all := make([]usagedoc.Entry, n)
	for i := range all {
		e := event(i + 1)
		if change != nil {
			change(i, &e)
		}
		all[i] = entryOf(e)
	}
	return all
}

// write writes entries and wants the given verdict of each.
func write(t *testing.T, store *esindex.Store, entries []usagedoc.Entry, want usagedoc.Verdict) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	outcomes, err := store.Write(ctx, entries)
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range outcomes {
		if o.Verdict != want {
			t.Fatalf("document %d ended as %v (%s), want %v", i, o.Verdict, o.Cause, want)
		}
	}
}

// TestIntegrationRepeats guarantees that what is written twice, in one request or
// in two, is there once, and is told apart.
func TestIntegrationRepeats(t *testing.T) {
	t.Parallel()
	estest.Each(t, func(t *testing.T, s *estest.Server) {
		store, prefix := onStore(t, s)
		write(t, store, entriesOf(500, nil), usagedoc.Created)
		write(t, store, entriesOf(500, nil), usagedoc.Duplicate)
		outcomes, err := store.Write(t.Context(), slices.Concat(entriesOf(502, nil)[498:], entriesOf(502, nil)[500:]))
		if got := verdicts(outcomes); err != nil || got != "ddccdd" {
			t.Errorf("outcomes %s (%v)", got, err)
		}
		if n := s.Count(prefix + "-*"); n != 502 {
			t.Errorf("%d documents, want 502", n)
		}
		if err := store.Ready(t.Context()); err != nil {
			t.Errorf("Ready = %v", err)
		}
	})
}

// TestIntegrationIndices guarantees what the store makes of the template: the
// settings and the mapping of each day's index are the ones that were asked for,
// also where the template was deleted and where the index is younger than it.
func TestIntegrationIndices(t *testing.T) {
	t.Parallel()
	estest.Each(t, func(t *testing.T, s *estest.Server) {
		store, prefix := onStore(t, s, func(c *esindex.Config) { c.Retention, c.Replicas, c.Refresh = 30, 1, 1500*time.Millisecond })
		for _, day := range []string{"2026.10.30", "2026.10.31"} {
			s.Call(http.MethodPut, prefix+"-"+day, nil, nil)
		}
		s.Call(http.MethodPut, prefix+"-2026.10.01-mine", nil, nil)
		if !store.MaintainOnce(t.Context()) {
			t.Fatal("housekeeping failed")
		}
		want := []string{prefix + "-2026.10.01-mine", prefix + "-2026.10.31", prefix + "-2026.11.30", prefix + "-2026.12.01"}
		if diff := cmp.Diff(want, s.Indices(prefix+"*")); diff != "" {
			t.Errorf("indices (-want +got):\n%s", diff)
		}
		var settings map[string]struct {
			Settings struct {
				Index struct {
					Shards   string `json:"number_of_shards"`
					Replicas string `json:"number_of_replicas"`
					Refresh  string `json:"refresh_interval"`
					Codec    string `json:"codec"`
					Mapping  struct {
						Total struct {
							Limit string `json:"limit"`
						} `json:"total_fields"`
					} `json:"mapping"`
				} `json:"index"`
			} `json:"settings"`
		}
		s.Call(http.MethodGet, prefix+"-2026.11.30/_settings", nil, &settings)
		got := settings[prefix+"-2026.11.30"].Settings.Index
		if got.Shards != "1" || got.Replicas != "1" || got.Refresh != "1500ms" || got.Codec != "best_compression" || got.Mapping.Total.Limit != "100" {
			t.Errorf("settings %+v", got)
		}
		fields := s.MappedFields(prefix + "-2026.11.30")
		if listed := len(usagedoc.Fields()) + 1; fields != listed { // and counters itself
			t.Errorf("%d mapped fields, want %d", fields, listed)
		}
		// A late event finds the bare index of its day, which an older release made.
		late := event(1)
		late.TS = noon.AddDate(0, 0, -30).UnixMicro()
		write(t, store, []usagedoc.Entry{entryOf(late)}, usagedoc.Created)
		if n := s.MappedFields(prefix + "-2026.10.31"); n != fields {
			t.Errorf("an index that was there has %d mapped fields, want %d", n, fields)
		}
		s.Call(http.MethodDelete, "_index_template/"+prefix, nil, nil)
		if !store.MaintainOnce(t.Context()) {
			t.Fatal("housekeeping failed")
		}
		s.Call(http.MethodGet, "_index_template/"+prefix, nil, nil)
	})
}

// TestIntegrationFC21HostileLabels guarantees case FC-21, and ten thousand more
// sets of labels that would like to be field names: all are indexed, the mapping
// does not grow, labels come back unchanged, and searches answer.
func TestIntegrationFC21HostileLabels(t *testing.T) {
	t.Parallel()
	estest.Each(t, func(t *testing.T, s *estest.Server) {
		store, prefix := onStore(t, s)
		write(t, store, entriesOf(1, nil), usagedoc.Created)
		index := prefix + "-2026.11.30"
		before := s.MappedFields(index)

		labelled := entriesOf(5003, func(i int, e *usagedoc.Event) { e.Labels = label(fmt.Sprintf("key-%d", i), "v") })[1:]
		labelled[5000] = entryOf(func() usagedoc.Event { e := event(5002); e.Labels = label("both", "text"); return e }())
		labelled[5001] = entryOf(func() usagedoc.Event { e := event(5003); e.Labels = label("both", "42"); return e }())
		write(t, store, labelled, usagedoc.Created)
		if n := s.Count(index); n != 5003 {
			t.Errorf("%d documents, want 5003", n)
		}
		hostile := entriesOf(15_003, func(i int, e *usagedoc.Event) { e.Labels = hostileLabels(i) })[5003:]
		write(t, store, hostile, usagedoc.Created)

		if n := s.MappedFields(index); n != before || n > 100 {
			t.Errorf("%d mapped fields after the labels, %d before, want the same and at most 100", n, before)
		}
		for _, i := range []int{0, 17, 4999, 5000, 5001} {
			wantSource(t, s, index, labelled[i])
		}
		for i := range 40 {
			wantSource(t, s, index, hostile[i])
		}
		hits, _ := s.Search(index, map[string]any{"query": map[string]any{"bool": map[string]any{"filter": []any{
			map[string]any{"term": map[string]any{"tenantId": "acme"}},
			map[string]any{"term": map[string]any{"labelPairs": "key-17=v"}},
			map[string]any{"range": map[string]any{"ts": map[string]any{"gte": "2026-11-30T12:00:00Z", "lt": "2026-11-30T13:00:00Z"}}},
		}}}})
		if len(hits) != 1 {
			t.Errorf("the query by tenant, hour and label finds %d documents, want 1", len(hits))
		}
		var answer struct{ Count int }
		s.Call(http.MethodPost, index+"/_count", map[string]any{"query": map[string]any{"bool": map[string]any{"filter": []any{
			map[string]any{"term": map[string]any{"tenantId": "acme"}},
			map[string]any{"range": map[string]any{"ts": map[string]any{"gte": "2026-11-30T12:00:00Z", "lt": "2026-11-30T13:00:00Z"}}},
		}}}}, &answer)
		if answer.Count != 15_003 {
			t.Errorf("the query by tenant and hour finds %d documents, want 15003", answer.Count)
		}
	})
}

func label(key, value string) string {
	b, _ := json.Marshal(map[string]string{key: value})
	return string(b)
}

// hostileLabels are labels of every kind that has ever hurt a mapping.
func hostileLabels(i int) string {
	names := []string{
		"", ".", "..", "...", "a..b", ".a", "a.", " ", "a.b.c.d.e.f.g", "_id", "_source", "_index", "_type", "_routing", "ts", "tenantId", "labels",
		"labels.x", "counters", "counters.key", "*", "**", "\x00", "\u2028", "\"", "\\", "{", "}", "[0]", "__proto__", "$where", "💥", "ı",
		strings.Repeat("k", 4000), strings.Repeat("a.", 500) + "b", "properties", "dynamic", "type", "null",
	}
	name := names[i%len(names)]
	value := names[(i/len(names)+i)%len(names)]
	if i%len(names) == i {
		return label(name, value)
	}
	b, _ := json.Marshal(map[string]string{name: value, fmt.Sprintf("%s.%d", name, i): "1", fmt.Sprintf("n%d", i): "2026-11-30"})
	return string(b)
}

// wantSource fails the test unless a document comes back as it was sent.
func wantSource(t *testing.T, s *estest.Server, index string, e usagedoc.Entry) {
	t.Helper()
	var got struct {
		Source map[string]any `json:"_source"`
	}
	s.Call(http.MethodGet, index+"/_doc/"+string(usagedoc.AppendUUID(nil, e.ID)), nil, &got)
	var want map[string]any
	if err := json.Unmarshal(e.Doc, &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.Source); diff != "" {
		t.Errorf("the document came back otherwise (-sent +got):\n%s", diff)
	}
}

// TestIntegrationFC22Times guarantees case FC-22: times of any fraction are
// found by their range and sort in their order, and a bare number is stored nowhere.
func TestIntegrationFC22Times(t *testing.T) {
	t.Parallel()
	estest.Each(t, func(t *testing.T, s *estest.Server) {
		store, prefix := onStore(t, s)
		var entries []usagedoc.Entry
		var ids []string
		for i, at := range []string{"2019-04-26T07:43:02Z", "2019-04-26T07:43:02.123456789Z", "2019-04-26T07:43:02.6Z"} {
			when, err := time.Parse(time.RFC3339Nano, at)
			if err != nil {
				t.Fatal(err)
			}
			e := event(i + 1)
			e.TS = when.UnixMicro()
			if r := usagedoc.WindowAt(noon, 0).Check(e.TS); r != "" {
				t.Fatalf("%s is %s", at, r)
			}
			entries, ids = append(entries, entryOf(e)), append(ids, string(usagedoc.AppendUUID(nil, e.EventID)))
		}
		write(t, store, []usagedoc.Entry{entries[2], entries[0], entries[1]}, usagedoc.Created)
		if r := usagedoc.WindowAt(noon, 0).Check(292278995); r != usagedoc.TooOld {
			t.Errorf("a bare number is %q at the door, want %q", r, usagedoc.TooOld)
		}
		// And behind the door: the mapping refuses it as well.
		for i, number := range []string{"292278995", `"292278995"`} {
			bad := usagedoc.Entry{ID: event(100 + i).EventID, Day: entries[0].Day, Doc: fmt.Appendf(nil, `{"ts":%s}`, number)}
			write(t, store, []usagedoc.Entry{bad}, usagedoc.Rejected)
		}
		hits, _ := s.Search(prefix+"-*", map[string]any{
			"query": map[string]any{"range": map[string]any{"ts": map[string]any{"gte": "2019-04-26T07:43:02Z", "lt": "2019-04-26T07:43:03Z"}}},
			"sort":  []any{map[string]any{"ts": "asc"}},
		})
		var got []string
		for _, h := range hits {
			got = append(got, h.ID)
		}
		if !slices.Equal(got, ids) {
			t.Errorf("found %v, want %v in this order", got, ids)
		}
		if n := s.Count(prefix + "-*"); n != 3 {
			t.Errorf("%d documents, want 3", n)
		}
		if names := s.Indices(prefix + "*"); !slices.Equal(names, []string{prefix + "-2019.04.26"}) {
			t.Errorf("indices %v, want the one of that day", names)
		}
	})
}

// TestIntegrationU1IdsAreNotJoined guarantees case U1: events whose other fields
// read the same when they are joined are two documents, and one that is delivered
// twice is one.
func TestIntegrationU1IdsAreNotJoined(t *testing.T) {
	t.Parallel()
	estest.Each(t, func(t *testing.T, s *estest.Server) {
		store, prefix := onStore(t, s)
		first, second := event(1), event(2)
		first.Tenant, first.User = "a-b", "c"
		second.Tenant, second.User = "a", "b-c"
		second.TS, second.StreamID, second.Sequence = first.TS, first.StreamID, first.Sequence
		write(t, store, []usagedoc.Entry{entryOf(first), entryOf(second)}, usagedoc.Created)
		write(t, store, []usagedoc.Entry{entryOf(first)}, usagedoc.Duplicate)
		hits, aggs := s.Search(prefix+"-*", map[string]any{"aggs": map[string]any{"quantity": map[string]any{"sum": map[string]any{"field": "cost"}}}})
		if sum := aggs["quantity"].(map[string]any)["value"]; len(hits) != 2 || sum != 2.0 {
			t.Errorf("%d documents of quantity %v, want 2 of 2", len(hits), sum)
		}
	})
}

// TestIntegrationRefusals guarantees that the stores' own refusals are taken for
// what they are: bad documents end alone, a state of the index is waited for.
func TestIntegrationRefusals(t *testing.T) {
	t.Parallel()
	estest.Each(t, func(t *testing.T, s *estest.Server) {
		store, prefix := onStore(t, s)
		index := prefix + "-2026.11.30"
		mixed := entriesOf(5, nil)
		mixed[1].Doc = []byte(`{"ts":"yesterday"}`)
		mixed[3].Doc = []byte(`{"ts":"2026-11-30T12:00:00.000000Z","cost":{"a":1}}`)
		outcomes, err := store.Write(t.Context(), mixed)
		if got := verdicts(outcomes); err != nil || got != "crcrc" {
			t.Fatalf("outcomes %s (%v), want those with bad fields refused", got, err)
		}
		if !strings.Contains(outcomes[1].Cause, "parsing_exception") {
			t.Errorf("refused for %q", outcomes[1].Cause)
		}
		n := 5
		for name, change := range map[string][2]string{
			"read-only": {index + `/_settings {"index.blocks.write":true}`, index + `/_settings {"index.blocks.write":false}`},
			"full disk": {index + `/_settings {"index.blocks.read_only_allow_delete":true}`, index + `/_settings {"index.blocks.read_only_allow_delete":null}`},
			"closed":    {index + `/_close`, index + `/_open`},
		} {
			call := func(c string) {
				path, body, _ := strings.Cut(c, " ")
				method := http.MethodPut
				if body == "" {
					method = http.MethodPost
				}
				var v any
				_ = json.Unmarshal([]byte(body), &v)
				s.Call(method, path, v, nil)
			}
			call(change[0])
			var done sync.WaitGroup
			more := entriesOf(n+3, nil)[n:]
			done.Go(func() { write(t, store, more, usagedoc.Created) })
			waitFor(t, name+" to be noticed", func() bool { return store.State() != "ok" })
			call(change[1])
			done.Wait()
			if store.State() != "ok" {
				t.Errorf("after %s the state is %s", name, store.State())
			}
			n += 3
		}
		if got := s.Count(index); got != n-2 {
			t.Errorf("%d documents, want %d", got, n-2)
		}
	})
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline, tick := time.After(time.Minute), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestIntegrationStoreThatFails guarantees that a store which is frozen, killed and
// short of room in the middle of writing costs time and nothing else: every
// document is there, once.
func TestIntegrationStoreThatFails(t *testing.T) {
	t.Parallel()
	for _, flavor := range estest.Flavors {
		t.Run(string(flavor), func(t *testing.T) {
			t.Parallel()
			s := estest.Start(t, flavor)
			store, prefix := onStore(t, s, func(c *esindex.Config) { c.Timeout, c.BatchDocs = 2*time.Second, 500 })
			const writers, each = 3, 8000
			all := entriesOf(writers*each, nil)
			var writing sync.WaitGroup
			for w := range writers {
				writing.Go(func() {
					for part := range slices.Chunk(all[w*each:(w+1)*each], 1000) {
						outcomes, err := store.Write(t.Context(), part)
						if left := strings.Trim(verdicts(outcomes), "cd"); err != nil || left != "" {
							t.Errorf("%d documents came to nothing (%v)", len(left), err)
							return
						}
					}
				})
			}
			done := make(chan struct{})
			go func() { writing.Wait(); close(done) }()
			count := func() int { // of an index that may not be there yet
				s.Try(http.MethodPost, prefix+"-*/_refresh", nil)
				var found struct{ Count int }
				_, answer := s.Try(http.MethodGet, prefix+"-*/_count", nil)
				_ = json.Unmarshal(answer, &found)
				return found.Count
			}
			waitFor(t, "documents", func() bool { return count() > 1000 })
			s.Freeze()
			waitFor(t, "the freeze to be noticed", func() bool { return store.State() == "retrying" })
			s.Thaw()
			thawed := count()
			waitFor(t, "more documents", func() bool { return count() > thawed })
			s.Kill()
			waitFor(t, "the kill to be noticed", func() bool { return store.State() == "retrying" })
			s.Restart()
			<-done
			if n := s.Count(prefix + "-*"); n != writers*each {
				t.Errorf("%d documents, want %d", n, writers*each)
			}

			// No room for one more shard: an operator's matter, not the document's.
			s.Call(http.MethodPut, "_cluster/settings", map[string]any{"persistent": map[string]any{"cluster.max_shards_per_node": 1}}, nil)
			late := event(1_000_000)
			late.TS -= (3 * 24 * time.Hour).Microseconds()
			writing.Go(func() { write(t, store, []usagedoc.Entry{entryOf(late)}, usagedoc.Created) })
			waitFor(t, "the want of room to be noticed", func() bool { return store.State() == "paused" })
			s.Call(http.MethodPut, "_cluster/settings", map[string]any{"persistent": map[string]any{"cluster.max_shards_per_node": nil}}, nil)
			writing.Wait()
		})
	}
}
