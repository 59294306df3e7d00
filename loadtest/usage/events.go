package usage

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	mrand "math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"penstock.dev/loadtest/system"
	"penstock.dev/schemas"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
)

// A producer puts events on usage.v1 as gateways would: numbered without gaps
// in each stream, each tenant in its own partition.
type producer struct {
	client     *kgo.Client
	admin      *kadm.Client
	o          Options
	schema     uint32
	partitions int32
	units      int64

	mu    sync.Mutex
	fault error // the first failure to store an event
}

func newProducer(ctx context.Context, s *system.System, o Options) (*producer, error) {
	client, err := kgo.NewClient(
		s.KafkaOption(), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5*time.Millisecond),
		kgo.MaxBufferedRecords(20_000), kgo.MetadataMinAge(100*time.Millisecond), kgo.DisableClientMetrics(),
	)
	if err != nil {
		return nil, err
	}
	p := &producer{client: client, admin: kadm.NewClient(client), o: o}
	if err := p.prepare(ctx, s); err != nil {
		client.Close()
		return nil, err
	}
	return p, nil
}

// prepare learns what a gateway knows: the schema's id, and how many partitions
// there are.
func (p *producer) prepare(ctx context.Context, s *system.System) error {
	registry, err := sr.NewClient(sr.URLs(strings.Split(s.Env["SCHEMA_REGISTRY_URL"], ",")...))
	if err != nil {
		return err
	}
	schema, err := registry.CreateSchema(ctx, usagev1.Subject, sr.Schema{Schema: schemas.UsageV1})
	if err != nil {
		return fmt.Errorf("register %s: %w", usagev1.Subject, err)
	}
	p.schema = uint32(schema.ID)
	topics, err := p.admin.ListTopics(ctx, usagev1.Topic)
	if err != nil {
		return err
	}
	if p.partitions = int32(len(topics[usagev1.Topic].Partitions)); p.partitions == 0 {
		return fmt.Errorf("%s does not exist: no gateway has made it", usagev1.Topic)
	}
	return nil
}

func (p *producer) close() { p.client.Close() }

// A tenant and the partition that its key belongs to.
type tenant struct {
	name      string
	partition int32
}

func (p *producer) tenants() []tenant {
	choose := kgo.StickyKeyPartitioner(nil).ForTopic(usagev1.Topic) // murmur2, as every client's
	list := make([]tenant, p.o.Tenants)
	for i := range list {
		name := fmt.Sprintf("load-%d", i)
		list[i] = tenant{name, int32(choose.Partition(&kgo.Record{Key: []byte(name)}, int(p.partitions)))}
	}
	return list
}

// run produces all events and waits until they are stored.
func (p *producer) run(ctx context.Context) error {
	rng := mrand.New(mrand.NewPCG(p.o.Seed, 1))
	tenants := p.tenants()
	runs := make([][]stream, p.o.Streams)
	for i := range runs {
		runs[i] = make([]stream, p.partitions)
		for k := range runs[i] {
			_, _ = rand.Read(runs[i][k].id[:])
		}
	}
	for i := range p.o.Events {
		t := tenants[rng.IntN(len(tenants))]
		e := event(rng, i, t.name)
		e.StreamID, e.Sequence = runs[i%len(runs)][t.partition].next()
		p.units += e.Cost
		body := usagev1.AppendEvent(nil, &e)
		p.client.Produce(ctx, &kgo.Record{
			Topic: usagev1.Topic, Partition: t.partition, Key: []byte(t.name), Value: wire.Frame(nil, p.schema, body),
		}, p.acknowledged)
		if i%10_000 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := p.client.Flush(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault
}

func (p *producer) acknowledged(_ *kgo.Record, err error) {
	if err != nil {
		p.mu.Lock()
		p.fault = err
		p.mu.Unlock()
	}
}

// stored is how many records a topic has, 0 when it does not exist.
func (p *producer) stored(ctx context.Context, topic string) (int64, error) {
	starts, err := p.admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	ends, err := p.admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	var n int64
	ends.Each(func(end kadm.ListedOffset) {
		if start, ok := starts.Lookup(end.Topic, end.Partition); ok && end.Err == nil && start.Err == nil {
			n += end.Offset - start.Offset
		}
	})
	return n, nil
}

// A stream is one run of a gateway in one partition.
type stream struct {
	id   usagev1.UUID
	last int64
}

func (s *stream) next() (usagev1.UUID, int64) {
	s.last++
	return s.id, s.last
}

// event is a decision as busy tenants make them: some refused, some labelled,
// some with a month's quota.
func event(rng *mrand.Rand, i int, tenant string) usagev1.Event {
	now := time.Now()
	id := uuid7(rng, now)
	e := usagev1.Event{
		EventID: id, DecisionID: id, TS: now.UnixMicro(), Decision: usagev1.DecisionAllow, Status: 200,
		Tenant: tenant, Application: "web", User: fmt.Sprintf("u%d", rng.IntN(500)), ClientAddress: "203.0.113.9",
		Service: "payments", Endpoint: "pay", Method: "POST", PathTemplate: "/v1/pay",
		RuleID: tenant + "-month", Algorithm: "quota", Cost: 1 + rng.Int64N(20), LatencyUS: 200 + rng.Int64N(5000),
		GatewayID: "load", RulesVersion: 1,
	}
	switch i % 10 {
	case 0:
		e.Decision, e.Status, e.RuleID, e.Algorithm = usagev1.DecisionDeny, 429, tenant+"-burst", "gcra"
	case 1:
		e.LabelsJSON = fmt.Sprintf(`{"region":"eu","build":"b%d"}`, i)
	default:
		month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
		e.Counters = []usagev1.Counter{{
			Key: "q:tenant:" + tenant, Observed: true, Kind: usagev1.CounterKindQuota, Meter: "api-calls",
			PeriodStart: month.UnixMicro(), PeriodEnd: month.AddDate(0, 1, 0).UnixMicro(), Limit: 1_000_000_000,
			Units: e.Cost, Consumed: int64(i), RuleID: e.RuleID, RuleVersion: 1, Mode: usagev1.ModeEnforce,
			ThresholdsPercent: []int32{80, 100},
		}}
	}
	return e
}

// uuid7 is a UUID of version 7 (RFC 9562) for a time.
func uuid7(rng *mrand.Rand, at time.Time) (id usagev1.UUID) {
	binary.BigEndian.PutUint64(id[:8], uint64(at.UnixMilli())<<16|rng.Uint64()&0x0fff|0x7000)
	binary.BigEndian.PutUint64(id[8:], rng.Uint64()&^(3<<62)|2<<62)
	return id
}
