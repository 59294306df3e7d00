package topics_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/topics"
	"penstock.dev/services/internal/kafka"
)

// t0 is an ordinary instant.
var t0 = time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC)

// patience bounds what a test waits for.
const patience = 20 * time.Second

// A registry holds schemas in memory, and can be away.
type registry struct {
	mu      sync.Mutex
	schemas []string
	away    error
}

func (r *registry) Register(_ context.Context, _, schema string) (uint32, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, s := range r.schemas {
		if s == schema {
			return uint32(i + 1), nil
		}
	}
	r.schemas = append(r.schemas, schema)
	return uint32(len(r.schemas)), nil
}

func (r *registry) Schema(_ context.Context, id uint32) (string, []string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away != nil {
		return "", nil, r.away
	}
	if id == 0 || int(id) > len(r.schemas) {
		return "", nil, notFound{}
	}
	return r.schemas[id-1], []string{rulesv1.Subject}, nil
}

func (r *registry) goAway(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = err
}

type notFound struct{}

func (notFound) Error() string  { return "schema not found" }
func (notFound) NotFound() bool { return true }

var errAway = errors.New("registry is away")

// A log is a topic in memory. It is read by one reader at a time, which sees
// what is appended while it reads.
type log struct {
	mu      sync.Mutex
	records []kafka.Record
	grew    chan struct{}
	opened  chan struct{} // closed once a reader may begin
	remake  bool
}

func newLog() *log {
	l := &log{grew: make(chan struct{}), opened: make(chan struct{})}
	close(l.opened)
	return l
}

// newClosedLog is a log whose reader waits, as for a broker that is away.
func newClosedLog() *log { return &log{grew: make(chan struct{}), opened: make(chan struct{})} }

func (l *log) open() { close(l.opened) }

func (l *log) append(records ...kafka.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range records {
		r.Topic, r.Offset = rulesv1.Topic, int64(len(l.records))
		if n := len(l.records); n > 0 {
			r.Offset = l.records[n-1].Offset + 1
		}
		r.Timestamp = t0
		l.records = append(l.records, r)
	}
	close(l.grew)
	l.grew = make(chan struct{})
}

// compact keeps the newest record of every key, but for those of the last n.
func (l *log) compact(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	newest := map[string]int64{}
	for _, r := range l.records {
		newest[string(r.Key)] = r.Offset
	}
	var left []kafka.Record
	for i, r := range l.records {
		if newest[string(r.Key)] == r.Offset && (r.Value != nil || i >= len(l.records)-n) || i >= len(l.records)-n {
			left = append(left, r)
		}
	}
	l.records = left
}

// recreate empties the log and has its reader told.
func (l *log) recreate(records ...kafka.Record) {
	l.mu.Lock()
	l.records, l.remake = nil, true
	l.mu.Unlock()
	l.append(records...)
}

func (l *log) ReadLog(ctx context.Context, _ string, h kafka.LogHandler) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.opened:
	}
	next, end, told := 0, -1, false
	for {
		l.mu.Lock()
		if l.remake {
			l.remake, next, end, told = false, 0, -1, false
			h.Recreated()
		}
		if end < 0 {
			end = len(l.records)
		}
		batch := append([]kafka.Record(nil), l.records[next:]...)
		next = len(l.records)
		grew := l.grew
		l.mu.Unlock()
		if len(batch) > 0 {
			if err := h.Records(batch); err != nil {
				return err
			}
		}
		if !told {
			told = true
			h.CaughtUp()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-grew:
		}
	}
}

// An author writes records as rule-admin does. It is safe for concurrent use.
type author struct {
	t      testing.TB
	writer *wire.Writer

	mu      sync.Mutex
	version int64
}

// next is the version of one more change.
func (a *author) next() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	return a.version
}

func newAuthor(t testing.TB, r wire.Registry) *author {
	return &author{t: t, writer: wire.NewWriter(r, rulesv1.Subject, schemas.RulesV1)}
}

