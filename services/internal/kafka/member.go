package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A member is one Consume.
type member struct {
	client  *Client
	group   Group
	handler GroupHandler
	lag     *lags

	kgo *kgo.Client
	ids map[string]kadm.TopicID // of the topics being read

	mu     sync.Mutex
	hurry  context.CancelCauseFunc // ends the Handle that comes or runs
	urgent *time.Timer             // calls hurry; nil while nobody waits
}

// membership is one stay in the group: from joining to leaving.
func (m *member) membership(ctx context.Context) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	cl, err := m.client.connect("group "+m.group.ID, m.options()...)
	if err != nil {
		return err
	}
	m.kgo = cl
	defer m.leave(context.WithoutCancel(ctx))

	lctx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { m.lag.watch(lctx, m.client, m.group.ID) })
	defer watching.Wait()
	defer stop()
	for {
		if err := m.batch(ctx); err != nil {
			return err
		}
	}
}

func (m *member) options() []kgo.Opt {
	return []kgo.Opt{
		kgo.ConsumerGroup(m.group.ID),
		kgo.ConsumeTopics(m.group.Topics...),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(m.group.SessionTimeout),
		kgo.RebalanceTimeout(m.group.RebalanceTimeout),
		kgo.HeartbeatInterval(min(heartbeat, m.group.SessionTimeout/3)),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), // repeating is harmless, skipping is not
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // or a tail that is a transaction marker is never committed
		kgo.KeepRetryableFetchErrors(),
		kgo.FetchMaxWait(m.group.MaxWait),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) { m.assigned(added) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) { m.revoked(gone) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) { m.lost(gone) }),
		kgo.OnPartitionsCallbackBlocked(func(context.Context, *kgo.Client) { m.waitedFor() }),
	}
}

// begin waits until the topics exist and the group has a position to start at.
func (m *member) begin(ctx context.Context) error {
	wait, waited := backoffMin, false
	for {
		ids, err := m.client.topicIDs(ctx, m.group.Topics)
		if err == nil && m.group.FromEnd {
			err = m.client.startAtEnd(ctx, m.group.ID, m.group.Topics)
		}
		if err == nil {
			m.ids = ids
			if waited {
				m.client.log.Info("topics found", "group", m.group.ID)
			}
			return nil
		}
		if ctx.Err() != nil {
			return cause(ctx)
		}
		waited = true
		m.client.kgoLog.warn(m.group.ID, "group cannot start; waiting", "error", m.client.why(err).Error())
		if err := pause(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, backoffMax)
	}
}

// leave gives the partitions back, so that others need not wait for the
// session to expire.
func (m *member) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveWithin)
	defer cancel()
	m.kgo.AllowRebalance()
	if err := m.kgo.LeaveGroupContext(ctx); err != nil {
		m.client.log.Info("left the group without its knowledge; it waits for the session to expire",
			"group", m.group.ID, "error", err.Error())
	}
	m.kgo.Close()
}

// batch polls, handles and commits once.
func (m *member) batch(ctx context.Context) error {
	hctx, hurry := context.WithCancelCause(ctx)
	m.arm(hurry)
	defer func() {
		m.arm(nil)
		hurry(nil)
		m.kgo.AllowRebalance()
	}()
	fetches := m.kgo.PollRecords(ctx, m.group.MaxRecords)
	if ctx.Err() != nil {
		return cause(ctx) // what was polled is not handled, so not committed
	}
	records := m.take(fetches)
	if len(records) > 0 {
		if err := m.handler.Handle(hctx, records); err != nil {
			return m.unhandled(ctx, hctx, fetches, err)
		}
		m.client.metrics.groupBatches.Inc()
	}
	m.commit(ctx, hctx)
	m.lag.read(fetches)
	return m.complaints(ctx, fetches)
}

