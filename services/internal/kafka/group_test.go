package kafka_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// A ledger is the durable store of a test's group: what its members handled, by
// partition and in order, repeats included.
type ledger struct {
	mu   sync.Mutex
	seen map[string][]int64 // offsets, by "topic-partition"
	got  []kafka.Record
}

func (l *ledger) add(records []kafka.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = make(map[string][]int64)
	}
	for _, r := range records {
		at := fmt.Sprintf("%s-%d", r.Topic, r.Partition)
		l.seen[at] = append(l.seen[at], r.Offset)
	}
	l.got = append(l.got, records...)
}

// values are what was handled, each once.
func (l *ledger) values() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	values := make(map[string]int)
	for _, r := range l.got {
		values[string(r.Value)]++
	}
	return values
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.got)
}

// A worker is a member of a group that writes to a ledger.
type worker struct {
	ledger *ledger
	handle func(context.Context, []kafka.Record) error // before writing to the ledger; may be nil

	mu     sync.Mutex
	own    map[string]bool
	ended  chan error
	cancel context.CancelFunc
}

// join runs Consume in the background until the test ends.
func join(t *testing.T, c *kafka.Client, g kafka.Group, w *worker) *worker {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w.cancel, w.ended, w.own = cancel, make(chan error, 1), make(map[string]bool)
	go func() { w.ended <- c.Consume(ctx, g, w) }()
	t.Cleanup(func() { _ = w.leave(t) })
	return w
}

// leave ends Consume and returns its error.
func (w *worker) leave(t *testing.T) error {
	t.Helper()
	w.cancel()
	return w.end(t)
}

// end waits for the end of Consume and returns its error.
func (w *worker) end(t *testing.T) error {
	t.Helper()
	var err error
	kafkatest.Eventually(t, func() bool {
		select {
		case err = <-w.ended:
			w.ended <- err
			return true
		default:
			return false
		}
	}, "Consume to return")
	if err == nil {
		t.Error("Consume returned nil: it goes on for ever or says why not")
	}
	if left := w.partitions(); len(left) > 0 {
		t.Errorf("Consume returned with partitions that were not revoked: %v", left)
	}
	return err
}

func (w *worker) Handle(ctx context.Context, records []kafka.Record) error {
	if w.handle != nil {
		if err := w.handle(ctx, records); err != nil {
			return err
		}
	}
	w.ledger.add(records)
	return nil
}

func (w *worker) Assigned(partitions map[string][]int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for topic, ps := range partitions {
		for _, p := range ps {
			w.own[fmt.Sprintf("%s-%d", topic, p)] = true
		}
	}
}

func (w *worker) Revoked(partitions map[string][]int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for topic, ps := range partitions {
		for _, p := range ps {
			delete(w.own, fmt.Sprintf("%s-%d", topic, p))
		}
	}
}

func (w *worker) partitions() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.own))
}

// owns waits until the worker has n partitions.
func (w *worker) owns(t *testing.T, n int) {
	t.Helper()
	kafkatest.Eventually(t, func() bool { return len(w.partitions()) == n }, "%d partitions", n)
}

// fill stores n records with the values from, from+1, … spread over partitions.
func fill(b *kafkatest.Broker, topic string, partitions int32, from, n int) {
	records := make([]*kafkatest.Record, n)
	for i := range records {
		v := strconv.Itoa(from + i)
		records[i] = &kafkatest.Record{Topic: topic, Partition: int32(i) % partitions, Key: v, Value: []byte(v)}
	}
	b.Produce(records...)
}

// committed waits until the group has nothing left to read in the topic.
func committed(t *testing.T, c *kafka.Client, group, topic string) {
	t.Helper()
	kafkatest.Eventually(t, func() bool {
		lag, err := c.Lag(t.Context(), group, topic)
		var sum int64
		for _, n := range lag {
			sum += n
		}
		return err == nil && len(lag) > 0 && sum == 0
	}, "everything in %s to be committed", topic)
}

// once fails t unless every value from 0 to n-1 was handled, and once.
func (l *ledger) once(t *testing.T, n int) {
	t.Helper()
	values := l.values()
	for v := range n {
		if got := values[strconv.Itoa(v)]; got != 1 {
			t.Errorf("record %d was handled %d times, want once", v, got)
		}
	}
	if len(values) != n {
		t.Errorf("%d records were handled, want %d", len(values), n)
	}
}

