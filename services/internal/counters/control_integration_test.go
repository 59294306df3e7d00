//go:build integration

package counters_test

import (
	"errors"
	"testing"
	"time"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/redistest"
)

// TestIntegrationLock guarantees that one caller at a time has a lock, that it ends by
// itself, and that nobody gives away another's.
func TestIntegrationLock(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openStore(t, server.URL, generous)
	release, held, err := s.Lock(t.Context(), "topup:{acme}:k", time.Minute)
	if err != nil || !held {
		t.Fatalf("held %v, %v", held, err)
	}
	if _, held, err := s.Lock(t.Context(), "topup:{acme}:k", time.Minute); held || err != nil {
		t.Errorf("a second holder: %v, %v", held, err)
	}
	if _, held, err := s.Lock(t.Context(), "topup:{acme}:l", time.Minute); !held || err != nil {
		t.Errorf("another lock: %v, %v", held, err)
	}
	release()
	late, held, err := s.Lock(t.Context(), "topup:{acme}:k", 20*time.Millisecond)
	if err != nil || !held {
		t.Fatalf("after release: %v, %v", held, err)
	}
	deadline := time.Now().Add(5 * time.Second)
	for held = false; !held && time.Now().Before(deadline); {
		if _, held, err = s.Lock(t.Context(), "topup:{acme}:k", time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if !held {
		t.Fatal("the lock did not end")
	}
	late() // whose time was over
	if _, held, err := s.Lock(t.Context(), "topup:{acme}:k", time.Minute); held || err != nil {
		t.Errorf("another's lock was given away: %v, %v", held, err)
	}
	server.Kill()
	if _, _, err := s.Lock(t.Context(), "x", time.Minute); !errors.Is(err, counters.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
}

// TestIntegrationVouchedFor guarantees that a store that was emptied, or is another run's, is
// noticed.
func TestIntegrationVouchedFor(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openStore(t, server.URL, generous)
	if err := s.VouchedFor(t.Context(), "acme"); !errors.Is(err, counters.ErrNotVouched) {
		t.Errorf("an empty store: %v", err)
	}
	client := server.Client()
	if err := client.Set(t.Context(), counters.EpochKey, "another run", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.VouchedFor(t.Context(), "acme"); !errors.Is(err, counters.ErrNotVouched) {
		t.Errorf("another run's store: %v", err)
	}
	info, err := client.InfoMap(t.Context(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Set(t.Context(), counters.EpochKey, info["Server"]["run_id"], 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.VouchedFor(t.Context(), "acme"); err != nil {
		t.Error(err)
	}
	server.Kill()
	if err := s.VouchedFor(t.Context(), "acme"); !errors.Is(err, counters.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
}
