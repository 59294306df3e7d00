package counters

import (
	"context"
	"fmt"
	"time"
)

// PresenceLasts is how long a process counts as alive after it said so.
const PresenceLasts = 5 * time.Second

// presenceKey is where processes say so. Of a cluster it lies in one slot.
const presenceKey = "{g}:presence"

// Presence says that the process id is alive and returns how many are, itself
// included, by the store's clock. Those that have not said so for PresenceLasts
// do not count. The error is as Decide's; the number is then unknown.
func (s *Store) Presence(ctx context.Context, id string) (alive int, err error) {
	deadline := time.Now().Add(s.budget)
	within, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	m := message{script: &s.scripts.presence, words: presence(id)}
	if err := s.shard(slotOf("g")).send(within, &m, deadline); err != nil {
		return 0, s.wrap(ctx, err)
	}
	n, ok := int64(0), len(m.replies) == 1
	if ok {
		n, ok = m.replies[0].(int64)
	}
	if !ok {
		return 0, s.wrap(ctx, fmt.Errorf("%w: %v", errReply, m.replies))
	}
	return int(n), nil
}

// A presence is who says that it is alive.
type presence string

func (p presence) command(verb string, script *string, _ string, _ *string) []any {
	return []any{verb, script, 1, presenceKey, string(p), PresenceLasts.Microseconds()}
}
