//go:build integration

package counters_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
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
	for _, what := range []string{
		"stale", "lost", "replayed", "conflict", "charged", "soft refused", "shadow refused", "twice on one counter", "changed numbers",
		"changed algorithm", "passed after its wait", "refused before its wait", "never", "clock went back", "weighed, allowed", "weighed, refused",
		"above its floor", "below its floor", "delayed", "all algorithms in one decision", "all algorithms in one batch",
	} {
		if reached[what] == 0 {
			t.Errorf("no decision was %s", what)
		}
	}
	for _, name := range names {
		for _, what := range []string{" passed", " refused", " soft refused", " shadow refused", " twice"} {
			if reached[name+what] == 0 {
				t.Errorf("nothing was: %s%s", name, what)
			}
		}
	}
	for _, name := range names[:waiting] {
		if reached[name+" waited for"] == 0 {
			t.Errorf("no wait was exact: %s", name)
		}
	}
}

// TestIntegrationLogTotalsWrap guarantees that a log goes on where its running
// totals pass 2^32 and begin again at 0.
func TestIntegrationLogTotalsWrap(t *testing.T) {
	t.Parallel()
	client := redistest.Client(t)
	store, err := counters.New(client, counters.DecideText(), generous)
	if err != nil {
		t.Fatal(err)
	}
	start, model := time.UnixMicro(1_767_323_045_000_000).UTC(), limit.NewState()
	c := rate(rule.SlidingWindowLog, "acme", 10, time.Minute, 3)
	// One entry of 2 units, of which the last total is 2^32-5.
	value := append([]byte{1}, binary.LittleEndian.AppendUint64(nil, math.Float64bits(float64(start.Add(time.Hour).UnixMicro())))...)
	value = binary.LittleEndian.AppendUint32(value, 1<<32-7)
	value = binary.LittleEndian.AppendUint64(value, math.Float64bits(float64(start.UnixMicro())))
	value = binary.LittleEndian.AppendUint32(value, 1<<32-5)
	if err := client.Set(t.Context(), counters.Key(c.Counter), value, time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	model.Counters[c.Counter.Canonical()] = limit.Value{Before: 1<<32 - 7, Log: []limit.Entry{{At: start.UnixMicro(), Total: 1<<32 - 5}}}
	for i, after := range []time.Duration{1, 2, 3, 60, 61, 62, 63, 64, 125, 126} {
		d := limit.Decision{Charges: []limit.Charge{c}}
		want, err := limit.Decide(model, start.Add(after*time.Second), d)
		if err != nil {
			t.Fatal(err)
		}
		got, err := store.At(t.Context(), start.Add(after*time.Second), d)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got[0]); diff != "" {
			t.Errorf("request %d, after %d s: -model +script\n%s", i, after, diff)
		}
	}
}

