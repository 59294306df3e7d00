package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ReadSince reads topic once, without a consumer group: each partition from its
// first record with a timestamp of since or later up to the end it had when
// reading began, older records in between included. It calls handle with
// batches that ascend by partition and offset, and returns nil once handle has
// seen everything, the error of handle wrapped, the error of ctx, ErrNoTopic,
// or ErrClosed. Brokers that are away are waited for, which the log says.
func (c *Client) ReadSince(ctx context.Context, topic string, since time.Time, handle func([]Record) error) error {
	r := &reader{client: c, topic: topic, once: true}
	ctx, release, err := c.attach(ctx, r)
	if err != nil {
		return err
	}
	defer release()
	cl, err := c.connect("replay "+topic,
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
	bounds, err := r.boundsSince(ctx, since)
	if err != nil {
		return err
	}
	ends := make(map[int32]int64, len(bounds))
	from := make(map[int32]kgo.Offset, len(bounds))
	for _, b := range bounds {
		if b.start < b.end {
			ends[b.partition], from[b.partition] = b.end, kgo.NewOffset().At(b.start)
		}
	}
	r.tail = newTail(bounds)
	r.handler = LogHandler{Records: func(records []Record) error {
		kept := records[:0]
		for _, rec := range records {
			if rec.Offset < ends[rec.Partition] {
				kept = append(kept, rec)
			}
		}
		if len(kept) == 0 {
			return nil
		}
		return handle(kept)
	}}
	cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: from})
	err = r.follow(ctx)
	if errors.Is(err, errRecreated) {
		return fmt.Errorf("%w: %s was deleted while it was read", ErrNoTopic, topic)
	}
	return err
}

// boundsSince waits for the brokers and returns where each partition is to be
// read from and to.
func (r *reader) boundsSince(ctx context.Context, since time.Time) ([]bound, error) {
	return r.awaitBounds(ctx, func(bounds []bound) error {
		starts, err := r.admin.ListOffsetsAfterMilli(ctx, since.UnixMilli(), r.topic)
		if err == nil {
			err = starts.Error()
		}
		for i := range bounds {
			if s, ok := starts.Lookup(r.topic, bounds[i].partition); err == nil && ok {
				bounds[i].start = max(bounds[i].start, s.Offset)
			}
		}
		return err
	})
}

// boundsOf waits for the brokers and returns where each partition begins and ends.
func (r *reader) boundsOf(ctx context.Context) ([]bound, error) {
	return r.awaitBounds(ctx, func([]bound) error { return nil })
}

func (r *reader) awaitBounds(ctx context.Context, narrow func([]bound) error) ([]bound, error) {
	wait := backoffMin
	for {
		id, bounds, err := r.look(ctx)
		if err == nil {
			err = narrow(bounds)
		}
		switch err = translate(err); {
		case err == nil:
			r.id = id
			return bounds, nil
		case errors.Is(err, ErrNoTopic):
			return nil, fmt.Errorf("read %s: %w", r.topic, err)
		}
		r.client.kgoLog.warn(r.topic, "topic cannot be read; waiting for a broker", "error", err.Error())
		if err := pause(ctx, wait); err != nil {
			return nil, err
		}
		wait = min(2*wait, backoffMax)
	}
}
