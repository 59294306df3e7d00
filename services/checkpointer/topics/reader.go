package topics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/checkpointer/checkpoint"
	"penstock.dev/services/internal/kafka"
)

// Group is the consumer group.
const Group = "checkpointer"

// A Broker is read in a group and by offsets.
type Broker interface {
	Consume(ctx context.Context, g kafka.Group, h kafka.GroupHandler) error
	ReadRangeFrom(ctx context.Context, topic string, from, to map[int32]int64, begin func(map[int32]kafka.Range) error, handle func([]kafka.Record) error) error
}

// Parts returns partitions as the books contain them.
type Parts func(ctx context.Context, partitions []int32) ([]*checkpoint.Part, error)

// Save saves parts, and returns those that others have contained.
type Save func(ctx context.Context, parts []*checkpoint.Part) (stale []*checkpoint.Part, err error)

// A Reader follows usage.v1 and has what it tells saved.
type Reader struct {
	broker  Broker
	decoder decoder
	stored  Parts
	log     *slog.Logger
	metrics *metrics

	mu     sync.Mutex // held while parts are read or saved
	parts  map[int32]*checkpoint.Part
	behind map[int32]*checkpoint.Part // taken over in part: the topic has more than they were read to

	assigning sync.Mutex
	assigned  map[int32]bool
	renewed   map[int32]bool // assigned since they were read last
	saved     atomic.Int64   // when the last checkpoint was made, µs since the epoch
}

// New returns a reader.
func New(broker Broker, registry wire.Registry, stored Parts, log *slog.Logger, r prometheus.Registerer) (*Reader, error) {
	x := &Reader{
		broker: broker, stored: stored, log: log, parts: map[int32]*checkpoint.Part{}, behind: map[int32]*checkpoint.Part{},
		assigned: map[int32]bool{}, renewed: map[int32]bool{},
	}
	x.saved.Store(time.Now().UnixMicro())
	var err error
	if x.metrics, err = newMetrics(r, x); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	x.decoder = decoder{values: usagev1.NewDecoder(wire.NewIDs(registry, usagev1.Subject)), log: log, poison: x.metrics.poison.Inc}
	return x, nil
}

// rebalance is how long the group waits for a member that is busy with a
// checkpoint, or died while it joined.
const rebalance = 30 * time.Second

// Run reads until ctx ends.
func (x *Reader) Run(ctx context.Context) error {
	return x.broker.Consume(ctx, kafka.Group{ID: Group, Topics: []string{usagev1.Topic}, RebalanceTimeout: rebalance}, x)
}

// Assigned is what the group calls.
func (x *Reader) Assigned(partitions map[string][]int32) {
	x.assigning.Lock()
	defer x.assigning.Unlock()
	for _, p := range partitions[usagev1.Topic] {
		x.assigned[p], x.renewed[p] = true, true
	}
}

// Revoked is what the group calls. What was read of the partitions is saved with
// the next checkpoint, unless their next owner was quicker.
func (x *Reader) Revoked(partitions map[string][]int32) {
	x.assigning.Lock()
	defer x.assigning.Unlock()
	for _, p := range partitions[usagev1.Topic] {
		delete(x.assigned, p)
	}
}

// mine are the partitions that are assigned. What was read of those that were
// assigned anew is forgotten: the books may contain more by now, or the topic be
// another.
func (x *Reader) mine() []int32 {
	x.assigning.Lock()
	defer x.assigning.Unlock()
	for p := range x.renewed {
		delete(x.parts, p)
		delete(x.behind, p)
	}
	clear(x.renewed)
	return slices.Sorted(maps.Keys(x.assigned))
}

// Handle is what the group calls.
func (x *Reader) Handle(ctx context.Context, records []kafka.Record) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mine()
	var of []int32
	for i := range records {
		if p := records[i].Partition; len(of) == 0 || of[len(of)-1] != p {
			of = append(of, p)
		}
	}
	for wait := schemaMin; ; wait = min(2*wait, schemaMax) {
		err := x.load(ctx, of)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		x.log.Warn("a partition cannot be taken over; reading waits", "error", err.Error(), "retry_in", wait.String())
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
	for i := range records {
		if err := x.decoder.take(ctx, x.parts[records[i].Partition], &records[i]); err != nil {
			return err
		}
	}
	return nil
}