// TestIntegrationValuesOutliveTheirUse guarantees that no key expires while its
// value still matters, ten seconds included for a server whose clock is behind,
// however late in its life it is charged again; and that each but a prepaid
// wallet's does expire.
func TestIntegrationValuesOutliveTheirUse(t *testing.T) {
	t.Parallel()
	client := redistest.Client(t)
	store, err := counters.New(client, counters.DecideText(), generous)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Vouch(t.Context()); err != nil {
		t.Fatal(err)
	}
	const window, grace, eight = 30 * time.Second, 10 * time.Second, 8 * 24 * time.Hour
	start := time.UnixMicro(1_767_323_040_000_000).UTC() // begins a window
	for _, k := range kinds {
		for _, after := range []time.Duration{0, 1, 28, 29, 31, 59, 61, 200} {
			now := start.Add(after * time.Second)
			c := k.charge("acme", now, 1000, window, 1000)
			if c.Soft = true; c.Algorithm == rule.SlidingWindowLog {
				c.Cost = 100 // a full log takes no more
			}
			a, err := store.At(t.Context(), now, limit.Decision{Charges: []limit.Charge{c}})
			if err != nil || !a[0].Charged {
				t.Fatalf("%s: %+v, %v", k.name, a, err)
			}
			used := grid(now, window).End.Sub(now) // until when it is
			switch {
			case k.totals:
				used += eight - grace
			case c.Algorithm == rule.SlidingWindowCounter:
				used += window
			case c.Algorithm != rule.FixedWindow: // a log, or a bucket that is full
				used = window
			}
			key := counters.Key(c.Counter)
			value, err := client.Get(t.Context(), key).Bytes()
			if err != nil {
				t.Fatal(err)
			}
			says := value[len(value)-8:]
			if c.Algorithm == rule.SlidingWindowLog {
				says = value[1:9]
			}
			expiry := time.UnixMicro(int64(math.Float64frombits(binary.LittleEndian.Uint64(says)))).Sub(now)
			ttl := lifeOf(t, client, key) // by Redis's clock no time has passed
			kept := expiry >= used+grace && expiry <= used+grace+window+time.Minute && ttl >= expiry-time.Second
			if k.name == "prepaid wallet" {
				kept = ttl == -1
			}
			if !kept {
				t.Errorf("%s, %d s after: expires in %v, and says in %v, used for %v", k.name, after, ttl, expiry, used)
			}
		}
	}
}

// TestIntegrationRenewedSeldom guarantees that a value which is charged again and
// again is changed in place, also where each unit makes its use end later.
func TestIntegrationRenewedSeldom(t *testing.T) {
	t.Parallel()
	store, client := benchStore(t)
	for _, k := range kinds {
		if k.name == "sliding_window_log" {
			continue // it grows
		}
		c := k.charge("acme", time.Now(), 100, 30*24*time.Hour, 1)
		before := commandOf(t, client, "set")["calls"]
		for range 100 {
			if a, err := store.Decide(t.Context(), limit.Decision{Charges: []limit.Charge{c}}); err != nil || !a.Charged {
				t.Fatalf("%s: %+v, %v", k.name, a, err)
			}
		}
		if n := commandOf(t, client, "set")["calls"] - before; n > 20 {
			t.Errorf("%s: written anew %v times of 100", k.name, n)
		}
	}
}

