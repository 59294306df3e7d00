package kafkatest

import (
	"context"
	"hash/crc32"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A Fault is a failure that lasts until Mend.
type Fault struct {
	b *Broker
	h *kfake.FaultHandle
}

// Mend ends the fault.
func (f *Fault) Mend() { f.h.Remove() }

// Hits is how many requests the fault has met so far.
func (f *Fault) Hits() int { return f.h.Hits() }

// Wait returns once the fault has met n requests.
func (f *Fault) Wait(n int) {
	f.b.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.b.t.Context()), Patience)
	defer cancel()
	if err := f.h.Wait(ctx, n); err != nil {
		f.b.t.Fatalf("the fault met %d requests, want %d: %v", f.h.Hits(), n, err)
	}
}

func (b *Broker) fault(f kfake.Fault) *Fault {
	b.t.Helper()
	f.Count = -1
	return &Fault{b, b.Cluster().Fault(f)}
}

// PauseProduce makes one partition refuse every record, as one without a
// leader does, while the others go on: producers keep trying, and what they
// send is acknowledged only after Mend.
func (b *Broker) PauseProduce(topic string, partition int32) *Fault {
	b.t.Helper()
	return b.fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Partitions: []int32{partition},
		Err: kerr.NotEnoughReplicas,
	})
}

// LoseAcks makes one partition store every record and answer that it timed
// out, so that an idempotent producer sends it again.
func (b *Broker) LoseAcks(topic string, partition int32) *Fault {
	b.t.Helper()
	return b.fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Partitions: []int32{partition},
		Err: kerr.RequestTimedOut,
	})
}

// RefuseProduce makes a topic refuse every record for good, as one too large.
func (b *Broker) RefuseProduce(topic string) *Fault {
	b.t.Helper()
	return b.fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: kerr.MessageTooLarge})
}

// FailFetch makes reading a topic fail with an error that clients report.
func (b *Broker) FailFetch(topic string) *Fault {
	b.t.Helper()
	return b.fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: topic, Err: kerr.TopicAuthorizationFailed})
}

// FailCommit makes a group's commits fail. An error that Kafka calls retriable
// is one that passes, as COORDINATOR_LOAD_IN_PROGRESS does.
func (b *Broker) FailCommit(group string, err *kerr.Error) *Fault {
	b.t.Helper()
	return b.fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: group, Err: err})
}

// Watch counts requests of one kind and changes nothing.
func (b *Broker) Watch(key kmsg.Key) *Fault {
	b.t.Helper()
	return b.fault(kfake.Fault{Keys: []kmsg.Key{key}, Observe: true, TopLevel: false})
}

// HideTail makes a partition claim n more offsets than it has records, as one
// does whose newest records were compacted away: with empty, an empty batch
// holds their place, without it nothing does. It lasts until Stop.
func (b *Broker) HideTail(topic string, partition int32, n int64, empty bool) {
	b.t.Helper()
	real := b.overstate(topic, partition, n, true)
	c := b.Cluster()
	c.ControlKey(int16(kmsg.Fetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		req := kreq.(*kmsg.FetchRequest) //nolint:forcetypeassert // the key says so
		if len(req.Topics) != 1 || len(req.Topics[0].Partitions) != 1 || req.Topics[0].Partitions[0].FetchOffset < real {
			return nil, nil, false
		}
		c.KeepControl()
		return hiddenTail(req, real, n, empty), nil, true
	})
}

// hiddenTail is the answer to a fetch at or beyond the last record.
func hiddenTail(req *kmsg.FetchRequest, from, n int64, empty bool) *kmsg.FetchResponse {
	resp := req.ResponseKind().(*kmsg.FetchResponse) //nolint:forcetypeassert // the request's own kind
	t := kmsg.NewFetchResponseTopic()
	t.Topic, t.TopicID = req.Topics[0].Topic, req.Topics[0].TopicID
	p := kmsg.NewFetchResponseTopicPartition()
	p.Partition = req.Topics[0].Partitions[0].Partition
	p.HighWatermark, p.LastStableOffset = from+n, from+n
	if empty && req.Topics[0].Partitions[0].FetchOffset < from+n {
		p.RecordBatches = emptyBatch(from, n)
	}
	t.Partitions = append(t.Partitions, p)
	resp.Topics = append(resp.Topics, t)
	return resp
}

// emptyBatch is what compaction leaves of a batch whose last offset it keeps.
func emptyBatch(from, n int64) []byte {
	batch := kmsg.RecordBatch{
		FirstOffset: from, Magic: 2, LastOffsetDelta: int32(n - 1),
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1,
	}
	raw := batch.AppendTo(nil)
	batch.Length = int32(len(raw) - 12)
	raw = batch.AppendTo(nil)
	batch.CRC = int32(crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return batch.AppendTo(nil)
}

// OverstateEnd makes the next question for a partition's end be answered with n
// more than it is, as by a broker that then crashes and loses its newest
// records. Later questions get the truth.
func (b *Broker) OverstateEnd(topic string, partition int32, n int64) {
	b.t.Helper()
	b.overstate(topic, partition, n, false)
}

// overstate returns the true end.
func (b *Broker) overstate(topic string, partition int32, n int64, always bool) int64 {
	b.t.Helper()
	real := b.end(topic, partition)
	c := b.Cluster()
	c.ControlKey(int16(kmsg.ListOffsets), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		req := kreq.(*kmsg.ListOffsetsRequest) //nolint:forcetypeassert // the key says so
		if len(req.Topics) != 1 || req.Topics[0].Topic != topic || req.Topics[0].Partitions[0].Timestamp != -1 {
			return nil, nil, false
		}
		if always {
			c.KeepControl()
		}
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse) //nolint:forcetypeassert // the request's own kind
		t := kmsg.NewListOffsetsResponseTopic()
		t.Topic = topic
		p := kmsg.NewListOffsetsResponseTopicPartition()
		p.Partition, p.Offset = partition, real+n
		t.Partitions = append(t.Partitions, p)
		resp.Topics = append(resp.Topics, t)
		return resp, nil, true
	})
	return real
}

// end is the offset after the last record of a partition.
func (b *Broker) end(topic string, partition int32) int64 {
	b.t.Helper()
	cl, ctx, done := b.client()
	defer done()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
	if err != nil {
		b.t.Fatalf("end of %s: %v", topic, err)
	}
	o, ok := ends.Lookup(topic, partition)
	if !ok || o.Err != nil {
		b.t.Fatalf("end of %s-%d: %+v", topic, partition, o)
	}
	return o.Offset
}

// Stall holds every request of one kind back, while the broker serves the others,
// until the returned function is called. Requests that were held back are then
// served, also when who sent them is gone.
func (b *Broker) Stall(key kmsg.Key) (met <-chan struct{}, release func()) {
	b.t.Helper()
	c := b.Cluster()
	held, requests := make(chan struct{}), make(chan struct{}, 1000)
	open := sync.OnceFunc(func() { close(held) })
	b.t.Cleanup(open)
	c.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
		select {
		case <-held:
			return nil, nil, false
		default:
		}
		c.KeepControl()
		requests <- struct{}{}
		c.SleepControl(func() { <-held })
		return nil, nil, false
	})
	return requests, open
}
