package counters

import (
	"context"
	"errors"
	"time"
)

// InspectEvery is how often Watch asks.
const InspectEvery = 2 * time.Second

// Unsafe returns why the store may lose what it counts without a word, as it was
// when it was last asked: an evicting memory policy, and no append-only file
// where it holds wallets.
func (s *Store) Unsafe(wallets bool) (why []string) {
	for _, n := range s.nodes() {
		if policy := n.policy.Load(); evicting(policy) {
			why = append(why, n.addr+" deletes counters when its memory is full: its maxmemory-policy is "+*policy+", not noeviction")
		}
		if wallets && n.volatile.Load() {
			why = append(why, n.addr+" forgets wallets when it restarts: appendonly is not yes")
		}
	}
	return why
}

func evicting(policy *string) bool { return policy != nil && *policy != "" && *policy != "noeviction" }

// Inspect asks every node how it keeps what it holds. The error wraps
// ErrUnavailable.
func (s *Store) Inspect(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, s.budget)
	defer cancel()
	if s.cluster != nil && len(s.nodes()) == 0 {
		if _, err := s.served(within); err != nil {
			return s.wrap(ctx, err)
		}
	}
	var errs []error
	for _, n := range s.nodes() {
		l, err := n.connect(within)
		var text string
		if err == nil {
			text, err = l.client.Info(within).Result()
		}
		var info serverInfo
		if err == nil {
			info, err = parseInfo(text)
		}
		if err == nil {
			n.learn(info)
		}
		errs = append(errs, err)
	}
	return s.wrap(ctx, errors.Join(errs...))
}

// Watch inspects the store until ctx ends, so that a policy which is changed
// under open connections is noticed. It calls inspected once, when the store has
// answered for the first time; an error of that ends it.
func (s *Store) Watch(ctx context.Context, inspected func() error) error {
	tick := time.NewTicker(InspectEvery)
	defer tick.Stop()
	for told := false; ; {
		if err := s.Inspect(ctx); err == nil && !told {
			if err := inspected(); err != nil {
				return err
			}
			told = true
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// learn takes down what a server says of itself.
func (n *node) learn(info serverInfo) {
	if was := n.policy.Swap(&info.policy); evicting(&info.policy) && (was == nil || *was != info.policy) {
		n.log.Warn("counter store deletes counters when its memory is full: set maxmemory-policy noeviction",
			"address", n.addr, "policy", info.policy)
	}
	n.volatile.Store(info.volatile)
}
