package counters_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/internal/counters"
)

// TestConfig guarantees which configurations are accepted, and that a refusal
// does not show the password.
func TestConfig(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, url string
		budget    time.Duration
		valid     bool
	}{
		{"plain", "redis://127.0.0.1:6379", counters.DefaultBudget, true},
		{"with everything", "rediss://user:hunter2@redis.example:6380/3", counters.DefaultBudget, true},
		{"a socket", "unix:///run/redis.sock?db=1", counters.DefaultBudget, true},
		{"another scheme", "http://user:hunter2@127.0.0.1", counters.DefaultBudget, false},
		{"no scheme", "user:hunter2@127.0.0.1:6379", counters.DefaultBudget, false},
		{"not a url", "redis://user:hunter2@127.0.0.1:port\x7f", counters.DefaultBudget, false},
		{"an unknown option", "redis://user:hunter2@127.0.0.1?retries=3", counters.DefaultBudget, false},
		{"no budget", "redis://127.0.0.1:6379", 0, false},
		{"too much budget", "redis://127.0.0.1:6379", time.Minute, false},
	} {
		cfg := counters.Config{URL: tt.url, Budget: tt.budget}
		err := cfg.Validate()
		if (err == nil) != tt.valid || err != nil && !errors.Is(err, counters.ErrConfig) {
			t.Errorf("%s: %v, valid %v", tt.name, err, tt.valid)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v shows the password", tt.name, err)
		}
		store, err := counters.Open(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if (err == nil) != tt.valid {
			t.Errorf("%s: Open = %v", tt.name, err)
		}
		if err == nil {
			if err := store.Close(); err != nil {
				t.Errorf("%s: Close = %v", tt.name, err)
			}
		}
	}
}

// TestClientOptions guarantees what keeps a decision from being repeated or
// from waiting longer than its budget.
func TestClientOptions(t *testing.T) {
	t.Parallel()
	o, err := counters.Options(counters.Config{URL: "redis://127.0.0.1:1/?max_retries=5&read_timeout=9s", Budget: budget})
	if err != nil {
		t.Fatal(err)
	}
	if !o.ContextTimeoutEnabled || o.MaxRetries > 0 || o.DialerRetries != 1 {
		t.Errorf("context timeouts %v, %d retries, %d dial attempts", o.ContextTimeoutEnabled, o.MaxRetries, o.DialerRetries)
	}
	for name, d := range map[string]time.Duration{"dial": o.DialTimeout, "read": o.ReadTimeout, "write": o.WriteTimeout, "pool": o.PoolTimeout} {
		if d != budget {
			t.Errorf("%s timeout is %v, want the budget of %v", name, d, budget)
		}
	}
}
