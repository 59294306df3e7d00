package usage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/topics/usage/spool"
	"penstock.dev/services/internal/admin"
	"penstock.dev/services/internal/kafka"
)

// A Producer is Kafka: a kafka.Client.
type Producer interface {
	// TryProduceTo stores r in a partition and calls done once. It never waits.
	TryProduceTo(ctx context.Context, partition int32, r kafka.Record, done func(error))
	EnsureTopics(ctx context.Context, topics []kafka.Topic) error
	Partitions(ctx context.Context, topic string) (int32, error)
}

// Producing is a Kafka configuration under which everything that is sent at a
// time fits into the client's buffer, and the records of a batch travel
// together: they are handed over within a fraction of a millisecond.
func Producing(c kafka.Config) kafka.Config {
	const smallest = 96 // bytes, of a record: its ids alone have 48
	c.MaxBufferedRecords, c.MaxBufferedBytes = maxFlying*chunkSize/smallest, 2*maxFlying*chunkSize
	c.Linger = time.Millisecond
	return c
}

// A Config says how much is kept where.
type Config struct {
	Gateway  string        // id, 0-128 bytes
	Buffer   int           // of memory, bytes; every partition gets 384 KiB at least
	Dir      string        // of the spool; empty: nothing is kept on disk
	Spool    int64         // of disk, bytes; 0: nothing more is kept there
	Linger   time.Duration // that an event waits for company
	Sync     time.Duration // between two syncs of the spool
	Secret   string        // addresses are told as their HMAC under it; empty: as they are
	Replicas int16         // of the topic, where it has to be made; 0 leaves it to the brokers

	// Stopping is closed when the process is told to stop, and Grace after that
	// it must have ended. Nil and 0 where nobody waits.
	Stopping <-chan struct{}
	Grace    time.Duration
}

// A Usage tells what was decided. Record is safe for concurrent use; Run is
// called once.
type Usage struct {
	cfg      Config
	producer Producer
	log      *slog.Logger
	metrics  *metrics

	ring     ring
	encoding sync.Mutex  // who looks into the ring
	scratch  *scratch    // of who does
	asleep   atomic.Bool // the sender is to be woken by the next event
	ended    atomic.Bool // nobody looks into the ring any more
	free     pool
	table    atomic.Pointer[[]*partition] // by the number of the partition, as of the topic or the best guess
	lost     [len(reasons)]atomic.Int64
	why      atomic.Int32 // index of the reason for which memory is full
	cut      atomic.Int64
	all      atomic.Pointer[[]*partition] // also those that the topic has no more
	spooling atomic.Int32                 // partitions
	oldest   atomic.Int64                 // when the oldest event on its way was recorded, Unix µs; 0: none is
	onWay    atomic.Int64                 // bytes of memory that are on their way
	spool    atomic.Pointer[spool.Spool]  // nil: not opened, or none
	problem  atomic.Pointer[string]       // the last one with Kafka or the disk
	wakes    chan struct{}
	facts    *facts
}

// New returns a Usage that tells producer, with schema ids from registry.
func New(cfg Config, producer Producer, registry wire.Registry, log *slog.Logger, registerer prometheus.Registerer) (*Usage, error) {
	u := &Usage{cfg: cfg, producer: producer, log: log, wakes: make(chan struct{}, 1)}
	u.scratch = newScratch(cfg.Secret)
	u.facts = newFacts(cfg, producer, registry, log, u.wake)
	u.shape(u.facts.guess(), time.Now())
	var err error
	if u.metrics, err = newMetrics(registerer, u); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return u, nil
}

// shape makes the table one of n partitions. Those that are there go on, and
// those beyond n keep what they have until it is sent.
func (u *Usage) shape(n int32, now time.Time) {
	var all []*partition
	if p := u.all.Load(); p != nil {
		all = *p
	}
	all = append([]*partition(nil), all...)
	known := map[int32]*partition{}
	for _, p := range all {
		known[p.index] = p
	}
	table := make([]*partition, n)
	for i := range table {
		p := known[int32(i)]
		if p == nil {
			p = newPartition(int32(i), now)
			all = append(all, p)
		}
		table[i] = p
	}
	const each = 3 // chunks: one on its way, one that is full, one that fills
	u.free.grow(max(u.cfg.Buffer/chunkSize, each*len(table)))
	u.all.Store(&all)
	u.table.Store(&table)
}

