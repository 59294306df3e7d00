package counters

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"penstock.dev/services/internal/limit"
)

// DecideText is the deciding script, for tests to plant faults in.
var DecideText = decideText

// RequestKey is where a request id is kept.
var RequestKey = requestKey

// New returns a store that runs text on client.
func New(client redis.UniversalClient, text string, budget time.Duration) (*Store, error) {
	return open(client, newScript(text), budget, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}

// Client returns a client as Open makes it.
func Client(cfg Config) (*redis.Client, error) {
	o, err := cfg.options()
	if err != nil {
		return nil, err
	}
	return redis.NewClient(o), nil
}

// At decides a batch in one call, with the script's clock at now.
func (s *Store) At(ctx context.Context, now time.Time, decisions ...limit.Decision) ([]limit.Answer, error) {
	answered, err := s.run(ctx, micros(now), decisions)
	if err != nil {
		return nil, err
	}
	answers := make([]limit.Answer, len(answered))
	for i, a := range answered {
		if a.err != nil {
			return nil, a.err
		}
		answers[i] = a.answer
	}
	return answers, nil
}

// Refund sets what was refunded of a quota that was charged.
func (s *Store) Refund(ctx context.Context, id limit.Identity, refunded int64) error {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], math.Float64bits(float64(refunded)))
	return s.redis.SetRange(ctx, Key(id), 9, string(b[:])).Err()
}
