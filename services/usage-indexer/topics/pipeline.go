package topics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/usage-indexer/usagedoc"
)

// A Store keeps documents: see esindex.Store.Write.
type Store interface {
	Write(ctx context.Context, entries []usagedoc.Entry) ([]usagedoc.Outcome, error)
}

// A Config says how events are indexed.
type Config struct {
	Retention int // days that documents are kept; 0: for ever
	Batch     int // most events of one request to the store, at least 1
	Writers   int // requests at the same time, at least 1
}

// How long a record waits before its schema is asked for again.
const (
	schemaMin = 100 * time.Millisecond
	schemaMax = 5 * time.Second
)

// A pipeline makes documents of records and has them kept.
type pipeline struct {
	cfg     Config
	decoder *usagev1.Decoder
	store   Store
	log     *slog.Logger
	now     func() time.Time
	waiting atomic.Pointer[string] // why the registry is waited for; nil: it is not
}

func newPipeline(cfg Config, registry wire.Registry, store Store, log *slog.Logger, now func() time.Time) *pipeline {
	ids := wire.NewIDs(registry, usagev1.Subject)
	return &pipeline{cfg: cfg, decoder: usagev1.NewDecoder(ids), store: store, log: log, now: now}
}

// A fate is what became of one record.
type fate struct {
	known    bool // the rest is of an event, and not of bytes that are none
	ts       int64
	stream   [16]byte
	sequence int64
	verdict  usagedoc.Verdict
	reason   usagedoc.Reason // why it is not in the index; empty: it is
	detail   string          // of the reason, for a person
}

// run returns what became of each record, in order, once that is certain. Its
// error is ctx's.
func (p *pipeline) run(ctx context.Context, records []kafka.Record) ([]fate, error) {
	fates := make([]fate, len(records))
	pieces := (len(records) + p.cfg.Batch - 1) / p.cfg.Batch
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, min(pieces, p.cfg.Writers))
	for w := range errs {
		wg.Go(func() {
			for errs[w] == nil {
				from := (int(next.Add(1)) - 1) * p.cfg.Batch
				if from >= len(records) {
					return
				}
				to := min(from+p.cfg.Batch, len(records))
				errs[w] = p.piece(ctx, records[from:to], fates[from:to])
			}
		})
	}
	wg.Wait()
	return fates, errors.Join(errs...)
}

// buffers are for the documents of one piece.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// piece does the same for as many records as make one request.
func (p *pipeline) piece(ctx context.Context, records []kafka.Record, fates []fate) error {
	buf, _ := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	docs := (*buf)[:0]
	window := usagedoc.WindowAt(p.now(), p.cfg.Retention)
	entries := make([]usagedoc.Entry, 0, len(records))
	which := make([]int, 0, len(records)) // of records, for each entry
	ends := make([]int, 0, len(records))
	for i := range records {
		e, f, err := p.decode(ctx, &records[i])
		if err != nil {
			return err
		}
		if f.reason == "" {
			f.reason = window.Check(e.TS)
			f.detail = outside(f.reason, e.TS)
		}
		fates[i] = f
		if f.reason != "" {
			continue
		}
		doc := document(&e)
		docs = usagedoc.Append(docs, &doc)
		entries = append(entries, usagedoc.Entry{ID: e.EventID, Day: usagedoc.DayOf(e.TS)})
		which, ends = append(which, i), append(ends, len(docs))
	}
	*buf = docs
	from := 0
	for i := range entries {
		entries[i].Doc = docs[from:ends[i]:ends[i]]
		from = ends[i]
	}
	outcomes, err := p.store.Write(ctx, entries)
	if err != nil {
		return err
	}
	for n, i := range which {
		fates[i].verdict = outcomes[n].Verdict
		if outcomes[n].Verdict == usagedoc.Rejected {
			fates[i].reason, fates[i].detail = usagedoc.Refused, outcomes[n].Cause
		}
	}
	return nil
}

// outside says why an event is not kept.
func outside(r usagedoc.Reason, ts int64) string {
	if r == "" {
		return ""
	}
	return "event of " + string(usagedoc.AppendTime(nil, ts))
}

// decode reads a record, waiting for the registry for as long as it takes. Its
// error is ctx's.
func (p *pipeline) decode(ctx context.Context, r *kafka.Record) (usagev1.Event, fate, error) {
	wait := schemaMin
	for {
		e, err := p.decoder.Decode(ctx, r.Key, r.Value)
		switch {
		case err == nil:
			if wait > schemaMin {
				p.waiting.Store(nil)
				p.log.Info("schema found")
			}
			return e, fate{known: true, ts: e.TS, stream: e.StreamID, sequence: e.Sequence}, nil
		case errors.Is(err, wire.ErrUnknownID):
			return e, fate{reason: usagedoc.UnknownSchema, detail: err.Error()}, nil
		case errors.Is(err, wire.ErrPoison):
			return e, fate{reason: usagedoc.Undecodable, detail: err.Error()}, nil
		case ctx.Err() != nil:
			return e, fate{}, ctx.Err()
		}
		if why := err.Error(); p.waiting.Swap(&why) == nil {
			p.log.Warn("schema registry does not answer; reading waits for it", "error", why)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
			wait = min(2*wait, schemaMax)
		case <-ctx.Done():
			timer.Stop()
			return e, fate{}, ctx.Err()
		}
	}
}

// Ready returns why nothing can be read, or nil.
func (p *pipeline) ready(context.Context) error {
	if why := p.waiting.Load(); why != nil {
		return fmt.Errorf("waiting for the schema registry: %s", *why)
	}
	return nil
}

// document is e as the index wants it.
func document(e *usagev1.Event) usagedoc.Event {
	doc := usagedoc.Event{
		TS: e.TS, EventID: e.EventID, DecisionID: e.DecisionID, StreamID: e.StreamID, Sequence: e.Sequence,
		Decision: e.Decision.String(), Status: e.Status,
		Tenant: e.Tenant, Application: e.Application, User: e.User, APIKey: e.APIKey, APIKeyHash: e.APIKeyHash,
		ClientAddress: e.ClientAddress, Service: e.Service, Endpoint: e.Endpoint, Method: e.Method, PathTemplate: e.PathTemplate,
		RuleID: e.RuleID, Algorithm: e.Algorithm, Cost: e.Cost, LatencyUS: e.LatencyUS,
		GatewayID: e.GatewayID, RulesVersion: e.RulesVersion, RefundID: e.RefundID, Labels: e.LabelsJSON,
	}
	if u := e.Upstream; u != nil {
		doc.Upstream = &usagedoc.Upstream{Status: u.Status, DurationUS: u.DurationUS}
	}
	if len(e.Counters) == 0 {
		return doc
	}
	doc.Counters = make([]usagedoc.Counter, len(e.Counters))
	for i := range e.Counters {
		c := &e.Counters[i]
		doc.Counters[i] = usagedoc.Counter{
			Key: c.Key, Meter: c.Meter, Kind: c.Kind.String(), RuleID: c.RuleID, Mode: c.Mode.String(), Soft: c.Soft,
			Limit: c.Limit, Units: c.Units, Consumed: c.Consumed, Refunded: c.Refunded, Observed: c.Observed,
			PeriodStart: c.PeriodStart, PeriodEnd: c.PeriodEnd,
		}
	}
	return doc
}
