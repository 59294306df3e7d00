package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ByKey is the Partition of a record that goes where its key says, as a transaction
// writes it.
const ByKey = byKey

// A Transaction says how the members of a group write.
type Transaction struct {
	// ID names this member's transactions to the brokers, and must differ between
	// members. A process that comes back under the ID of one that died ends the
	// transaction which that one left open. Required.
	ID string
	// Timeout is how long brokers keep a transaction open whose member is silent.
	// Until then its readers wait. Zero means 10 s.
	Timeout time.Duration
}

// A TransactHandler makes records of records. Its methods are never called at the
// same time, though not always from the same goroutine. All but Handle must not
// wait.
type TransactHandler interface {
	// Handle returns what is to be written because of a batch, in order; a record's
	// Partition is where it goes, ByKey its key's. What is said of GroupHandler's
	// Handle holds here.
	Handle(ctx context.Context, records []Record) ([]Record, error)
	// Settled is told what became of the last batch that Handle returned records
	// of: with true they and the batch's offsets are stored, with false none of
	// them are, and the batch is handled again, here or elsewhere.
	Settled(committed bool)
	// Assigned is told the partitions, by topic, that a rebalance added, also when
	// it added none. It is told so of every one that comes back, whatever became of
	// it meanwhile.
	Assigned(partitions map[string][]int32)
	// Revoked is told the partitions, by topic, that were taken away. All of them
	// are before Transact returns; of one that is lost and comes back at once
	// Assigned alone may be told.
	Revoked(partitions map[string][]int32)
}

const (
	defaultTransactionTimeout = 10 * time.Second
	// offsetsEvery is how often the offsets of batches are committed of which
	// nothing was written: to handle those again changes nothing.
	offsetsEvery = time.Second
	// concurrentPause is how soon a transaction is begun again that the brokers
	// refuse because they are still ending the one before. The library's 20 ms would
	// be most of an event's way.
	concurrentPause = 2 * time.Millisecond
	// fencedPause keeps two members with one Transaction.ID from expelling each
	// other without pause.
	fencedPause = 5 * time.Second
)

// Transact reads topics as a member of a consumer group and writes what its handler
// makes of them, exactly once: what is written because of a batch and the offsets of
// that batch are stored in one transaction, which is aborted when the member dies or
// loses a partition on the way. A reader of committed records sees each result once;
// others see the aborted ones too.
//
// Offsets of batches of which nothing is written are committed after a second, so
// after a crash such a batch may be handled again. Otherwise Transact does what
// Consume does, and returns the same.
func (c *Client) Transact(ctx context.Context, g Group, t Transaction, h TransactHandler) error {
	err := g.Validate()
	if t.ID == "" || t.Timeout < 0 {
		err = errors.Join(err, errors.New("transaction: no id, or a negative timeout"))
	}
	if err != nil {
		return err
	}
	t.Timeout = cmp.Or(t.Timeout, defaultTransactionTimeout)
	m := &transactor{to: t, handler: h}
	m.member = member{client: c, group: g.withDefaults(), handler: m, lag: newLags(c.metrics, g.Topics)}
	ctx, release, err := c.attach(ctx, m)
	if err != nil {
		return err
	}
	defer release()
	defer m.lag.forget()
	defer m.forsake()
	for {
		wait := errorPause
		err := m.membership(ctx)
		switch {
		case fenced(err):
			wait = fencedPause
			c.kgoLog.warn(g.ID, "another member writes under the same id; trying again", "transactional_id", t.ID, "error", err.Error())
		case !errors.Is(err, errAgain):
			return err
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// fenced reports whether the brokers gave the member's id to another.
func fenced(err error) bool {
	return errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch)
}

// A transactor is one Transact.
type transactor struct {
	member
	to      Transaction
	handler TransactHandler
	session *kgo.GroupTransactSession

	own     map[string]map[int32]bool // partitions the handler was told of
	ownMu   sync.Mutex
	moved   atomic.Bool // partitions were taken away since the session last knew
	waiting bool        // offsets wait to be committed
	since   time.Time   // when they were committed last
}

// membership is one stay in the group: from joining to leaving.
func (m *transactor) membership(ctx context.Context) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	hook := m.client.metrics.client("group " + m.group.ID)
	cfg := m.client.cfg
	opts := append(append(cfg.base(m.client.kgoLog, m.client.door), cfg.producing()...), hook.opt())
	opts = append(append(opts, m.options()...),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) {
			m.assigned(added)
			if len(added) == 0 {
				m.handler.Assigned(nil)
			}
		}),
		kgo.ProducerLinger(0), // a transaction has what it needs and waits for no company
		kgo.TransactionalID(m.to.ID),
		kgo.TransactionTimeout(m.to.Timeout),
		kgo.ConcurrentTransactionsBackoff(concurrentPause),
	)
	session, err := kgo.NewGroupTransactSession(opts...)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	hook.register()
	m.session, m.kgo = session, session.Client()
	m.moved.Store(false)
	m.waiting, m.since = false, time.Now()
	defer m.leave(context.WithoutCancel(ctx))

	lctx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { m.lag.watch(lctx, m.client, m.group.ID) })
	defer watching.Wait()
	defer stop()
	for {
		if err := m.transact(ctx); err != nil {
			return err
		}
	}
}