// Record keeps what there is to tell, which must not change any more. It does
// not wait for Kafka or a disk: who finds the ring full makes room.
func (u *Usage) Record(told decide.Usage) {
	for !u.ring.add(&told) {
		if u.encode(time.Now()) == 0 {
			runtime.Gosched() // to who fills the first place
		}
	}
	switch {
	case u.asleep.Load():
		if u.asleep.CompareAndSwap(true, false) {
			u.wake()
		}
	case u.ended.Load():
		u.encode(time.Now())
	case u.ring.len() == ringSize/2:
		u.wake()
	}
}

// encode has the partitions keep what is in the ring, and returns how many
// decisions that were. None of them was made before since.
func (u *Usage) encode(since time.Time) (n int) {
	u.encoding.Lock()
	defer u.encoding.Unlock()
	table := *u.table.Load()
	for told := u.ring.first(); told != nil && n < ringSize; told = u.ring.first() {
		u.keep(told, table, since)
		u.ring.drop()
		n++
	}
	return n
}

// keep makes an event of what is told, and has its partition keep it.
func (u *Usage) keep(told *decide.Usage, table []*partition, since time.Time) {
	s := u.scratch
	key := s.fill(told, u.cfg.Gateway)
	switch table[kafka.PartitionOf(key, int32(len(table)))].record(s, key, &u.free, since) {
	case keptIt:
	case lostMemory:
		u.lost[u.why.Load()].Add(1)
	case lostStopped:
		u.lost[lostStopping].Add(1)
	}
	if s.cut {
		u.cut.Add(1)
	}
}

// wake has the sender look.
func (u *Usage) wake() {
	select {
	case u.wakes <- struct{}{}:
	default:
	}
}

// recorded is how many events of this run were kept.
func (u *Usage) recorded() (n int64) {
	u.encode(time.Now())
	for _, p := range *u.all.Load() {
		p.mu.Lock()
		n += p.recorded
		p.mu.Unlock()
	}
	return n
}

// buffered is how many bytes of events are in memory.
func (u *Usage) buffered() int64 {
	u.encode(time.Now())
	n := u.onWay.Load()
	for _, p := range *u.all.Load() {
		n += int64(p.bytes())
	}
	return n
}

// spooled is how many bytes are on disk.
func (u *Usage) spooled() int64 {
	if s := u.spool.Load(); s != nil {
		return s.Bytes()
	}
	return 0
}

// age is how long the oldest event has waited that Kafka does not have yet.
func (u *Usage) age(now time.Time) time.Duration {
	u.encode(now)
	oldest := now
	if us := u.oldest.Load(); us != 0 {
		oldest = time.UnixMicro(us)
	}
	for _, p := range *u.all.Load() {
		p.mu.Lock()
		c := p.open
		if len(p.full) > 0 {
			c = p.full[0]
		}
		if c != nil && c.born.Before(oldest) {
			oldest = c.born
		}
		p.mu.Unlock()
	}
	return max(0, now.Sub(oldest))
}

// Ready returns nil, or an admin.Remark while events go to disk or have been
// lost. Requests are answered all the same.
func (u *Usage) Ready(context.Context) error {
	var lost int64
	for i := range u.lost {
		lost += u.lost[i].Load()
	}
	cause := ""
	if p := u.problem.Load(); p != nil {
		cause = ": " + *p
	}
	var remarks []error
	if u.cfg.Dir != "" && u.spool.Load() == nil {
		remarks = append(remarks, fmt.Errorf("usage events can go to no disk%s", cause))
	}
	if n := u.spooling.Load(); n > 0 {
		remarks = append(remarks, fmt.Errorf("%d of %d partitions of %s go to disk, which holds %d bytes%s",
			n, len(*u.all.Load()), usagev1.Topic, u.spooled(), cause))
	}
	if lost > 0 {
		remarks = append(remarks, fmt.Errorf("%d usage events were lost since the start", lost))
	}
	if err := errors.Join(remarks...); err != nil {
		return admin.Remark(err.Error())
	}
	return nil
}
