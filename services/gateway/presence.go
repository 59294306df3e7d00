package main

import (
	"context"
	"encoding/hex"
	"log/slog"
	"sync/atomic"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/boot"
)

// presenceEvery is how often a gateway says that it is there.
const presenceEvery = time.Second

// A roll is a counter store that knows which gateways are there: a
// counters.Store.
type roll interface {
	Presence(ctx context.Context, id string) (alive int, err error)
}

// presence is how many gateways there are, this one included, as the counter
// store said last. The share of a rule with on_failure local is by it, so it
// matters most when the store does not answer.
type presence struct {
	alive atomic.Int64
}

// count is how many gateways are there, at least this one.
func (p *presence) count() int { return int(max(1, p.alive.Load())) }

// part says every second that this gateway is there. Its id on the roll is its
// name and something of this run: two gateways of one name are two.
func (p *presence) part(store roll, name string, log *slog.Logger) boot.Part {
	return boot.Part{Name: "presence", Run: func(ctx context.Context) error {
		run := decide.NewID(time.Now())
		id := name + "." + hex.EncodeToString(run[:])
		tick := time.NewTicker(presenceEvery)
		defer tick.Stop()
		for {
			p.say(ctx, store, id, log)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
			}
		}
	}}
}

// say puts this gateway on the roll once. What was known stays while the store
// does not answer.
func (p *presence) say(ctx context.Context, store roll, id string, log *slog.Logger) {
	alive, err := store.Presence(ctx, id)
	if err != nil {
		log.Debug("presence not kept", "error", err.Error())
		return
	}
	if before := p.alive.Swap(int64(alive)); before != int64(alive) {
		log.Info("gateways on the counter store", "alive", alive, "before", before)
	}
}
