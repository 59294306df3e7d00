package counters

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/redis/go-redis/v9"

	"penstock.dev/services/internal/limit"
)

// Bytes of a quota's or wallet's value: version, two numbers, expiry.
const (
	version     = 1
	totalsBytes = 1 + 3*8
)

// DecodeTotals reads a quota's or wallet's value. The error wraps ErrValue.
func DecodeTotals(value string) (limit.Totals, error) {
	if len(value) != totalsBytes || value[0] != version {
		return limit.Totals{}, fmt.Errorf("%w: %d bytes", ErrValue, len(value))
	}
	consumed, refunded := double(value[1:]), double(value[9:])
	if !whole(consumed) || !whole(refunded) {
		return limit.Totals{}, fmt.Errorf("%w: no whole numbers", ErrValue)
	}
	return limit.Totals{Consumed: int64(consumed), Refunded: int64(refunded)}, nil
}

// whole reports whether v is what a counter may have come to: 0 to 2^53-1.
func whole(v float64) bool { return v >= 0 && v < 1<<53 && v == math.Trunc(v) }

// Usage reads quotas and wallets, for display, in one call; of a cluster, in
// one to each node. A counter that is not there is zero. The error wraps
// ErrUnavailable.
func (s *Store) Usage(ctx context.Context, ids []limit.Identity) ([]limit.Totals, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.budget)
	defer cancel()
	all := &reading{ids: ids, keys: make([]string, len(ids)), totals: make([]limit.Totals, len(ids))}
	for i := range ids {
		all.keys[i] = Key(ids[i])
	}
	var err error
	if s.cluster != nil {
		err = s.readSpread(ctx, all)
	} else {
		err = s.readTogether(ctx, all)
	}
	if err != nil {
		return nil, s.wrap(ctx, err)
	}
	return all.totals, nil
}

// A reading is what Usage reads.
type reading struct {
	ids    []limit.Identity
	keys   []string
	totals []limit.Totals
}

// places are those of some of a reading's keys.
type places []int

// ask is the command that reads some keys.
func (r *reading) ask(ctx context.Context, some places) *redis.SliceCmd {
	words := make([]any, 1, 1+len(some))
	words[0] = "mget"
	for _, i := range some {
		words = append(words, r.keys[i])
	}
	return redis.NewSliceCmd(ctx, words...)
}

// take takes in the reply to ask.
func (r *reading) take(some places, cmd *redis.SliceCmd) error {
	values, err := cmd.Result()
	if err != nil {
		return err
	}
	if len(values) != len(some) {
		return errReply
	}
	for k, i := range some {
		value, there := values[k].(string)
		if !there {
			continue
		}
		if r.totals[i], err = DecodeTotals(value); err != nil {
			return fmt.Errorf("%s: %w", r.keys[i], err)
		}
	}
	return nil
}

func (s *Store) readTogether(ctx context.Context, r *reading) error {
	some := make(places, len(r.keys))
	for i := range some {
		some[i] = i
	}
	l, err := s.single.node.connect(ctx)
	if err != nil {
		return err
	}
	cmd := r.ask(ctx, some)
	_ = l.client.Process(ctx, cmd) // the command has the error
	return r.take(some, cmd)
}

// readSpread reads from every node at once what lies there. What has moved is
// followed, slot by slot.
func (s *Store) readSpread(ctx context.Context, r *reading) error {
	bySlot := map[int]places{}
	for i := range r.ids {
		slot := slotOf(counterTag(r.ids[i]))
		bySlot[slot] = append(bySlot[slot], i)
	}
	byNode := map[*node][]places{}
	for slot, some := range bySlot {
		n, err := s.cluster.route(ctx, slot)
		if err != nil {
			return err
		}
		byNode[n] = append(byNode[n], some)
	}
	var mu sync.Mutex
	var errs []error
	var reading sync.WaitGroup
	for n, lists := range byNode {
		reading.Go(func() {
			err := s.readNode(ctx, r, n, lists)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	reading.Wait()
	return errors.Join(errs...)
}

// readNode reads lists of keys from a node, each of one slot.
func (s *Store) readNode(ctx context.Context, r *reading, n *node, lists []places) error {
	l, err := n.connect(ctx)
	if err != nil {
		s.cluster.suspect(ctx)
		return err
	}
	all := l.client.Pipeline()
	cmds := make([]*redis.SliceCmd, len(lists))
	for k, some := range lists {
		cmds[k] = r.ask(ctx, some)
		_ = all.Process(ctx, cmds[k]) // it is only queued
	}
	_, _ = all.Exec(ctx) // each has its own error
	for k, some := range lists {
		err := r.take(some, cmds[k])
		if what, _ := cueOf(err); what != cueNone {
			err = s.readSlot(ctx, r, some)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readSlot reads keys of one slot, wherever it is.
func (s *Store) readSlot(ctx context.Context, r *reading, some places) error {
	return s.cluster.follow(ctx, slotOf(counterTag(r.ids[some[0]])), func(n *node, asking bool) error {
		l, err := n.connect(ctx)
		if err != nil {
			return err
		}
		both := l.client.Pipeline()
		if asking {
			both.Do(ctx, "asking")
		}
		cmd := r.ask(ctx, some)
		_ = both.Process(ctx, cmd)
		_, _ = both.Exec(ctx)
		return r.take(some, cmd)
	})
}