// has waits until at least n records were handled, each counted once.
func (l *ledger) has(t *testing.T, n int) {
	t.Helper()
	kafkatest.Eventually(t, func() bool { return len(l.values()) >= n }, "%d records handled", n)
}

// TestConsumeGoesOnWhereItStopped guarantees the plain life of a group: a first
// member begins at the start, batches ascend by topic, partition and offset and
// keep to their size, a tail without records is no lag, and a later member
// handles only what came since.
func TestConsumeGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	goesOn(t, kafkatest.Start(t))
}

func goesOn(t *testing.T, b *kafkatest.Broker) {
	t.Helper()
	b.CreateTopic("usage", 3)
	b.CreateTopic("more", 1)
	fill(b, "usage", 3, 0, 30)
	fill(b, "more", 1, 30, 5)
	b.Abort(kafkatest.Record{Topic: "usage", Key: "a", Value: []byte("never")})
	c := open(t, b)
	g := kafka.Group{ID: "goes-on", Topics: []string{"usage", "more"}, MaxRecords: 7}
	var l ledger
	w := join(t, c, g, &worker{ledger: &l, handle: func(_ context.Context, rs []kafka.Record) error {
		ascending := slices.IsSortedFunc(rs, func(a, b kafka.Record) int {
			return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
		})
		if len(rs) == 0 || len(rs) > 7 || !ascending {
			t.Errorf("a batch of %d records, ascending %v, want 1 to 7 that ascend", len(rs), ascending)
		}
		return nil
	}})
	committed(t, c, g.ID, "usage")
	committed(t, c, g.ID, "more")
	if err := w.leave(t); !errors.Is(err, context.Canceled) {
		t.Errorf("Consume = %v, want the end of its context", err)
	}
	fill(b, "usage", 3, 35, 3)
	join(t, c, g, &worker{ledger: &l})
	l.has(t, 38)
	committed(t, c, g.ID, "usage")
	l.once(t, 38)
}

// TestConsumeCommitsOnlyWhatIsHandled guarantees that a Handle that fails ends
// Consume with its error and commits nothing of its batch, that one which was
// interrupted by the end commits nothing either, and that one which came to its
// end all the same is committed.
func TestConsumeCommitsOnlyWhatIsHandled(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	c := open(t, b)
	refusal := errors.New("the disk is full")
	for i, tt := range []struct {
		name   string
		handle func(ctx context.Context) error
		stop   bool
		want   error
		again  bool
	}{
		{"it fails", func(context.Context) error { return refusal }, false, refusal, true},
		{"it is interrupted", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, true, context.Canceled, true},
		{"it ends although it was told to stop", func(ctx context.Context) error { <-ctx.Done(); return nil }, true, context.Canceled, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			topic := "usage-" + strconv.Itoa(i)
			b.CreateTopic(topic, 2)
			fill(b, topic, 2, 0, 10)
			g := kafka.Group{ID: topic, Topics: []string{topic}}
			begun := make(chan int, 10)
			w := join(t, c, g, &worker{ledger: &ledger{}, handle: func(ctx context.Context, rs []kafka.Record) error {
				begun <- len(rs)
				return tt.handle(ctx)
			}})
			n := <-begun
			if tt.stop {
				w.cancel()
			}
			if err := w.end(t); !errors.Is(err, tt.want) {
				t.Errorf("Consume = %v, want %v", err, tt.want)
			}
			var l ledger
			join(t, c, g, &worker{ledger: &l})
			committed(t, c, g.ID, topic)
			want := 10
			if !tt.again {
				want -= n
			}
			if got := l.count(); got != want {
				t.Errorf("%d records are handled afterwards, want %d: the batch had %d", got, want, n)
			}
		})
	}
}

// TestConsumeRebalancesBetweenBatches guarantees that nobody takes a partition
// from a member while it handles, and that nothing is handled twice when members
// come and go in good order.
func TestConsumeRebalancesBetweenBatches(t *testing.T) {
	t.Parallel()
	rebalances(t, kafkatest.Start(t))
}

