package rule

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"penstock.dev/services/internal/period"
)

// Bounds of the parts of a rule.
const (
	MaxID         = 128    // characters of a catalogue id
	MaxText       = 256    // bytes of a name or a dimension's value
	MaxMeter      = 64     // characters
	MaxNetworks   = 256    // of one rule
	MaxThresholds = 16     // of each sort
	MaxLog        = 10_000 // limit of a sliding_window_log, which remembers every unit
)

// A Fault is one thing wrong with what was written.
type Fault struct {
	Field   string // JSON path, e.g. period.zone
	Message string // what is wrong and what the bound is
}

// Faults is an error that names every fault. No faults is no error: compare its
// length, not the interface, with nothing.
type Faults []Fault

// Error lists the faults, e.g. "limit: is -1, want at least 0; meter: is empty".
func (f Faults) Error() string {
	parts := make([]string, len(f))
	for i, fault := range f {
		parts[i] = fault.Field + ": " + fault.Message
	}
	return strings.Join(parts, "; ")
}

// Add appends a fault.
func (f *Faults) Add(field, format string, args ...any) {
	*f = append(*f, Fault{Field: field, Message: fmt.Sprintf(format, args...)})
}

// Range wants least <= v <= most.
func (f *Faults) Range(field string, v, least, most int64) {
	switch {
	case v < least:
		f.Add(field, "is %d, want at least %d", v, least)
	case v > most:
		f.Add(field, "is %d, want at most %d", v, most)
	}
}

// Text wants least to most bytes of UTF-8 without control characters.
func (f *Faults) Text(field, s string, least, most int) {
	switch {
	case len(s) < least && len(s) == 0:
		f.Add(field, "is missing")
	case len(s) < least || len(s) > most:
		f.Add(field, "is %d bytes, want %d to %d", len(s), least, most)
	case !utf8.ValidString(s):
		f.Add(field, "is not UTF-8")
	case strings.ContainsFunc(s, control):
		f.Add(field, "has a control character")
	}
}

// ID wants a catalogue id: 1 to MaxID of A-Z a-z 0-9 . _ ~ -, neither . nor ...
func (f *Faults) ID(field, s string) {
	switch {
	case s == "":
		f.Add(field, "is missing")
	case len(s) > MaxID:
		f.Add(field, "is %d characters, want 1 to %d", len(s), MaxID)
	case s == "." || s == "..":
		f.Add(field, "is %q, which is no id", s)
	case !only(s, "._~-", true):
		f.Add(field, "is %q, want A-Z a-z 0-9 . _ ~ - only", clip(s))
	}
}

// Meter wants the name of what is counted: 1 to MaxMeter of a-z 0-9 . _ -.
func (f *Faults) Meter(field, s string) {
	switch {
	case s == "":
		f.Add(field, "is empty")
	case len(s) > MaxMeter:
		f.Add(field, "is %d characters, want 1 to %d", len(s), MaxMeter)
	case !only(s, "._-", false):
		f.Add(field, "is %q, want a-z 0-9 . _ - only", clip(s))
	}
}

// condition wants 1 to MaxCondition bytes of UTF-8; lines and tabs are welcome.
func (f *Faults) condition(text string) {
	switch {
	case text == "" || len(text) > MaxCondition:
		f.Add("condition", "is %d bytes, want 1 to %d", len(text), MaxCondition)
	case !utf8.ValidString(text):
		f.Add("condition", "is not UTF-8")
	}
}

// OneOf wants one of the values.
func OneOf[T ~string](f *Faults, field string, v T, values ...T) {
	if !slices.Contains(values, v) {
		f.Add(field, "is %q, want one of %s", clip(string(v)), join(values))
	}
}

func only(s, marks string, upper bool) bool {
	for i := range len(s) {
		c := s[i]
		ok := c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || upper && c >= 'A' && c <= 'Z' || strings.IndexByte(marks, c) >= 0
		if !ok {
			return false
		}
	}
	return true
}

func control(r rune) bool { return r < 0x20 || r == 0x7f }

