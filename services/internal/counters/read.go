package counters

import (
	"context"
	"fmt"

	"penstock.dev/services/internal/limit"
)

// A Usage is what a quota's counter holds, in units. Both only rise.
type Usage struct {
	Consumed int64
	Refunded int64
}

// Bytes of a quota's value: version, two numbers, expiry.
const (
	version    = 1
	usageBytes = 1 + 3*8
)

// DecodeUsage reads a quota's value. The error wraps ErrValue.
func DecodeUsage(value string) (Usage, error) {
	if len(value) != usageBytes || value[0] != version {
		return Usage{}, fmt.Errorf("%w: %d bytes", ErrValue, len(value))
	}
	return Usage{Consumed: int64(double(value[1:])), Refunded: int64(double(value[9:]))}, nil
}

// Usage reads quotas, for display, in one call. A counter that is not there is
// zero. The error wraps ErrUnavailable.
func (s *Store) Usage(ctx context.Context, ids []limit.Identity) ([]Usage, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	keys := make([]string, len(ids))
	for i := range ids {
		keys[i] = Key(ids[i])
	}
	values, err := s.redis.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, s.wrap(ctx, err)
	}
	usages := make([]Usage, len(ids))
	for i, v := range values {
		value, there := v.(string)
		if !there {
			continue
		}
		if usages[i], err = DecodeUsage(value); err != nil {
			return nil, s.wrap(ctx, fmt.Errorf("%s: %w", keys[i], err))
		}
	}
	return usages, nil
}
