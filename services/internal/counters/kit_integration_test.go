//go:build integration

package counters_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/internal/counters"
)

// openStore opens a store as a service does, and closes it with the test.
func openStore(t testing.TB, url string, budget time.Duration) *counters.Store {
	t.Helper()
	store, err := counters.Open(counters.Config{URL: url, Budget: budget}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}
