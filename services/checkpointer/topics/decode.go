package topics

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/checkpointer/checkpoint"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/rule"
)

// How long a record waits before its schema is asked for again.
const (
	schemaMin = 100 * time.Millisecond
	schemaMax = 5 * time.Second
)

// A decoder makes events of records.
type decoder struct {
	values *usagev1.Decoder
	log    *slog.Logger
	poison func()
}

// take has a part take in a record. What is no event is passed over: others set
// it aside. It waits for the registry for as long as it takes; its error is ctx's.
func (d *decoder) take(ctx context.Context, p *checkpoint.Part, r *kafka.Record) error {
	if r.Offset < p.Next {
		return nil
	}
	for wait := schemaMin; ; wait = min(2*wait, schemaMax) {
		e, err := d.values.Decode(ctx, r.Key, r.Value)
		switch {
		case err == nil:
			taken := event(&e, r.Offset)
			p.Take(&taken)
			return nil
		case errors.Is(err, wire.ErrUnknownID), errors.Is(err, wire.ErrPoison):
			d.poison()
			d.log.Error("a record is no event; what it told of is in no checkpoint but by the store's own word",
				"topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "error", err.Error())
			p.Skip(r.Offset + 1)
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		d.log.Warn("schema registry does not answer; reading waits for it", "error", err.Error(), "retry_in", wait.String())
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// event is what e says of counters and corrections. What no store answered says
// nothing of a counter.
func event(e *usagev1.Event, offset int64) checkpoint.Event {
	out := checkpoint.Event{Offset: offset, Stream: e.StreamID, Sequence: e.Sequence}
	for i := range e.Counters {
		if c := &e.Counters[i]; c.Observed {
			out.Charges = append(out.Charges, charge(c))
		}
	}
	switch {
	case e.Tenant == "": // only rates are charged to an address
	case e.Decision == usagev1.DecisionRefund && e.RefundID != "", e.Decision == usagev1.DecisionSettle:
		out.Correction = &checkpoint.Correction{
			Tenant: e.Tenant, Decision: e.DecisionID, Refund: e.RefundID, Units: e.Cost, At: time.UnixMicro(e.TS).UTC(),
		}
	}
	return out
}

func charge(c *usagev1.Counter) checkpoint.Charge {
	out := checkpoint.Charge{Units: c.Units, Counter: checkpoint.Counter{
		Key: c.Key, Kind: rule.Quota, Meter: c.Meter, Limit: c.Limit,
	}}
	if c.Kind == usagev1.CounterKindWallet {
		out.Kind = rule.Wallet
	}
	out.Consumed, out.Refunded = c.Consumed, c.Refunded
	if c.PeriodEnd > 0 {
		out.Start, out.End = time.UnixMicro(c.PeriodStart).UTC(), time.UnixMicro(c.PeriodEnd).UTC()
		out.Expires = out.End.Add(checkpoint.KeepFor)
	}
	return out
}
