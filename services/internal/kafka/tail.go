package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A tail knows how far each partition was read and how far it must be, to have
// seen all that was there at the beginning. The offsets up to the end need not
// carry records: compaction removes them, transaction markers are none, and a
// broker that crashed may have lost them.
type tail map[int32]*span

// A span is the part of one partition still to be seen.
type span struct{ next, end int64 }

func newTail(bounds []bound) tail {
	t := make(tail, len(bounds))
	for _, b := range bounds {
		if b.start < b.end {
			t[b.partition] = &span{b.start, b.end}
		}
	}
	return t
}

// reached reports whether nothing is left to be seen.
func (t tail) reached() bool { return len(t) == 0 }

// advance notes that everything below next was seen.
func (t tail) advance(partition int32, next int64) {
	s := t[partition]
	if s == nil {
		return
	}
	s.next = max(s.next, next)
	if s.next >= s.end {
		delete(t, partition)
	}
}

// probeBytes is what one look at a tail may return.
const probeBytes = 1 << 20

// examine asks the brokers whether the rest of each unfinished partition holds
// any record at all, and ticks off those that do not. A rest that does hold
// records is left to the poll, which will deliver them. Failures are left to
// the next attempt.
func (r *reader) examine(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	_, bounds, err := r.look(ctx)
	if err != nil {
		r.client.log.Debug("tail not examined", "topic", r.topic, "error", err.Error())
		return
	}
	for _, b := range bounds {
		s := r.tail[b.partition]
		if s == nil {
			continue
		}
		s.end = min(s.end, b.end) // a broker that lost its newest records ends earlier
		r.tail.advance(b.partition, max(s.next, b.start))
		for r.tail[b.partition] != nil {
			next, err := r.probe(ctx, b.partition, *s)
			if err != nil {
				r.client.log.Debug("tail not examined", "topic", r.topic, "partition", b.partition, "error", err.Error())
			}
			if err != nil || next == s.next {
				break
			}
			r.tail.advance(b.partition, next)
		}
	}
}

// probe looks at s.next without a fetch session and returns the offset up to
// which there is no record: s.next itself when there is one, s.end when the
// rest is empty.
func (r *reader) probe(ctx context.Context, partition int32, s span) (int64, error) {
	leader, _, err := r.kgo.PartitionLeader(r.topic, partition)
	if err != nil {
		return s.next, err
	}
	answer, err := r.kgo.Broker(int(leader)).RetriableRequest(ctx, r.probeRequest(partition, s.next))
	if err != nil {
		return s.next, err
	}
	resp, ok := answer.(*kmsg.FetchResponse)
	if !ok {
		return s.next, fmt.Errorf("answer is a %T", answer)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return s.next, err
	}
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			if p := &resp.Topics[i].Partitions[j]; p.Partition == partition {
				return r.judge(p, s)
			}
		}
	}
	return s.next, nil // throttled: no answer about this partition
}

// judge reads the answer to a probe.
func (r *reader) judge(p *kmsg.FetchResponseTopicPartition, s span) (int64, error) {
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		return s.next, err
	}
	if len(p.RecordBatches) == 0 && p.LastStableOffset >= s.end {
		return s.end, nil // a broker returns at least one batch if it has any
	}
	got, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		Offset: s.next, IsolationLevel: kgo.ReadCommitted(), Topic: r.topic, Partition: p.Partition,
	}, p, kgo.DefaultDecompressor(), nil)
	if got.Err != nil || len(got.Records) > 0 {
		return s.next, got.Err
	}
	return next, nil
}

func (r *reader) probeRequest(partition int32, offset int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 0, 0, probeBytes
	req.IsolationLevel = 1 // read committed
	req.SessionEpoch = -1  // and no session
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = r.topic, r.id
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = partition, offset, probeBytes
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}
