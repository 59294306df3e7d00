//go:build integration

package counters_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/redis/go-redis/v9"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/redistest"
	"penstock.dev/services/internal/rule"
)

// TestIntegrationCorrectingScriptAgreesWithModel guarantees that the script
// Redis runs and limit.Correct are one thing: the same decisions and
// corrections get the same answers from both, and leave the same counters.
func TestIntegrationCorrectingScriptAgreesWithModel(t *testing.T) {
	t.Parallel()
	client := redistest.Client(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	reached, err := differCorrecting(t.Context(), client, counters.CorrectText(), seed, 300)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("reached %+v", reached)
	for _, what := range []string{
		"corrected", "repeated", "exceeds", "settled", "too many", "refunded in part", "refunded in whole", "settled higher", "settled lower",
		"settled at 0", "settled at its cost", "fixed cost given back", "fixed cost kept", "nothing left to give back to", "gave back less than it should",
		"clock went back", "twice on one counter", "moved up", "moved down", "after its period",
	} {
		if reached[what] == 0 {
			t.Errorf("no correction was %s", what)
		}
	}
	for _, k := range kinds {
		for _, what := range []string{"given back", "charged"} {
			if reached[k.name+" "+what] == 0 {
				t.Errorf("nothing was %s of a %s", what, k.name)
			}
		}
	}
}

// correctingFaults are changes to the correcting script that the test above must
// notice.
var correctingFaults = []struct{ name, old, new string }{
	{"a refund counted twice", "if id == A[4] then effect", "if false then effect"},
	{"more than is left given back", "if left == 0 or units > left then", "if left == 0 or units > left + 1 then"},
	{"nothing left is no bar", "if left == 0 or units > left then", "if units > left then"},
	{"all that is left never fits", "if left == 0 or units > left then", "if left == 0 or units >= left then"},
	{"0 is not all that is left", "units = asked == 0 and left or asked", "units = asked"},
	{"refunds without end", "elseif n >= MOST_REFUNDS then", "elseif false then"},
	{"one refund too few", "elseif n >= MOST_REFUNDS then", "elseif n >= MOST_REFUNDS - 1 then"},
	{"one refund too many", "elseif n >= MOST_REFUNDS then", "elseif n > MOST_REFUNDS then"},
	{"the first answer forgotten", "effect, units, total, left = 'R', u, t, l", "effect, units = 'R', u"},
	{"the settlement's answer forgotten", "effect, units, total, left = 'R', sunits, stotal, sleft", "effect, units = 'R', sunits"},
	{"settled again", "  elseif settled >= 0 then\n", "  elseif false then\n"},
	{"another cost taken for the same", "if settled == asked then", "if settled >= 0 then"},
	{"refunds given back again by settling", "-max(0, charged - total)", "-charged"},
	{"a settlement forgets refunds", "left = asked, units, max(0, asked - total)", "left = asked, units, asked"},
	{"left of the first cost, not the settled", "(settled >= 0 and settled or charged) - total", "charged - total"},
	{"a settled cost of 0 taken for none", "(settled >= 0 and settled or charged)", "(settled > 0 and settled or charged)"},
	{"the cost of the call, not of the mark", "version, charged, settled, total, flags, sunits", "version, _, settled, total, flags, sunits"},
	{"fixed costs given back at once", "-units\n      whole = left == 0 and flags == 0", "-units\n      whole = true"},
	{"fixed costs given back twice", "-units\n      whole = left == 0 and flags == 0", "-units\n      whole = left == 0"},
	{"fixed costs given back twice, by settling", "asked - total)\n    whole = left == 0 and flags == 0", "asked - total)\n    whole = left == 0"},
	{"fixed costs kept at a settlement that leaves nothing", "asked - total)\n    whole = left == 0 and flags == 0", "asked - total)\n    whole = asked == 0 and flags == 0"},
	{"fixed costs move like others", "elseif fixed > 0 then", "elseif false then"},
	{"fixed costs not remembered as given back", "if whole then flags = 1 end", ""},
	{"a quota's refund past 2^53", "min(-move, EXACT - 1 - refunded)", "-move"},
	{"a quota gives back what was not consumed", "consumed = max(consumed, refunded)", ""},
	{"a quota's refund takes back", "refunded = refunded - move", "consumed = consumed + move"},
	{"counts past 2^53", "move = min(move, EXACT - 1 - consumed)", ""},
	{"what had no room given back", "shorts[item] = full > 0 and full - move or 0", "shorts[item] = 0"},
	{"what had no room not remembered", "stotal, sleft, #shorts)", "stotal, sleft, 0)"},
	{"what had no room given back last", "move = max(0, since_settled - units - shorts[item]) - max(0, since_settled - shorts[item])", "move = -min(units, max(0, sunits - shorts[item]))"},
	{"a window charged that is over", "if from == made - made % b and current < MOST then", "if current < MOST then"},
	{"a window that charges more than it counts", "from == made - made % b and current < MOST then\n            move = min(add, MOST - current)", "from == made - made % b and current < MOST then\n            move = add"},
	{"a log charged past its limit", "max(0, min(add, a - used))", "add"},
	{"a log charged for what counts no more", "add = now - made < b and", "add ="},
	{"a log charged now, not then", "if left > 0 and when > made then", "if false then"},
	{"a sliding counter charged in the window before", "if add > 0 then window = made - made % b end", "if add > 0 then window = from end"},
	{"a bucket charged past its room", "add = min(add, a - ceil(debt / credits))", "add = min(add, a)"},
	{"a bucket charged now, not then", "credits, from = b, made - made % d", "credits, from = b, now - now % d"},
	{"a bucket charged in credits of another limit", "debt + add * credits, add", "debt + add * b, add"},
	{"floors forgotten", "consumed, refunded = max(consumed, d), max(refunded, e)\n        if move", "if move"},
	{"a bucket gives more than it owes", "give = min(give, ceil(debt / credits))", ""},
	{"a bucket's debt below nothing", "max(0, debt - give * credits)", "debt - give * credits"},
	{"parts of a unit rounded down", "min(give, ceil(debt / credits))", "min(give, floor(debt / credits))"},
	{"a fixed window gives to the next", "if from == since - since % b and now - now % b <= from then\n", "if true then\n"},
	{"a fixed window gives when it is over", "since - since % b and now - now % b <= from then\n", "since - since % b then\n"},
	{"a fixed window below nothing", "give = min(give, current)\n          value, move = pack('<Bddd', VERSION, from, current - give, expiry), -give", "value, move = pack('<Bddd', VERSION, from, current - give, expiry), -give"},
	{"a log gives any entry", "if when >= since and when <= made then", "if when <= made then"},
	{"a log gives what came later", "if when >= since and when <= made then", "if when >= since then"},
	{"a log gives what counts no more", "if now - when >= b then\n", "if false then\n"},
	{"a log gives one entry only", "own = given + cut, own - cut\n", "own = given + cut, 0\n"},
	{"a log keeps empty entries", "if own > 0 then\n", "if true then\n"},
	{"a log's total off", "kept[n] = pack('<dI4', when, (front + sum) % 4294967296)", "kept[n] = pack('<dI4', when, (before + sum) % 4294967296)"},
	{"a sliding counter gives to the wrong window", "previous = previous + move", "current = current + move"},
	{"a sliding counter never gives to the window before", "-min(give, previous)", "0"},
	{"a sliding counter below nothing", "-min(give, current)", "-give"},
	{"a sliding counter's window does not turn", "previous = start == from + b and current or 0\n          from, current = start, 0", ""},
	{"a sliding counter keeps an old window", "previous = start == from + b and current or 0\n          from", "previous = current\n          from"},
	{"the state of the correction not kept", "      V[key] = value\n      if expiries", "      V[key] = V[key] or value\n      if expiries"},
	{"only the first counter written", "for i = 1, #dirty do", "for i = 1, min(1, #dirty) do"},
	{"nothing remembered", "if kind ~= 'M' then\n    local header", "if false then\n    local header"},
	{"the refund's id not remembered", "header .. refunds", "header"},
	{"written in place where it is longer", "expiries[key] = renewal or expiries[key] or false", "expiries[key] = false"},
}

// TestIntegrationPlantedFaultsOfCorrectingAreCaught guarantees that the test
// above can fail: each fault planted in the script makes it.
func TestIntegrationPlantedFaultsOfCorrectingAreCaught(t *testing.T) {
	t.Parallel()
	client := redistest.Client(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for i, f := range correctingFaults {
		text := counters.CorrectText()
		if strings.Count(text, f.old) != 1 {
			t.Errorf("%s: %q is in the script %d times, want once", f.name, f.old, strings.Count(text, f.old))
			continue
		}
		_, err := differCorrecting(t.Context(), client, strings.Replace(text, f.old, f.new, 1), seed+uint64(i), 1000)
		if !errors.Is(err, errDiffer) {
			t.Errorf("%s: not caught (%v)", f.name, err)
		}
	}
}

// differCorrecting asks the script and the model the same until they differ, and
// counts what was reached.
func differCorrecting(ctx context.Context, client *redis.Client, text string, seed uint64, worlds int) (map[string]int, error) {
	reached := map[string]int{}
	store, err := counters.New(client, counters.DecideText(), generous)
	if err != nil {
		return reached, err
	}
	defer func() { _ = store.Close() }()
	store.CorrectWith(text)
	for i := range worlds {
		if err := client.FlushDB(ctx).Err(); err != nil {
			return reached, err
		}
		if err := store.Vouch(ctx); err != nil {
			return reached, err
		}
		w := newAmends(rand.New(rand.NewPCG(seed, uint64(i))), store, client, reached)
		for range 12 {
			if err := w.step(ctx); err != nil {
				return reached, fmt.Errorf("seed %d, world %d: %w", seed, i, err)
			}
		}
	}
	return reached, nil
}

// An amends is a world of a few counters, where much of what is decided is
// corrected.
type amends struct {
	*rand.Rand
	store   *counters.Store
	client  *redis.Client
	model   limit.State
	now     time.Time
	window  time.Duration
	charges []limit.Charge // made of kinds
	kinds   []kind         // of the charges
	made    []limit.Correction
	last    map[[16]byte]time.Time // when a decision was last corrected
	moves   int
	reached map[string]int
}

func newAmends(rng *rand.Rand, store *counters.Store, client *redis.Client, reached map[string]int) *amends {
	w := &amends{
		Rand: rng, store: store, client: client, model: limit.NewState(), reached: reached,
		now: time.UnixMicro(1_767_323_045_000_000 + rng.Int64N(1e14)).UTC(), last: map[[16]byte]time.Time{},
	}
	w.window = []time.Duration{time.Millisecond, 7 * time.Second, time.Hour, 24 * time.Hour}[w.IntN(4)]
	first := w.IntN(len(kinds))
	for i := range 4 {
		w.kinds = append(w.kinds, kinds[(first+i*(1+w.IntN(2)))%len(kinds)])
		w.charges = append(w.charges, limit.Charge{})
		w.draw(i)
	}
	return w
}

// draw makes a counter's charge of its kind, with a limit of chance.
func (w *amends) draw(i int) {
	most := 1 + w.Int64N(60)
	if w.kinds[i].totals && w.IntN(4) == 0 {
		most = rule.Unlimited
	}
	window := w.window
	if w.IntN(4) == 0 && w.charges[i].Window == 0 {
		window *= 3
	} else if w.charges[i].Window > 0 {
		window = w.charges[i].Window
	}
	w.charges[i] = w.kinds[i].charge(fmt.Sprint("counter ", i), w.now, most, window, 0)
	if w.charges[i].Algorithm == rule.LeakyBucket && w.IntN(2) == 0 {
		w.charges[i].MaxDelay = rule.MaxDelay
	}
}

// charge asks the counter i for units now.
func (w *amends) charge(i int, units int64) limit.Charge {
	if w.IntN(15) == 0 {
		w.draw(i)
	}
	c := w.charges[i]
	if c.Counter.Unit != "" {
		c.Span = grid(w.now, w.window)
		c.Counter.Start = c.Span.Start
	}
	c.Cost, c.Soft, c.Counter.Shadow = units, w.IntN(4) == 0, w.IntN(8) == 0
	return c
}

// step moves the clock, decides, corrects some of what was decided, and compares
// all that is held.
func (w *amends) step(ctx context.Context) error {
	switch w.IntN(10) {
	case 0:
		w.now = w.now.Add(-time.Duration(w.Int64N(2 * int64(w.window))).Truncate(time.Microsecond))
		w.reached["clock went back"]++
	case 1, 2, 3, 4:
	case 5:
		w.now = w.now.Add(w.window - time.Duration(w.now.UnixMicro()%w.window.Microseconds())*time.Microsecond)
	case 6: // past windows that nothing is charged in
		w.now = w.now.Add(time.Duration(1+w.IntN(4)) * w.window)
		if err := w.move(ctx); err != nil {
			return err
		}
	default:
		w.now = w.now.Add(time.Duration(w.Int64N(int64(w.window))).Truncate(time.Microsecond))
	}
	for range 1 + w.IntN(2) {
		if err := w.decide(ctx); err != nil {
			return err
		}
	}
	for range w.IntN(4) {
		if len(w.made) == 0 {
			break
		}
		c := w.made[max(0, len(w.made)-1-w.IntN(6))]
		if err := w.correct(ctx, w.amend(c)); err != nil {
			return err
		}
	}
	if len(w.made) > 0 && w.IntN(60) == 0 {
		if err := w.refundOften(ctx); err != nil {
			return err
		}
	}
	if w.IntN(3) == 0 {
		if err := w.move(ctx); err != nil {
			return err
		}
	}
	return w.compare(ctx)
}

// decide decides on both sides and keeps what there would be to correct.
func (w *amends) decide(ctx context.Context) error {
	cost := 1 + w.Int64N(12)
	if w.IntN(20) == 0 {
		cost = 1 + w.Int64N(rule.Unlimited)
	}
	var items []limit.Item
	var d limit.Decision
	on := map[int]bool{}
	for range 1 + w.IntN(4) {
		i := w.IntN(len(w.charges))
		item := limit.Item{Charge: w.charge(i, cost)}
		if w.IntN(4) == 0 {
			item.Fixed, item.Cost = true, w.Int64N(6)
		}
		if on[i] {
			w.reached["twice on one counter"]++
		}
		on[i] = true
		items, d.Charges = append(items, item), append(d.Charges, item.Charge)
	}
	answers, err := w.store.At(ctx, w.now, d)
	if err != nil {
		return fmt.Errorf("%w: %w", errDiffer, err)
	}
	want, err := limit.Decide(w.model, w.now, d)
	if err != nil {
		return err
	}
	if diff := cmp.Diff(want, answers[0]); diff != "" {
		return fmt.Errorf("%w at %v: %+v\n-model +script\n%s", errDiffer, w.now, d, diff)
	}
	if !want.Charged {
		return nil
	}
	c := limit.Correction{Tenant: "acme", At: want.Now, Cost: cost}
	binary.BigEndian.PutUint64(c.DecisionID[:], w.Uint64())
	for i, r := range want.Results {
		if items[i].Cost > 0 && (r.Passed || items[i].Soft) {
			c.Items = append(c.Items, items[i])
		}
	}
	w.made = append(w.made, c)
	return nil
}

// amend asks for a correction of a decision.
func (w *amends) amend(c limit.Correction) limit.Correction {
	c.Items = append([]limit.Item(nil), c.Items...)
	for i := range c.Items {
		if w.IntN(20) == 0 {
			c.Items[i].Floor = limit.Totals{Consumed: w.Int64N(100), Refunded: w.Int64N(40)}
		}
	}
	if w.IntN(20) == 0 {
		c.Cost = 1 + w.Int64N(20) // the first one told is remembered
	}
	if w.IntN(3) == 0 {
		c.Settle = []int64{0, c.Cost, 1 + w.Int64N(c.Cost), min(c.Cost+w.Int64N(9), rule.Unlimited), w.Int64N(rule.Unlimited)}[w.IntN(5)]
		return c
	}
	c.Refund = []string{"r", "a\x00b", "{acme}", strings.Repeat("x", limit.MaxRefundID), fmt.Sprint("r", w.IntN(100))}[w.IntN(5)]
	switch w.IntN(4) {
	case 0: // all that is left
	case 1:
		c.Units = min(c.Cost+w.Int64N(2), rule.Unlimited)
	default:
		c.Units = 1 + w.Int64N(min(c.Cost, 8))
	}
	return c
}

// refundOften gives back more often than is remembered, and then repeats one.
func (w *amends) refundOften(ctx context.Context) error {
	c := w.made[len(w.made)-1]
	c.DecisionID[15], c.Cost = 1, 102 // as if it had cost so much
	c.Units = 1
	for i := range limit.MaxRefunds + 1 {
		c.Refund = fmt.Sprint("one of many ", i)
		if err := w.correct(ctx, c); err != nil {
			return err
		}
	}
	c.Refund = "one of many 50"
	return w.correct(ctx, c)
}

// correct corrects on both sides, unless the world's clock says that it is
// forgotten what was corrected: Redis forgets by its own.
func (w *amends) correct(ctx context.Context, c limit.Correction) error {
	if last, there := w.last[c.DecisionID]; w.now.Sub(c.At) >= limit.RememberCorrections || there && w.now.Sub(last) >= limit.RememberCorrections {
		return nil
	}
	got, err := w.store.CorrectAt(ctx, w.now, c)
	if err != nil {
		return fmt.Errorf("%w: %w", errDiffer, err)
	}
	want, err := limit.Correct(w.model, w.now, c)
	if err != nil {
		return err
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		return fmt.Errorf("%w at %v: %+v\n-model +script\n%s", errDiffer, w.now, c, diff)
	}
	if want.Effect == limit.Corrected {
		w.last[c.DecisionID] = w.now
	}
	w.note(&c, &want)
	return nil
}

// move moves some counters as the groups of a spread decision are given back,
// which the model does as refunds and settlements of decisions of their own.
func (w *amends) move(ctx context.Context) error {
	var items []limit.Item
	var units []int64
	for range 1 + w.IntN(3) {
		i := w.IntN(len(w.charges))
		by := 1 + w.Int64N(9)
		items = append(items, limit.Item{Charge: w.charge(i, by)})
		if w.IntN(2) == 0 {
			by = -by
		}
		units = append(units, by)
	}
	then := w.now
	switch {
	case w.IntN(3) == 0:
		then = then.Add(-time.Duration(w.Int64N(3 * int64(w.window))).Truncate(time.Microsecond))
	case len(w.made) > 0 && w.IntN(2) == 0:
		then = w.made[w.IntN(len(w.made))].At
	}
	got, err := w.store.MoveAt(ctx, w.now, then, 0, items, units)
	if err != nil {
		return fmt.Errorf("%w: %w", errDiffer, err)
	}
	want := limit.CorrectionAnswer{Effect: limit.Corrected, Now: w.now}
	for i := range items {
		w.moves++
		c := limit.Correction{Address: fmt.Sprint("move ", w.moves), At: then, Cost: 1, Items: items[i : i+1], Settle: max(0, 1+units[i])}
		if units[i] < 0 {
			c.Cost, c.Refund = -units[i], "r"
		}
		a, err := limit.Correct(w.model, w.now, c)
		if err != nil {
			return err
		}
		want.Items = append(want.Items, a.Items...)
		w.count("moved up", units[i] > 0)
		w.count("moved down", units[i] < 0)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("%w at %v: moves of %v in %+v made %v\n-model +script\n%s", errDiffer, w.now, units, items, then, diff)
	}
	return nil
}

func (w *amends) count(what string, yes bool) {
	if yes {
		w.reached[what]++
	}
}

func (w *amends) note(c *limit.Correction, a *limit.CorrectionAnswer) {
	w.reached[string(a.Effect)]++
	if a.Effect != limit.Corrected {
		return
	}
	settles := c.Refund == ""
	w.count("refunded in part", !settles && a.Left > 0)
	w.count("refunded in whole", !settles && a.Left == 0)
	w.count("settled higher", settles && a.Units > 0)
	w.count("settled lower", settles && a.Units < 0)
	w.count("settled at 0", settles && c.Settle == 0)
	w.count("settled at its cost", settles && c.Settle == c.Cost)
	for i, m := range a.Items {
		item := c.Items[i]
		w.count("fixed cost given back", item.Fixed && m.Units < 0)
		w.count("fixed cost kept", item.Fixed && m.Units == 0)
		w.count("nothing left to give back to", !item.Fixed && a.Units != 0 && m.Units == 0)
		w.count("gave back less than it should", !item.Fixed && !settles && m.Units < 0 && -m.Units < a.Units)
		w.count("after its period", !item.Span.End.IsZero() && !item.Span.Contains(w.now) && m.Units < 0)
		for k, kind := range w.kinds {
			if counters.Key(kind.charge(fmt.Sprint("counter ", k), item.Span.Start, 1, max(item.Window, w.window), 0).Counter) == shadowless(item.Counter) {
				w.count(kind.name+" given back", m.Units < 0)
				w.count(kind.name+" charged", m.Units > 0)
			}
		}
	}
}

func shadowless(id limit.Identity) string {
	id.Shadow = false
	return counters.Key(id)
}

// compare reads every counter back.
func (w *amends) compare(ctx context.Context) error {
	for id, want := range w.model.Counters {
		raw, err := w.client.Get(ctx, counters.Key(id)).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		got, err := held(id.Kind, id.Algorithm, raw)
		if err != nil {
			return fmt.Errorf("%w: %s holds %q: %w", errDiffer, counters.Key(id), raw, err)
		}
		for i := range want.Log {
			want.Log[i].Total %= 1 << 32
		}
		want.Before %= 1 << 32
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			return fmt.Errorf("%w at %v: %s holds something else\n-model +script\n%s", errDiffer, w.now, counters.Key(id), diff)
		}
	}
	return nil
}

var errHeld = errors.New("not the value that the layout says")

// held reads a value as doc.go says that it is laid out.
func held(kind rule.Kind, a rule.Algorithm, raw string) (v limit.Value, err error) {
	if raw == "" {
		return v, nil
	}
	b := []byte(raw)
	number := func() (n int64) {
		if len(b) < 8 {
			err = errHeld
			return 0
		}
		n, b = int64(math.Float64frombits(binary.LittleEndian.Uint64(b))), b[8:]
		return n
	}
	total := func() (n int64) {
		if len(b) < 4 {
			err = errHeld
			return 0
		}
		n, b = int64(binary.LittleEndian.Uint32(b)), b[4:]
		return n
	}
	if b[0] != 1 {
		return v, errHeld
	}
	b = b[1:]
	switch {
	case kind != rule.Rate:
		v.Consumed, v.Refunded = number(), number()
		number()
	case a == rule.FixedWindow:
		v.From, v.Current = number(), number()
		number()
	case a == rule.SlidingWindowCounter:
		v.From, v.Current, v.Previous = number(), number(), number()
		number()
	case a == rule.SlidingWindowLog:
		number()
		v.Before = total()
		for len(b) > 0 && err == nil {
			v.Log = append(v.Log, limit.Entry{At: number(), Total: total()})
		}
	default:
		v.Debt, v.Unit, v.At = number(), number(), number()
		number()
	}
	if len(b) > 0 {
		err = errHeld
	}
	return v, err
}