func rebalances(t *testing.T, b *kafkatest.Broker) {
	t.Helper()
	b.CreateTopic("shared", 4)
	fill(b, "shared", 4, 0, 40)
	g := kafka.Group{ID: "rebalances", Topics: []string{"shared"}, MaxRecords: 5}
	var l ledger
	begun, goOn := make(chan struct{}, 100), make(chan struct{})
	first := join(t, open(t, b), g, &worker{ledger: &l, handle: func(ctx context.Context, _ []kafka.Record) error {
		begun <- struct{}{}
		<-goOn
		return ctx.Err()
	}})
	<-begun
	before := first.partitions()
	second := join(t, open(t, b), g, &worker{ledger: &l})
	kafkatest.Eventually(t, func() bool { return b.GroupState(g.ID) == "PreparingRebalance" }, "the group to wait for the first member")
	if got := first.partitions(); !slices.Equal(got, before) || len(second.partitions()) != 0 {
		t.Errorf("while it handles the first member went from %v to %v, the second has %v", before, got, second.partitions())
	}
	close(goOn)
	first.owns(t, 2)
	second.owns(t, 2)
	fill(b, "shared", 4, 40, 20)
	l.has(t, 60)
	if err := second.leave(t); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	first.owns(t, 4) // at once: it does not wait for the session to expire
	fill(b, "shared", 4, 60, 4)
	l.has(t, 64)
	committed(t, open(t, b), g.ID, "shared")
	l.once(t, 64)
}

// hurried is a group that waits for a busy member as briefly as brokers allow.
func hurried(id, topic string) kafka.Group {
	return kafka.Group{ID: id, Topics: []string{topic}, MaxRecords: 5, RebalanceTimeout: 6 * time.Second, SessionTimeout: 6 * time.Second}
}

// TestConsumeGivesABatchBack guarantees that a Handle which waits for its store
// is told before the group would go on without it, that it keeps its place in
// the group, and that the batch it gave up is handled later: nothing is skipped,
// nothing is handled twice.
func TestConsumeGivesABatchBack(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("usage", 4)
	fill(b, "usage", 4, 0, 40)
	g := hurried("indexer", "usage")
	var l ledger
	var out logBuffer
	begun, away := make(chan struct{}, 100), make(chan struct{})
	log := slog.New(slog.NewTextHandler(&out, nil))
	first := join(t, openLogging(t, b, log), g, &worker{ledger: &l, handle: func(ctx context.Context, _ []kafka.Record) error {
		begun <- struct{}{}
		select {
		case <-away:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("the store is away: %w", ctx.Err())
		}
	}})
	<-begun
	second := join(t, open(t, b), g, &worker{ledger: &l})
	second.owns(t, 2)
	first.owns(t, 2)
	<-begun // the batch, or what is left of it, once more
	if !strings.Contains(out.String(), "it is handled again") {
		t.Errorf("the log does not say that a batch was given back:\n%s", out.String())
	}
	close(away)
	l.has(t, 40)
	committed(t, open(t, b), g.ID, "usage")
	l.once(t, 40)
	if strings.Contains(out.String(), "partitions lost") {
		t.Errorf("the first member was expelled:\n%s", out.String())
	}
}

// TestConsumeSurvivesAStubbornHandle guarantees that a Handle which does not
// return in time costs repeats and nothing else: the group goes on without the
// member, its records are handled by others, its commit is refused, the log
// says so, and the member comes back.
func TestConsumeSurvivesAStubbornHandle(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("usage", 4)
	fill(b, "usage", 4, 0, 40)
	g := hurried("indexer", "usage")
	var l ledger
	var out logBuffer
	begun, stubborn := make(chan struct{}, 100), make(chan struct{})
	log := slog.New(slog.NewTextHandler(&out, nil))
	first := join(t, openLogging(t, b, log), g, &worker{ledger: &l, handle: func(context.Context, []kafka.Record) error {
		begun <- struct{}{}
		<-stubborn
		return nil
	}})
	<-begun
	second := join(t, open(t, b), g, &worker{ledger: &l})
	second.owns(t, 4)
	l.has(t, 40)
	committed(t, open(t, b), g.ID, "usage")
	close(stubborn)
	first.owns(t, 2)
	second.owns(t, 2)
	for v, n := range l.values() {
		if n > 2 {
			t.Errorf("record %s was handled %d times, want once or twice", v, n)
		}
	}
	if want := "group went on without this member"; !strings.Contains(out.String(), want) {
		t.Errorf("the log does not say %q:\n%s", want, out.String())
	}
	fill(b, "usage", 4, 40, 8)
	l.has(t, 48)
}

