package rule_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

func wallet(change func(*rule.Rule)) *rule.Rule {
	return rate(func(r *rule.Rule) {
		r.Kind, r.Algorithm, r.Window, r.Burst, r.OnFailure = rule.Wallet, rule.OverdraftWallet, 0, 0, rule.Closed
		r.Wallet, r.Limit = rule.Prepaid, 0
		if change != nil {
			change(r)
		}
	})
}

func renewable(change func(*rule.Rule)) *rule.Rule {
	return wallet(func(r *rule.Rule) {
		r.Wallet, r.Limit, r.Period = rule.Renewable, 500, quota(nil).Period
		if change != nil {
			change(r)
		}
	})
}

func queue(most time.Duration) *rule.Rule {
	return rate(func(r *rule.Rule) { r.Algorithm, r.MaxDelay = rule.LeakyBucket, most })
}

// A text is a condition that says nothing.
type text string

func (t text) Text() string           { return string(t) }
func (text) Holds(*rule.Request) bool { return true }

func leased(units int64, ttl time.Duration, change func(*rule.Rule)) *rule.Rule {
	return rate(func(r *rule.Rule) {
		r.Lease = &rule.Lease{Units: units, TTL: ttl}
		if change != nil {
			change(r)
		}
	})
}

func block(change func(*rule.Rule)) *rule.Rule {
	return rate(func(r *rule.Rule) {
		r.Kind, r.Algorithm, r.Limit, r.Window, r.Burst = rule.Block, rule.NoAlgorithm, 0, 0, 0
		if change != nil {
			change(r)
		}
	})
}

func units(n int64) *int64 { return &n }