// clip bounds what a message repeats of the input.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

func join[T ~string](values []T) string {
	parts := make([]string, len(values))
	for i, v := range values {
		parts[i] = string(v)
	}
	return strings.Join(parts, ", ")
}

// algorithms are the ways that each kind may count.
var algorithms = map[Kind][]Algorithm{
	Rate:   {FixedWindow, SlidingWindowLog, SlidingWindowCounter, TokenBucket, LeakyBucket, GCRA},
	Quota:  {CalendarQuota},
	Wallet: {OverdraftWallet},
	Block:  {NoAlgorithm},
}

// Bucket reports whether an algorithm has a burst.
func (a Algorithm) Bucket() bool { return a == TokenBucket || a == LeakyBucket || a == GCRA }

// Validate returns every fault of a rule whose defaults are filled in, under
// the names that its fields have in JSON, or nothing. A rule without faults can
// be kept exactly (docs/adr/0039). What depends on the tenant or on other
// objects is not judged here.
func (r *Rule) Validate() Faults {
	var f Faults
	f.ID("id", r.ID)
	f.Text("name", r.Name, 0, MaxText)
	OneOf(&f, "mode", r.Mode, Enforce, Shadow)
	OneOf(&f, "kind", r.Kind, Rate, Quota, Wallet, Block)
	if ways, ok := algorithms[r.Kind]; ok && !slices.Contains(ways, r.Algorithm) {
		f.Add("algorithm", "is %q, want one of %s for kind %s", clip(string(r.Algorithm)), join(ways), r.Kind)
	}
	f.Meter("meter", r.Meter)
	r.validateSubject(&f)
	r.Match.validate(&f)
	if r.Condition != nil {
		f.condition(r.Condition.Text())
	}
	r.validateCapacity(&f)
	r.validateDelay(&f)
	r.validateWallet(&f)
	r.validatePeriod(&f)
	r.validateEffect(&f)
	r.validateLease(&f)
	r.validateThresholds(&f)
	f.Range("priority", int64(r.Priority), -MaxPriority, MaxPriority)
	if !r.ValidFrom.IsZero() && !r.ValidTo.IsZero() && !r.ValidFrom.Before(r.ValidTo) {
		f.Add("valid_to", "is not after valid_from")
	}
	return f
}

func (r *Rule) validateSubject(f *Faults) {
	switch {
	case r.Kind == Quota && !r.Subject.Has(Tenant):
		f.Add("subject", "is %v, want tenant in it: every counted unit belongs to a tenant", r.Subject.Names())
	case r.Kind == Wallet && r.Subject != Tenant:
		f.Add("subject", "is %v, want exactly [tenant] for a wallet", r.Subject.Names())
	}
}

func (m *Match) validate(f *Faults) {
	for _, s := range []struct{ field, value string }{
		{"match.tenant", m.Tenant},
		{"match.application", m.Application},
		{"match.user", m.User},
		{"match.api_key", m.APIKey},
	} {
		f.Text(s.field, s.value, 0, MaxText)
	}
	for _, s := range []struct{ field, id string }{
		{"match.plan", m.Plan},
		{"match.service", m.Service},
		{"match.endpoint", m.Endpoint},
	} {
		if s.id != "" {
			f.ID(s.field, s.id)
		}
	}
	if len(m.Networks) > MaxNetworks {
		f.Add("match.networks", "has %d items, want at most %d", len(m.Networks), MaxNetworks)
	}
	for i, n := range m.Networks {
		if fault := networkFault(n); fault != "" {
			f.Add(fmt.Sprintf("match.networks[%d]", i), "%s", fault)
		}
	}
}

// networkFault says why no client address would ever be in n as it is written,
// or nothing.
func networkFault(n netip.Prefix) string {
	switch {
	case !n.IsValid():
		return "is no network in CIDR notation, e.g. 203.0.113.0/24"
	case n.Addr().Is4In6():
		return fmt.Sprintf("is %s, want an IPv4 network written as one", n)
	case n != n.Masked():
		return fmt.Sprintf("is %s, which has host bits set; the network is %s", n, n.Masked())
	}
	return ""
}

