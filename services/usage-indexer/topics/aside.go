package topics

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/usage-indexer/usagedoc"
)

// Headers of a record that was set aside. Its key and value are as they came, and
// so are its own headers, before these.
const (
	HeaderReason    = "reason"           // a usagedoc.Reason
	HeaderDetail    = "detail"           // the reason for a person
	HeaderTopic     = "origin-topic"     // where it was
	HeaderPartition = "origin-partition" // in decimal
	HeaderOffset    = "origin-offset"    // in decimal
	HeaderCut       = "origin-bytes"     // how long its value was; there when it was cut
)

const (
	maxDetail = 1024      // bytes of HeaderDetail
	cutTo     = 256 << 10 // bytes kept of a value that is too large with its headers
	// keptAside is how long the topic keeps records: longer than usage.v1, so that
	// there is time to look.
	keptAside = 14 * 24 * time.Hour
	// told is how many records of one batch are told of one by one.
	told = 10
)

// How long a record waits before it is written again.
const (
	asideMin = 100 * time.Millisecond
	asideMax = 5 * time.Second
)

// A Writer writes to topics.
type Writer interface {
	EnsureTopics(ctx context.Context, topics []kafka.Topic) error
	Produce(ctx context.Context, r kafka.Record, done func(error))
}

// An aside is where records go that will never be in the index.
type aside struct {
	topic  string
	writer Writer
	log    *slog.Logger
}

// prepare makes the topic when it is missing. That it cannot be made keeps nobody
// from reading: it may be there, or never be needed.
func (a *aside) prepare(ctx context.Context, replicas int16) error {
	err := a.writer.EnsureTopics(ctx, []kafka.Topic{{
		Name: a.topic, Partitions: 1, Replication: replicas,
		Config: map[string]string{"cleanup.policy": "delete", "retention.ms": strconv.FormatInt(keptAside.Milliseconds(), 10)},
	}})
	if err != nil && ctx.Err() == nil {
		a.log.Error("the topic for records that are set aside cannot be made; the first of them will wait for it",
			"topic", a.topic, "error", err.Error())
		return nil
	}
	return err
}

// put returns once all of the records are in the topic, each once unless an answer
// was lost. Its error is ctx's.
func (a *aside) put(ctx context.Context, records []kafka.Record) error {
	wait := asideMin
	for {
		failed, why := a.try(ctx, records)
		if len(failed) == 0 {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		a.log.Warn("records cannot be set aside; trying again", "topic", a.topic, "records", len(failed), "error", why.Error())
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
			wait = min(2*wait, asideMax)
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		records = failed
	}
}

// try writes the records and returns those that were not stored, shortened where
// they were too large, and why the last of them was not.
func (a *aside) try(ctx context.Context, records []kafka.Record) ([]kafka.Record, error) {
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
	var failed []kafka.Record
	var why error
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

// recordOf is a record as it is set aside.
func (a *aside) recordOf(r *kafka.Record, f *fate) kafka.Record {
	headers := append(slices.Clone(r.Headers),
		kafka.Header{Key: HeaderReason, Value: []byte(f.reason)},
		kafka.Header{Key: HeaderDetail, Value: []byte(strings.ToValidUTF8(f.detail[:min(len(f.detail), maxDetail)], ""))},
		kafka.Header{Key: HeaderTopic, Value: []byte(r.Topic)},
		kafka.Header{Key: HeaderPartition, Value: strconv.AppendInt(nil, int64(r.Partition), 10)},
		kafka.Header{Key: HeaderOffset, Value: strconv.AppendInt(nil, r.Offset, 10)},
	)
	return kafka.Record{Topic: a.topic, Key: r.Key, Value: r.Value, Headers: headers}
}

// tell logs the records of a batch that were set aside, never their values: the
// detail of a store's refusal may quote one, and is in the header alone.
func (a *aside) tell(records []kafka.Record, fates []fate) {
	n := 0
	for i := range fates {
		f := &fates[i]
		if f.reason == "" {
			continue
		}
		if n++; n > told {
			continue
		}
		detail := f.detail
		if f.reason == usagedoc.Refused {
			detail, _, _ = strings.Cut(detail, ":")
		}
		a.log.Error("record set aside", "reason", string(f.reason), "detail", detail, "topic", records[i].Topic,
			"partition", records[i].Partition, "offset", records[i].Offset, "key", string(records[i].Key), "to", a.topic)
	}
	if n > told {
		a.log.Error("more records set aside", "records", n-told, "to", a.topic)
	}
}
