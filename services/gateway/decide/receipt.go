package decide

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// ErrReceipt reports bytes that are no receipt.
var ErrReceipt = errors.New("no receipt")

// receiptFormat is the first byte of a receipt. Another one is not read.
const receiptFormat = 1

// A Receipt is what a decision charged: all that it takes to give it back, or
// to charge the rest, and to tell of that, whatever the rules are by then
// (docs/adr/0050). It is good for limit.RememberCorrections.
type Receipt struct {
	DecisionID   [16]byte
	At           time.Time // when what it charged was charged, by the store's clock: when it was decided, or its lease taken
	RulesVersion int64
	Cost         int64 // units of the decision, at least 1: what its refunds add up to at most

	Tenant      string
	Application string
	User        string
	APIKey      string     // id
	Address     netip.Addr // of the client
	Service     string     // id
	Endpoint    string     // id
	Template    string     // of the endpoint's path
	Method      string

	Charged []Charged // at least one
}

// A Charged is one counter that a decision charged, and the rule that had it
// do so.
type Charged struct {
	limit.Item
	RuleID      string
	RuleVersion int64
	Thresholds  rule.Thresholds
}

// Receipt returns what the decision charged, of a replay what the first one
// did. It is false where nothing was charged: a peek, a refusal, a degraded
// pass, a request that no rule counts.
func (d *Decision) Receipt() (Receipt, bool) {
	switch in := d.basis; {
	case d.first != nil:
		return *d.first, true
	case in == nil || d.Replayed || !in.charged:
		return Receipt{}, false
	default:
		return in.receipt(d.ID, in.paid, in.cost, in.rules.revision, in.ticket(), in.results), true
	}
}

// A ticket is the part of a receipt that a replay cannot look up again: the
// catalogue may be another by then, and the client's address may be.
type ticket struct {
	address                     netip.Addr
	service, endpoint, template string
	charges                     []Charged // of every winner, in order
}

// ticket is what is known once the store was asked.
func (in *inquiry) ticket() ticket {
	t := ticket{
		address: in.request.Address, service: in.request.Service, endpoint: in.request.Endpoint,
		charges: make([]Charged, len(in.winners)),
	}
	if in.endpoint != nil {
		t.template = in.endpoint.Path
	}
	for i, r := range in.winners {
		t.charges[i] = Charged{
			Item:   limit.Item{Charge: in.asked.Charges[i], Fixed: r.Cost != nil},
			RuleID: r.ID, RuleVersion: r.Version, Thresholds: r.Thresholds,
		}
	}
	return t
}

// receipt is of what t's charges came to. A decision that cost nothing and yet
// charged, by a rule of fixed cost, counts as one unit. Of a charge whose counter
// was full nothing can be given back: it stands there as a fixed cost of nothing.
func (in *inquiry) receipt(id [16]byte, at time.Time, cost, revision int64, t ticket, results []limit.Result) Receipt {
	r := Receipt{
		DecisionID: id, At: at, RulesVersion: revision, Cost: max(1, cost),
		Tenant: in.request.Tenant, Application: in.request.Application, User: in.request.User, APIKey: in.request.APIKey,
		Address: t.address, Service: t.service, Endpoint: t.endpoint, Template: t.template, Method: in.query.Method,
	}
	for i := range t.charges {
		c := t.charges[i]
		if c.Cost == 0 || !results[i].Passed && !c.Soft {
			continue
		}
		if results[i].Clipped {
			c.Cost, c.Fixed = 0, true
		}
		r.Charged = append(r.Charged, c)
	}
	return r
}

// AppendBinary appends the receipt as ParseReceipt reads it.
func (r *Receipt) AppendBinary(b []byte) []byte {
	b = append(append(b, receiptFormat), r.DecisionID[:]...)
	for _, n := range [...]int64{r.At.UnixMicro(), r.RulesVersion, r.Cost} {
		b = binary.AppendVarint(b, n)
	}
	for _, s := range [...]string{r.Tenant, r.Application, r.User, r.APIKey, r.Method} {
		b = appendText(b, s)
	}
	t := ticket{r.Address, r.Service, r.Endpoint, r.Template, r.Charged}
	return t.append(b)
}

// ParseReceipt is the opposite of AppendBinary. Its error is ErrReceipt.
func ParseReceipt(b []byte) (Receipt, error) {
	if len(b) < 1+16 || b[0] != receiptFormat {
		return Receipt{}, ErrReceipt
	}
	r := Receipt{DecisionID: [16]byte(b[1:17])}
	from := reader{rest: b[17:]}
	r.At = time.UnixMicro(from.int()).UTC()
	r.RulesVersion, r.Cost = from.int(), from.int()
	for _, s := range [...]*string{&r.Tenant, &r.Application, &r.User, &r.APIKey, &r.Method} {
		*s = from.text()
	}
	t := from.ticket(&identity{tenant: r.Tenant, application: r.Application, user: r.User, key: r.APIKey})
	r.Address, r.Service, r.Endpoint, r.Template, r.Charged = t.address, t.service, t.endpoint, t.template, t.charges
	if from.bad || len(from.rest) > 0 || r.Cost < 1 || r.Cost > rule.Unlimited || len(r.Charged) == 0 {
		return Receipt{}, ErrReceipt
	}
	return r, nil
}

