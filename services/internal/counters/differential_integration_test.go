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
	{"a wait rounded down", "ticks = ticks + -ticks % 1", "ticks = ticks - ticks % 1"},
	{"a wait off by one tick", "(since + ticks) * tick - now", "(since + ticks + 1) * tick - now"},
	{"a wait counted from now, not from the tick", "(since + ticks) * tick - now", "ticks * tick"},
	{"the last unit refused", "elseif over > 0 then", "elseif over >= 0 and units > 0 then"},
	{"one credit too many", "elseif over > 0 then", "elseif over > 1 then"},
	{"exactly the burst never fits", "if units > capacity then", "if units >= capacity then"},
	{"fractions thrown away", "at = since * tick\n", "at = now\n"},
	{"pays back once too often", "debt = debt - elapsed * refill", "debt = debt - (elapsed + 1) * refill"},
	{"a clock that went back pays again", "since = from\n", ""},
	{"other credits taken for ours", "if credits ~= unit then", "if false then"},
	{"carried debt rounded down", "local part = ceil(", "local part = floor("},
	{"a lowered burst leaves more than full", "debt = whole >= capacity and full or whole", "debt = whole"},
	{"remaining rounded up", "used = used + -used % 1", "used = used - used % 1"},
	{"the next rise off by one", "(debt - (used - 1) * unit)", "(debt - used * unit)"},
	{"waits beyond any clock", "ticks > floor(MAX_WAIT / tick) and -1 or", ""},
	{"a soft charge past the burst", "if debt > full then debt = full end\n    at =", "at ="},
	{"a limit of 0 forgets", "if units > 0 then wait = -1 end\n", "if units > 0 then wait = -1 end if raw then V[key] = false end\n"},

	{"one unit over the quota", "elseif units > room then", "elseif units > room + 1 then"},
	{"the quota's last unit refused", "elseif units > room then", "elseif units >= room then"},
	{"refunds forgotten", "local room = min(limit - (consumed - refunded),", "local room = min(limit - consumed,"},
	{"refunds shown twice", "max(0, limit - (consumed - refunded))", "max(0, limit - consumed + 2 * refunded)"},
	{"never for what the next period sells", "if units > limit then", "if units >= limit then"},
	{"counts past 2^53", "consumed = min(consumed + taken, UNLIMITED)", "consumed = consumed + taken"},
	{"an unlimited quota refuses", "and limit ~= UNLIMITED then", "then"},
	{"remaining below zero", "min(limit, max(0, limit - (consumed - refunded)))", "min(limit, limit - (consumed - refunded))"},
	{"the wait of the other end", "reset = till - now", "reset = now - from"},

	{"all-or-nothing forgotten", "charged = charged and allowed\n", ""},
	{"soft forgotten", "flags % 2 == 1, 0, 0", "false, 0, 0"},
	{"shadow forgotten", "elseif flags < 2 then\n          allowed", "else\n          allowed"},
	{"a shadow refusal charges", "if taken > 0 and (wait == 0 or soft) then\n    consumed", "if taken > 0 and (wait == 0 or soft or flags >= 2) then\n    consumed"},
	{"a shadow refusal charges, of several", "(waits[i] == 0 or soft) then", "(waits[i] == 0 or soft or flags >= 2) then"},
	{"charges on one counter each on their own", "units = min(EXACT, (asked[key] or 0) + cost)", "units = cost"},
	{"charges on one counter not known to be", "local asked = several > 0 and {}", "local asked = false"},
	{"a refused shadow counts", "if asked and (sold or flags < 2) then", "if asked then"},
	{"a cost of 0 is asked", "elseif cost > 0 then\n          units", "else\n          units"},
	{"a cost of 0 charges", "charged = charged or cost > 0", "charged = true"},
	{"the period's end belongs to it", "now >= till", "now > till"},
	{"the period's start does not belong to it", "now < from", "now <= from"},
	{"stale forgotten", "status = STALE\n", "status = nil\n"},
	{"a request forgotten", "if charged and request > 0 then", "if false then"},
	{"a refused request remembered", "if charged and request > 0 then", "if request > 0 then"},
	{"a fingerprint not compared", "elseif known:sub(2, 17) ~= A[argument] then", "elseif false then"},
	{"the state of the batch not kept", "            V[key] = value\n", "            V[key] = V[key] or value\n"},
	{"the state of the decision not kept", "        V[key] = value\n        if", "        V[key] = V[key] or value\n        if"},
	{"only the first counter written", "for i = 1, refusal and 0 or dirties do", "for i = 1, min(1, dirties) do"},
	{"a refused decision shown as if it charged", "elseif asked or not allowed then", "elseif asked then"},
	{"what several leave is not shown", "pass = pass + 1", "pass = DONE"},
	{"written in place of its expiry", "pcall('SETRANGE', K[key], '0',", "pcall('SETRANGE', K[key], '1',"},
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
		if err := store.Vouch(ctx); err != nil {
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
