package esindex_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/services/usage-indexer/esindex"
	"penstock.dev/services/usage-indexer/esindex/storetest"
	"penstock.dev/services/usage-indexer/usagedoc"
)

// A template is what is looked at of one.
type template struct {
	Patterns []string `json:"index_patterns"`
	Version  int      `json:"version"`
	Template struct {
		Settings struct {
			Index map[string]any `json:"index"`
		} `json:"settings"`
		Mappings struct {
			Dynamic    any                       `json:"dynamic"`
			Properties map[string]map[string]any `json:"properties"`
		} `json:"mappings"`
	} `json:"template"`
}

func templateOf(t *testing.T, r *rig) template {
	t.Helper()
	var tpl template
	if err := json.Unmarshal(r.fake.Template(), &tpl); err != nil {
		t.Fatalf("template: %v", err)
	}
	return tpl
}

// TestTemplate guarantees how documents are kept: the settings that the knobs say,
// a type for every field by name, and nothing for a field that has none.
func TestTemplate(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *esindex.Config) { c.Replicas, c.Refresh = 2, 1500*time.Millisecond })
	if !r.MaintainOnce(t.Context()) {
		t.Fatalf("housekeeping failed:\n%s", r.log)
	}
	tpl := templateOf(t, r)
	if !slices.Equal(tpl.Patterns, []string{prefix + "-*.*.*"}) || tpl.Version < 1 {
		t.Errorf("template of %v, version %d", tpl.Patterns, tpl.Version)
	}
	want := map[string]any{
		"number_of_shards": 1.0, "number_of_replicas": 2.0, "refresh_interval": "1500ms", "codec": "best_compression",
		"mapping": map[string]any{"total_fields": map[string]any{"limit": 100.0}},
	}
	if diff := cmp.Diff(want, tpl.Template.Settings.Index); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	types := map[usagedoc.Type]map[string]any{
		usagedoc.Keyword: {"type": "keyword", "ignore_above": 8191.0},
		usagedoc.Date:    {"type": "date", "format": "strict_date_optional_time"},
		usagedoc.Whole:   {"type": "long"},
		usagedoc.Decimal: {"type": "double"},
		usagedoc.Flag:    {"type": "boolean"},
		usagedoc.Opaque:  {"type": "object", "enabled": false},
	}
	if tpl.Template.Mappings.Dynamic != false {
		t.Errorf("dynamic is %v, want false", tpl.Template.Mappings.Dynamic)
	}
	got := map[string]map[string]any{}
	for name, m := range tpl.Template.Mappings.Properties {
		inner, ok := m["properties"].(map[string]any)
		if !ok {
			got[name] = m
			continue
		}
		if m["dynamic"] != false {
			t.Errorf("%s is dynamic: %v", name, m["dynamic"])
		}
		for field, m := range inner {
			got[name+"."+field] = m.(map[string]any)
		}
	}
	fields := map[string]map[string]any{}
	for _, f := range usagedoc.Fields() {
		fields[f.Name] = types[f.Type]
	}
	if diff := cmp.Diff(fields, got); diff != "" {
		t.Errorf("mapping (-want +got):\n%s", diff)
	}
}

