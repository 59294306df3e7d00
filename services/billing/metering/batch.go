package metering

import (
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
	Place(tenant string, at time.Time) (Place, error)
}

// A UsageKey is one line of what was used.
type UsageKey struct {
	Tenant, Meter, Application, Service, Endpoint string
	Kind                                          Kind
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
	Calls, Units int64
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
	Period        time.Time // first instant of the period that it would have been of; zero where nobody can tell
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

// Add takes an event that was not taken before. Its error is the calendar's.
func (b *Batch) Add(e *Event, in Calendar) error {
	if e.Tenant == "" {
		return nil
	}
	at := e.When()
	place, err := in.Place(e.Tenant, at)
	if err != nil {
		return err
	}
	b.counters(e)
	if e.Verdict.Cut() {
		b.cut(e, place)
		return nil
	}
	b.movements(e)
	counts := e.Counts()
	if len(counts) > 0 {
		b.Billable++
	}
	if age := e.Arrived.Sub(at); age > Late || age < -Early {
		for _, m := range counts {
			sum(b.Aside, Aside{e.Tenant, m.Meter, place.Period}).Plus(m.Count)
		}
		return nil
	}
	for _, m := range counts {
		sum(b.Usage, UsageKey{
			Tenant: e.Tenant, Meter: m.Meter, Application: e.Application, Service: e.Service, Endpoint: e.Endpoint,
			Kind: kind(e.Verdict, place), Place: place,
		}).Plus(m.Count)
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

func (b *Batch) cut(e *Event, p Place) {
	s := sum(b.Cuts, CutKey{
		Tenant: e.Tenant, Reason: e.Reason(), Rule: e.Rule, Algorithm: e.Algorithm, Application: e.Application, APIKey: e.APIKey,
		Service: e.Service, Endpoint: e.Endpoint, Status: e.Status, Day: p.Day,
	})
	s.Calls++
	s.Units += e.Cost
	if s.First.IsZero() || e.At.Before(s.First) {
		s.First = e.At
	}
	if e.At.After(s.Last) {
		s.Last = e.At
	}
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
