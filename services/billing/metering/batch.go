package metering

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Late is how old a decision may be when its event comes and still be billed; Early is
// how far ahead a gateway's clock may be.
const (
	Late  = 35 * 24 * time.Hour
	Early = 24 * time.Hour
)

// A Kind says how a count reaches an invoice.
type Kind string

// The kinds: in the invoice of its own period, or on a later one because that was final.
const (
	InPeriod  Kind = "usage"
	LateCall  Kind = "late"
	Returned  Kind = "refund"
	Corrected Kind = "settlement"
)

// A Place is where in a tenant's calendar an instant lies.
type Place struct {
	Day    time.Time // first instant of the day
	Period time.Time // first instant of the billing period
	Into   time.Time // first instant of the period whose invoice takes it: Period while that is open
}

// A Calendar places instants. It is asked of one tenant many times in a row.
type Calendar interface {
	// Day is the first instant of the tenant's day.
	Day(tenant string, at time.Time) (time.Time, error)
	// Place is where an instant lies; its period begins to be billed.
	Place(tenant string, at time.Time) (Place, error)
	// Open is the first instant of the tenant's oldest period that is not final.
	Open(tenant string) (time.Time, error)
}

// A UsageKey is one line of what was used.
type UsageKey struct {
	Tenant, Meter, Application, APIKey, Service, Endpoint string
	Kind                                                  Kind
	Place
}

// A CutKey is one line of what was refused.
type CutKey struct {
	Tenant, Reason, Rule, Algorithm, Application, APIKey, Service, Endpoint string
	Status                                                                  int
	Day                                                                     time.Time
}

// A CutSum is the refusals of a line.
type CutSum struct {
	Calls, Units int64 // Units end at the largest number there is
	First, Last  time.Time
}

// A CounterState is a counter as it was last seen, and what its events add up to.
type CounterState struct {
	Tenant, Key                  string
	Last                         Counter // of the newest event
	LastAt                       time.Time
	Application, User, APIKey    string // of the newest event
	Consumed, Refunded           int64  // the highest seen
	Charged, Returned            int64  // sums of this batch
	FirstConsumed, FirstRefunded int64  // before the first event of this batch that was observed
	observed                     bool
}

// A Movement is what one event did to one prepaid wallet.
type Movement struct {
	Tenant, Meter     string
	Event, Decision   ID
	Verdict           Verdict
	At                time.Time // of the event
	Units             int64     // charged; negative: given back
	Service, Endpoint string
}

// Aside is what came too late or from too far ahead to be billed.
type Aside struct {
	Tenant, Meter string
	Into          time.Time // first instant of the period whose invoice tells of it
}

// A Batch is what events add up to.
type Batch struct {
	Usage     map[UsageKey]*Count
	Cuts      map[CutKey]*CutSum
	Counters  map[string]*CounterState // by key
	Movements []Movement
	Aside     map[Aside]*Count
	Billable  int // events that counted something
}

// NewBatch is an empty batch.
func NewBatch() *Batch {
	return &Batch{
		Usage: map[UsageKey]*Count{}, Cuts: map[CutKey]*CutSum{},
		Counters: map[string]*CounterState{}, Aside: map[Aside]*Count{},
	}
}

// Add takes an event that was not taken before. Its error is the calendar's, or wraps
// ErrTooMany; then the batch is good for nothing.
func (b *Batch) Add(e *Event, in Calendar) error {
	if e.Tenant == "" {
		return nil
	}
	b.counters(e)
	if e.Verdict.Cut() {
		return b.cut(e, in)
	}
	b.movements(e)
	counts := e.Counts()
	if len(counts) == 0 {
		return nil
	}
	b.Billable++
	at := e.When()
	if age := e.Arrived.Sub(at); age > Late || age < -Early {
		return b.aside(e, counts, in)
	}
	place, err := in.Place(e.Tenant, at)
	if err != nil {
		return err
	}
	for _, m := range counts {
		line := sum(b.Usage, UsageKey{
			Tenant: e.Tenant, Meter: m.Meter, Application: e.Application, APIKey: e.APIKey, Service: e.Service, Endpoint: e.Endpoint,
			Kind: kind(e.Verdict, place), Place: place,
		})
		if line.Plus(m.Count); line.Units < 0 || line.Returned < 0 {
			return fmt.Errorf("%w: %s of %s", ErrTooMany, m.Meter, e.Tenant)
		}
	}
	return nil
}

