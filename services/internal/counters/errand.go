package counters

import (
	"context"
	"errors"
	"sync"

	"github.com/redis/go-redis/v9"
)

// An errand is a command in one slot that may be repeated.
type errand struct {
	slot   int
	script *script                // nil: words are all
	words  func(run string) []any // to the run that is asked
	take   func(run string, replies []any) error
}

// command is the errand's on a link. Text says that the server does not know the
// script.
func (e *errand) command(ctx context.Context, l *link, text bool) *redis.Cmd {
	words := e.words(*l.run.Load())
	switch {
	case e.script == nil:
	case text:
		words = append([]any{"eval", e.script.text}, words...)
	default:
		words = append([]any{"evalsha", e.script.sha}, words...)
	}
	return redis.NewCmd(ctx, words...)
}

func (e *errand) done(l *link, cmd *redis.Cmd) error {
	replies, err := cmd.Slice()
	if err != nil {
		return err
	}
	return e.take(*l.run.Load(), replies)
}

// errands runs them, many in one round trip and on all nodes at once. An error
// says that some may not have run. They may be asked again.
func (s *Store) errands(ctx context.Context, work []errand) error {
	byNode := map[*node][]*errand{}
	for i := range work {
		n, err := s.nodeOf(ctx, work[i].slot)
		if err != nil {
			return err
		}
		byNode[n] = append(byNode[n], &work[i])
	}
	var mu sync.Mutex
	var errs []error
	var running sync.WaitGroup
	for n, its := range byNode {
		running.Go(func() {
			err := s.errandsAt(ctx, n, its)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

func (s *Store) nodeOf(ctx context.Context, slot int) (*node, error) {
	if s.cluster != nil {
		return s.cluster.route(ctx, slot)
	}
	return s.single.node, nil
}

func (s *Store) errandsAt(ctx context.Context, n *node, work []*errand) error {
	for len(work) > 0 {
		some := work[:min(maxPiped, len(work))]
		work = work[len(some):]
		l, err := n.connect(ctx)
		if err != nil {
			if s.cluster != nil {
				s.cluster.suspect(ctx)
			}
			return err
		}
		all := l.client.Pipeline()
		cmds := make([]*redis.Cmd, len(some))
		for i, e := range some {
			cmds[i] = e.command(ctx, l, false)
			_ = all.Process(ctx, cmds[i]) // it is only queued
		}
		_, _ = all.Exec(ctx) // each has its own error
		for i, e := range some {
			err := e.done(l, cmds[i])
			if what, _ := cueOf(err); what != cueNone || err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
				err = s.errandAlone(ctx, e)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// errandAlone runs an errand wherever its slot is, with the script's text.
func (s *Store) errandAlone(ctx context.Context, e *errand) error {
	one := func(n *node, asking bool) error {
		l, err := n.connect(ctx)
		if err != nil {
			return err
		}
		cmd := e.command(ctx, l, true)
		both := l.client.Pipeline()
		if asking {
			both.Do(ctx, "asking")
		}
		_ = both.Process(ctx, cmd) // it is only queued
		_, _ = both.Exec(ctx)      // each has its own error
		return e.done(l, cmd)
	}
	if s.cluster != nil {
		return s.cluster.follow(ctx, e.slot, one)
	}
	return one(s.single.node, false)
}

// inSlots makes errands of n keys, each of keys in one slot and of most at most.
func (s *Store) inSlots(n, most int, key func(int) string, make func(slot int, some []int) errand) (work []errand) {
	bySlot := map[int][]int{}
	for i := range n {
		slot := 0
		if s.cluster != nil {
			slot = slotOf(tagOf(key(i)))
		}
		bySlot[slot] = append(bySlot[slot], i)
	}
	for slot, all := range bySlot {
		for len(all) > 0 {
			some := all[:min(most, len(all))]
			all = all[len(some):]
			work = append(work, make(slot, some))
		}
	}
	return work
}