// TestConsumeWhenCommitsFail guarantees that a commit which fails is tried again
// while the partitions are the member's, that reading waits for it, and that
// what was never committed is handled again by the next member.
func TestConsumeWhenCommitsFail(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		err   *kerr.Error
		mend  bool // before the member leaves
		again int  // handled by the next member
	}{
		{"for a while", kerr.CoordinatorLoadInProgress, true, 0},
		{"until the member is gone", kerr.CoordinatorLoadInProgress, false, 5},
		{"for lack of rights", kerr.GroupAuthorizationFailed, false, 5},
		{"since the group forgot the member", kerr.UnknownMemberID, false, 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := kafkatest.Start(t)
			b.CreateTopic("usage", 1)
			fill(b, "usage", 1, 0, 20)
			g := kafka.Group{ID: "indexer", Topics: []string{"usage"}, MaxRecords: 5}
			fault := b.FailCommit(g.ID, tt.err)
			var l ledger
			w := join(t, open(t, b), g, &worker{ledger: &l})
			fault.Wait(2)
			if tt.mend {
				fault.Mend()
				committed(t, open(t, b), g.ID, "usage")
			} else if tt.again < 20 && l.count() != 5 {
				t.Errorf("%d records were handled while the first 5 cannot be committed", l.count())
			}
			_ = w.leave(t)
			fault.Mend()
			before := l.count()
			var next ledger
			join(t, open(t, b), g, &worker{ledger: &next})
			committed(t, open(t, b), g.ID, "usage")
			got := 0
			for v, n := range next.values() {
				if n != 1 {
					t.Errorf("record %s was handled %d times by one member, want once", v, n)
				}
				got += l.values()[v]
			}
			if want := min(tt.again, before); got != want || before+len(next.values())-got != 20 {
				t.Errorf("%d of %d records are handled again, want %d; %d in all", got, before, want, before+len(next.values())-got)
			}
		})
	}
}

// TestConsumeSurvivesARestart guarantees that a broker may go and come back
// under a group without anything being lost.
func TestConsumeSurvivesARestart(t *testing.T) {
	t.Parallel()
	restarts(t, kafkatest.Start(t))
}

func restarts(t *testing.T, b *kafkatest.Broker) {
	t.Helper()
	b.CreateTopic("restarting", 3)
	fill(b, "restarting", 3, 0, 30)
	g := kafka.Group{ID: "restarts", Topics: []string{"restarting"}, MaxRecords: 5}
	c := open(t, b)
	var l ledger
	hit := make(chan struct{})
	var once sync.Once
	join(t, c, g, &worker{ledger: &l, handle: func(context.Context, []kafka.Record) error {
		once.Do(func() { close(hit) })
		return nil
	}})
	<-hit
	b.Stop()
	b.Start()
	fill(b, "restarting", 3, 30, 30)
	l.has(t, 60)
	committed(t, c, g.ID, "restarting")
}

// TestConsumeWaitsForTopics guarantees that a group may start before its topics
// exist, and says so, and that one made anew is read from its start.
func TestConsumeWaitsForTopics(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	var out logBuffer
	c := openLogging(t, b, slog.New(slog.NewTextHandler(&out, nil)))
	var l ledger
	join(t, c, kafka.Group{ID: "indexer", Topics: []string{"usage"}}, &worker{ledger: &l})
	kafkatest.Eventually(t, func() bool { return strings.Contains(out.String(), "topic usage: kafka: no such topic") }, "a word about the topic")
	b.CreateTopic("usage", 1)
	fill(b, "usage", 1, 0, 3)
	l.has(t, 3)
	committed(t, c, "indexer", "usage")
	b.DeleteTopic("usage")
	kafkatest.Eventually(t, func() bool { return strings.Contains(out.String(), "topic was deleted") }, "a word about the deletion")
	b.CreateTopic("usage", 1)
	fill(b, "usage", 1, 3, 2)
	l.has(t, 5)
	l.once(t, 5)
}

// TestConsumeFromEnd guarantees that a group which starts at the end skips what
// was there before, and nothing that came later: not what arrives while its
// first member is away before it handled anything, and not the records of a
// partition or a topic that was added.
func TestConsumeFromEnd(t *testing.T) {
	t.Parallel()
	fromEnd(t, kafkatest.Start(t))
}

