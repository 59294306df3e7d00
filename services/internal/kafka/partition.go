package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ReadPartition reads one partition of topic once, without a consumer group, from its
// start to the end it has now, and calls handle with batches that ascend by offset.
// It sees only committed records, and waits for transactions that are open there:
// when it returns nil, handle has seen all of what was written before the call and
// will ever be committed. It returns the error of handle wrapped, the error of ctx,
// ErrNoTopic, also when the topic has no such partition, or ErrClosed. Brokers that
// are away are waited for, which the log says.
func (c *Client) ReadPartition(ctx context.Context, topic string, partition int32, handle func([]Record) error) error {
	r := &reader{client: c, topic: topic, once: true, only: &partition}
	ctx, release, err := c.attach(ctx, r)
	if err != nil {
		return err
	}
	defer release()
	cl, err := c.connect("rebuild "+topic,
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
	b, err := r.whole(ctx)
	if err != nil {
		return err
	}
	if b.start >= b.end {
		return nil
	}
	r.tail = newTail([]bound{b})
	r.handler = LogHandler{Records: func(records []Record) error {
		for len(records) > 0 && records[len(records)-1].Offset >= b.end {
			records = records[:len(records)-1]
		}
		if len(records) == 0 {
			return nil
		}
		return handle(records)
	}}
	cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(b.start)}})
	err = r.follow(ctx)
	if errors.Is(err, errRecreated) {
		return fmt.Errorf("%w: %s was deleted while it was read", ErrNoTopic, topic)
	}
	return err
}

// whole waits for the brokers and returns the bounds of the one partition.
func (r *reader) whole(ctx context.Context) (bound, error) {
	wait := backoffMin
	for {
		id, bounds, err := r.look(ctx)
		if err == nil && len(bounds) == 0 {
			err = fmt.Errorf("%w: partition %d", kerr.UnknownTopicOrPartition, *r.only)
		}
		switch err = translate(err); {
		case err == nil:
			r.id = id
			return bounds[0], nil
		case errors.Is(err, ErrNoTopic):
			return bound{}, fmt.Errorf("read %s: %w", r.topic, err)
		}
		r.client.kgoLog.warn(r.topic, "topic cannot be read; waiting for a broker", "error", err.Error())
		if err := pause(ctx, wait); err != nil {
			return bound{}, err
		}
		wait = min(2*wait, backoffMax)
	}
}
