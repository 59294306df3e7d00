package proof

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"penstock.dev/deploy/local/estate"
)

// checkpointer is the process that restores a counter store.
const checkpointer = "checkpointer"

// wipeable says whether Redis may be emptied, and somebody restores it.
func wipeable(ctx context.Context, s *stage) string {
	if s.Process(checkpointer) == nil {
		return checkpointer
	}
	return ownRedis(ctx, s)
}

// What is spent before Redis is emptied, of a quota and of a wallet alike.
const (
	wipedLimit = 1000
	wipedSpent = 850
	wipedBack  = 50 // of that, given back
)

// restorers are the instances that restore at the same time, beside the estate's.
const restorers = 6

// redisWiped spends most of a quota and a wallet, empties Redis under a running
// system, and looks at what seven checkpointers make of it.
func redisWiped(ctx context.Context, s *stage) (f Finding, err error) {
	w := wipe{s: s, tenant: s.named("wiped")}
	if err := w.spend(ctx); err != nil {
		return f, err
	}
	stop, err := s.Twins(ctx, checkpointer, restorers)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, stop(context.WithoutCancel(ctx))) }()
	if err := w.empty(ctx); err != nil {
		return f, err
	}
	if w.restored, err = w.inStore(ctx); err != nil {
		return f, err
	}
	if err := w.settle(ctx); err != nil {
		return f, err
	}
	if w.later, err = w.inStore(ctx); err != nil {
		return f, err
	}
	if err := w.useUp(ctx); err != nil {
		return f, err
	}
	return w.judge(), nil
}

// A wipe is what a store held before it was emptied, and after.
type wipe struct {
	s      *stage
	tenant string

	before, restored, later []string // counters, as rule-admin reads them from Redis
	away, passed            int      // questions answered without the store; and those of them that passed
	took                    time.Duration
	last                    string // what the rest of the quota and one unit more are answered
}

// spend charges a quota and a wallet of one tenant together, and gives a part back.
func (w *wipe) spend(ctx context.Context) error {
	objects := append(w.s.prepaid("wiped", "Wiped"), object{"rules", w.tenant + "-quota", estate.Object{
		"kind": "quota", "algorithm": "quota", "subject": []string{"tenant"}, "match": estate.Object{"tenant": w.tenant}, "meter": "units",
		"limit": wipedLimit, "period": estate.Object{"unit": "year", "count": 100, "zone": "UTC"}, "on_failure": "closed",
	}})
	if err := w.s.enforce(ctx, objects...); err != nil {
		return err
	}
	if err := w.s.topUp(ctx, w.tenant, "once", 2*wipedLimit, 2*wipedLimit); err != nil {
		return err
	}
	d := w.s.Deciders()[0]
	for _, cost := range []int{wipedSpent - wipedBack, wipedBack} {
		got, err := d.Decide(ctx, estate.Object{"tenant": w.tenant, "cost": cost})
		if err == nil && cost == wipedBack {
			err = d.Refund(ctx, got)
		}
		if err != nil {
			return err
		}
	}
	var err error
	w.before, err = w.inStore(ctx)
	return err
}

// inStore shows the tenant's counters as they are in Redis: rule-admin reads them
// there and, unlike a gateway, remembers nothing of them.
func (w *wipe) inStore(ctx context.Context) ([]string, error) {
	usage, _, err := w.s.admin.Get(ctx, "tenants", w.tenant+"/usage")
	if err != nil {
		return nil, err
	}
	counters, _ := usage["counters"].([]any)
	var all []string
	for _, c := range counters {
		if o, ok := c.(map[string]any); ok {
			all = append(all, fmt.Sprintf("%v %v − %v", o["kind"], o["consumed"], o["refunded"]))
		}
	}
	return all, nil
}

// empty empties Redis and looks, without charging, until every gateway decides
// with it again.
func (w *wipe) empty(ctx context.Context) error {
	c, err := dialRedis(ctx, w.s.Env["REDIS_URL"])
	if err != nil {
		return err
	}
	defer c.close()
	begun := time.Now()
	if _, err := c.do("FLUSHALL"); err != nil {
		return err
	}
	err = w.s.await(ctx, 30*time.Second, func(ctx context.Context) error {
		for _, d := range w.s.Deciders() {
			got, err := d.Decide(ctx, estate.Object{"tenant": w.tenant, "cost": 0})
			if err != nil {
				return err
			}
			if got.Degraded {
				w.away++
				if got.Status == http.StatusOK {
					w.passed++
				}
				return fmt.Errorf("%s decides without its store", d.URL)
			}
		}
		return nil
	})
	w.took = time.Since(begun)
	return err
}

// settle waits until all restorers have looked at the store some times more.
func (w *wipe) settle(ctx context.Context) error {
	return (clock{}).until(ctx, time.Now().Add(2*time.Second))
}

// useUp spends what is left of the quota, and one unit more.
func (w *wipe) useUp(ctx context.Context) error {
	for _, cost := range []int{wipedLimit - wipedSpent + wipedBack, 1} {
		got, err := w.s.Deciders()[0].Decide(ctx, estate.Object{"tenant": w.tenant, "cost": cost})
		if err != nil {
			return err
		}
		w.last = strings.TrimSpace(fmt.Sprintf("%s, %d %s", w.last, got.Status, got.Code))
	}
	w.last = strings.TrimPrefix(w.last, ", ")
	return nil
}

func (w *wipe) judge() Finding {
	want := fmt.Sprintf("quota %d − %d, wallet %d − %d", wipedSpent, wipedBack, wipedSpent, wipedBack)
	shown := func(counters []string) string { return strings.Join(slices.Sorted(slices.Values(counters)), ", ") }
	const last = "200, 429 quota-exceeded"
	return Finding{
		Done: fmt.Sprintf("%d of a quota of %d and of a wallet spent, %d of that given back; %d more checkpointers started; Redis emptied (FLUSHALL) under the running system; the counters read from Redis, and again 2 s later; then the rest of the quota spent, and one unit more",
			wipedSpent, wipedLimit, wipedBack, restorers),
		Expected: fmt.Sprintf("nothing passes until the store is restored; then %s, and the same later; in the end %s", want, last),
		Measured: fmt.Sprintf("%d of %d questions passed until the store was restored, %s after it was emptied; then %s; later %s; in the end %s",
			w.passed, w.away, span(w.took), shown(w.restored), shown(w.later), w.last),
		Badges: []Badge{
			{"passed meanwhile", fmt.Sprint(w.passed), Good},
			{"restored after", span(w.took), Plain},
			{"restored", shown(w.restored), Good},
			{"in the end", w.last, Good},
		},
		Held: w.passed == 0 && shown(w.before) == want && shown(w.restored) == want && shown(w.later) == want && w.last == last,
	}
}