func fromEnd(t *testing.T, b *kafkatest.Broker) {
	t.Helper()
	b.CreateTopic("tail", 2)
	fill(b, "tail", 2, 1000, 10)
	g := kafka.Group{ID: "from-end", Topics: []string{"tail"}, FromEnd: true}
	c := open(t, b)
	var l ledger
	w := join(t, c, g, &worker{ledger: &l})
	w.owns(t, 2)
	_ = w.leave(t)
	fill(b, "tail", 2, 0, 4)
	w = join(t, c, g, &worker{ledger: &l})
	l.has(t, 4)
	_ = w.leave(t)
	b.AddPartitions("tail", 1)
	b.Produce(&kafkatest.Record{Topic: "tail", Partition: 2, Value: []byte("4")})
	join(t, c, g, &worker{ledger: &l})
	l.has(t, 5)
	b.CreateTopic("late", 1)
	b.Produce(&kafkatest.Record{Topic: "late", Value: []byte("5")})
	g.Topics = append(g.Topics, "late")
	join(t, c, g, &worker{ledger: &l}) // the first one is still there
	l.has(t, 6)
	committed(t, c, g.ID, "tail")
	committed(t, c, g.ID, "late")
	l.once(t, 6)
}

// TestConsumeEndsWithTheClient guarantees that Close ends Consume with
// ErrClosed, also in the middle of a Handle, and that a member whose broker is
// away leaves well within a process's grace.
func TestConsumeEndsWithTheClient(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("usage", 1)
	fill(b, "usage", 1, 0, 3)
	c := open(t, b)
	begun := make(chan struct{}, 1)
	w := join(t, c, kafka.Group{ID: "indexer", Topics: []string{"usage"}}, &worker{ledger: &ledger{}, handle: func(ctx context.Context, _ []kafka.Record) error {
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}})
	<-begun
	b.Stop()
	begin := time.Now()
	_ = c.Close()
	if err := w.end(t); !errors.Is(err, kafka.ErrClosed) {
		t.Errorf("Consume = %v, want ErrClosed", err)
	}
	if took := time.Since(begin); took > 8*time.Second {
		t.Errorf("it took %v to leave without a broker", took)
	}
	if err := c.Consume(t.Context(), kafka.Group{ID: "indexer", Topics: []string{"usage"}}, &worker{}); !errors.Is(err, kafka.ErrClosed) {
		t.Errorf("Consume after Close = %v, want ErrClosed", err)
	}
	if err := c.Consume(t.Context(), kafka.Group{MaxRecords: -1}, &worker{}); err == nil || errors.Is(err, kafka.ErrClosed) {
		t.Errorf("Consume as nobody, of nothing = %v, want every fault", err)
	}
}

// TestConsumeTellsItsLag guarantees that the lag is counted while batches are
// handled and while none is, over the member's own partitions, and that it goes
// with the member.
func TestConsumeTellsItsLag(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("usage", 2)
	fill(b, "usage", 2, 0, 10)
	reg := prometheus.NewRegistry()
	c, err := kafka.New(kafka.Config{Brokers: b.Brokers}, slog.New(slog.DiscardHandler), reg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	store := make(chan struct{})
	var l ledger
	w := join(t, c, kafka.Group{ID: "indexer", Topics: []string{"usage"}, MaxRecords: 4}, &worker{ledger: &l, handle: func(ctx context.Context, _ []kafka.Record) error {
		select {
		case <-store:
		case <-ctx.Done():
		}
		return ctx.Err()
	}})
	lagIs(t, reg, 10)
	fill(b, "usage", 2, 10, 5)
	lagIs(t, reg, 15)
	close(store)
	lagIs(t, reg, 0)
	batches := count(t, reg, "penstock_kafka_group_batches_total")
	if batches < 4 || count(t, reg, "penstock_kafka_group_rebalances_total") < 1 {
		t.Errorf("%v batches and %v rebalances, want 4 or more and 1 or more", batches, count(t, reg, "penstock_kafka_group_rebalances_total"))
	}
	_ = w.leave(t)
	if n, err := testutil.GatherAndCount(reg, "penstock_kafka_group_lag"); n != 0 || err != nil {
		t.Errorf("%d series of lag of a member that left, %v, want none", n, err)
	}
}

func lagIs(t *testing.T, reg *prometheus.Registry, want float64) {
	t.Helper()
	kafkatest.Eventually(t, func() bool { return count(t, reg, "penstock_kafka_group_lag") == want }, "a lag of %v", want)
}

// count is the sum of a metric, -1 when there is none.
func count(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			sum := 0.0
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
			return sum
		}
	}
	return -1
}