// TestValidateAccepts guarantees that what is promised to be kept exactly is
// accepted, up to and including each bound.
func TestValidateAccepts(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name string
		rule *rule.Rule
	}{
		{"a rate", rate(nil)},
		{"a quota", quota(nil)},
		{"a prepaid wallet", wallet(nil)},
		{"a renewable wallet", renewable(nil)},
		{"a renewable wallet of nothing", renewable(func(r *rule.Rule) { r.Limit = 0 })},
		{"no wallet, said", rate(func(r *rule.Rule) { r.Wallet = rule.NoWallet })},
		{"the longest queue", queue(time.Minute)},
		{"the shortest queue", queue(time.Microsecond)},
		{"the longest condition", rate(func(r *rule.Rule) { r.Condition = text(strings.Repeat("a", 4096)) })},
		{"a condition in lines", rate(func(r *rule.Rule) { r.Condition = text("true\n\t&& true") })},
		{"a block", block(nil)},
		{"limit 0 denies", rate(func(r *rule.Rule) { r.Limit, r.Burst = 0, 0 })},
		{"a quota of 2^53-1 units is unlimited", quota(func(r *rule.Rule) { r.Limit = 1<<53 - 1 })},
		{"a rate of 2^53-1 units is unlimited", rate(func(r *rule.Rule) { r.Limit = 1<<53 - 1 })},
		{"a million units a second", rate(func(r *rule.Rule) { r.Limit, r.Window = 1_000_000, time.Second })},
		{"one unit a microsecond", rate(func(r *rule.Rule) { r.Limit, r.Window, r.Burst = 1, time.Microsecond, 1 })},
		{"a million a second for 366 days", rate(func(r *rule.Rule) { r.Limit, r.Window = 31_622_400_000_000, 366*24*time.Hour })},
		{"a burst of 10^9", rate(func(r *rule.Rule) { r.Burst = 1_000_000_000 })},
		{"a burst of 0", rate(func(r *rule.Rule) { r.Burst = 0 })},
		{"a fixed window of 10^9", rate(func(r *rule.Rule) {
			r.Algorithm, r.Limit, r.Window, r.Burst = rule.FixedWindow, 1_000_000_000, time.Hour, 0
		})},
		{"a log of 10,000", rate(func(r *rule.Rule) { r.Algorithm, r.Limit, r.Burst = rule.SlidingWindowLog, 10_000, 0 })},
		{"one counter for everybody", rate(func(r *rule.Rule) { r.Subject = 0 })},
		{"a quota of every dimension", quota(func(r *rule.Rule) { r.Subject = 31 })},
		{"periods of 1,000 months", quota(func(r *rule.Rule) { r.Period.Count = 1000 })},
		{"periods of 100 years", quota(func(r *rule.Rule) { r.Period.Unit, r.Period.Count = period.Year, 100 })},
		{"an anniversary", quota(func(r *rule.Rule) { r.Period.Alignment, r.Period.Anchor = period.Anniversary, t0 })},
		{"sixteen thresholds of each sort", quota(func(r *rule.Rule) {
			for i := range 16 {
				r.Thresholds.Percent = append(r.Thresholds.Percent, int32(i+85))
				r.Thresholds.Left = append(r.Thresholds.Left, int64(16-i))
			}
		})},
		{"a fixed cost of 0", rate(func(r *rule.Rule) { r.Cost = units(0) })},
		{"a fixed cost of 2^53-1", rate(func(r *rule.Rule) { r.Cost = units(1<<53 - 1) })},
		{"the least priority", rate(func(r *rule.Rule) { r.Priority = -1_000_000 })},
		{"the longest id and meter", rate(func(r *rule.Rule) { r.ID, r.Meter = strings.Repeat("~", 128), strings.Repeat("-", 64) })},
		{"256 networks", rate(func(r *rule.Rule) { r.Match.Networks = slices.Repeat(nets("198.51.100.0/24"), 256) })},
		{"every address there is", rate(func(r *rule.Rule) { r.Match.Networks = everywhere() })},
		{"a user that no catalogue has", rate(func(r *rule.Rule) { r.Match.User = "ünïcode ☃" })},
		{"valid for a microsecond", rate(func(r *rule.Rule) { r.ValidFrom, r.ValidTo = t0, t0.Add(time.Microsecond) })},
		{"soft", rate(func(r *rule.Rule) { r.Soft = true })},
		{"local", rate(func(r *rule.Rule) { r.OnFailure = rule.Local })},
		{"the smallest lease", leased(1, time.Microsecond, nil)},
		{"a lease of all there is", leased(10, time.Minute, nil)},
		{"a lease of a window", leased(30, time.Minute, func(r *rule.Rule) { r.Algorithm, r.Burst = rule.SlidingWindowCounter, 0 })},
		{"the longest lease", leased(1, time.Hour, func(r *rule.Rule) { r.Window = 2 * time.Hour })},
		{"the largest lease", leased(1_000_000_000, time.Second, func(r *rule.Rule) { r.Burst = 1_000_000_000 })},
		{"a lease in shadow", leased(1, time.Second, func(r *rule.Rule) { r.Mode = rule.Shadow })},
		{"a lease of one request", leased(6, time.Second, func(r *rule.Rule) { r.Cost = units(5) })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if faults := tt.rule.Validate(); len(faults) > 0 {
				t.Errorf("Validate = %v, want nothing", faults)
			}
		})
	}
}

