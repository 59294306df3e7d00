package counters_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// TestKeys guarantees the layout: a key that changes forgets what was
// consumed. Each example is in the package comment too.
func TestKeys(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for want, id := range map[string]limit.Identity{
		"{t:acme}:e:quota:t:api-calls:g:month*1:1767214800000000": {
			Kind: rule.Quota, Subject: rule.Tenant, Tenant: "acme", Meter: "api-calls",
			Unit: period.Month, Count: 1, Start: time.Date(2025, 12, 31, 21, 0, 0, 0, time.UTC),
		},
		"{t:acme}:e:rate:t:api-calls:e:pay:gcra:60000000": {
			Kind: rule.Rate, Subject: rule.Tenant, Tenant: "acme", Meter: "api-calls",
			Service: "payments", Endpoint: "pay", Algorithm: rule.GCRA, Window: time.Minute,
		},
		"{t:acme}:s:rate:tu:u%3A1:api-calls:g:gcra:1000000": {
			Shadow: true, Kind: rule.Rate, Subject: rule.Tenant | rule.User, Tenant: "acme", User: "u:1",
			Meter: "api-calls", Algorithm: rule.GCRA, Window: time.Second,
		},
		"{a:2001%3Adb8%3A1%3A2%3A%3A/64}:e:rate:i:2001%3Adb8%3A1%3A2%3A%3A/64:api-calls:s:payments:gcra:60000000": {
			Kind: rule.Rate, Subject: rule.IP, Address: "2001:db8:1:2::/64", Meter: "api-calls",
			Service: "payments", Algorithm: rule.GCRA, Window: time.Minute,
		},
		"{g}:e:rate:-:api-calls:g:gcra:1000000": {
			Kind: rule.Rate, Tenant: "acme", User: "u1", Meter: "api-calls", Algorithm: rule.GCRA, Window: time.Second,
		},
		"{t:acme}:e:wallet:t:credits:g": {
			Kind: rule.Wallet, Subject: rule.Tenant, Tenant: "acme", Meter: "credits",
			Algorithm: rule.OverdraftWallet, Window: time.Second,
		},
		"{t:acme}:e:wallet:t:credits:g:month*1:1767214800000000": {
			Kind: rule.Wallet, Subject: rule.Tenant, Tenant: "acme", Meter: "credits", Algorithm: rule.OverdraftWallet,
			Unit: period.Month, Count: 1, Start: time.Date(2025, 12, 31, 21, 0, 0, 0, time.UTC),
		},
	} {
		if got := counters.Key(id); got != want {
			t.Errorf("key %s, want %s", got, want)
		}
		if !strings.Contains(string(doc), "//\t"+want+"\n") {
			t.Errorf("doc.go does not show %s", want)
		}
	}
	if got := counters.RequestKey(limit.Request{Tenant: "acme", ID: "r-1"}); got != "{t:acme}:req:r-1" || !strings.Contains(string(doc), got) {
		t.Errorf("request key %s", got)
	}
	if got := counters.RequestKey(limit.Request{Address: "203.0.113.9", ID: "r:1"}); got != "{a:203.0.113.9}:req:r%3A1" {
		t.Errorf("request key %s", got)
	}
}

// TestMarkKeys guarantees where corrections are remembered.
func TestMarkKeys(t *testing.T) {
	t.Parallel()
	c := limit.Correction{Tenant: "a:b", DecisionID: [16]byte{1, 15: 0xab}}
	if got, want := counters.MarkKey(&c), "{t:a%3Ab}:ref:010000000000000000000000000000ab"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	c.Tenant, c.Address = "", "203.0.113.9"
	if got, want := counters.MarkKey(&c), "{a:203.0.113.9}:ref:010000000000000000000000000000ab"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// parts are strings that could run together if they were not escaped.
var parts = rapid.OneOf(
	rapid.SampledFrom([]string{"", "a", "a:b", "b", "{a}", "}", "%3A", "%", ":", "g", "e", "a}:e", "\x00\r\n", "ı"}),
	rapid.StringN(0, 6, 24),
)

func identity(t *rapid.T) limit.Identity {
	return limit.Identity{
		Shadow:      rapid.Bool().Draw(t, "shadow"),
		Kind:        rapid.SampledFrom([]rule.Kind{rule.Rate, rule.Quota, rule.Wallet}).Draw(t, "kind"),
		Subject:     rule.Subject(rapid.IntRange(0, 31).Draw(t, "subject")),
		Tenant:      parts.Draw(t, "tenant"),
		Application: parts.Draw(t, "application"),
		User:        parts.Draw(t, "user"),
		APIKey:      parts.Draw(t, "api key"),
		Address:     parts.Draw(t, "address"),
		Meter:       parts.Draw(t, "meter"),
		Service:     parts.Draw(t, "service"),
		Endpoint:    parts.Draw(t, "endpoint"),
		Algorithm:   rapid.SampledFrom([]rule.Algorithm{rule.GCRA, rule.FixedWindow}).Draw(t, "algorithm"),
		Window:      time.Duration(rapid.Int64Range(1, 3).Draw(t, "window")) * time.Microsecond,
		Unit:        rapid.SampledFrom([]period.Unit{"", period.Hour, period.Month}).Draw(t, "unit"),
		Count:       rapid.IntRange(1, 12).Draw(t, "count"),
		Start:       time.UnixMicro(rapid.Int64Range(-2, 2).Draw(t, "start")),
	}
}

// TestKeysAreInjective guarantees that two counters never share a key and one
// never has two, however the names in it are chosen, and that no request id's
// key is a counter's.
func TestKeysAreInjective(t *testing.T) {
	t.Parallel()
	same := 0
	rapid.Check(t, func(t *rapid.T) {
		a := identity(t)
		b := a
		other := identity(t)
		for i, change := range []func(){
			func() { b.Shadow = other.Shadow }, func() { b.Kind = other.Kind }, func() { b.Subject = other.Subject },
			func() { b.Tenant = other.Tenant }, func() { b.Application = other.Application }, func() { b.User = other.User },
			func() { b.APIKey = other.APIKey }, func() { b.Address = other.Address }, func() { b.Meter = other.Meter },
			func() { b.Service = other.Service }, func() { b.Endpoint = other.Endpoint }, func() { b.Algorithm = other.Algorithm },
			func() { b.Window = other.Window }, func() { b.Unit = other.Unit }, func() { b.Count = other.Count }, func() { b.Start = other.Start },
		} {
			if rapid.IntRange(0, 3).Draw(t, string(rune('a'+i))) == 0 {
				change()
			}
		}
		equal := a.Canonical() == b.Canonical()
		if keys := counters.Key(a) == counters.Key(b); keys != equal {
			t.Fatalf("keys %q and %q of\n%+v\n%+v", counters.Key(a), counters.Key(b), a, b)
		}
		if equal {
			same++
		}
		key := counters.Key(a)
		if request := counters.RequestKey(limit.Request{Tenant: a.Tenant, Address: a.Address, ID: b.Meter}); request == key {
			t.Fatalf("%q is a request's key and a counter's", key)
		}
		if strings.Count(key, "{") != 1 || strings.Count(key, "}") != 1 || key[0] != '{' {
			t.Fatalf("%q has not exactly one hash tag, in front", key)
		}
	})
	if same == 0 {
		t.Error("no two identities were equal: the generator no longer tests both answers")
	}
}
