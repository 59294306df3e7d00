package counters

import (
	"context"
	"time"

	"penstock.dev/services/internal/limit"
)

// A Hold is the run of a server that has a counter, as far as is known. While it
// lasts, what is charged to the counter is charged there.
type Hold struct {
	shard *shard
	node  *node
	link  *link
}

// Hold returns who has a counter.
func (s *Store) Hold(id limit.Identity) *Hold {
	slot := 0
	if s.cluster != nil {
		slot = slotOf(counterTag(id))
	}
	h := &Hold{shard: s.shard(slot)}
	if h.node = h.shard.at(); h.node != nil {
		h.link = h.node.link.Load()
	}
	return h
}

// Lasts reports whether no other run of a server is known to have the counter. A
// counter that nobody is known to have is nobody's.
func (h *Hold) Lasts() bool {
	return h.link != nil && h.shard.at() == h.node && h.node.link.Load() == h.link && !h.link.foreign.Load()
}

// GiveBack gives back what c charged at a time while h lasted, and returns how
// many units were counted still. It is sent once, to the run that charged, and
// gives nothing to one that was emptied since. After an error, which wraps
// ErrUnavailable, it is not known whether any were: do not repeat it.
func (h *Hold) GiveBack(ctx context.Context, c limit.Charge, at time.Time) (int64, error) {
	s := h.shard.store
	w, err := newCorrecting(h.shard.epoch, kindMove, &limit.Correction{At: at, Cost: sinceBegan}, []limit.Item{{Charge: c}}, []int64{-c.Cost}, nil)
	if err != nil {
		return 0, err
	}
	deadline := time.Now().Add(s.budget)
	within, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if !h.Lasts() {
		return 0, s.wrap(ctx, errForeign)
	}
	if !h.shard.allow(within) {
		return 0, s.wrap(ctx, errOpen)
	}
	m := message{script: &s.scripts.correct, words: w, only: h.link}
	if err := s.sendTo(within, h.node, &m, false, deadline); err != nil {
		return 0, s.wrap(ctx, err)
	}
	a, _, err := parseCorrection(m.reply(), 1)
	if err != nil || a.Effect != limit.Corrected {
		return 0, s.wrap(ctx, err)
	}
	return -a.Items[0].Units, nil
}
