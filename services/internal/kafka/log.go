package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A LogHandler is told what ReadLog reads. All of it is called from one
// goroutine, the caller's.
type LogHandler struct {
	// Records gets a batch, never empty: ascending by partition, and within a
	// partition by offset. An error ends ReadLog. The handler may keep the
	// records. It gets tombstones as records without a value.
	Records func([]Record) error
	// CaughtUp is called once, as soon as Records has seen everything that was
	// in the topic when reading began. Neither a lost connection nor a broker
	// restart has it called again: reading goes on where it was. May be nil.
	CaughtUp func()
	// Recreated is called when the topic turns out to have been deleted and
	// made anew, before the first record of the new one. What was read before
	// no longer is in the topic. CaughtUp follows once more, for the new topic.
	// When nil, the new topic's records simply follow the old one's, and
	// CaughtUp is not called again.
	Recreated func()
}

const (
	// fetchWait is how long a broker may hold a fetch that finds nothing.
	fetchWait = time.Second
	// pollRecords bounds one call of Records.
	pollRecords = 5_000
	// quietMin and quietMax bound how long a partition that has not reached its
	// end must be silent before its tail is examined.
	quietMin = 100 * time.Millisecond
	quietMax = 2 * time.Second
	// errorPause keeps an error that a broker repeats from becoming a busy loop.
	errorPause = 250 * time.Millisecond
)

// errRecreated ends the reading of one incarnation of a topic.
var errRecreated = errors.New("topic recreated")

// ReadLog reads every partition of topic from its start and goes on for ever:
// without a consumer group, committing nothing, and only what is committed when
// the writer uses transactions. It waits, and says so in the log, while brokers
// are away or the topic does not exist, and survives their restarts. Records
// may repeat after a broker lost some. It returns the error of ctx, ErrClosed,
// or the handler's error wrapped.
func (c *Client) ReadLog(ctx context.Context, topic string, h LogHandler) error {
	r := &reader{client: c, topic: topic, handler: h}
	ctx, release, err := c.attach(ctx, r)
	if err != nil {
		return err
	}
	defer release()
	caughtUp := c.metrics.logCaughtUp.WithLabelValues(topic)
	caughtUp.Set(0)
	defer caughtUp.Set(0)
	for {
		if err := r.incarnation(ctx); !errors.Is(err, errRecreated) {
			return err
		}
		if err := pause(ctx, errorPause); err != nil {
			return err
		}
	}
}

// A reader is one ReadLog, ReadSince or ReadPartition.
type reader struct {
	client  *Client
	topic   string
	handler LogHandler
	once    bool         // the end is the end, and nobody is told
	only    *int32       // the one partition to read, open transactions included; nil: all
	told    bool         // CaughtUp was called
	id      kadm.TopicID // of the incarnation being read; zero before the first

	kgo   *kgo.Client
	admin *kadm.Client
	tail  tail
}

// incarnation reads the topic until it is recreated, the handler fails or ctx
// ends.
func (r *reader) incarnation(ctx context.Context) error {
	cl, err := r.client.connect("log "+r.topic,
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),       // the only sign of a tail that is a transaction marker
		kgo.KeepRetryableFetchErrors(), // or a new topic is noticed only after six tries, 12 s
		kgo.FetchMaxWait(fetchWait),
	)
	if err != nil {
		return err
	}
	defer cl.Close()
	r.kgo, r.admin = cl, kadm.NewClient(cl)

	if err := r.begin(ctx); err != nil {
		return err
	}
	cl.AddConsumeTopics(r.topic)
	return r.follow(ctx)
}

// begin waits until the topic exists and its bounds are known.
func (r *reader) begin(ctx context.Context) error {
	wait, waited := backoffMin, false
	for {
		id, bounds, err := r.look(ctx)
		if err == nil {
			r.enter(id, bounds, waited)
			return nil
		}
		if ctx.Err() != nil {
			return cause(ctx)
		}
		waited = true
		if errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID) {
			r.client.kgoLog.warn(r.topic, "topic does not exist; waiting for it")
		} else {
			r.client.kgoLog.warn(r.topic, "topic cannot be read; waiting for a broker", "error", r.client.why(err).Error())
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, backoffMax)
	}
}

// enter starts on an incarnation whose bounds are known.
func (r *reader) enter(id kadm.TopicID, bounds []bound, waited bool) {
	var none kadm.TopicID
	if r.id != none && r.id != id {
		r.client.log.Warn("topic was deleted and created anew; reading it from its start", "topic", r.topic)
		r.client.metrics.logRecreations.WithLabelValues(r.topic).Inc()
		if r.handler.Recreated != nil {
			r.handler.Recreated()
			r.told = false
		}
	} else if waited {
		r.client.log.Info("topic found", "topic", r.topic)
	}
	r.id = id
	r.tail = newTail(bounds)
}

// A bound is where one partition began and ended when it was looked at. End is
// the last stable offset: what lies beyond may still be rolled back. Of the one
// partition that ReadPartition reads it is the end.
type bound struct {
	partition  int32
	start, end int64
}

