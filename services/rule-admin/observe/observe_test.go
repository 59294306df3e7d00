package observe_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/catalog/catalogtest"
	"penstock.dev/services/rule-admin/ledger"
	"penstock.dev/services/rule-admin/ledger/ledgertest"
	"penstock.dev/services/rule-admin/observe"
)

// values reads every sample; of a histogram its count.
func values(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			switch {
			case m.GetCounter() != nil:
				out[name] = m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				out[name] = m.GetGauge().GetValue()
			case m.GetHistogram() != nil:
				out[name] = float64(m.GetHistogram().GetSampleCount())
				out[name+" sum"] = m.GetHistogram().GetSampleSum()
			}
		}
	}
	return out
}

// TestMetrics guarantees what an exposed value means, and its unit.
func TestMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := observe.New(reg)
	m.Request("put", "rule", 201, 1500*time.Millisecond)
	m.Request("put", "rule", 204, time.Second)
	m.Request("none", "", 404, time.Second)
	m.Request("get", "rule", 0, time.Second) // the client left before an answer
	m.Outbox(12, 3, 5, 99)
	m.Outbox(11, 2, 1, 100)
	got := values(t, reg)
	for name, want := range map[string]float64{
		"penstock_rule_admin_requests_total rule put 2xx":  2,
		"penstock_rule_admin_requests_total  none 4xx":     1,
		"penstock_rule_admin_requests_total rule get none": 1,
		"penstock_rule_admin_request_seconds put":          2,
		"penstock_rule_admin_request_seconds put sum":      2.5,
		"penstock_rule_admin_outbox_rows":                  11,
		"penstock_rule_admin_outbox_prunable_rows":         2,
		"penstock_rule_admin_outbox_pruned_total":          6,
		"penstock_rule_admin_revision":                     100,
		"penstock_rule_admin_change_seconds committed":     0,
		"penstock_rule_admin_change_seconds unavailable":   0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s = %v (%v), want %v", name, v, ok, want)
		}
	}
}

// TestStore guarantees that each change is counted once, by how it ended, and
// that its error goes through untouched.
func TestStore(t *testing.T) {
	t.Parallel()
	memory := catalogtest.NewMemory(time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC))
	reg := prometheus.NewRegistry()
	store := observe.New(reg).Store(memory)
	boom := errors.New("boom")
	for _, want := range []error{
		nil, catalog.ErrUnavailable, catalog.ErrNoSchema, catalog.ErrInvalid, catalog.ErrNotFound, catalog.ErrInUse, catalog.ErrConflict,
		catalog.ErrStale, catalog.ErrConditionRequired, boom,
	} {
		err := store.Change(t.Context(), catalog.KindTenant, "acme", nil, func(context.Context, catalog.Tx, catalog.Moment, *catalog.Object) (catalog.Change, error) {
			if want != nil {
				return catalog.Change{}, fmt.Errorf("wrapped: %w", want)
			}
			return catalog.Change{After: &catalog.Object{Kind: catalog.KindTenant, ID: "acme", Body: &catalog.Tenant{}}}, nil
		})
		if !errors.Is(err, want) {
			t.Errorf("Change = %v, want %v", err, want)
		}
	}
	got := values(t, reg)
	for result, want := range map[string]float64{"committed": 1, "unavailable": 2, "refused": 6, "failed": 1} {
		if n := got["penstock_rule_admin_change_seconds "+result]; n != want {
			t.Errorf("%v changes ended %s, want %v", n, result, want)
		}
	}
	if o, err := store.Object(t.Context(), catalog.KindTenant, "acme"); err != nil || o.ID != "acme" {
		t.Errorf("Object = %v, %v: what is not timed goes through", o, err)
	}
}

// TestTopUps guarantees that each top-up is counted once, by how it ended, that
// its turn is timed as a change, and that what is overdue is shown.
func TestTopUps(t *testing.T) {
	t.Parallel()
	books := ledgertest.NewMemory(time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC), "acme")
	reg := prometheus.NewRegistry()
	m := observe.New(reg)
	l := m.Ledger(ledger.New(m.Books(books), nil, nil))
	top := func(key string, units int64, want error) {
		t.Helper()
		if _, _, err := l.TopUp(t.Context(), ledger.Request{ID: key, Tenant: "acme", Key: key, Meter: "credits", Units: units}); !errors.Is(err, want) {
			t.Errorf("TopUp = %v, want %v", err, want)
		}
	}
	top("a", 5, nil)
	top("b", 5, nil)
	top("a", 5, nil)
	top("a", 6, catalog.ErrInvalid)
	top("c", rule.Unlimited, catalog.ErrInvalid)
	boom := errors.New("boom")
	books.Fail(boom)
	top("d", 5, boom)
	books.Fail(fmt.Errorf("wrapped: %w", catalog.ErrUnavailable))
	top("d", 5, catalog.ErrUnavailable)
	m.Overdue(3)
	m.Overdue(2)
	got := values(t, reg)
	for name, want := range map[string]float64{
		"penstock_rule_admin_topups_total committed": 2, "penstock_rule_admin_topups_total replayed": 1, "penstock_rule_admin_topups_total refused": 2,
		"penstock_rule_admin_topups_total failed": 1, "penstock_rule_admin_topups_total unavailable": 1, "penstock_rule_admin_topups_overdue": 2,
		"penstock_rule_admin_change_seconds committed": 2, "penstock_rule_admin_change_seconds refused": 1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s = %v (%v), want %v", name, v, ok, want)
		}
	}
	books.Fail(nil)
	if list, err := l.List(t.Context(), "acme", 0, 10); err != nil || len(list) != 2 {
		t.Errorf("List = %v, %v: what is not counted goes through", list, err)
	}
}
