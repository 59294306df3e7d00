package counters

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// What follows is for the control plane, which shows counters and keeps locks
// of its own beside them, and never changes one.

// ErrNotVouched reports a store whose counters nobody vouches for: it was
// emptied, replaced or restarted.
var ErrNotVouched = errors.New("nobody vouches for what the counter store holds")

// VouchedFor returns nil when a tenant's counters are what was counted. The error
// wraps ErrNotVouched, or ErrUnavailable.
func (s *Store) VouchedFor(ctx context.Context, tenant string) error {
	ctx, cancel := context.WithTimeout(ctx, s.budget)
	defer cancel()
	slot, key := slotOf("t:"+string(appendEscaped(nil, tenant))), epochPrefix
	if s.cluster != nil {
		key = epochKeys()[slot]
	}
	vouched := false
	err := s.run(ctx, slot, func() redis.Cmder {
		return redis.NewStringCmd(ctx, "get", key)
	}, func(l *link, cmd redis.Cmder) error {
		epoch, err := cmd.(*redis.StringCmd).Result() // the one that was made above
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		vouched = err == nil && vouches(epoch, *l.run.Load())
		return err
	})
	switch {
	case err != nil:
		return s.wrap(ctx, err)
	case !vouched:
		return ErrNotVouched
	}
	return nil
}

// unlock deletes a lock that is still its holder's.
const unlock = `if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0`

// Lock takes a lock that ends by itself after ttl. held is false when somebody
// else has it. It is a courtesy among callers, not a guarantee: a server that
// is restarted or fails over may give it twice. The error wraps ErrUnavailable.
func (s *Store) Lock(ctx context.Context, name string, ttl time.Duration) (release func(), held bool, err error) {
	within, cancel := context.WithTimeout(ctx, s.budget)
	defer cancel()
	key, token := string(appendEscaped([]byte("idem:"), name)), rand.Text()
	slot := slotOf(key)
	err = s.run(within, slot, func() redis.Cmder {
		return redis.NewStatusCmd(within, "set", key, token, "px", ttl.Milliseconds(), "nx")
	}, func(_ *link, cmd redis.Cmder) error {
		held = cmd.Err() == nil
		if errors.Is(cmd.Err(), redis.Nil) {
			return nil
		}
		return cmd.Err()
	})
	if err != nil {
		return nil, false, s.wrap(within, err)
	}
	if !held {
		return nil, false, nil
	}
	return func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.budget)
		defer cancel()
		// One that is not deleted ends by itself.
		_ = s.run(within, slot, func() redis.Cmder {
			return redis.NewCmd(within, "eval", unlock, 1, key, token)
		}, func(_ *link, cmd redis.Cmder) error { return cmd.Err() })
	}, true, nil
}

// run sends one command to the node of a slot, wherever it is.
func (s *Store) run(ctx context.Context, slot int, command func() redis.Cmder, take func(*link, redis.Cmder) error) error {
	one := func(n *node, asking bool) error {
		l, err := n.connect(ctx)
		if err != nil {
			return err
		}
		cmd := command()
		if !asking {
			_ = l.client.Process(ctx, cmd) // the command has the error
			return take(l, cmd)
		}
		both := l.client.Pipeline()
		both.Do(ctx, "asking")
		_ = both.Process(ctx, cmd)
		_, _ = both.Exec(ctx)
		return take(l, cmd)
	}
	if s.cluster != nil {
		return s.cluster.follow(ctx, slot, one)
	}
	return one(s.single.node, false)
}
