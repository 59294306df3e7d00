package proof

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"penstock.dev/deploy/local/estate"
)

// The failure modes side by side: a limit of so many an hour, of which so many
// are spent before Redis stops.
const (
	outageLimit  = 12
	outageBefore = 4
	outageAsked  = 30
)

func modes() []string { return []string{"open", "closed", "local"} }

// redisStopped asks under three rules, stops Redis, asks again, starts it again
// and looks at what is left.
func redisStopped(ctx context.Context, s *stage) (Finding, error) {
	var objects []object
	for _, mode := range modes() {
		id := s.named("outage-" + mode)
		objects = append(objects, s.tenant("outage-"+mode, "Outage, "+mode), object{"rules", id, estate.Object{
			"kind": "rate", "algorithm": "sliding_window_log", "subject": []string{"tenant"}, "match": estate.Object{"tenant": id},
			"limit": outageLimit, "window": "1h", "on_failure": mode,
		}})
	}
	if err := s.enforce(ctx, objects...); err != nil {
		return Finding{}, err
	}
	before, err := s.askModes(ctx, outageBefore)
	if err != nil {
		return Finding{}, err
	}
	var during map[string][]estate.Decision
	var away time.Duration
	stopping := time.Now()
	err = s.Without(ctx, estate.Redis, func() error {
		begun := time.Now()
		during, err = s.askModes(ctx, outageAsked)
		away = time.Since(begun)
		return err
	})
	if err != nil {
		return Finding{}, err
	}
	down := time.Since(stopping)
	back, err := s.awaitStore(ctx)
	if err != nil {
		return Finding{}, err
	}
	after, err := s.askModes(ctx, 1)
	if err != nil {
		return Finding{}, err
	}
	return judgeOutage(before, during, after, len(s.Deciders()), outage{away, down, back}), nil
}

// An outage is how long it took: to ask during it, from the stop to the start, and
// from that until every gateway counted again.
type outage struct{ asking, down, back time.Duration }

// askModes asks n times under each mode, of each gateway in turn.
func (s *stage) askModes(ctx context.Context, n int) (map[string][]estate.Decision, error) {
	all, ds := map[string][]estate.Decision{}, s.Deciders()
	for i := range n {
		for _, mode := range modes() {
			got, err := ds[i%len(ds)].Decide(ctx, estate.Object{"tenant": s.named("outage-" + mode)})
			if err != nil {
				return nil, err
			}
			all[mode] = append(all[mode], got)
		}
	}
	return all, nil
}

// awaitStore waits until no gateway's answers are degraded, neither of rates nor
// of wallets, which need a store that somebody vouches for.
func (s *stage) awaitStore(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	err := s.await(ctx, 30*time.Second, func(ctx context.Context) error {
		for _, d := range s.Deciders() {
			for _, tenant := range []string{s.named("outage-closed"), s.named("overdrawn"), s.named("month")} {
				got, err := d.Decide(ctx, estate.Object{"tenant": tenant, "cost": 0})
				if err != nil {
					return err
				}
				if got.Degraded {
					return fmt.Errorf("%s answers without its store: %d %s", d.URL, got.Status, got.Code)
				}
			}
		}
		return nil
	})
	return time.Since(begun), err
}

// judgeOutage holds what was answered before, during and after against the modes.
func judgeOutage(before, during, after map[string][]estate.Decision, gateways int, o outage) Finding {
	local := max(1, outageLimit/gateways) * gateways
	want := fmt.Sprintf("open %d × 200; closed %d × 503; local %d × 200, %d × 429; all marked degraded; then %d left of each",
		outageAsked, outageAsked, local, outageAsked-local, outageLimit-outageBefore-1)
	held := true
	for _, mode := range modes() {
		for _, d := range during[mode] {
			held = held && d.Degraded
		}
		for _, d := range append(before[mode], after[mode]...) {
			held = held && d.Status == http.StatusOK && !d.Degraded
		}
	}
	marked := "all marked degraded"
	if !held {
		marked = "not each marked as it was"
	}
	left := map[string]int64{}
	for _, mode := range modes() {
		left[mode] = -1
		for _, d := range after[mode] {
			for _, l := range d.Limits {
				left[mode] = l.Remaining
			}
		}
		held = held && left[mode] == outageLimit-outageBefore-1
	}
	remains := fmt.Sprintf("%d left of each", left["open"])
	if left["open"] != left["closed"] || left["open"] != left["local"] {
		remains = fmt.Sprintf("%d, %d and %d left", left["open"], left["closed"], left["local"])
	}
	got := fmt.Sprintf("open %s; closed %s; local %s; %s; then %s",
		tallied(statuses(during["open"])), tallied(statuses(during["closed"])), tallied(statuses(during["local"])), marked, remains)
	return Finding{
		Done: fmt.Sprintf("three rules of %d an hour that differ in on_failure, %d spent of each; Redis stopped, %d more asked of each; Redis started again, one more",
			outageLimit, outageBefore, outageAsked),
		Expected: want,
		Measured: fmt.Sprintf("%s (%d answers in %s without Redis; away for %s; counting again %s after its start)",
			got, 3*outageAsked, span(o.asking), span(o.down), span(o.back)),
		Badges: []Badge{
			{"open", tallied(statuses(during["open"])), Warned},
			{"closed", tallied(statuses(during["closed"])), Bad},
			{"local", tallied(statuses(during["local"])), Warned},
			{"back after", span(o.back), Good},
		},
		Held: held && got == want,
	}
}

func statuses(all []estate.Decision) []int {
	out := make([]int, len(all))
	for i, d := range all {
		out[i] = d.Status
	}
	return out
}