// TestValidateRefuses guarantees that what cannot be kept is refused under the
// name of its field, with the bound in the message.
func TestValidateRefuses(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name  string
		rule  *rule.Rule
		field string
		bound string
	}{
		{"limit 2^53", quota(func(r *rule.Rule) { r.Limit = 1 << 53 }), "limit", "9007199254740991"},
		{"a rate of 2^53 with the burst that it is by default", rate(func(r *rule.Rule) { r.Limit, r.Burst = 1<<53, 1<<53 }), "limit", "9007199254740991"},
		{"limit below 0", rate(func(r *rule.Rule) { r.Limit = -1 }), "limit", "at least 0"},
		{"above a million a second", rate(func(r *rule.Rule) { r.Limit, r.Window = 1_000_001, time.Second }), "limit", "1000000 units a second"},
		{"a rate of 2^53-2", rate(func(r *rule.Rule) { r.Limit = 1<<53 - 2 }), "limit", "1000000 units a second"},
		{"two units a microsecond", rate(func(r *rule.Rule) { r.Limit, r.Window = 2, time.Microsecond }), "limit", "1000000 units a second"},
		{"a window of 0", rate(func(r *rule.Rule) { r.Window = 0 }), "window", "1µs"},
		{"a negative window", rate(func(r *rule.Rule) { r.Window = -time.Second }), "window", "1µs"},
		{"a window of 366 days and a microsecond", rate(func(r *rule.Rule) { r.Window = 366*24*time.Hour + time.Microsecond }), "window", "366 days"},
		{"a window of nanoseconds", rate(func(r *rule.Rule) { r.Window = time.Second + 1 }), "window", "whole microseconds"},
		{"a quota with a window", quota(func(r *rule.Rule) { r.Window = time.Second }), "window", "only a rate"},
		{"a burst above 10^9", rate(func(r *rule.Rule) { r.Burst = 1_000_000_001 }), "burst", "1000000000"},
		{"a burst below 0", rate(func(r *rule.Rule) { r.Burst = -1 }), "burst", "at least 0"},
		{"a burst that is the limit and above 10^9", rate(func(r *rule.Rule) { r.Limit, r.Window, r.Burst = 2_000_000_000, time.Hour, 2_000_000_000 }), "burst", "1000000000"},
		{"a quota with a burst", quota(func(r *rule.Rule) { r.Burst = 1 }), "burst", "gcra"},
		{"a fixed window above 10^9", rate(func(r *rule.Rule) {
			r.Algorithm, r.Limit, r.Window, r.Burst = rule.FixedWindow, 1_000_000_001, time.Hour, 0
		}), "limit", "1000000000"},
		{"a log above 10,000", rate(func(r *rule.Rule) { r.Algorithm, r.Limit, r.Burst = rule.SlidingWindowLog, 10_001, 0 }), "limit", "10000"},
		{"a quota without its tenant", quota(func(r *rule.Rule) { r.Subject = rule.User }), "subject", "tenant"},
		{"a quota of nobody", quota(func(r *rule.Rule) { r.Subject = 0 }), "subject", "tenant"},
		{"a wallet of a user", wallet(func(r *rule.Rule) { r.Subject = rule.Tenant | rule.User }), "subject", "[tenant]"},
		{"a wallet of everybody", wallet(func(r *rule.Rule) { r.Subject = 0 }), "subject", "[tenant]"},
		{"a wallet of no mode", wallet(func(r *rule.Rule) { r.Wallet = "" }), "wallet", "prepaid, renewable"},
		{"a wallet that is none", wallet(func(r *rule.Rule) { r.Wallet = rule.NoWallet }), "wallet", "prepaid, renewable"},
		{"a rate that is prepaid", rate(func(r *rule.Rule) { r.Wallet = rule.Prepaid }), "wallet", "only kind wallet"},
		{"a prepaid wallet with a limit", wallet(func(r *rule.Rule) { r.Limit = 1 }), "limit", "granted"},
		{"a prepaid wallet with a period", wallet(func(r *rule.Rule) { r.Period = quota(nil).Period }), "period", "never renews"},
		{"a renewable wallet without a period", renewable(func(r *rule.Rule) { r.Period = nil }), "period", "missing"},
		{"a renewable wallet of no unit", renewable(func(r *rule.Rule) { r.Period.Unit = "x" }), "period.unit", "week"},
		{"a local wallet", wallet(func(r *rule.Rule) { r.OnFailure = rule.Local }), "on_failure", "rates only"},
		{"a queue of a minute and a microsecond", queue(time.Minute + time.Microsecond), "max_delay", "1m0s"},
		{"a queue below 0", queue(-time.Microsecond), "max_delay", "0s"},
		{"a queue of nanoseconds", queue(time.Second + 1), "max_delay", "whole microseconds"},
		{"a queue of a meter", rate(func(r *rule.Rule) { r.MaxDelay = time.Second }), "max_delay", "leaky_bucket"},
		{"a lease of a quota", quota(func(r *rule.Rule) { r.Lease = &rule.Lease{Units: 1, TTL: time.Second} }), "lease", "only a rate"},
		{"a lease of a soft rule", leased(1, time.Second, func(r *rule.Rule) { r.Soft = true }), "lease", "soft"},
		{"a lease of a queue", leased(1, time.Second, func(r *rule.Rule) { r.Algorithm, r.MaxDelay = rule.LeakyBucket, time.Second }), "lease", "max_delay"},
		{"a lease of what never refuses", leased(1, time.Second, func(r *rule.Rule) { r.Limit = 1<<53 - 1 }), "lease", "never refuses"},
		{"a lease of nothing", leased(0, time.Second, nil), "lease.units", "at least 1"},
		{"a lease above 10^9", leased(1_000_000_001, time.Second, nil), "lease.units", "1000000000"},
		{"a lease above the burst", leased(11, time.Second, nil), "lease.units", "at most 10"},
		{"a lease above the limit", leased(31, time.Second, func(r *rule.Rule) { r.Algorithm, r.Burst = rule.FixedWindow, 0 }), "lease.units", "at most 30"},
		{"a lease below the cost", leased(5, time.Second, func(r *rule.Rule) { r.Cost = units(5) }), "lease.units", "costs 5"},
		{"a lease of no time", leased(1, 0, nil), "lease.ttl", "1µs"},
		{"a lease of more than an hour", leased(1, time.Hour+time.Microsecond, func(r *rule.Rule) { r.Window = 2 * time.Hour }), "lease.ttl", "1h0m0s"},
		{"a lease of nanoseconds", leased(1, time.Second+1, nil), "lease.ttl", "whole microseconds"},
		{"a lease above the window", leased(1, time.Minute+time.Microsecond, nil), "lease.ttl", "window, 1m0s"},
		{"a condition that is empty", rate(func(r *rule.Rule) { r.Condition = text("") }), "condition", "1 to 4096"},
		{"a condition of 4,097 bytes", rate(func(r *rule.Rule) { r.Condition = text(strings.Repeat("a", 4097)) }), "condition", "4096"},
		{"a condition that is not UTF-8", rate(func(r *rule.Rule) { r.Condition = text("\xff") }), "condition", "UTF-8"},
		{"a quota without a period", quota(func(r *rule.Rule) { r.Period = nil }), "period", "missing"},
		{"a rate with a period", rate(func(r *rule.Rule) { r.Period = quota(nil).Period }), "period", "none"},
		{"a period of 0 months", quota(func(r *rule.Rule) { r.Period.Count = 0 }), "period.count", "at least 1"},
		{"a period of 1,001 months", quota(func(r *rule.Rule) { r.Period.Count = 1001 }), "period.count", "1000"},
		{"a period of 101 years", quota(func(r *rule.Rule) { r.Period.Unit, r.Period.Count = period.Year, 101 }), "period.count", "100"},
		{"a period of fortnights", quota(func(r *rule.Rule) { r.Period.Unit = "fortnight" }), "period.unit", "week"},
		{"a period of no alignment", quota(func(r *rule.Rule) { r.Period.Alignment = "moon" }), "period.alignment", "anniversary"},
		{"a calendar period with an anchor", quota(func(r *rule.Rule) { r.Period.Anchor = t0 }), "period.anchor", "anniversary"},
		{"an unknown kind", rate(func(r *rule.Rule) { r.Kind, r.Window = "tax", 0 }), "kind", "rate, quota, wallet, block"},
		{"an unknown mode", rate(func(r *rule.Rule) { r.Mode = "enforced" }), "mode", "enforce, shadow"},
		{"a rate that counts like a quota", rate(func(r *rule.Rule) { r.Algorithm, r.Burst = rule.CalendarQuota, 0 }), "algorithm", "gcra"},
		{"a block with a limit", block(func(r *rule.Rule) { r.Limit = 1 }), "limit", "none"},
		{"a block with a cost", block(func(r *rule.Rule) { r.Cost = units(1) }), "cost", "nothing"},
		{"a soft block", block(func(r *rule.Rule) { r.Soft = true }), "soft", "shadow"},
		{"an unknown failure mode", rate(func(r *rule.Rule) { r.OnFailure = "shrug" }), "on_failure", "open, closed, local"},
		{"a local quota", quota(func(r *rule.Rule) { r.OnFailure = rule.Local }), "on_failure", "rates only"},
		{"a negative cost", rate(func(r *rule.Rule) { r.Cost = units(-1) }), "cost", "at least 0"},
		{"a cost of 2^53", rate(func(r *rule.Rule) { r.Cost = units(1 << 53) }), "cost", "9007199254740991"},
		{"thresholds of a rate", rate(func(r *rule.Rule) { r.Thresholds.Percent = []int32{80} }), "thresholds", "quotas"},
		{"0 per cent", quota(func(r *rule.Rule) { r.Thresholds.Percent = []int32{0} }), "thresholds", "at least 1"},
		{"101 per cent", quota(func(r *rule.Rule) { r.Thresholds.Percent = []int32{101} }), "thresholds", "100"},
		{"80 per cent twice", quota(func(r *rule.Rule) { r.Thresholds.Percent = []int32{80, 80} }), "thresholds", "twice"},
		{"-1 left", quota(func(r *rule.Rule) { r.Thresholds.Left = []int64{-1} }), "thresholds", "at least 0"},
		{"seventeen thresholds", quota(func(r *rule.Rule) {
			for i := range 17 {
				r.Thresholds.Left = append(r.Thresholds.Left, int64(17-i))
			}
		}), "thresholds", "16"},
		{"a priority above a million", rate(func(r *rule.Rule) { r.Priority = 1_000_001 }), "priority", "1000000"},
		{"an end before the start", rate(func(r *rule.Rule) { r.ValidFrom, r.ValidTo = t0, t0 }), "valid_to", "valid_from"},
		{"no id", rate(func(r *rule.Rule) { r.ID = "" }), "id", "missing"},
		{"an id of dots", rate(func(r *rule.Rule) { r.ID = ".." }), "id", "no id"},
		{"an id with a slash", rate(func(r *rule.Rule) { r.ID = "a/b" }), "id", "A-Z a-z 0-9"},
		{"an id of 129", rate(func(r *rule.Rule) { r.ID = strings.Repeat("a", 129) }), "id", "128"},
		{"a meter in upper case", rate(func(r *rule.Rule) { r.Meter = "Calls" }), "meter", "a-z 0-9"},
		{"a meter of 65", rate(func(r *rule.Rule) { r.Meter = strings.Repeat("a", 65) }), "meter", "64"},
		{"no meter", rate(func(r *rule.Rule) { r.Meter = "" }), "meter", "empty"},
		{"a name of 257 bytes", rate(func(r *rule.Rule) { r.Name = strings.Repeat("a", 257) }), "name", "256"},
		{"a name with a line feed", rate(func(r *rule.Rule) { r.Name = "a\nb" }), "name", "control"},
		{"a name that is not UTF-8", rate(func(r *rule.Rule) { r.Name = "\xff" }), "name", "UTF-8"},
		{"a user with a zero byte", rate(func(r *rule.Rule) { r.Match.User = "a\x00" }), "match.user", "control"},
		{"an endpoint that is no id", rate(func(r *rule.Rule) { r.Match.Endpoint = "a b" }), "match.endpoint", "A-Z"},
		{"a network that is none", rate(func(r *rule.Rule) { r.Match.Networks = make([]netip.Prefix, 1) }), "match.networks[0]", "CIDR"},
		{"a network with host bits", rate(func(r *rule.Rule) { r.Match.Networks = nets("198.51.100.0/24", "203.0.113.9/24") }), "match.networks[1]", "203.0.113.0/24"},
		{"an IPv4 network in IPv6", rate(func(r *rule.Rule) { r.Match.Networks = nets("::ffff:198.51.100.0/120") }), "match.networks[0]", "IPv4"},
		{"257 networks", rate(func(r *rule.Rule) { r.Match.Networks = slices.Repeat(nets("198.51.100.0/24"), 257) }), "match.networks", "256"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			faults := tt.rule.Validate()
			i := slices.IndexFunc(faults, func(f rule.Fault) bool { return f.Field == tt.field })
			if i < 0 {
				t.Fatalf("Validate = %q, want a fault of %s", faults, tt.field)
			}
			if !strings.Contains(faults[i].Message, tt.bound) {
				t.Errorf("%s: %s, want %q in it", tt.field, faults[i].Message, tt.bound)
			}
			if len(faults) > 1 {
				t.Errorf("Validate = %q, want that fault alone", faults)
			}
		})
	}
}

