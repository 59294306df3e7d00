package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/conf"
	"penstock.dev/services/internal/conf/conftest"
)

// environment is a Getenv over pairs.
func environment(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

// TestReadme guarantees that the README's table of knobs is the program's.
func TestReadme(t *testing.T) {
	t.Parallel()
	conftest.README(t, "README.md", knobs(&config{}, &conf.Secret{}, environment()).Knobs())
}

// TestParseConfig guarantees where settings come from, and that nobody is
// trusted unless named.
func TestParseConfig(t *testing.T) {
	t.Parallel()

	c, err := parseConfig([]string{"-redis-budget", "80ms", "-trusted-proxies", "198.51.100.0/24, 192.0.2.1/32"}, environment(
		"PENSTOCK_REDIS_URL", "redis://:hush@127.0.0.1:6379/0",
		"PENSTOCK_REDIS_BUDGET", "70ms",
		"PENSTOCK_DECISION_TOKENS", "0123456789abcdef, fedcba9876543210",
		"PENSTOCK_RECEIPT_KEYS", "b:secret-of-november, a:secret-of-october",
		"PENSTOCK_REDIS_CLUSTER", "true",
		"PENSTOCK_ADOPT_STORE", "true",
	))
	if err != nil {
		t.Fatal(err)
	}
	if c.receipts.None() || !c.counters().Cluster || !c.counters().Adopt {
		t.Errorf("config %+v", c)
	}
	if c.redisBudget != 80*time.Millisecond || len(c.proxies) != 2 || len(c.decisionTokens) != 2 || c.listen != ":8080" {
		t.Errorf("config %+v", c)
	}
	c, err = parseConfig(nil, environment("PENSTOCK_REDIS_URL", "redis://127.0.0.1:6379"))
	if err != nil || len(c.proxies) != 0 || len(c.decisionTokens) != 0 || !c.receipts.None() {
		t.Errorf("defaults %+v %v, want nobody trusted", c, err)
	}
	if c.counters().Cluster || c.counters().Adopt {
		t.Errorf("defaults %+v, want one Redis, which is not adopted", c.counters())
	}
}

// TestParseConfigRefuses guarantees that every fault is named at once, by its
// knob, and that no secret is in the text.
func TestParseConfigRefuses(t *testing.T) {
	t.Parallel()

	_, err := parseConfig([]string{
		"-listen", "8080", "-grpc-listen", "9090", "-admin-listen", "", "-gateway-id", "a b", "-kafka-brokers", "", "-schema-registry", "ftp://x", "-kafka-sasl", "PLAIN", "-kafka-password", "hush",
		"-redis-budget", "1h", "-deny-cache", "-1", "-leases", "1048577", "-grpc-engine", "h3", "-unsafe-store", "perhaps", "-trusted-proxies", "198.51.100.1", "-snapshot-every", "1ms", "-drain", "1m",
		"-usage-buffer", "1", "-usage-spool", "1", "-usage-linger", "-1s", "-usage-sync", "0s", "-topic-replicas", "10", "-hash-addresses", "hush",
		"-receipt-keys", "a:hush-hush,b",
	}, environment("PENSTOCK_REDIS_URL", "http://:hush@x", "PENSTOCK_DECISION_TOKENS", "hush-hush"))
	if !errors.Is(err, boot.ErrConfig) {
		t.Fatalf("parseConfig = %v, want a refusal", err)
	}
	for _, knob := range []string{
		"-listen", "-grpc-listen", "-grpc-engine", "-admin-listen", "-gateway-id", "-kafka-brokers", "-schema-registry", "-kafka-user", "-redis-url", "-redis-budget", "-deny-cache", "-leases", "-unsafe-store",
		"-decision-tokens", "-trusted-proxies", "-snapshot-every", "-drain",
		"-usage-buffer", "-usage-spool", "-usage-linger", "-usage-sync", "-topic-replicas", "-hash-addresses", "-receipt-keys",
	} {
		if !strings.Contains(err.Error(), knob+" (PENSTOCK_") {
			t.Errorf("%s is not named", knob)
		}
	}
	if strings.Contains(err.Error(), "hush") {
		t.Errorf("a secret is told: %v", err)
	}
}

// TestCheck guarantees that -check tells a good configuration from a bad one
// and starts nothing.
func TestCheck(t *testing.T) {
	t.Parallel()

	for args, want := range map[string]int{"-check": 0, "-check -drain=1m": 2, "-help": 2} {
		var out strings.Builder
		code := boot.Exec(t.Context(), "gateway", strings.Fields(args), environment("PENSTOCK_REDIS_URL", "redis://127.0.0.1:1"), &out, run)
		if code != want {
			t.Errorf("%s exits with %d, want %d: %s", args, code, want, out.String())
		}
	}
}
