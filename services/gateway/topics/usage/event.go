package usage

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"slices"
	"time"
	"unicode/utf8"
	"unsafe"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/rule"
)

// Bounds of usage.v1 that what comes in may pass.
const (
	maxMethod   = 32 // characters, all of them ASCII
	maxTemplate = 1024
	maxKey      = 2048 // of a counter
	maxCounters = 64
)

// A scratch is the memory in which one event is put together. Its texts alias
// it: the event is good until the scratch is used again.
type scratch struct {
	event    usagev1.Event
	upstream usagev1.Upstream
	counters []usagev1.Counter
	told     []decide.Counter
	text     []byte
	digest   [16]byte
	mac      hash.Hash // nil: addresses are told as they are
	sum      []byte
	cut      bool // something was left out
}

func newScratch(secret string) *scratch {
	s := &scratch{counters: make([]usagev1.Counter, 0, 8), told: make([]decide.Counter, 0, 8), text: make([]byte, 0, 1024)}
	if secret != "" {
		s.mac, s.sum = hmac.New(sha256.New, []byte(secret)), make([]byte, 0, sha256.Size)
	}
	return s
}

// alias is a text that shares the memory of b, which must not change as long as
// the text is in use: the encoder copies it at once.
func alias(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// fill makes s.event of what is told, all but its place in a stream, and
// returns the event's key. Everything is within the bounds of usage.v1.
func (s *scratch) fill(u *decide.Usage, gateway string) (key []byte) {
	s.text, s.cut = s.text[:0], false
	e := &s.event
	*e = usagev1.Event{
		EventID: u.ID, DecisionID: u.Decision, TS: u.At.UnixMicro(), Decision: verdictOf(u.Verdict), RefundID: u.RefundID,
		Tenant: u.Tenant, Application: u.Application, User: u.User, APIKey: u.APIKey, ClientAddress: s.address(u),
		Service: u.Service, Endpoint: u.Endpoint, Method: s.shorten(u.Method, maxMethod), PathTemplate: s.shorten(u.Template, maxTemplate),
		RuleID: u.RuleID, Algorithm: string(u.Algorithm), Cost: u.Cost, LatencyUS: max(0, u.Latency.Microseconds()),
		GatewayID: gateway, RulesVersion: u.RulesVersion, LabelsJSON: u.Labels,
	}
	if !u.Corrects() {
		e.Status = int32(status(u.Status))
	}
	if u.KeyDigest != [32]byte{} {
		s.digest = [16]byte(u.KeyDigest[:16])
		e.APIKeyHash = s.digest[:]
	}
	if u.Upstream.Reached {
		s.upstream = usagev1.Upstream{DurationUS: max(0, u.Upstream.Took.Microseconds())}
		if u.Upstream.Status != 0 {
			s.upstream.Status = int32(status(u.Upstream.Status))
		}
		e.Upstream = &s.upstream
	}
	s.fillCounters(u)
	s.fit()
	if e.Tenant != "" {
		return unsafe.Slice(unsafe.StringData(e.Tenant), len(e.Tenant))
	}
	return unsafe.Slice(unsafe.StringData(e.ClientAddress), len(e.ClientAddress))
}

// address is the client's address as events tell it.
func (s *scratch) address(u *decide.Usage) string {
	if !u.Address.IsValid() {
		return ""
	}
	start := len(s.text)
	s.text = u.Address.AppendTo(s.text)
	if s.mac == nil {
		return alias(s.text[start:])
	}
	s.mac.Reset()
	s.mac.Write(s.text[start:])
	s.sum = s.mac.Sum(s.sum[:0])
	s.text = hex.AppendEncode(append(s.text[:start], "h:"...), s.sum)
	return alias(s.text[start:])
}

func (s *scratch) fillCounters(u *decide.Usage) {
	s.told = u.AppendCounters(s.told[:0])
	if len(s.told) > maxCounters { // enforced ones are billed
		slices.SortStableFunc(s.told, func(a, b decide.Counter) int { return order(a.Rule) - order(b.Rule) })
		s.told, s.cut = s.told[:maxCounters], true
	}
	s.counters = s.counters[:0]
	for i := range s.told {
		c := &s.told[i]
		start, end := int64(0), int64(0)
		if !c.Span.End.IsZero() {
			start, end = c.Span.Start.UnixMicro(), c.Span.End.UnixMicro()
		}
		s.counters = append(s.counters, usagev1.Counter{
			Key: s.key(c), Observed: c.Observed, PeriodStart: start, PeriodEnd: end,
			Limit: c.Limit, Units: c.Units, Consumed: c.Consumed, Refunded: min(c.Refunded, c.Consumed),
			Kind: kindOf(c.Rule.Kind), Mode: modeOf(c.Rule.Mode), Soft: c.Rule.Soft, Meter: c.Rule.Meter,
			RuleID: c.Rule.ID, RuleVersion: c.Rule.Version,
			ThresholdsPercent: c.Rule.Thresholds.Percent, ThresholdsLeft: c.Rule.Thresholds.Left,
		})
	}
	s.event.Counters = s.counters
}

func order(r *rule.Rule) int {
	if r.Mode == rule.Enforce {
		return 0
	}
	return 1
}

// key is the counter's key in the store. One that is too long, which takes
// names full of characters that need an escape, is its beginning and a hash.
func (s *scratch) key(c *decide.Counter) string {
	start := len(s.text)
	s.text = counters.AppendKey(s.text, *c.Identity)
	if len(s.text)-start > maxKey {
		sum := sha256.Sum256(s.text[start:])
		end := start + maxKey - 1 - 2*len(sum)
		for !utf8.RuneStart(s.text[end]) {
			end--
		}
		s.text, s.cut = hex.AppendEncode(append(s.text[:end], '~'), sum[:]), true
	}
	return alias(s.text[start:])
}

// shorten cuts a text to so many bytes.
func (s *scratch) shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	s.cut = true
	for !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// fit leaves out what makes the event too large.
func (s *scratch) fit() {
	e := &s.event
	if s.size() <= usagev1.MaxBody {
		return
	}
	s.cut, e.LabelsJSON = true, ""
	for s.size() > usagev1.MaxBody {
		e.Counters = e.Counters[:len(e.Counters)-1]
	}
}

// size is the most that the event's body can have, in bytes: numbers and
// lengths are counted as the longest that they can be.
func (s *scratch) size() int {
	const fixed, each = 256, 128 // beside texts and lists; of a counter
	e := &s.event
	n := fixed + len(e.Tenant) + len(e.Application) + len(e.User) + len(e.APIKey) + len(e.APIKeyHash) + len(e.ClientAddress) +
		len(e.Service) + len(e.Endpoint) + len(e.Method) + len(e.PathTemplate) + len(e.RuleID) + len(e.Algorithm) +
		len(e.GatewayID) + len(e.RefundID) + len(e.LabelsJSON)
	for i := range e.Counters {
		c := &e.Counters[i]
		n += each + len(c.Key) + len(c.Meter) + len(c.RuleID) + 5*len(c.ThresholdsPercent) + 10*len(c.ThresholdsLeft)
	}
	return n
}

// status is one that usage.v1 can say: servers have been seen to invent others.
func status(n int) int {
	if n < 100 || n > 599 {
		return 599
	}
	return n
}

func verdictOf(v decide.Verdict) usagev1.Decision {
	switch v {
	case decide.VerdictAllow:
		return usagev1.DecisionAllow
	case decide.VerdictDeny:
		return usagev1.DecisionDeny
	case decide.VerdictShadowDeny:
		return usagev1.DecisionShadowDeny
	case decide.VerdictDegradedAllow:
		return usagev1.DecisionDegradedAllow
	case decide.VerdictDegradedDeny:
		return usagev1.DecisionDegradedDeny
	case decide.VerdictBlocked:
		return usagev1.DecisionBlocked
	case decide.VerdictRefund:
		return usagev1.DecisionRefund
	case decide.VerdictSettle:
		return usagev1.DecisionSettle
	default:
		return usagev1.DecisionUnknown
	}
}

func kindOf(k rule.Kind) usagev1.CounterKind {
	switch k {
	case rule.Quota:
		return usagev1.CounterKindQuota
	case rule.Wallet:
		return usagev1.CounterKindWallet
	case rule.Rate, rule.Block:
		return usagev1.CounterKindUnknown
	default:
		return usagev1.CounterKindUnknown
	}
}

func modeOf(m rule.Mode) usagev1.Mode {
	switch m {
	case rule.Enforce:
		return usagev1.ModeEnforce
	case rule.Shadow:
		return usagev1.ModeShadow
	default:
		return usagev1.ModeUnknown
	}
}

// tsOf is when the event of a body was decided. It stands behind two ids.
func tsOf(value []byte) time.Time {
	const at = frame + 2*16
	if us, n := varint(value[min(at, len(value)):]); n > 0 {
		return time.UnixMicro(us)
	}
	return time.Time{}
}
