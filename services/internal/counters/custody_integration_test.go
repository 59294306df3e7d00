//go:build integration

package counters_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/redistest"
)

// keep opens a store that adopts nothing, and its custody.
func keep(t testing.TB, url string) (*counters.Store, *counters.Custody) {
	t.Helper()
	s := open(t, counters.Config{URL: url, Budget: generous})
	return s, s.Custody()
}

// saved is a quota of a month as it was kept.
func saved(c limit.Charge, consumed, refunded int64) counters.Saved {
	s := limit.Saved{Totals: limit.Totals{Consumed: consumed, Refunded: refunded}}
	if !c.Span.End.IsZero() {
		s.Expiry = c.Span.End.Add(8 * 24 * time.Hour)
	}
	return counters.Saved{Key: counters.Key(c.Counter), Saved: s}
}

// TestIntegrationRestoreDifferential guarantees that the script is limit.Restore:
// on random counters that are there or not, and by each of several faults that
// were tried in it, that the test would notice.
func TestIntegrationRestoreDifferential(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	url := redistest.Start(t).URL
	if err := differRestore(t, url, counters.Source("restore"), seed); err != nil {
		t.Error(err)
	}
	for _, fault := range [][2]string{
		{"max(consumed, c)", "consumed"},
		{"max(refunded, r)", "r"},
		{"expiry <= now", "expiry < now"},
		{"until_ > 0 and expiry > until_", "expiry > until_"},
		{"until_ > 0 and expiry > until_", "false"},
		{"consumed > c or refunded > r", "consumed > c"},
		{"consumed == 0 and refunded == 0", "false"},
	} {
		text := strings.Replace(counters.Source("restore"), fault[0], fault[1], 1)
		if text == counters.Source("restore") {
			t.Errorf("the script has no %q", fault[0])
		}
		if differRestore(t, url, text, seed) == nil {
			t.Errorf("with %q for %q nothing is noticed", fault[1], fault[0])
		}
	}
}

func differRestore(t *testing.T, url, text string, seed uint64) error {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's
	store, custody := keep(t, url)
	store.RestoreWith(text)
	now := time.UnixMicro(time.Now().UnixMicro()).UTC()
	draw := func() limit.Saved {
		s := limit.Saved{Totals: limit.Totals{Consumed: random.Int64N(4), Refunded: random.Int64N(4)}}
		if n := random.Int64N(5); n > 0 {
			s.Expiry = now.Add(time.Duration(n-2) * time.Hour)
		}
		return s
	}
	type counter struct {
		value limit.Saved
		there bool
	}
	model, reached := map[string]counter{}, map[counters.Outcome]int{}
	prefix := fmt.Sprintf("{t:d%d}:e:quota:t:m:g:month*1:", random.Uint64())
	for round := range 60 {
		var batch []counters.Saved
		for i := range 40 {
			if random.IntN(2) == 0 {
				batch = append(batch, counters.Saved{Key: fmt.Sprint(prefix, i+40*(round/6)), Saved: draw()})
			}
		}
		got, err := custody.RestoreAt(t.Context(), now, batch)
		if err != nil {
			return err
		}
		for i, b := range batch {
			was := model[b.Key]
			value, there := limit.Restore(was.value, was.there, b.Saved, now)
			want := counters.Kept
			switch {
			case !there && b.Totals != limit.Totals{}:
				want = counters.Over
			case there && !was.there:
				want = counters.Added
			case value.Totals != was.value.Totals:
				want = counters.Raised
			}
			model[b.Key] = counter{value, there}
			if reached[want]++; got[i] != (counters.Restored{Outcome: want, Totals: value.Totals}) {
				return fmt.Errorf("%+v on %+v: got %c %+v, want %c %+v", b, was, got[i].Outcome, got[i].Totals, want, value.Totals)
			}
		}
	}
	for _, o := range []counters.Outcome{counters.Kept, counters.Raised, counters.Added, counters.Over} {
		if reached[o] < 20 {
			return fmt.Errorf("%c was reached %d times", o, reached[o])
		}
	}
	held := map[string]limit.Saved{}
	if err := custody.Each(t.Context(), func(some []counters.Saved) error {
		for _, s := range some {
			held[s.Key] = s.Saved
		}
		return nil
	}); err != nil {
		return err
	}
	for key, c := range model {
		if got, there := held[key]; c.there && c.value.Expiry.After(now) && (!there || got != c.value) {
			return fmt.Errorf("%s holds %+v (%v), want %+v", key, got, there, c.value)
		}
	}
	return nil
}