// unhandled decides what becomes of a batch that is not durable.
func (m *member) unhandled(ctx, hctx context.Context, fetches kgo.Fetches, err error) error {
	switch {
	case ctx.Err() != nil:
		return cause(ctx)
	case hctx.Err() != nil:
		m.client.log.Warn("batch was not done when the group had to go on; it is handled again",
			"group", m.group.ID, "waited", m.group.patience().String(), "error", err.Error())
		m.rewind(fetches)
		return nil
	default:
		return fmt.Errorf("records of group %s: %w", m.group.ID, err)
	}
}

// rewind has the polled records polled again.
func (m *member) rewind(fetches kgo.Fetches) {
	to := make(map[string]map[int32]kgo.EpochOffset)
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if len(p.Records) == 0 {
			return
		}
		if to[p.Topic] == nil {
			to[p.Topic] = make(map[int32]kgo.EpochOffset)
		}
		first := p.Records[0].Offset
		if before, ok := to[p.Topic][p.Partition]; !ok || first < before.Offset {
			to[p.Topic][p.Partition] = kgo.EpochOffset{Epoch: -1, Offset: first}
		}
	})
	m.kgo.SetOffsets(to)
}

// commit stores how far was handled. It goes on trying while the partitions
// cannot be taken away: reading on would only make more records repeat. What it
// gives up is committed with the next batch if the partitions stay, and handled
// again by their next owner if not.
func (m *member) commit(ctx, hctx context.Context) {
	wait := backoffMin
	for {
		actx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitWithin)
		err := m.kgo.CommitUncommittedOffsets(actx)
		cancel()
		if err == nil {
			return
		}
		m.client.metrics.groupCommitFailures.Inc()
		switch {
		case expelled(err):
			m.client.log.Warn("group went on without this member; what it handled last is handled again",
				"group", m.group.ID, "error", err.Error())
			return
		case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
			return // the poll will tell whether the topic was made anew
		}
		m.client.kgoLog.warn(m.group.ID, "offsets cannot be committed; trying again", "error", m.client.why(err).Error())
		if pause(hctx, wait) != nil {
			m.client.log.Warn("offsets were not committed; what was handled last may be handled again",
				"group", m.group.ID, "error", err.Error())
			return
		}
		wait = min(2*wait, backoffMax)
	}
}

// expelled reports whether the group no longer knows the member that commits.
func expelled(err error) bool {
	for _, e := range []error{kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.FencedInstanceID, kerr.StaleMemberEpoch} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// arm names what ends the Handle that comes, or that there is none.
func (m *member) arm(hurry context.CancelCauseFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hurry = hurry
	if m.urgent != nil {
		m.urgent.Stop()
		m.urgent = nil
	}
}

// waitedFor is told that a rebalance waits for the batch to end.
func (m *member) waitedFor() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if hurry := m.hurry; hurry != nil && m.urgent == nil {
		m.urgent = time.AfterFunc(m.group.patience(), func() { hurry(errWaiting) })
	}
}