// put is the record of an object as it is now. It fills in the rest.
func (a *author) put(r rulesv1.Record) kafka.Record {
	a.t.Helper()
	version := a.next()
	r.Version, r.Revision, r.ChangedAt = version, version, t0.UnixMicro()
	body, err := rulesv1.AppendRecord(nil, &r)
	if err != nil {
		a.t.Fatal(err)
	}
	value, err := a.writer.Frame(a.t.Context(), body)
	if err != nil {
		a.t.Fatal(err)
	}
	return kafka.Record{
		Key: []byte(rulesv1.Key(r.Kind, r.ID)), Value: value,
		Headers: []kafka.Header{{Key: rulesv1.HeaderVersion, Value: rulesv1.FormatVersion(version)}},
	}
}

// gone is a tombstone.
func (a *author) gone(key string) kafka.Record {
	return kafka.Record{Key: []byte(key), Headers: []kafka.Header{{Key: rulesv1.HeaderVersion, Value: rulesv1.FormatVersion(a.next())}}}
}

// rule is the record of a rate of n a minute for everybody.
func (a *author) rule(id string, n int64, change ...func(*rulesv1.Rule)) kafka.Record {
	a.t.Helper()
	r := &rulesv1.Rule{
		Enabled: true, Mode: rulesv1.ModeEnforce, Kind: rulesv1.RuleKindRate, Algorithm: rulesv1.AlgorithmGCRA,
		Meter: "m-" + id, Limit: &n, Burst: &n, WindowUS: time.Minute.Microseconds(), OnFailure: rulesv1.OnFailureOpen,
		Wallet: rulesv1.WalletModeNone,
	}
	for _, c := range change {
		c(r)
	}
	return a.put(rulesv1.Record{Kind: rulesv1.KindRule, ID: id, Rule: r})
}

// garbage is bytes under a key that are no record.
func garbage(key string) kafka.Record {
	return kafka.Record{Key: []byte(key), Value: []byte("\x00\x00\x00\x00\x01not avro at all")}
}

// A rig is a Rules under test, running.
type rig struct {
	*topics.Rules
	t       testing.TB
	book    *decide.Book
	metrics *prometheus.Registry
	lines   *lines
	stop    func()
}

// A setup is what a rig is made of. Zero fields have defaults.
type setup struct {
	dir      string
	log      topics.Log
	registry wire.Registry
	wait     time.Duration
}

func start(t testing.TB, s setup) *rig {
	t.Helper()
	if s.wait == 0 {
		s.wait = time.Hour
	}
	r := &rig{t: t, book: decide.NewBook(), metrics: prometheus.NewRegistry(), lines: &lines{}}
	var err error
	r.Rules, err = topics.New(topics.Config{Dir: s.dir, Wait: s.wait, Every: time.Millisecond}, s.log, s.registry, r.book,
		slog.New(slog.NewJSONHandler(r.lines, nil)), r.metrics, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v, want canceled", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// until waits for something to come true.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			r.t.Fatalf("%s did not come true; ready: %v, limits: %v\n%s", what, r.Ready(r.t.Context()), r.limits(), r.lines)
		}
		<-tick.C
	}
}

// ready waits until the rig is, without a remark.
func (r *rig) ready() {
	r.t.Helper()
	r.until("readiness", func() bool { return r.Ready(r.t.Context()) == nil })
}

// limits are the limits in force of the rules that authors write, by id.
func (r *rig) limits() map[string]int64 {
	in := map[string]int64{}
	for _, w := range winners(r.t, r.book) {
		in[w.RuleID] = w.Limit
	}
	return in
}

// winners asks a book which rules apply to anybody.
func winners(t testing.TB, book *decide.Book) []decide.Limit {
	t.Helper()
	s := decide.NewService(book, passing{}, func() time.Time { return t0 }, decide.NewID, decide.Options{})
	d, err := s.Decide(context.WithoutCancel(t.Context()), decide.Query{Tenant: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	return d.Limits
}

func (r *rig) isServing() bool {
	select {
	case <-r.Serving():
		return true
	default:
		return false
	}
}

// metric is the value of a series, by name and label values in any order.
func (r *rig) metric(name string, labels ...string) float64 {
	r.t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	series:
		for _, m := range f.GetMetric() {
			for _, want := range labels {
				found := false
				for _, l := range m.GetLabel() {
					found = found || l.GetValue() == want
				}
				if !found {
					continue series
				}
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
	r.t.Fatalf("no metric %s %v", name, labels)
	return 0
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