// Flags of a charge.
const (
	chargeSoft = 1 << iota
	chargeShadow
	chargeFixed
	chargeService  // its scope is a service
	chargeEndpoint // its scope is an endpoint
	chargePeriod   // it has one
	chargeAll      = 1<<iota - 1
)

// What a charge names by its place here. Words are only ever appended.
var (
	kinds      = [...]rule.Kind{rule.Rate, rule.Quota, rule.Wallet}
	algorithms = [...]rule.Algorithm{
		rule.GCRA, rule.CalendarQuota, rule.OverdraftWallet, rule.FixedWindow,
		rule.SlidingWindowLog, rule.SlidingWindowCounter, rule.TokenBucket, rule.LeakyBucket,
	}
	units = [...]period.Unit{period.Hour, period.Day, period.Week, period.Month, period.Year}
)

func (t *ticket) append(b []byte) []byte {
	b = appendText(b, string(t.address.AsSlice()))
	for _, s := range [...]string{t.service, t.endpoint, t.template} {
		b = appendText(b, s)
	}
	b = binary.AppendUvarint(b, uint64(len(t.charges)))
	for i := range t.charges {
		b = t.charges[i].append(b)
	}
	return b
}

func (c *Charged) append(b []byte) []byte {
	id := &c.Counter
	flags := byte(0)
	for _, f := range [...]struct {
		bit byte
		set bool
	}{
		{chargeSoft, c.Soft},
		{chargeShadow, id.Shadow},
		{chargeFixed, c.Fixed},
		{chargeService, id.Service != "" || id.Endpoint != ""},
		{chargeEndpoint, id.Endpoint != ""},
		{chargePeriod, id.Unit != ""},
	} {
		if f.set {
			flags |= f.bit
		}
	}
	b = append(b, flags, byte(slices.Index(kinds[:], id.Kind)), byte(slices.Index(algorithms[:], c.Algorithm)), byte(id.Subject))
	b = appendText(appendText(b, id.Meter), c.RuleID)
	for _, n := range [...]int64{
		c.RuleVersion, c.Cost, c.Limit, c.Window.Microseconds(), c.Burst, c.MaxDelay.Microseconds(),
	} {
		b = binary.AppendVarint(b, n)
	}
	if flags&chargePeriod != 0 {
		b = append(b, byte(slices.Index(units[:], id.Unit)))
		for _, n := range [...]int64{int64(id.Count), id.Start.UnixMicro(), c.Span.Start.UnixMicro(), c.Span.End.UnixMicro()} {
			b = binary.AppendVarint(b, n)
		}
	}
	b = binary.AppendUvarint(b, uint64(len(c.Thresholds.Percent)))
	for _, p := range c.Thresholds.Percent {
		b = binary.AppendVarint(b, int64(p))
	}
	b = binary.AppendUvarint(b, uint64(len(c.Thresholds.Left)))
	for _, l := range c.Thresholds.Left {
		b = binary.AppendVarint(b, l)
	}
	return b
}

// An identity is the dimensions that counters are of.
type identity struct {
	tenant, application, user, key string
}

// ticket reads what ticket.append wrote.
func (r *reader) ticket(of *identity) (t ticket) {
	if a := r.text(); a != "" {
		var ok bool
		if t.address, ok = netip.AddrFromSlice([]byte(a)); !ok {
			r.bad = true
		}
	}
	t.service, t.endpoint, t.template = r.text(), r.text(), r.text()
	for n := r.count(); n > 0 && !r.bad; n-- {
		t.charges = append(t.charges, r.charged(of, &t))
	}
	return t
}

func (r *reader) charged(of *identity, t *ticket) (c Charged) {
	flags := r.byte()
	if flags > chargeAll {
		r.bad = true
	}
	id := limit.Identity{
		Shadow: flags&chargeShadow != 0, Kind: word(r, kinds[:]), Algorithm: word(r, algorithms[:]), Subject: rule.Subject(r.byte()),
		Tenant: of.tenant, Application: of.application, User: of.user, APIKey: of.key, Address: network(t.address),
	}
	c.Algorithm, c.Soft, c.Fixed = id.Algorithm, flags&chargeSoft != 0, flags&chargeFixed != 0
	if flags&chargeService != 0 {
		id.Service = t.service
	}
	if flags&chargeEndpoint != 0 {
		id.Endpoint = t.endpoint
	}
	id.Meter, c.RuleID = r.text(), r.text()
	c.RuleVersion, c.Cost, c.Limit = r.int(), r.int(), r.int()
	c.Window, c.Burst, c.MaxDelay = r.micros(), r.int(), r.micros()
	id.Window = c.Window
	if flags&chargePeriod != 0 {
		id.Unit, id.Count, id.Start = word(r, units[:]), int(r.int()), time.UnixMicro(r.int()).UTC()
		c.Span = period.Span{Start: time.UnixMicro(r.int()).UTC(), End: time.UnixMicro(r.int()).UTC()}
	}
	for n := r.count(); n > 0 && !r.bad; n-- {
		c.Thresholds.Percent = append(c.Thresholds.Percent, int32(r.int()))
	}
	for n := r.count(); n > 0 && !r.bad; n-- {
		c.Thresholds.Left = append(c.Thresholds.Left, r.int())
	}
	c.Counter = id.Canonical()
	return c
}

// word is the one of a closed set that the next byte names.
func word[T ~string](r *reader, words []T) T {
	n := int(r.byte())
	if n >= len(words) {
		r.bad = true
		return ""
	}
	return words[n]
}
