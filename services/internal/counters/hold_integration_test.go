//go:build integration

package counters_test

import (
	"errors"
	"testing"
	"time"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/redistest"
	"penstock.dev/services/internal/rule"
)

// TestIntegrationGiveBackWhatIsHeld guarantees that units which are held go back to
// the counter that was charged, in every algorithm, as long as it counts them.
func TestIntegrationGiveBackWhatIsHeld(t *testing.T) {
	t.Parallel()
	s := openStore(t, redistest.Start(t).URL, generous)
	for _, a := range rates {
		c := rate(a, "acme", 100, rule.MaxWindow, 20)
		a := decide(t, s, c)
		h := s.Hold(c.Counter)
		c.Cost = 15
		if given, err := h.GiveBack(t.Context(), c, a.Now); err != nil || given != 15 || !h.Lasts() {
			t.Errorf("%s: %d given back, %v; want 15", c.Algorithm, given, err)
		}
		c.Cost = 0
		if left := decide(t, s, c).Results[0].Remaining; left != 95 {
			t.Errorf("%s: %d remain, want 95", c.Algorithm, left)
		}
	}
	c := rate(rule.FixedWindow, "other", 100, rule.MaxWindow, 20)
	now := decide(t, s, c).Now
	if given, err := s.Hold(c.Counter).GiveBack(t.Context(), c, now.Add(-rule.MaxWindow)); err != nil || given != 0 {
		t.Errorf("of the window before: %d given back, %v; want none", given, err)
	}
	c.Cost = -1
	if _, err := s.Hold(c.Counter).GiveBack(t.Context(), c, now); !errors.Is(err, limit.ErrBounds) {
		t.Errorf("%v, want ErrBounds", err)
	}
}

// TestIntegrationHoldOfALostStore guarantees that nothing is given back to a store
// that was emptied since, nor to one that has been restarted, with its data or
// without: it may have lost the charge. Who has met the new run knows that the
// hold is over.
func TestIntegrationHoldOfALostStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openStore(t, server.URL, generous)
	c := rate(rule.FixedWindow, "acme", 100, rule.MaxWindow, 20)
	left := func() int64 {
		c := c
		c.Cost = 0
		return decide(t, s, c).Results[0].Remaining
	}
	made := decide(t, s, c).Now
	h := s.Hold(c.Counter)
	if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if given, err := h.GiveBack(t.Context(), c, made); err != nil || given != 0 {
			t.Errorf("emptied: %d given back, %v; want none", given, err)
		}
		decide(t, s, c)
	}
	if n := left(); n != 60 {
		t.Errorf("%d remain, want the 60 of the new store", n)
	}

	made = decide(t, s, c).Now
	h = s.Hold(c.Counter)
	server.Restart()
	if _, err := h.GiveBack(t.Context(), c, made); !errors.Is(err, counters.ErrUnavailable) {
		t.Errorf("restarted: %v, want ErrUnavailable", err)
	}
	eventually(t, 10*time.Second, "the store answers again", func() bool { return s.Ready(t.Context()) == nil })
	if h.Lasts() {
		t.Error("another run has the counter, and the hold lasts")
	}
	before := left()
	if _, err := h.GiveBack(t.Context(), c, made); !errors.Is(err, counters.ErrUnavailable) || left() != before {
		t.Errorf("of another run: %v, and %d remain, want ErrUnavailable and %d", err, left(), before)
	}
	if h = s.Hold(c.Counter); !h.Lasts() {
		t.Error("nobody has the counter")
	}
}

// TestIntegrationLostReplyOfAGiveBack guarantees that what may have been given
// back is not sent again.
func TestIntegrationLostReplyOfAGiveBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := newProxy(t, server.Addr)
	s := openStore(t, "redis://"+p.addr, time.Second)
	c := rate(rule.FixedWindow, "acme", 100, rule.MaxWindow, 20)
	made := decide(t, s, c).Now
	h := s.Hold(c.Counter)
	c.Cost = 1
	if given, err := h.GiveBack(t.Context(), c, made); err != nil || given != 1 { // from now on the script is known
		t.Fatalf("%d given back, %v", given, err)
	}
	c.Cost = 10
	before := p.sent("evalsha")
	p.set(func() { p.lose = scriptReply })
	if _, err := h.GiveBack(t.Context(), c, made); !errors.Is(err, counters.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	p.set(func() { p.lose = nil })
	if sent := p.sent("evalsha") - before; sent != 1 {
		t.Errorf("sent %d times, want once", sent)
	}
	c.Cost = 0
	if n := decide(t, s, c).Results[0].Remaining; n != 91 {
		t.Errorf("%d remain, want 91", n)
	}
}

// clusterHolds: units that are held of counters in any slot go back there, and
// count as spent when the slot has another node.
func clusterHolds(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, generous)
	for _, charge := range []limit.Charge{rate(rule.GCRA, "holds", 100, rule.MaxWindow, 20), everywhere(rule.FixedWindow, "holds", 100, 20)} {
		if early := s.Hold(charge.Counter); !early.Lasts() {
			t.Error("nobody is known to have the counter of a cluster that is ready")
		}
		made := decide(t, s, charge).Now
		h := s.Hold(charge.Counter)
		charge.Cost = 15
		if given, err := h.GiveBack(t.Context(), charge, made); err != nil || given != 15 {
			t.Errorf("%d given back, %v; want 15", given, err)
		}
		if n := remaining(t, s, charge); n != 95 {
			t.Errorf("%d remain, want 95", n)
		}
	}
}

// clusterLosesHolds: a hold is over when its slot is another node's.
func clusterLosesHolds(t *testing.T, c *redistest.Cluster) {
	s := openCluster(t, c, generous)
	charge := rate(rule.FixedWindow, "migrates holds", 100, rule.MaxWindow, 20)
	key := counters.Key(charge.Counter)
	made := decide(t, s, charge).Now
	h := s.Hold(charge.Counter)
	to := c.Nodes[0]
	for i := 0; to == c.Master(key); i++ {
		to = c.Nodes[i]
	}
	m := c.Migrate(key, to)
	m.Keys()
	if given, err := h.GiveBack(t.Context(), charge, made); !errors.Is(err, counters.ErrUnavailable) {
		t.Errorf("on its way: %d given back, %v; want ErrUnavailable", given, err)
	}
	m.End()
	if n := remaining(t, s, charge); n != 80 {
		t.Errorf("%d remain, want 80", n)
	}
	if h.Lasts() {
		t.Error("another node has the slot, and the hold lasts")
	}
	if _, err := h.GiveBack(t.Context(), charge, made); !errors.Is(err, counters.ErrUnavailable) || remaining(t, s, charge) != 80 {
		t.Errorf("%v, want ErrUnavailable and nothing given back", err)
	}
}
