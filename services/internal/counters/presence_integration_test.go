//go:build integration

package counters_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/redistest"
)

// TestIntegrationPresence guarantees who counts as alive: whoever said so in
// the last five seconds of the server's clock, once each.
func TestIntegrationPresence(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	s := openStore(t, server.URL, generous)
	now := func(ago time.Duration) float64 {
		at, err := client.Time(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		return float64(at.Add(-ago).UnixMicro())
	}
	for who, ago := range map[string]time.Duration{
		"just now": 0, "a while ago": counters.PresenceLasts - time.Second, "too long ago": counters.PresenceLasts + time.Millisecond,
	} {
		if err := client.ZAdd(t.Context(), counters.PresenceKey, redis.Z{Score: now(ago), Member: who}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if n, err := s.Presence(t.Context(), "me"); err != nil || n != 3 {
			t.Errorf("%d alive, %v; want 3", n, err)
		}
	}
	if n, err := openStore(t, server.URL, generous).Presence(t.Context(), "another"); err != nil || n != 4 {
		t.Errorf("%d alive, %v; want 4", n, err)
	}
	if ttl := client.PTTL(t.Context(), counters.PresenceKey).Val(); ttl <= 0 || ttl > counters.PresenceLasts {
		t.Errorf("the roll lives for %v, want %v at most", ttl, counters.PresenceLasts)
	}
	server.Kill()
	if _, err := s.Presence(t.Context(), "me"); !errors.Is(err, counters.ErrUnavailable) {
		t.Errorf("without a server: %v, want ErrUnavailable", err)
	}
}