// TestTemplateIsKept guarantees that the template comes back when it was deleted,
// that new knobs and new releases replace it, and that an older release does not
// take a newer one's away.
func TestTemplateIsKept(t *testing.T) {
	t.Parallel()
	puts := func(r *rig) int {
		n := 0
		for _, req := range r.fake.Requests() {
			if req == "PUT /_index_template/"+prefix {
				n++
			}
		}
		return n
	}
	r := newRig(t)
	for range 3 {
		r.MaintainOnce(t.Context())
	}
	if n := puts(r); n != 1 {
		t.Errorf("the template was put %d times, want once", n)
	}
	r.fake.SetTemplate(nil)
	r.MaintainOnce(t.Context())
	if n := puts(r); n != 2 || r.fake.Template() == nil {
		t.Errorf("a template that was deleted was put back %d times", n-1)
	}
	other := newRig(t, func(c *esindex.Config) { c.Refresh, c.Transport = time.Second, r.fake })
	other.MaintainOnce(t.Context())
	if got := templateOf(t, r).Template.Settings.Index["refresh_interval"]; got != "1000ms" {
		t.Errorf("refresh_interval is %v after a start with 1s", got)
	}
	before := puts(r)
	r.MaintainOnce(t.Context())
	other.MaintainOnce(t.Context())
	if n := puts(r) - before; n != 0 {
		t.Errorf("two instances with different knobs put the template %d more times", n)
	}
	for version, replaced := range map[string]bool{`"version":0`: true, `"version":1000`: false} {
		mine := newRig(t, func(c *esindex.Config) { c.Transport = r.fake })
		r.fake.SetTemplate(json.RawMessage(`{` + version + `}`))
		mine.MaintainOnce(t.Context())
		if got := len(r.fake.Template()) > 100; got != replaced {
			t.Errorf("a template with %s was replaced: %v, want %v", version, got, replaced)
		}
	}
}

// TestIndicesAreMadeBeforehand guarantees that no bulk request makes an index: not
// those of today and tomorrow, and not those of late events.
func TestIndicesAreMadeBeforehand(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.MaintainOnce(t.Context())
	if got, want := r.fake.Indices(), []string{prefix + "-2026.11.30", prefix + "-2026.12.01"}; !slices.Equal(got, want) {
		t.Errorf("indices %v, want those of today and tomorrow", got)
	}
	late := batch(3)
	late[0].Day -= 2
	late[2].Day -= 5
	outcomes, err := r.Write(t.Context(), late) // the fake refuses documents of no index
	if got := verdicts(outcomes); err != nil || got != "ccc" {
		t.Errorf("outcomes %s (%v)", got, err)
	}
	if calls := r.fake.Calls(); len(calls) != 1 {
		t.Errorf("%d requests, want one", len(calls))
	}
	if got := r.fake.Indices(); len(got) != 4 || got[0] != prefix+"-2026.11.25" {
		t.Errorf("indices %v", got)
	}
}

// TestIndexThatVanished guarantees that an index which was deleted while the
// service knew of it is made again.
func TestIndexThatVanished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		if _, err := r.Write(t.Context(), batch(1)); err != nil {
			t.Fatal(err)
		}
		req, err := httpDelete(t.Context(), "/"+prefix+"-2026.11.30")
		if err != nil {
			t.Fatal(err)
		}
		resp, err := r.fake.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		outcomes, err := r.Write(t.Context(), batch(2))
		if got := verdicts(outcomes); err != nil || got != "cc" {
			t.Errorf("outcomes %s (%v)", got, err)
		}
	})
}

// TestStoreThatIsNotThere guarantees that writing waits while indices cannot be
// made, whatever the reason, and that an index which is there is enough.
func TestStoreThatIsNotThere(t *testing.T) {
	t.Parallel()
	for name, item := range map[string]storetest.Item{
		"unavailable":  {Status: 503, Type: "master_not_discovered_exception", Reason: "no master"},
		"no shards":    {Status: 400, Type: "validation_exception", Reason: "maximum shards open"},
		"no rights":    {Status: 403, Type: "security_exception", Reason: "unauthorized"},
		"a full queue": {Status: 429, Type: "es_rejected_execution_exception", Reason: "full"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				var mended atomic.Bool
				r.fake.Refuse(func(method, _ string) *storetest.Item {
					if method == "PUT" && !mended.Load() {
						return &item
					}
					return nil
				})
				time.AfterFunc(time.Hour, func() { mended.Store(true) })
				began := time.Now()
				outcomes, err := r.Write(t.Context(), batch(2))
				if got := verdicts(outcomes); err != nil || got != "cc" || time.Since(began) < time.Hour {
					t.Errorf("outcomes %s (%v) after %v", got, err, time.Since(began))
				}
			})
		})
	}
	r := newRig(t)
	r.MaintainOnce(t.Context())
	again := newRig(t, func(c *esindex.Config) { c.Transport = r.fake })
	r.fake.Refuse(func(method, path string) *storetest.Item {
		if method == "PUT" && strings.HasSuffix(path, "_mapping") {
			return &storetest.Item{Status: 400, Type: "illegal_argument_exception", Reason: "mapper [ts] cannot be changed from type [text] to [date]"}
		}
		return nil
	})
	if outcomes, err := again.Write(t.Context(), batch(1)); err != nil || verdicts(outcomes) != "c" {
		t.Errorf("an index with another mapping: %s (%v)", verdicts(outcomes), err)
	}
	if !strings.Contains(again.log.String(), "another mapping") {
		t.Errorf("the log does not tell of it:\n%s", again.log)
	}
}