// validateCapacity checks how much passes, and in which window.
func (r *Rule) validateCapacity(f *Faults) {
	f.Range("limit", r.Limit, 0, Unlimited)
	switch {
	case r.Kind != Rate && r.Window != 0:
		f.Add("window", "is %v, and only a rate has one", r.Window)
	case r.Kind == Rate && r.Window <= 0:
		f.Add("window", "is %v, want 1µs to %s", r.Window, days(MaxWindow))
	case r.Kind == Rate && r.Window > MaxWindow:
		f.Add("window", "is %v, want at most %s", r.Window, days(MaxWindow))
	case r.Window%time.Microsecond != 0:
		f.Add("window", "is %v, want whole microseconds", r.Window)
	case r.Kind == Rate && r.Limit < Unlimited && r.Limit > r.Window.Microseconds():
		// One unit a microsecond is MaxPerSecond.
		f.Add("limit", "is %d in %v, want at most %d units a second", r.Limit, r.Window, MaxPerSecond)
	}
	switch {
	case r.Kind == Block && r.Limit != 0:
		f.Add("limit", "is %d, and a block has none", r.Limit)
	case r.Algorithm == SlidingWindowLog && r.Limit > MaxLog:
		f.Add("limit", "is %d, want at most %d for %s", r.Limit, MaxLog, SlidingWindowLog)
	case r.Kind == Rate && !r.Algorithm.Bucket() && r.Limit > MaxCapacity && r.Limit < Unlimited:
		f.Add("limit", "is %d, want at most %d to pass at once", r.Limit, MaxCapacity)
	}
	switch {
	case !r.Algorithm.Bucket() && r.Burst != 0:
		f.Add("burst", "is %d, and only %s, %s and %s have one", r.Burst, TokenBucket, LeakyBucket, GCRA)
	case r.Burst == r.Limit && (r.Limit < 0 || r.Limit > Unlimited): // said of the limit
	case r.Algorithm.Bucket() && r.Burst > MaxCapacity && r.Burst == r.Limit:
		f.Add("burst", "is the limit, %d, where none is given; want at most %d to pass at once", r.Burst, MaxCapacity)
	case r.Algorithm.Bucket():
		f.Range("burst", r.Burst, 0, MaxCapacity)
	}
}

// validateDelay checks how long the queue of a leaky bucket is.
func (r *Rule) validateDelay(f *Faults) {
	switch {
	case r.MaxDelay != 0 && r.Algorithm != LeakyBucket:
		f.Add("max_delay", "is %v, and only %s delays", r.MaxDelay, LeakyBucket)
	case r.MaxDelay < 0 || r.MaxDelay > MaxDelay:
		f.Add("max_delay", "is %v, want 0s to %v", r.MaxDelay, MaxDelay)
	case r.MaxDelay%time.Microsecond != 0:
		f.Add("max_delay", "is %v, want whole microseconds", r.MaxDelay)
	}
}

// validateWallet checks where the units of a wallet come from: its period's
// limit, or top-ups.
func (r *Rule) validateWallet(f *Faults) {
	switch {
	case r.Kind == Wallet:
		OneOf(f, "wallet", r.Wallet, Prepaid, Renewable)
	case r.Wallet != "" && r.Wallet != NoWallet:
		f.Add("wallet", "is %q, and only kind %s has one", clip(string(r.Wallet)), Wallet)
	}
	if r.Kind == Wallet && r.Wallet == Prepaid && r.Limit != 0 {
		f.Add("limit", "is %d, and a %s wallet has what was granted", r.Limit, Prepaid)
	}
}

func days(d time.Duration) string { return fmt.Sprintf("%d days", d/(24*time.Hour)) }

