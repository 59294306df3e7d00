package bench

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	limits "penstock.dev/loadtest/naive"
)

// listens is a probe of a port.
func listens(addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// values reads many keys, those that are there.
func (b *bench) values(ctx context.Context, names []string) ([]string, error) {
	const at = 1000
	var all []string
	for ; len(names) > 0; names = names[min(at, len(names)):] {
		some, err := b.store.MGet(ctx, names[:min(at, len(names))]...).Result()
		if err != nil {
			return nil, err
		}
		for _, v := range some {
			if s, ok := v.(string); ok {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

// chargedEnvoy adds up the counters of envoyproxy/ratelimit, which lie under
// domain, key, value and the beginning of the window: two of them where a window
// began meanwhile. What it refuses it may count or not.
func (b *bench) chargedEnvoy(ctx context.Context, t turn) ([]int64, error) {
	if t.Denied {
		return nil, nil
	}
	charged := make([]int64, t.Rules)
	for k := range charged {
		var names []string
		for iter := b.store.Scan(ctx, 0, fmt.Sprintf("%s_k%d_v%d-*", t.Service, k, t.number), 10_000).Iterator(); iter.Next(ctx); {
			names = append(names, iter.Val())
		}
		values, err := b.values(ctx, names)
		if err != nil {
			return nil, err
		}
		for _, v := range values {
			n, err := strconv.ParseInt(v, 10, 64)
			if err != nil {
				return nil, err
			}
			charged[k] += n
		}
	}
	return charged, nil
}

// chargedNaive tells the units from how far each counter lies ahead of now: each
// unit by its price, and less than one has come back since the first.
func (b *bench) chargedNaive(ctx context.Context, t turn) ([]int64, error) {
	price := limits.LimitOf(t.Service).Price()
	charged := make([]int64, t.Rules)
	for k := range charged {
		names := make([]string, t.Keys)
		for i := range names {
			names[i] = fmt.Sprintf("%s:k%d=%s", t.Service, k, t.value(k, i))
			if t.HTTP {
				names[i] = fmt.Sprintf("%s:tenant=%s:user=%s", t.Service, tenant(i), t.user(i))
			}
		}
		values, err := b.values(ctx, names)
		if err != nil {
			return nil, err
		}
		now := time.Now().UnixMicro()
		for _, v := range values {
			at, err := strconv.ParseInt(v, 10, 64)
			if err != nil {
				return nil, err
			}
			charged[k] += (at - now + price - 1) / price
		}
	}
	return charged, nil
}