// TestIntegrationRestoreContention guarantees that a counter which many restore
// while it is charged comes to what was kept and what was charged since, in any
// order, and lives as long as its period asks.
func TestIntegrationRestoreContention(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	span := month(time.Now())
	gate := openStore(t, server.URL, generous)
	for run := range 30 {
		q := quota(fmt.Sprint("tenant ", run), span, 1_000, 1)
		_, first := keep(t, server.URL)
		known := saved(q, 700, 20)
		if _, err := first.Restore(t.Context(), []counters.Saved{known}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if _, err := first.Restore(t.Context(), []counters.Saved{known}); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() { decide(t, gate, q) })
		}
		wg.Wait()
		if a := decide(t, gate, quota(q.Counter.Tenant, span, 1_000, 0)); a.Results[0].Consumed != 704 || a.Results[0].Refunded != 20 {
			t.Fatalf("%+v, want 704 and 20", a.Results[0])
		}
		if life := lifeOf(t, server.Client(), known.Key); life < time.Until(span.End.Add(8*24*time.Hour-time.Minute)) {
			t.Fatalf("it lives for %v", life)
		}
	}
}

// TestIntegrationClaim guarantees that a store is vouched for only when nothing
// was lost since it was claimed, by any of several who restore it; that the time
// since when it counts is kept; and that decisions wait for it.
func TestIntegrationClaim(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	span := month(time.Now())
	gate, _ := keep(t, server.URL)
	_, one := keep(t, server.URL)
	_, two := keep(t, server.URL)
	look := func(c *counters.Custody, want int) []int {
		t.Helper()
		lost, err := c.Look(t.Context())
		if err != nil || len(lost) != want {
			t.Fatalf("%v is lost, %v; want %d", lost, err, want)
		}
		return lost
	}
	claim := func(c *counters.Custody) *counters.Claim {
		t.Helper()
		k, err := c.Claim(t.Context(), look(c, 1))
		if err != nil || k == nil {
			t.Fatalf("%+v, %v", k, err)
		}
		return k
	}
	lost := func(want bool) {
		t.Helper()
		if a := decide(t, gate, quota("acme", span, 10, 1)); a.Lost != want {
			t.Fatalf("%+v, want lost to be %v", a, want)
		}
	}
	a, b := claim(one), claim(two)
	if !a.Since.Equal(b.Since) || time.Since(a.Since).Abs() > time.Minute {
		t.Errorf("claimed since %v and %v", a.Since, b.Since)
	}
	lost(true)
	if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for _, k := range []*counters.Claim{a, b} {
		if err := one.Vouch(t.Context(), k, time.Time{}); !errors.Is(err, counters.ErrReplaced) {
			t.Errorf("emptied since the claim: %v", err)
		}
	}
	lost(true)
	a, b = claim(one), claim(two)
	for _, k := range []*counters.Claim{a, b} {
		if err := two.Vouch(t.Context(), k, time.UnixMicro(5)); err != nil {
			t.Error(err)
		}
	}
	lost(false)
	look(one, 0)
	if k, err := one.Claim(t.Context(), []int{0}); k != nil || err != nil {
		t.Errorf("of what is vouched for: %+v, %v", k, err)
	}
	epoch := server.Client().Get(t.Context(), counters.EpochKey).Val()
	if _, since, _ := strings.Cut(epoch, ":"); since != "5" {
		t.Errorf("the epoch is %q", epoch)
	}
	server.Restart()
	eventually(t, 10*time.Second, "the restart is seen", func() bool {
		found, err := one.Look(t.Context())
		return err == nil && len(found) == 1
	})
	if err := one.Vouch(t.Context(), a, time.Time{}); !errors.Is(err, counters.ErrReplaced) {
		t.Errorf("another run: %v", err)
	}
}

