package topics

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock.dev/services/internal/kafka"
)

// Headers of a record that was set aside. Its key and value are as they came, and so are
// its own headers, before these.
const (
	HeaderReason    = "reason"
	HeaderDetail    = "detail"           // the reason for a person
	HeaderTopic     = "origin-topic"     // where it was
	HeaderPartition = "origin-partition" // in decimal
	HeaderOffset    = "origin-offset"    // in decimal
	HeaderCut       = "origin-bytes"     // how long its value was; there when it was cut
)

const (
	maxDetail = 1024
	cutTo     = 256 << 10 // bytes kept of a value that is too large with its headers
	keptAside = 35 * 24 * time.Hour
)

// A Writer writes to topics.
type Writer interface {
	EnsureTopics(ctx context.Context, topics []kafka.Topic) error
	Produce(ctx context.Context, r kafka.Record, done func(error))
}

// An aside is where records go that cannot be counted.
type aside struct {
	topic    string
	replicas int16
	writer   Writer
	log      *slog.Logger
}

// prepare makes the topic when it is missing. That it cannot be made keeps nobody from
// counting.
func (a *aside) prepare(ctx context.Context) error {
	err := a.writer.EnsureTopics(ctx, []kafka.Topic{{
		Name: a.topic, Partitions: 1, Replication: a.replicas,
		Config: map[string]string{"cleanup.policy": "delete", "retention.ms": strconv.FormatInt(keptAside.Milliseconds(), 10)},
	}})
	if err != nil && ctx.Err() == nil {
		a.log.Error("the topic for records that are set aside cannot be made; the first of them will wait for it", "topic", a.topic, "error", err.Error())
		return nil
	}
	return err
}

// A refusal is a record that is set aside, and why.
type refusal struct {
	record *kafka.Record
	reason reason
	detail string
}

// put returns once all of the records are in the topic. Its error is ctx's.
func (a *aside) put(ctx context.Context, refusals []refusal) error {
	records := make([]kafka.Record, len(refusals))
	for i, f := range refusals {
		records[i] = a.recordOf(f)
	}
	return again(ctx, a.log, "records to be set aside wait for their topic", func() error {
		failed, err := a.try(ctx, records)
		records = failed
		if err != nil {
			return errors.Join(errLater, err)
		}
		return nil
	})
}

// try writes the records and returns those that were not stored.
func (a *aside) try(ctx context.Context, records []kafka.Record) (failed []kafka.Record, why error) {
	var wg sync.WaitGroup
	errs := make([]error, len(records))
	for i, r := range records {
		wg.Add(1)
		a.writer.Produce(ctx, r, func(err error) {
			errs[i] = err
			wg.Done()
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			failed, why = append(failed, cut(records[i], err)), err
		}
	}
	return failed, why
}

// cut shortens a record that was too large, once.
func cut(r kafka.Record, err error) kafka.Record {
	if !kafka.Permanent(err) || len(r.Value) <= cutTo {
		return r
	}
	r.Headers = append(slices.Clone(r.Headers), kafka.Header{Key: HeaderCut, Value: strconv.AppendInt(nil, int64(len(r.Value)), 10)})
	r.Value = r.Value[:cutTo]
	return r
}

func (a *aside) recordOf(f refusal) kafka.Record {
	r := f.record
	a.log.Error("record set aside: what it counted is lost until it is mended", "reason", string(f.reason), "detail", f.detail,
		"topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "key", string(r.Key), "to", a.topic)
	return kafka.Record{Topic: a.topic, Key: r.Key, Value: r.Value, Headers: append(slices.Clone(r.Headers),
		kafka.Header{Key: HeaderReason, Value: []byte(f.reason)},
		kafka.Header{Key: HeaderDetail, Value: []byte(strings.ToValidUTF8(f.detail[:min(len(f.detail), maxDetail)], ""))},
		kafka.Header{Key: HeaderTopic, Value: []byte(r.Topic)},
		kafka.Header{Key: HeaderPartition, Value: strconv.AppendInt(nil, int64(r.Partition), 10)},
		kafka.Header{Key: HeaderOffset, Value: strconv.AppendInt(nil, r.Offset, 10)},
	)}
}