// faults are changes to a file of the script that the differential test must
// notice.
var faults = map[string][]struct{ name, old, new string }{
	"algo_bucket": {
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
		{"waits beyond any clock", "wait = ticks > floor(MAX_WAIT / tick) and -1 or", "wait ="},
		{"a soft charge past the burst", "short, debt = taken - (room - room % 1), full", "short, debt = taken - (room - room % 1), debt + more"},
		{"what was clipped not told", "short, debt = taken - (room - room % 1), full", "debt = full"},
		{"a limit of 0 forgets", "if units > 0 then wait = -1 end\n", "if units > 0 then wait = -1 end if raw then V[key] = false end\n"},
		{"a queue lets wait a microsecond too long", "      if ahead > e then", "      if ahead > e + 1 then"},
		{"the longest wait refused", "      if ahead > e then", "      if ahead >= e then"},
		{"a queue's wait forgets its room", "wait = max(wait, ahead - e)", "wait = ahead - e"},
		{"a request waits for itself", "delay = ahead\n", "delay = ahead + units * unit / refill * tick\n"},
		{"a delay is not told", "        delay = ahead\n", ""},
		{"a peek waits", "if e > 0 and debt > 0 and units > 0 and", "if e > 0 and debt > 0 and"},
		{"a queue that is too long shows what fits", "remaining, reset = 0, remaining > 0 and ahead or max(reset, ahead)", "reset = max(reset, ahead)"},
		{"a queue told by its value", "value and e == 0 and", "value and"},
		{"a soft charge that did not fit told as passed", "and e == 0 and short == 0", "and e == 0"},
		{"a queue that is too long resets late", "remaining > 0 and ahead or max(reset, ahead)", "max(reset, ahead)"},
	},
	"algo_fixed_window": {
		{"one unit too many", "current + units > limit then", "current + units > limit + 1 then"},
		{"the last unit refused", "current + units > limit then", "current + units >= limit then"},
		{"exactly the limit never fits", "units > limit and -1", "units >= limit and -1"},
		{"an unlimited window refuses", "limit ~= UNLIMITED and", ""},
		{"counts past a billion", "short = max(0, taken - (MANY - current))", "short = 0"},
		{"what was clipped not told", "short = max(0, taken - (MANY - current))\n    current = current + (taken - short)", "current = min(MANY, current + taken)"},
		{"windows that begin with the first request", "local start = now - now % window", "local start = now - from >= window and now or from"},
		{"a clock that went back begins a window", "if start > from then", "if start ~= from then"},
		{"a window is never over", "from, current = start, 0", "from = start"},
		{"remaining below zero", "max(0, limit - current)", "limit - current"},
		{"resets a microsecond late", ", from + window - now\n", ", from + window - now + 1\n"},
		{"a wait for two windows", "or from + window - now", "or from + 2 * window - now"},
		{"a shadow refusal charges", "(wait == 0 or soft) then", "(wait == 0 or soft or flags >= 2) then"},
	},
	"algo_sliding_window_log": {
		{"one unit too many", "used + units > limit then", "used + units > limit + 1 then"},
		{"the last unit refused", "used + units > limit then", "used + units >= limit then"},
		{"an entry stays a microsecond too long", "2 + 12 * half) >= window then", "2 + 12 * half) > window then"},
		{"exactly the limit never fits", "if most < 0 then", "if most <= 0 then"},
		{"a wait for one entry too many", "% WRAP <= most then", "% WRAP < most then"},
		{"a wait off by one", "wait = unstruct('<d', text, 2 + 12 * first) + window - now", "wait = unstruct('<d', text, 2 + 12 * first) + window - now + 1"},
		{"a soft charge past the limit", "more = max(0, min(taken, limit - used))", "more = taken"},
		{"a clock that went back writes its own time", "max(now, latest)", "now"},
		{"entries that left are kept as if they counted", "VERSION, renewal, before)", "VERSION, renewal, 0)"},
		{"the newest entry is lost", ".. entries ..", ".. entries:sub(1, -13) .."},
		{"rises with the wrong entry", "% WRAP <= less then", "% WRAP < less then"},
		{"remaining below zero", "max(0, limit - used)", "limit - used"},
		{"a lowered limit rises too soon", "min(used, limit) - 1", "used - 1"},
		{"refusals in the log", "(wait == 0 or soft) then", "true then"},
	},
	"algo_sliding_window_counter": {
		{"one unit too many", "used + units > limit then", "used + units > limit + 1 then"},
		{"the last unit refused", "used + units > limit then", "used + units >= limit then"},
		{"the share rounded down", "ceil(previous * left / ticks)", "floor(previous * left / ticks)"},
		{"the begun tick gone", "ceil(rest / tick)", "floor(rest / tick)"},
		{"more than all of the previous window", "min(ticks, ceil(rest / tick))", "ceil(rest / tick)"},
		{"the previous window forgotten", "start == from + window and current or 0", "0"},
		{"the window before the previous one counts", "start == from + window and current or 0", "current"},
		{"a clock that went back begins a window", "if start > from then", "if start ~= from then"},
		{"an unlimited one refuses", "limit ~= UNLIMITED and", ""},
		{"counts past a billion", "short = max(0, taken - (MANY - current))", "short = 0"},
		{"exactly the limit never fits", "if most < 0 then", "if most <= 0 then"},
		{"a wait a tick too long", "wait = rest - share * tick", "wait = rest - (share - 1) * tick"},
		{"a wait to the end where it is longer", "elseif current <= most then", "elseif true then"},
		{"a wait past the end where it is not", "elseif current <= most then", "elseif current < most then"},
		{"a wait of two windows", "rest + window - floor(most * ticks / current) * tick", "rest + window"},
		{"what was taken not shown", "current + (taken - short), used + (taken - short)", "current + (taken - short), used"},
		{"remaining below zero", "max(0, limit - used)", "limit - used"},
		{"resets with the first unit", "max(0, limit - used), rest", "max(0, limit - used), min(rest, floor(ticks / max(1, previous)) * tick)"},
	},
	"algo_quota": {
		{"one unit over the quota", "elseif units > room then", "elseif units > room + 1 then"},
		{"the quota's last unit refused", "elseif units > room then", "elseif units >= room then"},
		{"refunds forgotten", "local room = min(limit - (consumed - refunded),", "local room = min(limit - consumed,"},
		{"refunds shown twice", "remaining = limit - (consumed - refunded)", "remaining = limit - consumed + 2 * refunded"},
		{"remaining past what can be counted", "remaining = min(remaining, UNLIMITED - consumed)", "remaining = remaining"},
		{"never for what the next period sells", "if units > limit then", "if units >= limit then"},
		{"counts past 2^53", "short = max(0, taken - (UNLIMITED - consumed))", "short = 0"},
		{"an unlimited quota refuses", "and limit ~= UNLIMITED then", "then"},
		{"remaining below zero", "min(limit, max(0, remaining))", "min(limit, remaining)"},
		{"the wait of the other end", "reset = till - now", "reset = now - from"},
		{"a shadow refusal charges", "(wait == 0 or soft) then", "(wait == 0 or soft or flags >= 2) then"},
		{"the period's end belongs to it", "now >= till", "now > till"},
		{"the period's start does not belong to it", "now < from", "now <= from"},
		{"stale forgotten", "status = STALE\n", "status = nil\n"},
		{"floors forgotten", "consumed, refunded = max(consumed, d), max(refunded, e)\n", ""},
		{"a floor takes the place of what is more", "max(consumed, d), max(refunded, e)", "d > 0 and d or consumed, max(refunded, e)"},
		{"a lost store decides", "if lost and flags < 2 then", "if false then"},
		{"a lost store decides no shadow", "if lost and flags < 2 then", "if lost then"},
	},
	"algo_wallet": {
		{"an empty wallet passes", "(balance <= 0 or", "(balance < 0 or"},
		{"the last unit stays", "(balance <= 0 or", "(balance <= 1 or"},
		{"no overdraft", "(balance <= 0 or", "(balance < units or"},
		{"refunds forgotten", "local balance = limit - (consumed - refunded)", "local balance = limit - consumed"},
		{"a prepaid wallet waits", "(prepaid or limit == 0 or units > UNLIMITED) and -1 or reset", "-1 + (prepaid and 1 or reset)"},
		{"a renewable one never comes back", "(prepaid or limit == 0 or units > UNLIMITED) and -1 or reset", "-1"},
		{"a renewable one of limit 0 waits", "prepaid or limit == 0 or", "prepaid or"},
		{"an unlimited one refuses", "(prepaid or limit ~= UNLIMITED) and", ""},
		{"2^53-1 granted never ends", "(prepaid or limit ~= UNLIMITED) and", "limit ~= UNLIMITED and"},
		{"counts past 2^53", "short = max(0, taken - (UNLIMITED - consumed))", "short = 0"},
		{"a prepaid one has an end", "if not prepaid then reset = till - now end", "reset = till - now"},
		{"a prepaid one is stale", "elseif not prepaid and (now < from or now >= till) then", "elseif now < from or now >= till then"},
		{"the period's end belongs to it", "now >= till", "now > till"},
		{"stale forgotten", "status = STALE\n", "status = nil\n"},
		{"floors forgotten", "consumed, refunded = max(consumed, d), max(refunded, e)\n", ""},
		{"a lost store decides", "if lost and flags < 2 then", "if false then"},
		{"remaining below zero", "min(limit, max(0, remaining))", "min(limit, remaining)"},
	},
	"frame": {
		{"all-or-nothing forgotten", "charged = charged and allowed and manner < 2", "charged = charged and manner < 2"},
		{"to weigh charges", "charged = charged and allowed and manner < 2", "charged = charged and allowed"},
		{"to weigh shows what would be", "elseif asked or not allowed or manner > 1 then", "elseif asked or not allowed then"},
		{"soft forgotten", "flags % 2 == 1, 0, 0", "false, 0, 0"},
		{"shadow forgotten", "elseif flags < 2 then\n          allowed", "else\n          allowed"},
		{"a shadow refusal charges, of several", "(waits[i] == 0 or soft) then", "(waits[i] == 0 or soft or flags >= 2) then"},
		{"charges on one counter each on their own", "units = min(EXACT, (asked[key] or 0) + cost)", "units = cost"},
		{"charges on one counter not known to be", "manner % 2 == 1 and {}, nil", "false, nil"},
		{"a refused shadow counts", "if asked and (sold or flags < 2) then", "if asked then"},
		{"a cost of 0 is asked", "elseif cost > 0 then\n          units", "else\n          units"},
		{"a cost of 0 charges", "charged = charged or cost > 0", "charged = true"},
		{"a request forgotten", "if charged and request > 0 then", "if false then"},
		{"a refused request remembered", "if charged and request > 0 then", "if request > 0 then"},
		{"a fingerprint not compared", "elseif known:sub(2, 17) ~= A[argument] then", "elseif false then"},
		{"the state of the batch not kept", "            V[key] = value\n", "            V[key] = V[key] or value\n"},
		{"the state of the decision not kept", "        V[key] = value\n        if", "        V[key] = V[key] or value\n        if"},
		{"only the first counter written", "for i = 1, refusal and 0 or dirties do", "for i = 1, min(1, dirties) do"},
		{"a refused decision shown as if it charged", "elseif asked or not allowed or manner > 1 then", "elseif asked or manner > 1 then"},
		{"what several leave is not shown", "pass = pass + 1", "pass = DONE"},
		{"a delay forgotten where it is shown again", "delays and delays[i] or 0", "0"},
		{"a request remembered by values", "terse, brief = request == 0, false", "terse, brief = true, false"},
		{"a bucket told in full beside values", "pass = brief and not terse and SHOW or DONE", "pass = DONE"},
		{"values said to be told in full", "(brief and terse and 'T' or 'A')", "'A'"},
		{"written in place of its expiry", "pcall('SETRANGE', K[key], '0',", "pcall('SETRANGE', K[key], '1',"},
		{"written in place where it is shorter", "expiries[key] = renewals[i] or expiries[key] or false", "expiries[key] = false"},
	},
}

