package usage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/topics/usage"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

var t0 = time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC)

// A cluster is Kafka in memory: it takes every record, or holds its answers
// back, or refuses.
type cluster struct {
	mu         sync.Mutex
	partitions int32 // 0: there is no topic
	paused     bool  // nothing is stored and nothing answered
	forgetful  bool  // takes everything and keeps nothing
	away       error // of questions about topics
	refuse     func(kafka.Record) error
	records    map[int32][]kafka.Record
	held       []func()
	ensured    []kafka.Topic
}

func newCluster() *cluster {
	return &cluster{partitions: usagev1.Partitions, records: map[int32][]kafka.Record{}}
}

// TryProduceTo implements usage.Producer. Key and value are read when the
// record is stored, as a client does that sends it then.
func (c *cluster) TryProduceTo(_ context.Context, partition int32, r kafka.Record, done func(error)) {
	store := func() {
		if c.refuse != nil {
			if err := c.refuse(r); err != nil {
				done(err)
				return
			}
		}
		r.Key, r.Value = bytes.Clone(r.Key), bytes.Clone(r.Value)
		r.Partition, r.Offset = partition, int64(len(c.records[partition]))
		c.records[partition] = append(c.records[partition], r)
		done(nil)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.forgetful {
		done(nil)
		return
	}
	if c.paused {
		c.held = append(c.held, store)
		return
	}
	store()
}

// EnsureTopics makes the topic.
func (c *cluster) EnsureTopics(_ context.Context, topics []kafka.Topic) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ensured = topics
	c.partitions = topics[0].Partitions
	return c.away
}

// Partitions returns how many there are.
func (c *cluster) Partitions(context.Context, string) (int32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.away != nil:
		return 0, c.away
	case c.partitions == 0:
		return 0, kafka.ErrNoTopic
	default:
		return c.partitions, nil
	}
}

func (c *cluster) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

func (c *cluster) pause() { c.set(func() { c.paused = true }) }

// resume stores what was held back, in order.
func (c *cluster) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = false
	for _, store := range c.held {
		store()
	}
	c.held = nil
}

// all are the records in the order of partitions and offsets.
func (c *cluster) all() (list []kafka.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range slices.Sorted(maps.Keys(c.records)) {
		list = append(list, c.records[p]...)
	}
	return list
}

func (c *cluster) count() int { return len(c.all()) }

// events are the records as any reader decodes them.
func (c *cluster) events(t testing.TB, r wire.Registry) (list []usagev1.Event) {
	t.Helper()
	d := usagev1.NewDecoder(wire.NewIDs(r, usagev1.Subject))
	for _, rec := range c.all() {
		e, err := d.Decode(context.WithoutCancel(t.Context()), rec.Key, rec.Value)
		if err != nil {
			t.Fatalf("a record of partition %d: %v", rec.Partition, err)
		}
		if n := c.partitions; n > 0 && kafka.PartitionOf(rec.Key, n) != rec.Partition && n == usagev1.Partitions {
			t.Fatalf("key %s is in partition %d", rec.Key, rec.Partition)
		}
		list = append(list, e)
	}
	return list
}

// A registry holds schemas in memory, and can be away.
type registry struct {
	mu    sync.Mutex
	texts []string
	away  error
	first uint32 // id of the first; 0 means 1
}

func (r *registry) Register(_ context.Context, _, text string) (uint32, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away != nil {
		return 0, r.away
	}
	if !slices.Contains(r.texts, text) {
		r.texts = append(r.texts, text)
	}
	return max(1, r.first) + uint32(slices.Index(r.texts, text)), nil
}

func (r *registry) Schema(_ context.Context, id uint32) (string, []string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := int(id) - int(max(1, r.first)); i >= 0 && i < len(r.texts) {
		return r.texts[i], []string{usagev1.Subject}, nil
	}
	return "", nil, errors.New("no such schema")
}

// A rig is a Usage under test. It runs once run is called.
type rig struct {
	*usage.Usage
	t        testing.TB
	cluster  *cluster
	registry *registry
	metrics  *prometheus.Registry
	lines    *lines
	cfg      usage.Config
	made     int
	stop     func() error // returns what Run did
}

// newRig makes a Usage that keeps nothing on disk, unless change says so.
func newRig(t testing.TB, c *cluster, reg *registry, change func(*usage.Config)) *rig {
	t.Helper()
	r := &rig{t: t, cluster: c, registry: reg, metrics: prometheus.NewRegistry(), lines: &lines{}}
	r.cfg = usage.Config{Gateway: "gw-1", Buffer: 32 << 20, Spool: 1 << 30, Linger: 5 * time.Millisecond, Sync: time.Second}
	if change != nil {
		change(&r.cfg)
	}
	var err error
	r.Usage, err = usage.New(r.cfg, c, reg, slog.New(slog.NewJSONHandler(r.lines, nil)), r.metrics)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// start makes a Usage and runs it until the test ends.
func start(t testing.TB, c *cluster, reg *registry, change func(*usage.Config)) *rig {
	t.Helper()
	r := newRig(t, c, reg, change)
	r.run()
	return r
}

func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	r.t.Cleanup(func() {
		_ = r.stop()
		if r.t.Failed() {
			r.t.Log(r.lines)
		}
	})
}

// in is a change that keeps events in a directory.
func in(dir string) func(*usage.Config) { return func(c *usage.Config) { c.Dir = dir } }

// tell records n more events, each of one of ten tenants.
func (r *rig) tell(n int) {
	for range n {
		r.made++
		r.Record(event(r.made))
	}
}