// TestValidateCollects guarantees that one answer names everything that is
// wrong.
func TestValidateCollects(t *testing.T) {
	t.Parallel()

	r := rate(func(r *rule.Rule) {
		r.ID, r.Mode, r.Meter, r.Limit, r.OnFailure, r.Priority = "", "x", "", -1, "y", 2_000_000
	})
	var got []string
	for _, f := range r.Validate() {
		got = append(got, f.Field)
	}
	slices.Sort(got)
	if want := []string{"id", "limit", "meter", "mode", "on_failure", "priority"}; !slices.Equal(got, want) {
		t.Errorf("faults of %v, want of %v", got, want)
	}
	if text := r.Validate().Error(); !strings.Contains(text, "limit: is -1, want at least 0; ") {
		t.Errorf("Error = %q, want every fault in it", text)
	}
}

// FuzzValidate guarantees that a rule without faults is within every bound that
// the counters rely on, and that a fault's message is fit to be shown.
func FuzzValidate(f *testing.F) {
	f.Add("r", "api-calls", int64(30), int64(60_000_000_000), int64(10), int64(1), uint8(1), "gcra")
	f.Add("..", "\xff", int64(1)<<53, int64(1), int64(-1), int64(0), uint8(31), "quota")
	f.Fuzz(func(t *testing.T, id, meter string, limit, window, burst, cost int64, subject uint8, algorithm string) {
		r := rate(func(r *rule.Rule) {
			r.ID, r.Meter, r.Limit, r.Window, r.Burst, r.Cost = id, meter, limit, time.Duration(window), burst, &cost
			r.Subject, r.Algorithm = rule.Subject(subject&31), rule.Algorithm(algorithm)
		})
		faults := r.Validate()
		for _, fault := range faults {
			if !utf8.ValidString(fault.Message) || len(fault.Message) > 500 {
				t.Errorf("%s: %q is not fit to be shown", fault.Field, fault.Message)
			}
		}
		if len(faults) > 0 {
			return
		}
		perSecond := float64(r.Limit) / r.Window.Seconds()
		if r.Limit != rule.Unlimited && perSecond > rule.MaxPerSecond*1.000001 || r.Window < time.Microsecond || r.Window > rule.MaxWindow ||
			r.Limit != rule.Unlimited && r.Capacity() > rule.MaxCapacity || r.Limit < 0 || r.Burst < 0 || cost < 0 || cost > rule.Unlimited {
			t.Errorf("%+v is accepted", *r)
		}
	})
}