// transact polls, handles, writes and commits once.
func (m *transactor) transact(ctx context.Context) error {
	hctx, hurry := context.WithCancelCause(ctx)
	m.arm(hurry)
	defer func() {
		m.arm(nil)
		hurry(nil)
		m.kgo.AllowRebalance()
	}()
	fetches := m.poll(ctx)
	if ctx.Err() != nil {
		return cause(ctx)
	}
	if m.moved.Swap(false) { // or the session would abort the next transaction
		if _, err := m.end(ctx, kgo.TryAbort); err != nil {
			return err
		}
		m.waiting = false
		return nil // what was polled is polled again
	}
	records := m.take(fetches)
	var out []Record
	var err error
	if len(records) > 0 {
		if out, err = m.handler.Handle(hctx, records); err != nil {
			return m.unhandled(ctx, hctx, fetches, err)
		}
		m.client.metrics.groupBatches.Inc()
	}
	m.waiting = m.waiting || fetches.NumRecords() > 0
	if err := m.settle(ctx, out); err != nil {
		return err
	}
	m.lag.read(fetches)
	return m.complaints(ctx, fetches)
}

// poll waits for records, and while offsets wait no longer than they may.
func (m *transactor) poll(ctx context.Context) kgo.Fetches {
	if m.waiting {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, m.since.Add(offsetsEvery))
		defer cancel()
	}
	return m.session.PollRecords(ctx, m.group.MaxRecords)
}

// settle writes a batch's results and commits how far was read, when there are
// results, or offsets have waited long enough.
func (m *transactor) settle(ctx context.Context, out []Record) error {
	if len(out) == 0 && (!m.waiting || time.Since(m.since) < offsetsEvery) {
		return nil
	}
	ctx = context.WithoutCancel(ctx) // what was begun is ended: the next poll sees that it is over
	if err := m.session.Begin(); err != nil {
		return m.broken(err)
	}
	failure := m.write(ctx, out)
	try := kgo.TransactionEndTry(failure == nil)
	committed, err := m.end(ctx, try)
	if len(out) > 0 {
		m.handler.Settled(committed && err == nil)
	}
	if err != nil {
		return err
	}
	m.since, m.waiting = time.Now(), false
	if committed {
		return nil
	}
	m.client.metrics.groupCommitFailures.Inc()
	if failure != nil {
		m.client.kgoLog.warn(m.group.ID, "results cannot be written; trying again", "error", failure.Error())
		return pause(ctx, errorPause)
	}
	m.client.log.Info("transaction was not committed; its batch is handled again", "group", m.group.ID)
	return nil
}

// write offers records to the transaction and returns the first refusal that is
// known once all have been answered; most are answered by end.
func (m *transactor) write(ctx context.Context, out []Record) error {
	if len(out) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, m.to.Timeout)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failure error
	wg.Add(len(out))
	for _, r := range out {
		m.session.Produce(ctx, outgoing(r, r.Partition), m.client.promise(func(err error) {
			mu.Lock()
			defer mu.Unlock()
			failure = cmp.Or(failure, err)
			wg.Done()
		}))
	}
	wg.Wait()
	return failure
}

// end ends the transaction. After an error only a new membership helps: it may have
// been committed or not.
func (m *transactor) end(ctx context.Context, try kgo.TransactionEndTry) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.to.Timeout)
	defer cancel()
	committed, err := m.session.End(ctx, try)
	if err != nil {
		return false, m.broken(err)
	}
	return committed, nil
}

// broken says why this membership is over.
func (m *transactor) broken(err error) error {
	m.client.metrics.groupCommitFailures.Inc()
	if fenced(err) {
		return err
	}
	m.client.kgoLog.warn(m.group.ID, "transaction failed; joining again", "error", m.client.why(err).Error())
	return fmt.Errorf("%w: %w", errAgain, err)
}

// Handle is not called: transact calls the handler's own.
func (m *transactor) Handle(context.Context, []Record) error { return nil }

// Assigned passes on what was added.
func (m *transactor) Assigned(added map[string][]int32) {
	m.ownMu.Lock()
	defer m.ownMu.Unlock()
	if m.own == nil {
		m.own = make(map[string]map[int32]bool)
	}
	for topic, partitions := range added {
		if m.own[topic] == nil {
			m.own[topic] = make(map[int32]bool)
		}
		for _, p := range partitions {
			m.own[topic][p] = true
		}
	}
	m.handler.Assigned(added)
}

// Revoked passes on what was taken away.
func (m *transactor) Revoked(gone map[string][]int32) {
	m.moved.Store(true)
	m.ownMu.Lock()
	defer m.ownMu.Unlock()
	for topic, partitions := range gone {
		for _, p := range partitions {
			delete(m.own[topic], p)
		}
	}
	m.handler.Revoked(gone)
}

// forsake revokes what is left: the session tells only of the first loss between
// two transactions.
func (m *transactor) forsake() {
	left := make(map[string][]int32)
	m.ownMu.Lock()
	for topic, partitions := range m.own {
		for p := range partitions {
			left[topic] = append(left[topic], p)
		}
	}
	m.ownMu.Unlock()
	if len(left) > 0 {
		m.Revoked(left)
	}
}