// event is what there is to tell of decision number n.
func event(n int) decide.Usage {
	id := decide.NewID(time.Now())
	return decide.Usage{
		ID: id, Decision: id, At: time.Now(), Verdict: decide.VerdictAllow, Status: 200,
		Tenant: fmt.Sprintf("tenant-%d", n%10), Cost: int64(n), RulesVersion: 1,
	}
}

// until waits for something to come true.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			r.t.Fatalf("%s did not come true: %d records; ready: %v\n%s", what, r.cluster.count(), r.Ready(r.t.Context()), r.lines)
		}
		<-tick.C
	}
}

// metric is the value of a series, by name and label value.
func (r *rig) metric(name string, label ...string) float64 {
	r.t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != "penstock_gateway_usage_"+name || len(label) > 0 && m.GetLabel()[0].GetValue() != label[0] {
				continue
			}
			switch {
			case m.GetCounter() != nil:
				return m.GetCounter().GetValue()
			case m.GetHistogram() != nil:
				return float64(m.GetHistogram().GetSampleCount())
			default:
				return m.GetGauge().GetValue()
			}
		}
	}
	r.t.Fatalf("no metric %s %v", name, label)
	return 0
}

// exactly checks that events are those that were made, each once, and that
// every stream is numbered from 1 without gap or repeat, in the order of its
// partition. Costs number what was made.
func exactly(t testing.TB, events []usagev1.Event, made int) {
	t.Helper()
	last, seen := map[usagev1.UUID]int64{}, map[int64]bool{}
	for i := range events {
		e := &events[i]
		if want := last[e.StreamID] + 1; e.Sequence != want {
			t.Fatalf("event %d of stream %v is numbered %d, want %d", e.Cost, e.StreamID, e.Sequence, want)
		}
		last[e.StreamID] = e.Sequence
		if seen[e.Cost] {
			t.Fatalf("event %d came twice", e.Cost)
		}
		seen[e.Cost] = true
	}
	if len(seen) != made {
		t.Fatalf("%d events came, want %d", len(seen), made)
	}
}

// distinct drops repeats as readers do: by the highest number of each stream.
func distinct(t testing.TB, events []usagev1.Event) (list []usagev1.Event, repeats int) {
	t.Helper()
	last := map[usagev1.UUID]int64{}
	for i := range events {
		e := &events[i]
		if e.Sequence <= last[e.StreamID] {
			repeats++
			continue
		}
		last[e.StreamID] = e.Sequence
		list = append(list, *e)
	}
	return list, repeats
}

// files are the names of the files of events in a directory.
func files(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), ".usage") {
			names = append(names, e.Name())
		}
	}
	return names
}

// lines collects a log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// A desk makes decisions for tests to tell of, over the model of the store.
type desk struct {
	t     testing.TB
	book  *decide.Book
	state limit.State
	down  bool
	n     int64
}

func newDesk(t testing.TB) *desk { return &desk{t: t, book: decide.NewBook(), state: limit.NewState()} }

// Decide is the store.
func (d *desk) Decide(_ context.Context, q limit.Decision) (limit.Answer, error) {
	if d.down {
		return limit.Answer{}, errors.New("away")
	}
	return limit.Decide(d.state, t0, q)
}

// DecideAll is the store, one after another.
func (d *desk) DecideAll(ctx context.Context, all []limit.Decision) ([]limit.Answer, []error) {
	answers, errs := make([]limit.Answer, len(all)), make([]error, len(all))
	for i := range all {
		answers[i], errs[i] = d.Decide(ctx, all[i])
	}
	return answers, errs
}

// Correct is the store, which is not asked.
func (*desk) Correct(context.Context, limit.Correction) (limit.CorrectionAnswer, error) {
	return limit.CorrectionAnswer{}, errors.New("nothing was charged here")
}

func (d *desk) put(kind decide.Kind, id string, object any) {
	d.n++
	d.book.Apply([]decide.Change{{Kind: kind, ID: id, Version: d.n, Object: object}})
}

// quota adds a rule of n units a month.
func (d *desk) quota(id string, n int64, change func(*rule.Rule)) {
	r := &rule.Rule{
		ID: id, Version: 3, Enabled: true, Mode: rule.Enforce, Kind: rule.Quota, Algorithm: rule.CalendarQuota, Subject: rule.Tenant,
		Meter: "api-calls", Limit: n, OnFailure: rule.Open, Period: &period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar},
		Thresholds: rule.Thresholds{Percent: []int32{80, 100}, Left: []int64{10}},
	}
	if change != nil {
		change(r)
	}
	d.put(decide.RuleKind, id, r)
}

// rate adds a rule of n units a minute.
func (d *desk) rate(id string, n int64) {
	d.put(decide.RuleKind, id, &rule.Rule{
		ID: id, Version: 2, Enabled: true, Mode: rule.Enforce, Kind: rule.Rate, Algorithm: rule.GCRA, Subject: rule.Tenant,
		Meter: "api-calls", Limit: n, Burst: n, Window: time.Minute, OnFailure: rule.Open,
	})
}

// told decides and returns what there is to tell.
func (d *desk) told(q decide.Query) decide.Usage {
	d.t.Helper()
	s := decide.NewService(d.book, d, func() time.Time { return t0 }, decide.NewID, decide.Options{})
	answer, err := s.Decide(context.WithoutCancel(d.t.Context()), q)
	if err != nil {
		d.t.Fatal(err)
	}
	u, ok := answer.Usage()
	if !ok {
		d.t.Fatalf("nothing to tell of %+v", answer)
	}
	return u
}

var address = netip.MustParseAddr("203.0.113.9")

// names are the names in a directory.
func names(dir string) (list []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}