// TestIntegrationLookAnew guarantees that another server at the store's address
// is seen although the old one goes on answering on connections that are open.
func TestIntegrationLookAnew(t *testing.T) {
	t.Parallel()
	first, second := redistest.Start(t), redistest.Start(t, "--maxmemory-policy", "allkeys-lru", "--appendonly", "yes")
	p := newProxy(t, first.Addr)
	s, custody := keep(t, "redis://"+p.addr)
	lost, err := custody.Look(t.Context())
	if err == nil {
		var k *counters.Claim
		if k, err = custody.Claim(t.Context(), lost); err == nil {
			err = custody.Vouch(t.Context(), k, time.Time{})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if lost, err = custody.Look(t.Context()); err != nil || len(lost) != 0 {
		t.Fatalf("%v, %v", lost, err)
	}
	if why := s.Unsafe(true); len(why) != 1 || !strings.Contains(why[0], "appendonly") || len(s.Unsafe(false)) != 0 {
		t.Errorf("unsafe: %q", why)
	}
	p.set(func() { p.upstream = second.Addr })
	if lost, err = custody.Look(t.Context()); err != nil || len(lost) != 1 {
		t.Errorf("%v, %v; want the other server, for which nobody vouches", lost, err)
	}
	if why := s.Unsafe(true); len(why) != 1 || !strings.Contains(why[0], "allkeys-lru") {
		t.Errorf("unsafe: %q", why)
	}
}

// TestIntegrationRestoredMarks guarantees that corrections which were told are
// not made again after a wipe: known refunds and the settlement are answered as
// at first, and what is left is what was left.
func TestIntegrationRestoredMarks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	span := month(time.Now())
	s := openStore(t, server.URL, generous)
	q := quota("acme", span, 1000, 10)
	a := decide(t, s, q)
	base := limit.Correction{Tenant: "acme", DecisionID: [16]byte{1}, At: a.Now, Cost: 10, Items: []limit.Item{{Charge: q}}}
	refund := func(id string, units int64) limit.CorrectionAnswer {
		t.Helper()
		c := base
		c.Refund, c.Units = id, units
		got, err := s.Correct(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	settle := base
	settle.Settle = 8
	before := []limit.CorrectionAnswer{refund("a", 3)}
	settled, err := s.Correct(t.Context(), settle)
	if err != nil {
		t.Fatal(err)
	}
	before = append(before, settled, refund("b", 2))

	_, custody := keep(t, server.URL)
	mark := counters.Mark{
		Tenant: "acme", Decision: [16]byte{1}, Settled: 8, Before: 3,
		Refunds: []counters.Refund{{ID: "a", Units: 3}, {ID: "b", Units: 2}}, Until: time.Now().Add(time.Hour),
	}
	if n, err := custody.Remember(t.Context(), []counters.Mark{mark}, time.Now()); n != 0 || err != nil {
		t.Errorf("%d marks were written over what is known, %v", n, err)
	}
	if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	claim, err := custody.Claim(t.Context(), []int{0})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := custody.Restore(t.Context(), []counters.Saved{saved(q, 10, 7)}); err != nil {
		t.Fatal(err)
	}
	older := mark
	older.Settled, older.Refunds = -1, mark.Refunds[:1]
	for _, m := range []counters.Mark{older, mark, older} {
		if _, err := custody.Remember(t.Context(), []counters.Mark{m}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if err := custody.Vouch(t.Context(), claim, a.Now.Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	again, err := s.Correct(t.Context(), settle)
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range []limit.CorrectionAnswer{refund("a", 3), again, refund("b", 2)} {
		want := before[i]
		if got.Effect != limit.Repeated || got.Units != want.Units || got.RefundedTotal != want.RefundedTotal || got.Left != want.Left {
			t.Errorf("correction %d again: %+v, want it repeated as %+v", i, got, want)
		}
	}
	if got := refund("c", 4); got.Effect != limit.Exceeds || got.Left != 3 {
		t.Errorf("more than is left: %+v", got)
	}
	if got := refund("c", 0); got.Effect != limit.Corrected || got.Units != 3 || got.Left != 0 || got.Items[0].Totals != (limit.Totals{Consumed: 10, Refunded: 10}) {
		t.Errorf("what is left: %+v", got)
	}
}

// TestIntegrationClusterCustody guarantees that the same holds of a cluster: what
// one master lost is seen and restored, and what another holds is left alone.
func TestIntegrationClusterCustody(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	span := month(time.Now())
	s := open(t, counters.Config{URL: c.URL, Cluster: true, Budget: generous})
	custody := s.Custody()
	restore := func(all []counters.Saved) int {
		t.Helper()
		lost, err := custody.Look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		claim, err := custody.Claim(t.Context(), lost)
		if err != nil {
			t.Fatal(err)
		}
		if claim == nil {
			return len(lost)
		}
		var its []counters.Saved
		for _, one := range all {
			if claim.Covers(one.Key) {
				its = append(its, one)
			}
		}
		if _, err := custody.Restore(t.Context(), its); err != nil {
			t.Fatal(err)
		}
		if err := custody.Vouch(t.Context(), claim, time.Time{}); err != nil {
			t.Fatal(err)
		}
		return len(lost)
	}
	if n := restore(nil); n != 16384 {
		t.Fatalf("%d slots of a new cluster are lost", n)
	}
	var all []counters.Saved
	var keys []string
	for i := range 60 {
		q := quota(fmt.Sprint("tenant ", i), span, 1000, 1)
		if a := decide(t, s, q); a.Lost || !a.Allowed {
			t.Fatalf("%+v", a)
		}
		all, keys = append(all, saved(q, 700, 0)), append(keys, counters.Key(q.Counter))
	}
	master := c.Master(keys[0])
	if err := master.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if n := restore(all); n < 1000 || n > 10_000 {
		t.Errorf("%d slots are lost, want one master's", n)
	}
	totals, err := custody.Read(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range keys {
		want := int64(1)
		if c.Master(key) == master {
			want = 700
		}
		if totals[i].Consumed != want {
			t.Errorf("%s has consumed %d, want %d", key, totals[i].Consumed, want)
		}
	}
	seen := 0
	if err := custody.Each(t.Context(), func(some []counters.Saved) error {
		seen += len(some)
		return nil
	}); err != nil || seen != len(keys) {
		t.Errorf("%d counters are found, %v; want %d", seen, err, len(keys))
	}
	// A single epoch that is gone is found when its slot is looked at.
	if err := c.Master(keys[1]).Client().Del(t.Context(), counters.EpochKeys()[counters.SlotOf("t:tenant 1")]).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the slot is found", func() bool { return restore(nil) == 1 })
}