// take turns fetches into records in the order of topic, partition and offset.
func (m *member) take(fetches kgo.Fetches) []Record {
	var parts []kgo.FetchTopicPartition
	n := 0
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if len(p.Records) > 0 {
			parts = append(parts, p)
			n += len(p.Records)
		}
	})
	slices.SortStableFunc(parts, func(a, b kgo.FetchTopicPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	records := make([]Record, 0, n)
	for _, p := range parts {
		for _, rec := range p.Records {
			if !rec.Attrs.IsControl() {
				records = append(records, incoming(rec))
			}
		}
	}
	return records
}

func (m *member) assigned(added map[string][]int32) {
	m.client.metrics.groupRebalances.Inc()
	m.client.log.Info("group rebalanced", "group", m.group.ID, "added", describe(added))
	if len(added) > 0 {
		m.lag.assigned(added)
		m.handler.Assigned(added)
	}
}

func (m *member) revoked(gone map[string][]int32) {
	if len(gone) > 0 {
		m.client.log.Info("partitions given back", "group", m.group.ID, "gone", describe(gone))
		m.lag.revoked(gone)
		m.handler.Revoked(gone)
	}
}

func (m *member) lost(gone map[string][]int32) {
	if len(gone) > 0 {
		m.client.log.Warn("partitions lost; what was handled of them and not committed is handled again",
			"group", m.group.ID, "gone", describe(gone))
		m.lag.revoked(gone)
		m.handler.Revoked(gone)
	}
}

// describe is partitions for the log.
func describe(partitions map[string][]int32) string {
	parts := make([]string, 0, len(partitions))
	for topic, ps := range partitions {
		slices.Sort(ps)
		parts = append(parts, fmt.Sprintf("%s%v", topic, ps))
	}
	slices.Sort(parts)
	return fmt.Sprint(parts)
}

// complaints handles the errors of a poll: it logs and counts them and lets the
// library go on, unless only a new membership helps.
func (m *member) complaints(ctx context.Context, fetches kgo.Fetches) error {
	var lost *kgo.ErrDataLoss
	var stuck *kgo.ErrDecompressTooLarge
	met, doubt := false, false
	for _, e := range fetches.Errors() {
		about := cmp.Or(e.Topic, m.group.ID)
		switch {
		case errors.Is(e.Err, context.DeadlineExceeded), errors.Is(e.Err, context.Canceled):
			continue
		case errors.Is(e.Err, kgo.ErrClientClosed):
			return ErrClosed
		case errors.Is(e.Err, kerr.UnknownTopicID), errors.Is(e.Err, kerr.UnknownTopicOrPartition):
			doubt = true
		case errors.As(e.Err, &lost):
			m.client.kgoLog.warn(about, "broker lost records; reading again from where it can",
				"partition", e.Partition, "error", e.Err.Error())
		case errors.As(e.Err, &stuck):
			m.client.kgoLog.warn(about, "batch is too large to read; the partition stands still",
				"partition", e.Partition, "error", e.Err.Error())
			if err := pause(ctx, stuckPause); err != nil {
				return err
			}
			return errAgain // the library would not try it again
		default:
			m.client.kgoLog.warn(about, "group cannot read; trying again",
				"partition", e.Partition, "error", m.client.why(e.Err).Error())
		}
		met = true
		m.client.metrics.groupErrors.Inc()
	}
	if doubt && m.replaced(ctx) {
		m.client.log.Warn("topic was deleted; joining again once it exists", "group", m.group.ID)
		return errAgain
	}
	if met {
		return pause(ctx, errorPause)
	}
	return nil
}

// replaced reports whether a topic is gone or another one by the same name.
func (m *member) replaced(ctx context.Context) bool {
	ids, err := m.client.topicIDs(ctx, m.group.Topics)
	if err != nil {
		return errors.Is(err, ErrNoTopic)
	}
	for topic, id := range m.ids {
		if ids[topic] != id {
			return true
		}
	}
	return false
}

// startAtEnd commits the end of every topic in which the group has no commit at
// all. Brokers refuse that while the group has members, who did it before.
func (c *Client) startAtEnd(ctx context.Context, group string, topics []string) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	commits, err := c.commits(ctx, group)
	if err != nil {
		return err
	}
	ends, err := c.admin.ListEndOffsets(ctx, topics...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("ends: %w", err)
	}
	var at kadm.Offsets
	for _, topic := range topics {
		if len(commits[topic]) == 0 {
			for _, end := range ends[topic] {
				at.AddOffset(topic, end.Partition, end.Offset, -1)
			}
		}
	}
	if len(at) == 0 {
		return nil
	}
	err = c.admin.CommitAllOffsets(ctx, group, at)
	switch {
	case expelled(err):
		c.log.Info("group is at work; topics that are new to it are read from their start", "group", group)
	case err != nil:
		return fmt.Errorf("commit: %w", err)
	default:
		c.log.Info("group is new and starts at the end", "group", group)
	}
	return nil
}