func (r *Rule) validatePeriod(f *Faults) {
	switch {
	case r.Period == nil && (r.Kind == Quota || r.Kind == Wallet && r.Wallet == Renewable):
		f.Add("period", "is missing")
	case r.Period != nil && r.Kind == Wallet && r.Wallet == Prepaid:
		f.Add("period", "is set, and a %s wallet never renews", Prepaid)
	case r.Period != nil && (r.Kind == Rate || r.Kind == Block):
		f.Add("period", "is set, and a %s has none", r.Kind)
	case r.Period != nil:
		p := r.Period
		OneOf(f, "period.unit", p.Unit, period.Hour, period.Day, period.Week, period.Month, period.Year)
		most := int64(period.MaxCount)
		if p.Unit == period.Year {
			most = period.MaxYears
		}
		f.Range("period.count", int64(p.Count), 1, most)
		OneOf(f, "period.alignment", p.Alignment, period.Calendar, period.Anniversary)
		if p.Alignment == period.Calendar && !p.Anchor.IsZero() {
			f.Add("period.anchor", "is set, and only anniversary periods have one")
		}
	}
}

// validateEffect checks what the rule does to a request.
func (r *Rule) validateEffect(f *Faults) {
	OneOf(f, "on_failure", r.OnFailure, Open, Closed, Local)
	if r.OnFailure == Local && r.Kind != Rate {
		f.Add("on_failure", "is local, which is for rates only")
	}
	switch {
	case r.Cost == nil:
	case r.Kind == Block:
		f.Add("cost", "is set, and a block counts nothing")
	default:
		f.Range("cost", *r.Cost, 0, Unlimited)
	}
	if r.Soft && r.Kind == Block {
		f.Add("soft", "is true, and a block counts nothing: use mode shadow")
	}
}

// validateLease checks that there is something to hold, and that it can be held
// without a promise being broken.
func (r *Rule) validateLease(f *Faults) {
	l := r.Lease
	switch {
	case l == nil:
		return
	case r.Kind != Rate:
		f.Add("lease", "is set, and only a rate has one")
		return
	case r.Soft:
		f.Add("lease", "is set, and a soft rule never refuses: there is nothing to hold")
		return
	case r.MaxDelay != 0:
		f.Add("lease", "is set, and a queue (max_delay) gives every request a place of its own")
		return
	case r.Limit == Unlimited:
		f.Add("lease", "is set, and a limit of %d never refuses: there is nothing to hold", Unlimited)
		return
	}
	f.Range("lease.units", l.Units, 1, MaxCapacity)
	switch most := r.Capacity(); {
	case l.Units > most && l.Units <= MaxCapacity:
		f.Add("lease.units", "is %d, and at most %d pass at once", l.Units, most)
	case r.Cost != nil && *r.Cost > l.Batch():
		f.Add("lease.units", "is %d, of which %d are taken at once, and each request costs %d", l.Units, l.Batch(), *r.Cost)
	}
	switch {
	case l.TTL < time.Microsecond || l.TTL > MaxLease:
		f.Add("lease.ttl", "is %v, want 1µs to %v", l.TTL, MaxLease)
	case l.TTL%time.Microsecond != 0:
		f.Add("lease.ttl", "is %v, want whole microseconds", l.TTL)
	case l.TTL > r.Window:
		f.Add("lease.ttl", "is %v, want at most the window, %v", l.TTL, r.Window)
	}
}

func (r *Rule) validateThresholds(f *Faults) {
	percent, left := r.Thresholds.Percent, r.Thresholds.Left
	if len(percent)+len(left) > 0 && r.Kind != Quota && r.Kind != Wallet {
		f.Add("thresholds", "are set, and only quotas and wallets announce any")
		return
	}
	if len(percent) > MaxThresholds || len(left) > MaxThresholds {
		f.Add("thresholds", "are %d per cent and %d units left, want at most %d of each", len(percent), len(left), MaxThresholds)
	}
	for i, p := range percent {
		f.Range("thresholds", int64(p), 1, 100)
		if i > 0 && p <= percent[i-1] {
			f.Add("thresholds", "have %d per cent twice or out of order", p)
		}
	}
	for i, l := range left {
		f.Range("thresholds", l, 0, Unlimited)
		if i > 0 && l >= left[i-1] {
			f.Add("thresholds", "have %d left twice or out of order", l)
		}
	}
}