// TestRetention guarantees that the indices of days beyond the retention are
// deleted, and nothing else whatever it is called.
func TestRetention(t *testing.T) {
	t.Parallel()
	kept := []string{
		prefix + "-2026.10.31", prefix + "-2026.11.30", prefix + "-2026.12.01", prefix + "-2026.10.01-old", prefix + "-2026-10-01",
		prefix + "-rollup-2026.10.01", prefix + "-2026.02.30", prefix + "-2026.1.1", "other-2026.10.01", prefix,
	}
	r := newRig(t)
	for _, index := range append([]string{prefix + "-2026.10.30", prefix + "-2025.01.01", prefix + "-1999.12.31"}, kept...) {
		r.fake.Make(index)
	}
	if !r.MaintainOnce(t.Context()) {
		t.Fatalf("housekeeping failed:\n%s", r.log)
	}
	slices.Sort(kept)
	if diff := cmp.Diff(kept, r.fake.Indices()); diff != "" {
		t.Errorf("indices (-want +got):\n%s", diff)
	}
	r.shows(t, "penstock_usage_indexer_deleted_indices_total", 3)

	forEver := newRig(t, func(c *esindex.Config) { c.Retention = 0 })
	forEver.fake.Make(prefix + "-2001.01.01")
	forEver.MaintainOnce(t.Context())
	if !slices.Contains(forEver.fake.Indices(), prefix+"-2001.01.01") {
		t.Error("retention 0 deleted an index")
	}
}

// TestRetentionOfTwo guarantees that an index which another instance has just
// deleted is no fault, and that one which cannot be deleted is told of and tried
// again.
func TestRetentionOfTwo(t *testing.T) {
	t.Parallel()
	for status, done := range map[int]bool{404: true, 403: false} {
		r := newRig(t)
		r.fake.Make(prefix + "-2026.01.01")
		r.fake.Refuse(func(method, _ string) *storetest.Item {
			if method == "DELETE" {
				return &storetest.Item{Status: status, Type: "x_exception"}
			}
			return nil
		})
		if got := r.MaintainOnce(t.Context()); got != done {
			t.Errorf("DELETE answered %d: done %v, want %v", status, got, done)
		}
	}
}

// TestMaintain guarantees that housekeeping goes on for as long as the service
// does, and soon after it failed: at midnight the next day's index is there.
func TestMaintain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		start := time.Now()
		r.Clock(func() time.Time { return noon.Add(time.Since(start)) })
		var back atomic.Bool
		r.fake.Refuse(func(string, string) *storetest.Item {
			if !back.Load() {
				return &storetest.Item{Status: 503}
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Maintain(ctx) }()
		time.Sleep(time.Minute + time.Second)
		r.shows(t, "penstock_usage_indexer_maintenance_failures_total{task=template}", 5)
		back.Store(true)
		time.Sleep(time.Minute)
		if got := r.fake.Indices(); len(got) != 2 {
			t.Errorf("indices %v a minute after the store came back", got)
		}
		time.Sleep(13 * time.Hour)
		if got := r.fake.Indices(); !slices.Contains(got, prefix+"-2026.12.02") {
			t.Errorf("indices %v at one in the night", got)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Maintain = %v", err)
		}
	})
}