// load has the parts of partitions, read from where the books contain them to
// the topic's end. Where it has no time for all of that, the next goes on from there.
func (x *Reader) load(ctx context.Context, of []int32) error {
	var parts []*checkpoint.Part
	var missing []int32
	for _, p := range of {
		switch {
		case x.parts[p] != nil:
		case x.behind[p] != nil:
			parts = append(parts, x.behind[p])
		default:
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		more, err := x.stored(ctx, missing)
		if err != nil {
			return err
		}
		parts = append(parts, more...)
	}
	if len(parts) == 0 {
		return nil
	}
	parts, _, err := x.read(ctx, parts, true, func() {})
	for _, p := range parts {
		if err != nil {
			x.behind[p.Partition] = p
		} else {
			delete(x.behind, p.Partition)
			x.parts[p.Partition] = p
		}
	}
	return err
}

// read reads what parts do not contain, to the topic's end. Only says that no
// other partitions are read; else those that are not in parts are added to all.
// Whole is false where the topic no longer had all of it. Came is called whenever some
// of it has come. With an error, all is what had come by then.
func (x *Reader) read(ctx context.Context, parts []*checkpoint.Part, only bool, came func()) (all []*checkpoint.Part, whole bool, err error) {
	from, to := map[int32]int64{}, map[int32]int64(nil)
	byNumber := map[int32]*checkpoint.Part{}
	if only {
		to = map[int32]int64{}
	}
	for _, p := range parts {
		byNumber[p.Partition], from[p.Partition] = p, p.Next
		if only {
			to[p.Partition] = math.MaxInt64
		}
	}
	var ranges map[int32]kafka.Range
	err = x.broker.ReadRangeFrom(ctx, usagev1.Topic, from, to, func(found map[int32]kafka.Range) error {
		ranges = found
		whole = x.begin(ranges, byNumber)
		came()
		return nil
	}, func(records []kafka.Record) error {
		defer came()
		for i := range records {
			if err := x.decoder.take(ctx, byNumber[records[i].Partition], &records[i]); err != nil {
				return err
			}
		}
		return nil
	})
	for n, p := range byNumber {
		if err == nil {
			p.Skip(ranges[n].To) // what is left of it carries no records
		}
		all = append(all, p)
	}
	return all, whole && err == nil, err
}

// begin sets parts to where they are read from, and reports whether that is where
// they end.
func (x *Reader) begin(ranges map[int32]kafka.Range, parts map[int32]*checkpoint.Part) (whole bool) {
	whole = true
	for n, r := range ranges {
		p := parts[n]
		if p == nil {
			p = checkpoint.NewPart(n, 0, nil)
			parts[n] = p
		}
		if r.From == p.Next {
			continue
		}
		whole = false
		if p.Stored > 0 {
			x.metrics.holes.Inc()
			x.log.Error("usage.v1 does not go on where it was left: events are gone, or it was made anew; what they told of is in no checkpoint but by the store's own word",
				"partition", n, "contained", p.Next, "begins", r.From)
		}
		p.Next, p.Hole = r.From, true
	}
	return whole
}

// errSilent ends a reading of which nothing comes.
var errSilent = errors.New("usage.v1 says nothing")

// Tail reads what parts do not contain, up to where the topic ends now. It gives up when
// nothing has come for as long as patience; with an error, all is what had come.
func (x *Reader) Tail(ctx context.Context, parts []*checkpoint.Part, patience time.Duration) ([]*checkpoint.Part, bool, error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	silence := time.AfterFunc(patience, func() { giveUp(fmt.Errorf("%w for %s", errSilent, patience)) })
	defer silence.Stop()
	all, whole, err := x.read(ctx, parts, false, func() { silence.Reset(patience) })
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errSilent) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	if errors.Is(err, kafka.ErrNoTopic) && !slices.ContainsFunc(parts, func(p *checkpoint.Part) bool { return p.Stored > 0 }) {
		return parts, true, nil
	}
	return all, whole, err
}

// catchUp bounds the taking over of partitions by a checkpoint.
const catchUp = 10 * time.Second

// Checkpoint saves what was read since the last one. Partitions that were assigned
// and of which nothing has come are read from where the books contain them.
func (x *Reader) Checkpoint(ctx context.Context, save Save) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	mine := x.mine()
	within, stop := context.WithTimeout(ctx, catchUp)
	late := x.load(within, mine)
	stop()
	var dirty []*checkpoint.Part
	for _, parts := range []map[int32]*checkpoint.Part{x.parts, x.behind} {
		for _, p := range parts {
			if p.Dirty() {
				dirty = append(dirty, p)
			}
		}
	}
	if len(dirty) > 0 {
		stale, err := save(ctx, dirty)
		if err != nil {
			return errors.Join(err, late)
		}
		for _, p := range dirty {
			if slices.Contains(stale, p) {
				delete(x.parts, p.Partition)
				delete(x.behind, p.Partition)
			} else {
				p.Saved()
			}
		}
	}
	others := func(n int32, _ *checkpoint.Part) bool { return !slices.Contains(mine, n) }
	maps.DeleteFunc(x.parts, others)
	maps.DeleteFunc(x.behind, others)
	if late == nil {
		x.saved.Store(time.Now().UnixMicro())
	}
	return late
}

// Save makes checkpoints until ctx ends, and then a last one.
func (x *Reader) Save(ctx context.Context, every time.Duration, save Save) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := x.Checkpoint(ctx, save); err != nil && ctx.Err() == nil {
				x.log.Error("no checkpoint; the next one makes up for it", "error", err.Error())
			}
		case <-ctx.Done():
			last, stop := context.WithTimeout(context.WithoutCancel(ctx), catchUp)
			defer stop()
			return errors.Join(ctx.Err(), x.Checkpoint(last, save))
		}
	}
}

// age is how many seconds ago the last checkpoint was made.
func (x *Reader) age() float64 {
	return time.Since(time.UnixMicro(x.saved.Load())).Seconds()
}
