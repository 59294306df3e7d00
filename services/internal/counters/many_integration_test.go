//go:build integration

package counters_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/redistest"
)

// TestIntegrationDecideAll guarantees that the decisions of one caller are made
// in order, each against what those before it left, in as few calls as there
// can be, and that one which cannot be counted spoils no other.
func TestIntegrationDecideAll(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, span := openStore(t, server.URL, generous), month(time.Now())
	decide(t, s, quota("acme", span, 10, 0))
	client := server.Client()
	for _, tt := range []struct{ decisions, charges, calls int }{
		{0, 1, 0}, {1, 1, 1}, {100, 1, 1}, {100, 6, 1}, {100, 100, 10}, {3, 255, 1}, {5, 255, 2},
	} {
		who := fmt.Sprint(tt)
		decisions := make([]limit.Decision, tt.decisions)
		for i := range decisions {
			decisions[i].Charges = []limit.Charge{quota(who, span, 40, 1)}
			for k := range tt.charges - 1 {
				decisions[i].Charges = append(decisions[i].Charges, gcra(fmt.Sprint(who, k), 1000, time.Hour, 1000, 1))
			}
		}
		if tt.decisions > 7 {
			decisions[7].Charges[0].Cost = -1
		}
		if err := client.ConfigResetStat(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		answers, errs := s.DecideAll(t.Context(), decisions)
		if len(answers) != tt.decisions || len(errs) != tt.decisions {
			t.Fatalf("%d answers and %d errors for %d decisions", len(answers), len(errs), tt.decisions)
		}
		used := int64(0)
		for i, a := range answers {
			if i == 7 && tt.decisions > 7 {
				if !errors.Is(errs[i], limit.ErrBounds) {
					t.Errorf("%s: decision 7: %v, want ErrBounds", who, errs[i])
				}
				continue
			}
			if used < 40 {
				used++
			}
			if errs[i] != nil || a.Results[0].Consumed != used || a.Allowed != (i < 40 || i == 40 && tt.decisions > 7) {
				t.Fatalf("%s: decision %d: %+v, %v; want %d used", who, i, a, errs[i], used)
			}
		}
		stats, err := client.Info(t.Context(), "commandstats").Result()
		if want := fmt.Sprintf("cmdstat_evalsha:calls=%d,", tt.calls); err != nil || tt.calls > 0 && !strings.Contains(stats, want) || tt.calls == 0 && strings.Contains(stats, "evalsha") {
			t.Errorf("%s: want %d calls: %s", who, tt.calls, stats)
		}
	}
}

// TestIntegrationDecideAllKeepsTheBudget guarantees one budget for all of a
// caller's decisions, however many calls they would take.
func TestIntegrationDecideAllKeepsTheBudget(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openStore(t, server.URL, budget)
	server.Freeze()
	decisions := make([]limit.Decision, 50)
	for i := range decisions {
		for k := range 255 {
			decisions[i].Charges = append(decisions[i].Charges, gcra(fmt.Sprint(k), 1000, time.Hour, 1000, 1))
		}
	}
	encoding := time.Now()
	for i := range decisions {
		if _, err := counters.NewPart(&decisions[i]); err != nil {
			t.Fatal(err)
		}
	}
	own := time.Since(encoding)
	pulse, began := newPulse(), time.Now()
	_, errs := s.DecideAll(t.Context(), decisions)
	if took, slack := time.Since(began), 4*pulse.worst()+2*own; took > budget+100*time.Millisecond+slack {
		t.Errorf("answered after %v, want %v and at most %v of the machine's own", took, budget, slack)
	}
	for i, err := range errs {
		if !errors.Is(err, counters.ErrUnavailable) {
			t.Errorf("decision %d: %v, want ErrUnavailable", i, err)
		}
	}
}
