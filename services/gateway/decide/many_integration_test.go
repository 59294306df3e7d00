//go:build integration

package decide_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/redistest"
	"penstock.dev/services/internal/rule"
	"penstock.dev/services/internal/spoiltest"
)

// TestIntegrationManyInMemoryOfOthers guarantees that a real store does not look
// at what it was asked once it has answered, and that what it does not answer in
// time stays its own: batches by many whose callers give up, with a Redis that
// stops now and then, in memory that is overwritten after each.
func TestIntegrationManyInMemoryOfOthers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisStore(t, server.URL)
	r := newRig(t, decide.NewDenials(store, 64, time.Now), store.Now, rate("burst", rule.Tenant, 1_000_000), quota("month", 50))
	for i := range 8 {
		r.tenant(&decide.Tenant{ID: fmt.Sprint("t", i)})
	}
	var asking sync.WaitGroup
	var mu sync.Mutex
	more := sync.NewCond(&mu)
	outcomes, over := map[string]int{}, false
	for g := range 8 {
		asking.Go(func() {
			q := decide.Query{Tenant: fmt.Sprint("t", g)}
			var b decide.Batch
			for i := 0; ; i++ {
				for range 1 + i%5 {
					b.Queries = append(b.Queries, &q)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%20)*time.Millisecond)
				r.Service.DecideAll(ctx, &b)
				cancel()
				mu.Lock()
				for k := range b.Decisions {
					d := &b.Decisions[k]
					switch {
					case b.Errs[k] != nil:
						outcomes["given up"]++
					case d.Degraded:
					case len(d.Limits) != 2 || d.Limits[0].RuleID != "burst" || d.Limits[1].Limit != 50:
						t.Errorf("%+v", d)
					default:
						outcomes[string(d.Outcome)]++
					}
				}
				more.Broadcast()
				ends := over
				mu.Unlock()
				b.Reset()
				spoiltest.Spoil(&b)
				if ends {
					return
				}
			}
		})
	}
	// until waits for more of an outcome.
	until := func(outcome string) {
		mu.Lock()
		defer mu.Unlock()
		for least := outcomes[outcome] + 20; outcomes[outcome] < least; {
			more.Wait()
		}
	}
	until("ALLOW")
	for range 20 {
		server.Freeze()
		until("given up")
		server.Thaw()
		until("DENY")
	}
	mu.Lock()
	over = true
	mu.Unlock()
	asking.Wait()
}