// look asks for the identity of the topic and the bounds of its partitions.
func (r *reader) look(ctx context.Context) (kadm.TopicID, []bound, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	var none kadm.TopicID
	md, err := r.admin.Metadata(ctx, r.topic)
	if err != nil {
		return none, nil, err
	}
	detail, ok := md.Topics[r.topic]
	switch {
	case !ok:
		return none, nil, kerr.UnknownTopicOrPartition
	case detail.Err != nil:
		return none, nil, detail.Err
	}
	starts, err := r.admin.ListStartOffsets(ctx, r.topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return none, nil, err
	}
	list := r.admin.ListCommittedOffsets
	if r.only != nil {
		list = r.admin.ListEndOffsets
	}
	ends, err := list(ctx, r.topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return none, nil, err
	}
	bounds := make([]bound, 0, len(detail.Partitions))
	for _, p := range detail.Partitions.Numbers() {
		if r.only != nil && *r.only != p {
			continue
		}
		start, ok1 := starts.Lookup(r.topic, p)
		end, ok2 := ends.Lookup(r.topic, p)
		if !ok1 || !ok2 {
			return none, nil, fmt.Errorf("partition %d: bounds are missing from the answer", p)
		}
		bounds = append(bounds, bound{p, start.Offset, end.Offset})
	}
	return detail.ID, bounds, nil
}

// follow polls until something ends it.
func (r *reader) follow(ctx context.Context) error {
	wait := quietMin
	r.settle()
	for !r.once || !r.tail.reached() {
		fetches := r.poll(ctx, wait)
		if ctx.Err() != nil {
			return cause(ctx)
		}
		records := r.take(fetches)
		if len(records) > 0 {
			if err := r.handler.Records(records); err != nil {
				return fmt.Errorf("records of %s: %w", r.topic, err)
			}
		}
		if err := r.complaints(ctx, fetches); err != nil {
			return err
		}
		switch {
		case r.tail.reached():
		case len(records) > 0:
			wait = quietMin
		default:
			r.examine(ctx)
			wait = min(2*wait, quietMax)
		}
		r.settle()
	}
	return nil
}

// poll waits for records: at most for wait while the end is not yet reached,
// because what is missing may not exist any more.
func (r *reader) poll(ctx context.Context, wait time.Duration) kgo.Fetches {
	if !r.tail.reached() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	return r.kgo.PollRecords(ctx, pollRecords)
}

// settle tells the handler, once, that the end was reached.
func (r *reader) settle() {
	if r.told || !r.tail.reached() || r.once {
		return
	}
	r.told = true
	r.client.metrics.logCaughtUp.WithLabelValues(r.topic).Set(1)
	r.client.log.Info("topic read to its end", "topic", r.topic)
	if r.handler.CaughtUp != nil {
		r.handler.CaughtUp()
	}
}

// take turns fetches into records in partition order and notes how far they go.
func (r *reader) take(fetches kgo.Fetches) []Record {
	var parts []kgo.FetchTopicPartition
	n := 0
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if len(p.Records) > 0 {
			parts = append(parts, p)
			n += len(p.Records)
		}
	})
	slices.SortStableFunc(parts, func(a, b kgo.FetchTopicPartition) int { return int(a.Partition) - int(b.Partition) })
	records := make([]Record, 0, n)
	for _, p := range parts {
		for _, rec := range p.Records {
			if !rec.Attrs.IsControl() {
				records = append(records, incoming(rec))
			}
		}
		r.tail.advance(p.Partition, p.Records[len(p.Records)-1].Offset+1)
	}
	return records
}

// incoming is the library's record for this package's callers.
func incoming(rec *kgo.Record) Record {
	out := Record{
		Topic: rec.Topic, Key: rec.Key, Value: rec.Value,
		Partition: rec.Partition, Offset: rec.Offset, Timestamp: rec.Timestamp,
	}
	if len(rec.Headers) > 0 {
		out.Headers = make([]Header, len(rec.Headers))
		for i, h := range rec.Headers {
			out.Headers[i] = Header(h)
		}
	}
	return out
}

// complaints handles the errors of a poll: it logs and counts them, and lets
// the library go on, unless the topic is a new one.
func (r *reader) complaints(ctx context.Context, fetches kgo.Fetches) error {
	var lost *kgo.ErrDataLoss
	met, doubt := false, false
	for _, e := range fetches.Errors() {
		switch {
		case errors.Is(e.Err, context.DeadlineExceeded), errors.Is(e.Err, context.Canceled):
			continue
		case errors.Is(e.Err, kgo.ErrClientClosed):
			return ErrClosed
		case errors.Is(e.Err, kerr.UnknownTopicID), errors.Is(e.Err, kerr.UnknownTopicOrPartition):
			doubt = true
		case errors.As(e.Err, &lost):
			r.client.kgoLog.warn(r.topic, "broker lost records; reading again from where it can",
				"partition", e.Partition, "error", e.Err.Error())
		default:
			r.client.kgoLog.warn(r.topic, "topic cannot be read; trying again",
				"partition", e.Partition, "error", e.Err.Error())
		}
		met = true
		r.client.metrics.logErrors.WithLabelValues(r.topic).Inc()
	}
	if doubt && r.replaced(ctx) {
		return errRecreated
	}
	if met {
		return pause(ctx, errorPause)
	}
	return nil
}

// replaced reports whether the topic is gone or another one by the same name.
func (r *reader) replaced(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	md, err := r.admin.Metadata(ctx, r.topic)
	if err != nil {
		return false
	}
	detail, ok := md.Topics[r.topic]
	return !ok || errors.Is(detail.Err, kerr.UnknownTopicOrPartition) || detail.Err == nil && detail.ID != r.id
}
