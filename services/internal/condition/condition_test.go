package condition_test

import (
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.dev/services/internal/condition"
	"penstock.dev/services/internal/rule"
)

func request() *rule.Request {
	return &rule.Request{
		Tenant: "acme", Plan: "gold", Application: "web", User: "u1", APIKey: "k1", Service: "payments", Endpoint: "pay",
		Address: netip.MustParseAddr("203.0.113.9"), Method: "POST", Path: "/v1/pay/17",
		Labels: map[string]string{"region": "eu", "tier": "A"}, Cost: 3,
	}
}

// TestHolds guarantees what an expression can ask, and that one that cannot be
// evaluated does not hold.
func TestHolds(t *testing.T) {
	t.Parallel()

	tests := []struct {
		text string
		want bool
	}{
		{`true`, true},
		{`tenant == "acme" && application == "web" && user == "u1" && api_key == "k1"`, true},
		{`service == "payments" && endpoint == "pay" && method == "POST"`, true},
		{`path == "/v1/pay/17"`, true},
		{`client_ip == "203.0.113.9"`, true},
		{`cost == 3`, true},
		{`cost > 3`, false},
		{`labels.region == "eu"`, true},
		{`labels["region"] in ["eu", "us"]`, true},
		{`labels.zone == "a"`, false},
		{`labels.zone != "a"`, false}, // cannot be evaluated
		{`!(labels.zone == "a")`, false},
		{`has(labels.zone) && labels.zone == "a"`, false},
		{`!has(labels.zone) || labels.zone == "a"`, true},
		{`"zone" in labels`, false},
		{`size(labels) == 2`, true},
		{`labels.exists(k, k.startsWith("reg"))`, true},
		{`labels.all(k, labels[k] == "eu")`, false},
		{`path.matches("^/v[0-9]+/pay/[0-9]+$")`, true},
		{`path.startsWith("/v2")`, false},
		{`path.endsWith("17") && path.contains("pay")`, true},
		{`labels.tier.lowerAscii() == "a" && labels.region.upperAscii() == "EU"`, true},
		{`cost / (cost - 3) == 1`, false}, // division by zero
		{`method in ["POST", "PUT"] ? cost > 2 : cost > 10`, true},
		{`int(labels.region) == 1`, false}, // no number
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			t.Parallel()
			c, err := condition.Compile(tt.text)
			if err != nil {
				t.Fatal(err)
			}
			if c.Text() != tt.text {
				t.Errorf("Text = %q", c.Text())
			}
			if got := c.Holds(request()); got != tt.want {
				t.Errorf("Holds = %v, want %v", got, tt.want)
			}
			c.Holds(&rule.Request{}) // nothing is there, and nothing panics
		})
	}
}

// TestHoldsNothing guarantees that what a request lacks is empty.
func TestHoldsNothing(t *testing.T) {
	t.Parallel()

	c := compile(t, `tenant + application + user + api_key + service + endpoint + method + path + client_ip == "" && size(labels) == 0 && cost == 0`)
	if !c.Holds(&rule.Request{}) {
		t.Error("does not hold of nothing")
	}
}

func compile(tb testing.TB, text string) rule.Condition {
	tb.Helper()
	c, err := condition.Compile(text)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// TestCompileRefuses guarantees that what is no condition is refused, in one
// line that says where.
func TestCompileRefuses(t *testing.T) {
	t.Parallel()

	tests := []struct{ name, text, want string }{
		{"nothing", " ", "is empty"},
		{"half an expression", `tenant ==`, "1:10: "},
		{"an unknown variable", `cost > 1 && tennant == "acme"`, "1:13: undeclared reference to 'tennant'"},
		{"an unknown function", `path.replace("a", "b") == ""`, "undeclared reference to 'replace'"},
		{"a mistake in the second line", "true &&\n  cost == \"x\"", "2:8: found no matching overload"},
		{"a string", `tenant`, "is string, want bool"},
		{"anything", `dyn(true)`, "is dyn, want bool"},
		{"a pattern that is none", `path.matches("(")`, "1:14: "},
		{"a huge pattern", `path.matches("((a{100}){9})")`, "1:14: "},
		{"a pattern of the client", `path.matches(labels.p)`, "1:20: matches wants a pattern in quotes"},
		{"nested loops", `labels.exists(a, labels.exists(b, a != b))`, "comprehension"},
		{"deep nesting", strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200), "1:"},
		{"choices within choices", strings.Repeat("true ? true : ", 200) + "true", "1:"},
		{"more than 4096 bytes", `tenant == "` + strings.Repeat("a", 4096) + `"`, "want at most 4096"},
		{"bytes that are not text", "tenant == \"\xff\"", "UTF-8"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := condition.Compile(tt.text)
			if !errors.Is(err, condition.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Compile = %v, want %q in it", err, tt.want)
			}
			if err != nil && (strings.ContainsAny(err.Error(), "\n\r") || len(err.Error()) > 400) {
				t.Errorf("%q is not one line", err)
			}
		})
	}
}

// greedy is a request as large as a gateway lets one be.
func greedy() *rule.Request {
	q := &rule.Request{Tenant: strings.Repeat("a", 256), Path: "/" + strings.Repeat("a", 8191), Cost: rule.Unlimited, Labels: map[string]string{}}
	for i := range 64 {
		q.Labels[strings.Repeat(string(rune('0'+i)), 60)] = strings.Repeat("b", 60)
	}
	return q
}

