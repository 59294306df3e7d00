//go:build integration

package counters_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/redistest"
	"penstock.dev/services/internal/rule"
)

// generous is a budget that a busy machine keeps: these tests ask what is
// decided, not how soon.
const generous = 10 * time.Second

// TestIntegrationScriptAgreesWithModel guarantees that the script Redis runs
// and limit.Decide are one thing: the same random batches get the same
// answers from both, and so does every refused decision one microsecond
// before and exactly at its wait.
func TestIntegrationScriptAgreesWithModel(t *testing.T) {
	t.Parallel()
	client := redistest.Client(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	reached, err := differ(t.Context(), client, counters.DecideText(), seed, 150)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("reached %+v", reached)
	if share := reached["allowed"] * 100 / reached["decided"]; share < 20 || share > 80 {
		t.Errorf("%d %% of decisions were allowed: the generator no longer tests both answers", share)
	}
	for _, what := range []string{"stale", "replayed", "conflict", "charged", "soft refused", "shadow refused", "twice on one counter", "changed numbers", "passed after its wait", "refused before its wait", "never", "clock went back"} {
		if reached[what] == 0 {
			t.Errorf("no decision was %s", what)
		}
	}
}

// faults are changes to the script that the differential test must notice.
var faults = []struct{ name, old, new string }{
	{"a wait rounded down", "local wait = ceil(over / c.refill)", "local wait = floor(over / c.refill)"},
	{"a wait off by one tick", "return (tick + wait) * c.tick - now", "return (tick + wait + 1) * c.tick - now"},
	{"a wait counted from now, not from the tick", "return (tick + wait) * c.tick - now", "return wait * c.tick"},
	{"the last unit refused", "if over <= 0 then return 0 end", "if over < 0 then return 0 end"},
	{"one credit too many", "if over <= 0 then return 0 end", "if over <= 1 then return 0 end"},
	{"exactly the burst never fits", "if units > c.capacity then return -1 end", "if units >= c.capacity then return -1 end"},
	{"fractions thrown away", "s.unit, s.at = c.unit, tick * c.tick", "s.unit, s.at = c.unit, now"},
	{"pays back once too often", "return min(debt - elapsed * c.refill, c.full), c.now", "return min(debt - (elapsed + 1) * c.refill, c.full), c.now"},
	{"a clock that went back pays again", "if elapsed <= 0 then return min(debt, c.full), at end", "if elapsed <= 0 then return min(debt, c.full), c.now end"},
	{"other credits taken for ours", "if s.unit ~= c.unit then debt = carry(debt, s.unit, c) end", ""},
	{"carried debt rounded down", "return whole * c.unit + min(c.unit, ceil(", "return whole * c.unit + min(c.unit, floor("},
	{"a lowered burst leaves more than full", "if whole >= c.capacity then return c.full end", ""},
	{"remaining rounded up", "local remaining = c.capacity - ceil(debt / c.unit)", "local remaining = c.capacity - floor(debt / c.unit)"},
	{"the next rise off by one", "local rise = debt - (c.capacity - remaining - 1) * c.unit", "local rise = debt - (c.capacity - remaining) * c.unit"},
	{"waits beyond any clock", "if wait > floor(MAX_WAIT / c.tick) then return -1 end", ""},
	{"a soft charge past the burst", "s.debt = units < c.capacity and min(c.full, debt + units * c.unit) or c.full", "s.debt = debt + units * c.unit"},
	{"a limit of 0 forgets", "if c.capacity == 0 then return false end", "if c.capacity == 0 then s.debt, s.at = 0, 0 return true end"},

	{"one unit over the quota", "if units <= room or", "if units <= room + 1 or"},
	{"the quota's last unit refused", "if units <= room or", "if units < room or"},
	{"refunds forgotten", "local room = min(c.limit - (s.consumed - s.refunded),", "local room = min(c.limit - s.consumed,"},
	{"refunds shown twice", "max(0, c.limit - (s.consumed - s.refunded))", "max(0, c.limit - s.consumed + 2 * s.refunded)"},
	{"never for what the next period sells", "if units > c.limit then return -1 end", "if units >= c.limit then return -1 end"},
	{"counts past 2^53", "s.consumed = s.consumed + min(units, UNLIMITED - s.consumed)", "s.consumed = s.consumed + units"},
	{"an unlimited quota refuses", "or c.limit == UNLIMITED then", "then"},
	{"remaining below zero", "min(c.limit, max(0, c.limit - (s.consumed - s.refunded)))", "min(c.limit, c.limit - (s.consumed - s.refunded))"},
	{"the wait of the other end", "return c.till - now\n  end", "return now - c.from\n  end"},

	{"all-or-nothing forgotten", "charged = allowed and take(n)", "charged = take(n)"},
	{"soft forgotten", "soft = flags % 2 == 1", "soft = false"},
	{"shadow forgotten", "shadow = flags >= 2", "shadow = false"},
	{"a shadow refusal charges", "and (ch.passed or ch.soft) then", "and (ch.passed or ch.soft or ch.shadow) then"},
	{"charges on one counter each on their own", "min(EXACT, s.asked + c.cost)", "c.cost"},
	{"a refused shadow counts", "if ch.passed or ch.soft or not ch.shadow then s.asked", "if true then s.asked"},
	{"a cost of 0 is asked", "if c.cost > 0 then\n", "if true then\n"},
	{"a cost of 0 charges", "if c.cost > 0 and (ch.passed", "if (ch.passed"},
	{"the period's end belongs to it", "now >= c.till", "now > c.till"},
	{"the period's start does not belong to it", "now < c.from", "now <= c.from"},
	{"stale forgotten", "if c.from and (now", "if false and (now"},
	{"a request forgotten", "if charged and request > 0 then remember(request, pos, body) end", ""},
	{"a refused request remembered", "if charged and request > 0 then", "if request > 0 then"},
	{"a fingerprint not compared", "if sub(raw, 2, 17) ~= A[pos] then", "if false then"},
	{"the state of the batch not kept", "      S[key] = s\n", ""},
	{"only the first counter written", "for i = 1, dirties do", "for i = 1, min(1, dirties) do"},
	{"asked is not forgotten between decisions", "s.asked = 0\n", "s.asked = s.asked or 0\n"},
	{"written in place of its expiry", "write('SETRANGE', K[s.key], 0,", "write('SETRANGE', K[s.key], 1,"},
}

// TestIntegrationPlantedFaultsAreCaught guarantees that the test above can
// fail: each fault planted in the script makes it.
func TestIntegrationPlantedFaultsAreCaught(t *testing.T) {
	t.Parallel()
	client := redistest.Client(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for i, f := range faults {
		text := counters.DecideText()
		if strings.Count(text, f.old) != 1 {
			t.Errorf("%s: %q is in the script %d times, want once", f.name, f.old, strings.Count(text, f.old))
			continue
		}
		_, err := differ(t.Context(), client, strings.Replace(text, f.old, f.new, 1), seed+uint64(i), 600)
		if !errors.Is(err, errDiffer) {
			t.Errorf("%s: not caught (%v)", f.name, err)
		}
	}
}

var errDiffer = errors.New("script and model differ")

// differ asks the script and the model the same until they differ, in worlds
// of their own, and counts what was reached.
func differ(ctx context.Context, client *redis.Client, text string, seed uint64, worlds int) (map[string]int, error) {
	reached := map[string]int{}
	store, err := counters.New(client, text, generous)
	if err != nil {
		return reached, err
	}
	for i := range worlds {
		if err := client.FlushDB(ctx).Err(); err != nil {
			return reached, err
		}
		w := newWorld(rand.New(rand.NewPCG(seed, uint64(i))), store, reached)
		for range 25 {
			if err := w.step(ctx); err != nil {
				return reached, fmt.Errorf("seed %d, world %d: %w", seed, i, err)
			}
		}
	}
	return reached, nil
}

// A world is a few counters that random decisions meet at.
type world struct {
	*rand.Rand
	store   *counters.Store
	model   limit.State
	now     time.Time
	pace    time.Duration // of the clock
	rates   []limit.Charge
	quotas  []limit.Charge
	periods []period.Spec // of the quotas
	reached map[string]int
}

func newWorld(rng *rand.Rand, store *counters.Store, reached map[string]int) *world {
	w := &world{
		Rand: rng, store: store, model: limit.NewState(), reached: reached,
		now: time.UnixMicro(1_767_323_045_000_000 + rng.Int64N(1e14)).UTC(),
	}
	for i := range 3 {
		c := gcra(fmt.Sprint("rate ", i), 0, time.Duration(w.magnitude(rule.MaxWindow.Microseconds()))*time.Microsecond, 0, 0)
		w.numbers(&c)
		w.rates = append(w.rates, c)
	}
	b := w.rates[0]
	w.pace = min(time.Duration(float64(b.Window)*min(20, float64(b.Burst)/float64(max(1, b.Limit)))/4), 1000*24*time.Hour) + 2*time.Microsecond
	for i := range 3 {
		unit := []period.Unit{period.Hour, period.Day, period.Month}[i]
		w.periods = append(w.periods, period.Spec{Unit: unit, Count: 1 + w.IntN(3), Alignment: period.Calendar, Zone: time.UTC})
		c := quota(fmt.Sprint("quota ", i), period.Span{}, w.quantity(), 0)
		c.Counter.Unit = unit
		w.quotas = append(w.quotas, c)
	}
	return w
}

// numbers draws a rate's limit and burst; 0 now and then.
func (w *world) numbers(c *limit.Charge) {
	c.Limit, c.Burst = w.magnitude(c.Window.Microseconds()), w.magnitude(rule.MaxCapacity)
	if w.IntN(3) > 0 {
		c.Burst = min(c.Burst, 1+w.Int64N(40))
	}
	if w.IntN(20) == 0 {
		c.Limit = 0
	}
}

// quantity draws a quota's limit.
func (w *world) quantity() int64 {
	switch w.IntN(12) {
	case 0:
		return rule.Unlimited
	case 1:
		return w.magnitude(rule.Unlimited)
	case 2:
		return 0
	default:
		return 1 + w.Int64N(60)
	}
}

// magnitude draws from 1 to most, every order of magnitude alike.
func (w *world) magnitude(most int64) int64 {
	n := int64(1)
	for n < most && w.IntN(20) > 0 {
		n *= 2
	}
	return 1 + w.Int64N(min(n, most))
}

// cost draws units of which a handful fill the capacity.
func (w *world) cost(capacity int64) int64 {
	switch w.IntN(10) {
	case 0:
		return 0
	case 1:
		return min(capacity+w.Int64N(2), rule.Unlimited)
	case 2:
		return w.magnitude(rule.Unlimited)
	default:
		return w.Int64N(capacity/3 + 2)
	}
}

func (w *world) charge() limit.Charge {
	var c limit.Charge
	if i := w.IntN(3); w.IntN(2) == 0 {
		if w.IntN(10) == 0 {
			w.numbers(&w.rates[i])
			w.reached["changed numbers"]++
		}
		c = w.rates[i]
		c.Cost = w.cost(c.Burst)
	} else {
		if w.IntN(20) == 0 {
			w.quotas[i].Limit = w.quantity()
		}
		c = w.quotas[i]
		c.Cost = min(w.cost(c.Limit), rule.Unlimited)
		at := w.now
		if w.IntN(100) == 0 { // by the clock of a gateway that is behind
			at = at.Add(-w.pace)
		}
		c.Span, _ = w.periods[i].At(at)
		c.Counter.Start, c.Counter.Count = c.Span.Start, w.periods[i].Count
	}
	c.Soft, c.Counter.Shadow = w.IntN(6) == 0, w.IntN(6) == 0
	return c
}

func (w *world) decision() limit.Decision {
	d := limit.Decision{Charges: make([]limit.Charge, w.IntN(5))}
	keys := map[string]bool{}
	for i := range d.Charges {
		d.Charges[i] = w.charge()
		if k := counters.Key(d.Charges[i].Counter); keys[k] {
			w.reached["twice on one counter"]++
		} else {
			keys[k] = true
		}
	}
	if w.IntN(4) == 0 {
		// Ids are not drawn again after half a day: Redis forgets them by its own clock.
		d.Request = limit.Request{Tenant: "acme", ID: fmt.Sprint(w.IntN(3), "@", w.now.Unix()/43200), Note: []byte("a note")}
		d.Request.DecisionID[0], d.Request.Fingerprint[0] = byte(w.Uint32()), byte(w.IntN(2))
	}
	return d
}

// step moves the clock, asks a batch, and asks what was refused again when it
// was told to.
func (w *world) step(ctx context.Context) error {
	switch w.IntN(12) {
	case 0:
		w.now = w.now.Add(-time.Duration(w.Int64N(int64(w.pace))).Truncate(time.Microsecond))
		w.reached["clock went back"]++
	case 1, 2:
	case 3: // to the edge of a period
		if span, err := w.periods[w.IntN(3)].At(w.now); err == nil {
			w.now = span.End
		}
	default:
		w.now = w.now.Add(time.Duration(w.Int64N(int64(w.pace))).Truncate(time.Microsecond))
	}
	if w.now.Year() > 2140 || w.now.Year() < 2000 {
		w.now = time.UnixMicro(1_767_323_045_000_000).UTC()
	}
	if err := w.refund(ctx); err != nil {
		return err
	}
	decisions := make([]limit.Decision, 1+w.IntN(6))
	for i := range decisions {
		decisions[i] = w.decision()
	}
	answers, err := w.ask(ctx, w.now, decisions...)
	if err != nil {
		return err
	}
	last := len(answers) - 1
	if answers[last].Allowed {
		return nil
	}
	wait := longest(&decisions[last], &answers[last])
	if wait == 0 || wait == limit.Never || w.now.Add(wait).Year() > 2140 {
		return nil
	}
	decisions = decisions[last:]
	decisions[0].Request = limit.Request{}
	now := w.now
	w.now = now.Add(wait - time.Microsecond)
	early, err := w.ask(ctx, w.now, decisions...)
	if err != nil {
		return err
	}
	w.count("refused before its wait", !early[0].Allowed && !early[0].Stale)
	w.now = now.Add(wait)
	intime, err := w.ask(ctx, w.now, decisions...)
	if err != nil {
		return err
	}
	w.count("passed after its wait", intime[0].Allowed)
	return nil
}

// refund gives something back on both sides, as a later version will.
func (w *world) refund(ctx context.Context) error {
	ids := slices.SortedFunc(maps.Keys(w.model.Counters), func(a, b limit.Identity) int {
		return strings.Compare(counters.Key(a), counters.Key(b))
	})
	for _, id := range ids {
		v := w.model.Counters[id]
		if id.Kind != rule.Quota || v.Consumed == v.Refunded || w.IntN(8) > 0 {
			continue
		}
		v.Refunded += 1 + w.Int64N(v.Consumed-v.Refunded)
		w.model.Counters[id] = v
		if err := w.store.Refund(ctx, id, v.Refunded); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) ask(ctx context.Context, now time.Time, decisions ...limit.Decision) ([]limit.Answer, error) {
	got, err := w.store.At(ctx, now, decisions...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDiffer, err)
	}
	for i := range decisions {
		want, err := limit.Decide(w.model, now, decisions[i])
		if err != nil {
			return nil, err
		}
		if diff := cmp.Diff(want, got[i]); diff != "" {
			return nil, fmt.Errorf("%w at %v, decision %d of %d: %+v\n-model +script\n%s", errDiffer, now, i+1, len(decisions), decisions[i], diff)
		}
		w.note(&decisions[i], &want)
	}
	return got, nil
}

func (w *world) count(what string, yes bool) {
	if yes {
		w.reached[what]++
	}
}

func (w *world) note(d *limit.Decision, a *limit.Answer) {
	w.count("stale", a.Stale)
	w.count("replayed", a.Replayed)
	w.count("conflict", a.Conflict)
	if a.Stale || a.Replayed || a.Conflict || len(d.Charges) == 0 {
		return
	}
	w.reached["decided"]++
	w.count("allowed", a.Allowed)
	w.count("charged", a.Charged)
	for i, r := range a.Results {
		c := d.Charges[i]
		w.count("soft refused", c.Soft && !r.Passed)
		w.count("shadow refused", c.Counter.Shadow && !r.Passed)
		w.count("never", r.RetryAfter == limit.Never)
	}
}

func longest(d *limit.Decision, a *limit.Answer) (wait time.Duration) {
	for i, r := range a.Results {
		if c := d.Charges[i]; !r.Passed && !c.Soft && !c.Counter.Shadow {
			wait = max(wait, r.RetryAfter)
		}
	}
	return wait
}
