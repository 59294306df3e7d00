package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A Range is offsets of one partition, half-open. From is later than what was
// asked where the topic no longer has it, and is the topic's start where it ends
// before what was asked: then it is another topic.
type Range struct{ From, To int64 }

// ReadRange reads topic once, without a consumer group: each partition from its
// offset in from, its first record where it has none there, up to the end that it
// had when reading began, or below its offset in to where that is earlier. Only
// partitions of to are read, all where it is nil. It calls handle with batches that
// ascend by partition and offset, and returns what was read of each partition once
// handle has seen everything. The error is handle's wrapped, ctx's, ErrNoTopic, or
// ErrClosed. Brokers that are away are waited for, which the log says.
func (c *Client) ReadRange(ctx context.Context, topic string, from, to map[int32]int64, handle func([]Record) error) (map[int32]Range, error) {
	var ranges map[int32]Range
	err := c.ReadRangeFrom(ctx, topic, from, to, func(found map[int32]Range) error {
		ranges = found
		return nil
	}, handle)
	if err != nil {
		return nil, err
	}
	return ranges, nil
}

// ReadRangeFrom is ReadRange that calls begin once with what will be read, before
// the first record. An error of begin ends it, wrapped.
func (c *Client) ReadRangeFrom(ctx context.Context, topic string, from, to map[int32]int64, begin func(map[int32]Range) error, handle func([]Record) error) error {
	r := &reader{client: c, topic: topic, once: true}
	ctx, release, err := c.attach(ctx, r)
	if err != nil {
		return err
	}
	defer release()
	cl, err := c.connect("range "+topic,
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.KeepRetryableFetchErrors(),
		kgo.FetchMaxWait(fetchWait),
	)
	if err != nil {
		return err
	}
	defer cl.Close()
	r.kgo, r.admin = cl, kadm.NewClient(cl)
	bounds, err := r.boundsOf(ctx)
	if err != nil {
		return err
	}
	ranges := within(bounds, from, to)
	if err := begin(ranges); err != nil {
		return fmt.Errorf("begin %s: %w", topic, err)
	}
	offsets := make(map[int32]kgo.Offset, len(ranges))
	left := make([]bound, 0, len(ranges))
	for p, s := range ranges {
		left = append(left, bound{p, s.From, s.To})
		if s.From < s.To {
			offsets[p] = kgo.NewOffset().At(s.From)
		}
	}
	r.tail = newTail(left)
	r.handler = LogHandler{Records: func(records []Record) error {
		kept := records[:0]
		for _, rec := range records {
			if s := ranges[rec.Partition]; rec.Offset >= s.From && rec.Offset < s.To {
				kept = append(kept, rec)
			}
		}
		if len(kept) == 0 {
			return nil
		}
		return handle(kept)
	}}
	if len(offsets) > 0 {
		cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets})
		err = r.follow(ctx)
	}
	if errors.Is(err, errRecreated) {
		return fmt.Errorf("%w: %s was deleted while it was read", ErrNoTopic, topic)
	}
	return err
}

// within are the ranges of partitions with such bounds.
func within(bounds []bound, from, to map[int32]int64) map[int32]Range {
	ranges := make(map[int32]Range, len(bounds))
	for _, b := range bounds {
		s := Range{b.start, b.end}
		if to != nil {
			end, asked := to[b.partition]
			if !asked {
				continue
			}
			s.To = min(s.To, end)
		}
		if begin, known := from[b.partition]; known && begin <= b.end {
			s.From = max(s.From, begin)
		}
		s.To = max(s.To, s.From)
		ranges[b.partition] = s
	}
	return ranges
}