// hungry are expressions that would do much if they were let.
var hungry = []string{
	`path.matches("` + strings.Repeat("(a|aa)*", 20) + `b")`,
	strings.Repeat(`path.matches("(a*)*b") || `, 100) + "false",
	strings.Repeat("path + ", 500) + `"" == ""`,
	`labels.all(k, ` + strings.Repeat(`path.contains(k) || path != tenant || `, 60) + `true)`,
	`labels.map(k, path + labels[k]).exists(v, v.contains("c"))`,
	`[` + strings.Repeat("path,", 700) + `path].all(p, p.lowerAscii() != p.upperAscii())`,
	`size([` + strings.Repeat("labels,", 500) + `labels].map(l, l)) == 1`,
}

// TestHoldsIsBounded guarantees that no expression runs long, whatever it says
// of the largest request: it ends beyond its cost and does not hold.
func TestHoldsIsBounded(t *testing.T) {
	t.Parallel()

	q := greedy()
	for _, text := range hungry {
		c, err := condition.Compile(text)
		if err != nil {
			continue // refused is bounded too
		}
		start := time.Now()
		c.Holds(q)
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("%.60s… took %v", text, took)
		}
	}
	dear := compile(t, strings.Repeat(`path.contains("ab") || `, 100)+"true")
	if dear.Holds(q) {
		t.Error("an expression beyond its cost holds")
	}
	if _, err := dear.(*condition.Condition).Evaluate(q); err == nil || !strings.Contains(err.Error(), "cost limit") {
		t.Errorf("Evaluate = %v, want it to name the limit", err)
	}
}

// TestHoldsOfShortTexts guarantees that a pattern is run over texts of a
// bounded length alone.
func TestHoldsOfShortTexts(t *testing.T) {
	t.Parallel()

	for _, text := range []string{`path.matches("^/a*$")`, `matches(path, "^/a*$")`} {
		c, q := compile(t, text), greedy()
		if q.Path = "/" + strings.Repeat("a", 2047); !c.Holds(q) {
			t.Errorf("%s does not hold of 2048 bytes", text)
		}
		q.Path += "a"
		if _, err := c.(*condition.Condition).Evaluate(q); err == nil || !strings.Contains(err.Error(), "at most 2048") || c.Holds(q) {
			t.Errorf("Evaluate of %s and 2049 bytes = %v", text, err)
		}
	}
}

// TestHoldsOfRequestsBeyondBounds guarantees that the bound of an evaluation
// holds for requests that no gateway would let in.
func TestHoldsOfRequestsBeyondBounds(t *testing.T) {
	t.Parallel()

	c, q := compile(t, `!path.contains("b")`), &rule.Request{Path: strings.Repeat("a", 1<<20)}
	if _, err := c.(*condition.Condition).Evaluate(q); err == nil || !strings.Contains(err.Error(), "cost limit") {
		t.Errorf("Evaluate = %v, want it to name the limit", err)
	}
}

// TestHoldsConcurrently guarantees that one condition serves many requests at
// once.
func TestHoldsConcurrently(t *testing.T) {
	t.Parallel()

	c := compile(t, `labels.region == "eu" && path.matches("^/v1/") && cost == 3`)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 500 {
				if !c.Holds(request()) {
					t.Error("does not hold")
				}
			}
		})
	}
	all.Wait()
}

// FuzzCompile guarantees that no text makes the compiler or what it compiled
// panic or run long, and that a refusal is fit to be shown.
func FuzzCompile(f *testing.F) {
	for _, text := range hungry {
		f.Add(text)
	}
	f.Add(`labels.region == "eu" && path.matches("^/v1/") && cost > 3`)
	f.Add(`labels.exists_one(k, k == "a") || timestamp("2026-01-01T00:00:00Z") > timestamp(path)`)
	f.Add(`google.protobuf.Struct{} == dyn({}) ? b"\xff" == b"" : duration("1s") == duration(tenant)`)
	small, large := request(), greedy()
	f.Fuzz(func(t *testing.T, text string) {
		start := time.Now()
		c, err := condition.Compile(text)
		if err != nil {
			if !errors.Is(err, condition.ErrInvalid) || strings.ContainsAny(err.Error(), "\n\r") || len(err.Error()) > 400 {
				t.Errorf("%q is not fit to be shown", err)
			}
			return
		}
		c.Holds(small)
		c.Holds(large)
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func BenchmarkHolds(b *testing.B) {
	for _, tt := range []struct{ name, text string }{
		{"one comparison", `method == "POST"`},
		{"a label", `labels.region == "eu"`},
		{"four parts", `labels.region == "eu" && path.startsWith("/v1/") && method in ["POST", "PUT"] && cost > 2`},
		{"a pattern", `path.matches("^/v[0-9]+/pay/[0-9]+$")`},
	} {
		c, q := compile(b, tt.text), request()
		b.Run(tt.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !c.Holds(q) {
					b.Fatal("does not hold")
				}
			}
		})
	}
	for i, text := range hungry {
		c, err := condition.Compile(text)
		if err != nil {
			b.Log(i, err)
			continue
		}
		q := greedy()
		b.Run("hungry", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Holds(q)
			}
		})
	}
}