// TestIntegrationPlantedFaultsAreCaught guarantees that the test above can
// fail: each fault planted in the script makes it.
func TestIntegrationPlantedFaultsAreCaught(t *testing.T) {
	t.Parallel()
	client := redistest.Client(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for file, planted := range faults {
		for i, f := range planted {
			text, found := plant(file, f.old, f.new)
			if !found {
				t.Errorf("%s, %s: %q is not in it once", file, f.name, f.old)
				continue
			}
			var err error
			for try := range uint64(10) { // some show seldom
				if _, err = differ(t.Context(), client, text, seed+uint64(i)+try<<32, 1000); err != nil {
					break
				}
			}
			if !errors.Is(err, errDiffer) {
				t.Errorf("%s, %s: not caught (%v)", file, f.name, err)
			}
		}
	}
}

// plant returns the script with a fault in one of its files, if old is in that
// once.
func plant(file, old, new string) (string, bool) {
	text, all := counters.Source(file), counters.DecideText()
	if strings.Count(text, old) != 1 {
		return "", false
	}
	faulty := strings.Replace(text, old, new, 1)
	if file != "frame" {
		return strings.Replace(all, text, faulty, 1), true
	}
	const mark = "-- ALGORITHMS --"
	before, after, _ := strings.Cut(text, mark)
	algorithms := strings.TrimSuffix(strings.TrimPrefix(all, before), after)
	return strings.Replace(faulty, mark, algorithms, 1), true
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
	store.Adopt(false) // what is lost stays lost
	defer func() { _ = store.Close() }()
	for i := range worlds {
		if err := client.FlushDB(ctx).Err(); err != nil {
			return reached, err
		}
		w := newWorld(rand.New(rand.NewPCG(seed, uint64(i))), store, reached)
		vouch := store.Vouch
		if w.model.Lost = w.IntN(12) == 0; w.model.Lost {
			vouch = func(ctx context.Context) error { return client.Set(ctx, counters.EpochKey, "another run", 0).Err() }
		}
		if err := vouch(ctx); err != nil {
			return reached, err
		}
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
	pace    time.Duration  // of the clock
	rates   []limit.Charge // of every algorithm
	totals  []limit.Charge // quotas and wallets
	periods []period.Spec  // of the totals; none of a prepaid wallet
	reached map[string]int
}

// names are of all that is charged, rates first.
var names = []string{
	string(rule.GCRA), string(rule.TokenBucket), string(rule.LeakyBucket), "queue", string(rule.FixedWindow), string(rule.SlidingWindowLog),
	string(rule.SlidingWindowCounter), string(rule.CalendarQuota), "renewable wallet", "prepaid wallet",
}

const waiting = 7 // of the names, whose waits end within one counter

func nameOf(c *limit.Charge) string {
	switch {
	case c.MaxDelay > 0:
		return "queue"
	case c.Counter.Kind == rule.Wallet && c.Span == (period.Span{}):
		return "prepaid wallet"
	case c.Counter.Kind == rule.Wallet:
		return "renewable wallet"
	default:
		return string(c.Algorithm)
	}
}

func newWorld(rng *rand.Rand, store *counters.Store, reached map[string]int) *world {
	w := &world{
		Rand: rng, store: store, model: limit.NewState(), reached: reached,
		now: time.UnixMicro(1_767_323_045_000_000 + rng.Int64N(1e14)).UTC(),
	}
	window := w.magnitude(rule.MaxWindow.Microseconds())
	for i := range 7 {
		own := window
		if w.IntN(3) == 0 {
			own = w.magnitude(rule.MaxWindow.Microseconds())
		}
		c := rate(rateAlgorithms[i%len(rateAlgorithms)], fmt.Sprint("rate ", i), 0, time.Duration(own)*time.Microsecond, 0)
		w.numbers(&c)
		w.rates = append(w.rates, c)
	}
	b := w.rates[w.IntN(len(w.rates))]
	w.pace = b.Window
	if b.Algorithm.Bucket() {
		w.pace = time.Duration(float64(b.Window) * min(20, float64(b.Burst)/float64(max(1, b.Limit))) / 4)
	}
	w.pace = min(w.pace, 1000*24*time.Hour) + 2*time.Microsecond
	for i := range 5 {
		unit := []period.Unit{period.Hour, period.Day, period.Month, period.Day, ""}[i]
		w.periods = append(w.periods, period.Spec{Unit: unit, Count: 1 + w.IntN(3), Alignment: period.Calendar, Zone: time.UTC})
		c := quota(fmt.Sprint("quota ", i), period.Span{}, w.quantity(), 0)
		if i > 2 {
			c = prepaid("wallet", w.quantity(), 0)
		}
		c.Counter.Unit = unit
		w.totals = append(w.totals, c)
	}
	return w
}

// rateAlgorithms are those of rates; the first leaky bucket of a world is a
// meter or a queue, as it is drawn.
var rateAlgorithms = []rule.Algorithm{
	rule.GCRA, rule.TokenBucket, rule.LeakyBucket, rule.FixedWindow, rule.SlidingWindowLog, rule.SlidingWindowCounter, rule.LeakyBucket,
}

// numbers draws a rate's limit, burst and delay; a limit of 0 now and then.
func (w *world) numbers(c *limit.Charge) {
	c.Burst, c.MaxDelay = 0, 0
	switch c.Algorithm { //nolint:exhaustive // all others are buckets
	case rule.FixedWindow, rule.SlidingWindowCounter:
		if c.Limit = w.magnitude(rule.MaxCapacity); w.IntN(3) > 0 {
			c.Limit = 1 + w.Int64N(40)
		}
		if w.IntN(12) == 0 {
			c.Limit = rule.Unlimited
		}
	case rule.SlidingWindowLog:
		if c.Limit = 1 + w.Int64N(20); w.IntN(4) == 0 {
			c.Limit = w.magnitude(rule.MaxLog)
		}
	default:
		c.Limit, c.Burst = w.magnitude(c.Window.Microseconds()), w.magnitude(rule.MaxCapacity)
		if w.IntN(3) > 0 {
			c.Burst = min(c.Burst, 1+w.Int64N(40))
		}
		if c.Algorithm == rule.LeakyBucket && w.IntN(2) == 0 {
			c.MaxDelay = time.Duration(w.magnitude(rule.MaxDelay.Microseconds())) * time.Microsecond
			if w.IntN(2) == 0 { // a few units' time
				c.MaxDelay = min(rule.MaxDelay, (c.Window*time.Duration(1+w.IntN(5))/time.Duration(c.Limit)).Truncate(time.Microsecond)+time.Microsecond)
			}
		}
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

func (w *world) charge(i int) limit.Charge {
	var c limit.Charge
	if i < len(w.rates) {
		c = w.rate(i)
	} else {
		c = w.total(i - len(w.rates))
	}
	c.Soft, c.Counter.Shadow = w.IntN(6) == 0, w.IntN(6) == 0
	return c
}

// rate draws a charge of a rate, now and then with other numbers, and seldom of
// another algorithm, which is another counter.
func (w *world) rate(i int) limit.Charge {
	c := &w.rates[i]
	switch w.IntN(40) {
	case 0, 1, 2, 3:
		w.numbers(c)
		w.reached["changed numbers"]++
	case 4:
		c.Algorithm = rateAlgorithms[w.IntN(len(rateAlgorithms))]
		c.Counter.Algorithm = c.Algorithm
		w.numbers(c)
		w.reached["changed algorithm"]++
	}
	capacity := c.Limit
	if c.Algorithm.Bucket() {
		capacity = c.Burst
	}
	charge := *c
	charge.Cost = w.cost(capacity)
	return charge
}

// total draws a charge of a quota or a wallet.
func (w *world) total(i int) limit.Charge {
	if w.IntN(20) == 0 {
		w.totals[i].Limit = w.quantity()
	}
	c := w.totals[i]
	c.Cost = min(w.cost(c.Limit), rule.Unlimited)
	if c.Counter.Unit != "" {
		at := w.now
		if w.IntN(100) == 0 { // by the clock of a gateway that is behind
			at = at.Add(-w.pace)
		}
		c.Span, _ = w.periods[i].At(at)
		c.Counter.Start, c.Counter.Count = c.Span.Start, w.periods[i].Count
	}
	if w.IntN(10) == 0 {
		c.Floor.Consumed = w.Int64N(80)
		c.Floor.Refunded = w.Int64N(c.Floor.Consumed + 1)
	}
	return c
}

// decision draws charges, of up to four counters or of one of every algorithm.
func (w *world) decision() limit.Decision {
	all := len(w.rates) + len(w.totals)
	which := make([]int, w.IntN(5))
	for i := range which {
		which[i] = w.IntN(all)
	}
	if len(which) > 1 && w.IntN(6) == 0 {
		which[1] = which[0]
	}
	if w.IntN(12) == 0 {
		which = w.Perm(all)
	}
	d := limit.Decision{Charges: make([]limit.Charge, len(which)), Weigh: w.IntN(8) == 0}
	keys := map[string]bool{}
	for i := range d.Charges {
		c := w.charge(which[i])
		d.Charges[i] = c
		if k := counters.Key(c.Counter); keys[k] {
			w.reached["twice on one counter"]++
			w.reached[nameOf(&c)+" twice"]++
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
		if span, err := w.periods[w.IntN(4)].At(w.now); err == nil {
			w.now = span.End
		}
	case 4: // to the edge of a window
		window := w.rates[w.IntN(len(w.rates))].Window.Microseconds()
		w.now = w.now.Add(time.Duration(window-w.now.UnixMicro()%window) * time.Microsecond)
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
	w.mixed(decisions)
	answers, err := w.ask(ctx, w.now, decisions...)
	if err != nil {
		return err
	}
	last := len(answers) - 1
	if err := w.probe(ctx, &decisions[last], &answers[last]); err != nil {
		return err
	}
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

// probe weighs each refused rate by itself, about its wait.
func (w *world) probe(ctx context.Context, d *limit.Decision, a *limit.Answer) error {
	for i, r := range a.Results {
		if a.Replayed {
			break // of another decision
		}
		c := d.Charges[i]
		if c.Counter.Kind != rule.Rate || r.Passed || r.RetryAfter == limit.Never || w.now.Add(r.RetryAfter).Year() > 2140 {
			continue
		}
		passed := 0
		for _, at := range []time.Time{w.now.Add(r.RetryAfter - time.Microsecond), w.now.Add(r.RetryAfter)} {
			answers, err := w.ask(ctx, at, limit.Decision{Charges: []limit.Charge{c}, Weigh: true})
			if err != nil {
				return err
			}
			passed = passed*2 + map[bool]int{true: 1}[answers[0].Results[0].Passed]
		}
		w.count(nameOf(&c)+" waited for", passed == 1)
	}
	return nil
}

// mixed notes which algorithms meet.
func (w *world) mixed(decisions []limit.Decision) {
	batch := map[string]bool{}
	for i := range decisions {
		one := map[string]bool{}
		for j := range decisions[i].Charges {
			name := nameOf(&decisions[i].Charges[j])
			one[name], batch[name] = true, true
		}
		w.count("all algorithms in one decision", len(one) == len(names))
	}
	w.count("all algorithms in one batch", len(batch) == len(names))
}

// refund gives something back on both sides, as a later version will.
func (w *world) refund(ctx context.Context) error {
	ids := slices.SortedFunc(maps.Keys(w.model.Counters), func(a, b limit.Identity) int {
		return strings.Compare(counters.Key(a), counters.Key(b))
	})
	for _, id := range ids {
		v := w.model.Counters[id]
		if id.Kind == rule.Rate || v.Consumed == v.Refunded || w.IntN(8) > 0 {
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
	w.count("lost", a.Lost)
	if a.Lost || a.Stale || a.Replayed || a.Conflict || len(d.Charges) == 0 {
		return
	}
	w.reached["decided"]++
	w.count("allowed", a.Allowed)
	w.count("charged", a.Charged)
	w.count("weighed, allowed", d.Weigh && a.Allowed)
	w.count("weighed, refused", d.Weigh && !a.Allowed)
	for i, r := range a.Results {
		c := d.Charges[i]
		name := nameOf(&c)
		w.count("soft refused", c.Soft && !r.Passed)
		w.count("shadow refused", c.Counter.Shadow && !r.Passed)
		w.count("never", r.RetryAfter == limit.Never)
		w.count("delayed", r.Delay > 0)
		w.count("above its floor", c.Floor.Consumed > 0 && r.Consumed > c.Floor.Consumed)
		w.count("below its floor", c.Floor.Consumed > 0 && r.Consumed == c.Floor.Consumed && a.Charged == (c.Cost > 0))
		w.count(name+" passed", r.Passed && c.Cost > 0)
		w.count(name+" refused", !r.Passed)
		w.count(name+" soft refused", c.Soft && !r.Passed)
		w.count(name+" shadow refused", c.Counter.Shadow && !r.Passed)
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