// ErrTooMany reports units that no sum holds.
var ErrTooMany = errors.New("more units than can be counted")

func (b *Batch) aside(e *Event, counts []Metered, in Calendar) error {
	into, err := in.Open(e.Tenant)
	if err != nil {
		return err
	}
	for _, m := range counts {
		sum(b.Aside, Aside{e.Tenant, m.Meter, into}).Plus(m.Count)
	}
	return nil
}

func sum[K comparable, V any](of map[K]*V, key K) *V {
	v := of[key]
	if v == nil {
		v = new(V)
		of[key] = v
	}
	return v
}

func kind(v Verdict, p Place) Kind {
	switch {
	case p.Into.Equal(p.Period):
		return InPeriod
	case v == Refund:
		return Returned
	case v == Settle:
		return Corrected
	}
	return LateCall
}

func (b *Batch) cut(e *Event, in Calendar) error {
	day, err := in.Day(e.Tenant, e.At)
	if err != nil {
		return err
	}
	s := sum(b.Cuts, CutKey{
		Tenant: e.Tenant, Reason: e.Reason(), Rule: e.Rule, Algorithm: e.Algorithm, Application: e.Application, APIKey: e.APIKey,
		Service: e.Service, Endpoint: e.Endpoint, Status: e.Status, Day: day,
	})
	s.Calls++
	s.Units += min(e.Cost, math.MaxInt64-s.Units) // what was refused may be any number, and often
	if s.First.IsZero() || e.At.Before(s.First) {
		s.First = e.At
	}
	if e.At.After(s.Last) {
		s.Last = e.At
	}
	return nil
}

func (b *Batch) counters(e *Event) {
	for i := range e.Counters {
		c := &e.Counters[i]
		if !c.Enforced {
			continue
		}
		s := sum(b.Counters, c.Key)
		if s.Key == "" {
			s.Tenant, s.Key = e.Tenant, c.Key
		}
		if !e.At.Before(s.LastAt) {
			s.Last, s.LastAt = *c, e.At
			s.Application, s.User, s.APIKey = e.Application, e.User, e.APIKey
		}
		if !c.Observed {
			continue
		}
		charged, returned := max(0, c.Units), max(0, -c.Units)
		if !s.observed || c.Consumed-charged < s.FirstConsumed {
			s.FirstConsumed = c.Consumed - charged
		}
		if !s.observed || c.Refunded-returned < s.FirstRefunded {
			s.FirstRefunded = c.Refunded - returned
		}
		s.observed = true
		s.Charged += charged
		s.Returned += returned
		s.Consumed, s.Refunded = max(s.Consumed, c.Consumed), max(s.Refunded, c.Refunded)
	}
}

func (b *Batch) movements(e *Event) {
	for i := range e.Counters {
		c := &e.Counters[i]
		if !c.Enforced || !c.prepaid() || !c.Observed || c.Units == 0 {
			continue
		}
		b.Movements = append(b.Movements, Movement{
			Tenant: e.Tenant, Meter: c.Meter, Event: e.ID, Decision: e.Decision, Verdict: e.Verdict, At: e.At,
			Units: c.Units, Service: e.Service, Endpoint: e.Endpoint,
		})
	}
}

// A Position is how far a partition was read by a batch.
type Position struct {
	Partition int32
	First     int64     // offset of the batch's first record
	Next      int64     // offset after its last
	At        time.Time // when its last record came into the topic
}

// A Result is what became of a batch.
type Result struct {
	Counted int   // events that were new
	Repeats int   // that were not
	Missing int64 // numbers that were passed over, less those that came after all
	Late    int   // lines for periods that were final
	Aside   int   // lines that were set aside
	Flagged int   // ledger entries that a person should look at
	Skipped int64 // records between what was read last and this: the topic deleted them uncounted
}
