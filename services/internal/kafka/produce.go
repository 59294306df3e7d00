package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// byKey marks a record whose partition follows from its key.
const byKey = -1

// Produce sends r to the partition its key hashes to (murmur2, as the Java
// client; a nil key goes anywhere) and calls done exactly once: with nil when
// every in-sync replica has it, else with why not. It blocks only while the
// buffer is full, until ctx ends. The end of ctx also gives up a record that
// was not sent yet.
//
// Records of one partition are stored in the order of the Produce calls. done
// runs on the client's goroutine, one at a time for all records: it must not
// block. r must not be changed before done is called.
func (c *Client) Produce(ctx context.Context, r Record, done func(error)) {
	c.producer.Produce(ctx, outgoing(r, byKey), c.promise(done))
}

// ProduceTo is Produce to a partition chosen by the caller.
func (c *Client) ProduceTo(ctx context.Context, partition int32, r Record, done func(error)) {
	c.producer.Produce(ctx, outgoing(r, partition), c.promise(done))
}

// TryProduce is Produce for callers that must never wait: when the buffer is
// full, done gets ErrBufferFull at once.
func (c *Client) TryProduce(ctx context.Context, r Record, done func(error)) {
	c.producer.TryProduce(ctx, outgoing(r, byKey), c.promise(done))
}

// TryProduceTo is TryProduce to a partition chosen by the caller.
func (c *Client) TryProduceTo(ctx context.Context, partition int32, r Record, done func(error)) {
	c.producer.TryProduce(ctx, outgoing(r, partition), c.promise(done))
}

// Flush returns once every record accepted before has been acknowledged or has
// failed, or with the error of ctx.
func (c *Client) Flush(ctx context.Context) error {
	if err := c.producer.Flush(ctx); err != nil {
		return fmt.Errorf("flush: %w", translate(err))
	}
	return nil
}

// PartitionOf returns the partition that Produce chooses for a key that is not
// nil, out of n, at least 1.
func PartitionOf(key []byte, n int32) int32 { return int32(murmurOf(key, int(n))) }

// outgoing is r for the library.
func outgoing(r Record, partition int32) *kgo.Record {
	out := &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Partition: partition}
	if len(r.Headers) > 0 {
		out.Headers = make([]kgo.RecordHeader, len(r.Headers))
		for i, h := range r.Headers {
			out.Headers[i] = kgo.RecordHeader(h)
		}
	}
	return out
}

// promise counts failures and forgets a topic that was made anew, which the
// library would otherwise refuse for ever.
func (c *Client) promise(done func(error)) func(*kgo.Record, error) {
	return func(r *kgo.Record, err error) {
		if err != nil {
			if errors.Is(err, kerr.UnknownTopicID) {
				c.forget(r.Topic)
			}
			err = fmt.Errorf("produce to %s: %w", r.Topic, translate(err))
			c.metrics.produceFailures.WithLabelValues(string(reasonOf(err))).Inc()
		}
		if done != nil {
			done(err)
		}
	}
}

// forget makes the producer look the topic up again. It must not block the
// promise that found out, so it runs beside it, once at a time per topic.
func (c *Client) forget(topic string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.purging[topic] {
		return
	}
	c.purging[topic] = true
	c.purges.Go(func() {
		c.producer.PurgeTopicsFromProducing(topic)
		c.mu.Lock()
		delete(c.purging, topic)
		c.mu.Unlock()
	})
}

// murmurOf is the hash of the Java client's default partitioner.
var murmurOf = kgo.KafkaHasher(murmur2)

// partitioner takes the record's partition when it names one, and the Java
// client's choice otherwise.
type partitioner struct{ keyed kgo.Partitioner }

func newPartitioner() kgo.Partitioner {
	return partitioner{kgo.StickyKeyPartitioner(murmurOf)}
}

// ForTopic returns the partitioner of one topic.
func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	return &topicPartitioner{p.keyed.ForTopic(topic)}
}

type topicPartitioner struct{ keyed kgo.TopicPartitioner }

// RequiresConsistency reports whether the record may go to one partition only.
func (p *topicPartitioner) RequiresConsistency(r *kgo.Record) bool {
	return r.Partition != byKey || p.keyed.RequiresConsistency(r)
}

// Partition chooses one of n partitions.
func (p *topicPartitioner) Partition(r *kgo.Record, n int) int {
	if r.Partition != byKey {
		return int(r.Partition)
	}
	return p.keyed.Partition(r, n)
}

// OnNewBatch lets records without a key move on to another partition.
func (p *topicPartitioner) OnNewBatch() {
	if b, ok := p.keyed.(kgo.TopicPartitionerOnNewBatch); ok {
		b.OnNewBatch()
	}
}

// murmur2 is the 32-bit hash of the Java client (Austin Appleby's MurmurHash2
// with the seed 0x9747b28c).
func murmur2(b []byte) uint32 {
	const (
		seed uint32 = 0x9747b28c
		m    uint32 = 0x5bd1e995
		r           = 24
	)
	h := seed ^ uint32(len(b))
	for ; len(b) >= 4; b = b[4:] {
		k := uint32(b[3])<<24 | uint32(b[2])<<16 | uint32(b[1])<<8 | uint32(b[0])
		k *= m
		k ^= k >> r
		k *= m
		h = h*m ^ k
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(b[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}
