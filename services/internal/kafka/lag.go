package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Lag returns how many offsets of each partition of topic the group has not
// committed. Where it never committed anything that is all of them. Offsets
// without a record, which compaction and transactions leave, count too.
func (c *Client) Lag(ctx context.Context, group, topic string) (map[int32]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	commits, err := c.commits(ctx, group)
	if err != nil {
		return nil, fmt.Errorf("lag of group %s: %w", group, err)
	}
	starts, err := c.admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("lag of group %s in %s: starts: %w", group, topic, translate(err))
	}
	ends, err := c.admin.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("lag of group %s in %s: ends: %w", group, topic, translate(err))
	}
	lag := make(map[int32]int64, len(ends[topic]))
	for p, end := range ends[topic] {
		from := starts[topic][p].Offset
		if at, ok := commits.Lookup(topic, p); ok {
			from = max(from, at.At)
		}
		lag[p] = max(0, end.Offset-from)
	}
	return lag, nil
}

// commits returns how far the group is, nothing for one that does not exist.
func (c *Client) commits(ctx context.Context, group string) (kadm.OffsetResponses, error) {
	commits, err := c.admin.FetchOffsets(ctx, group)
	if err == nil {
		err = commits.Error()
	}
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("commits: %w", translate(err))
	}
	return commits, nil
}

// lags are what is known of how far the member is behind in its partitions.
type lags struct {
	metrics *metrics
	topics  []string
	ask     chan struct{} // after an assignment

	mu  sync.Mutex
	own map[string]map[int32]int64
}

func newLags(m *metrics, topics []string) *lags {
	l := &lags{metrics: m, topics: topics, ask: make(chan struct{}, 1), own: make(map[string]map[int32]int64)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.publish()
	return l
}

func (l *lags) assigned(added map[string][]int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for topic, partitions := range added {
		if l.own[topic] == nil {
			l.own[topic] = make(map[int32]int64)
		}
		for _, p := range partitions {
			l.own[topic][p] = 0
		}
	}
	select {
	case l.ask <- struct{}{}:
	default:
	}
}

func (l *lags) revoked(gone map[string][]int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for topic, partitions := range gone {
		for _, p := range partitions {
			delete(l.own[topic], p)
		}
	}
	l.publish()
}

// read notes how far a batch that was handled went.
func (l *lags) read(fetches kgo.Fetches) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if len(p.Records) > 0 {
			l.set(p.Topic, p.Partition, p.LastStableOffset-p.Records[len(p.Records)-1].Offset-1)
		}
	})
	l.publish()
}

// watch asks for the lag now and then until ctx ends.
func (l *lags) watch(ctx context.Context, c *Client, group string) {
	tick := time.NewTicker(lagEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.ask:
		case <-tick.C:
		}
		for _, topic := range l.topics {
			got, err := c.Lag(ctx, group, topic)
			if err != nil {
				c.log.Debug("lag not known", "group", group, "topic", topic, "error", err.Error())
				continue
			}
			l.mu.Lock()
			for p, n := range got {
				l.set(topic, p, n)
			}
			l.publish()
			l.mu.Unlock()
		}
	}
}

// set notes the lag of a partition if it is one of the member's.
func (l *lags) set(topic string, partition int32, n int64) {
	if _, ok := l.own[topic][partition]; ok {
		l.own[topic][partition] = max(0, n)
	}
}

func (l *lags) publish() {
	for _, topic := range l.topics {
		var sum int64
		for _, n := range l.own[topic] {
			sum += n
		}
		l.metrics.groupLag.WithLabelValues(topic).Set(float64(sum))
	}
}

// forget takes the numbers away: who reads nothing is not behind.
func (l *lags) forget() {
	for _, topic := range l.topics {
		l.metrics.groupLag.DeleteLabelValues(topic)
	}
}
