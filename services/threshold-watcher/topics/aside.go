package topics

import (
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock.dev/services/internal/kafka"
)

// Headers of a record that was set aside. Its key and value are as they came, and
// so are its own headers, before these.
const (
	HeaderReason    = "reason"           // a Reason
	HeaderDetail    = "detail"           // the reason for a person
	HeaderTopic     = "origin-topic"     // where it was
	HeaderPartition = "origin-partition" // in decimal
	HeaderOffset    = "origin-offset"    // in decimal
	HeaderCut       = "origin-bytes"     // how long its value was; there when it was cut
)

// A Reason says why a record was set aside.
type Reason string

// The reasons.
const (
	Undecodable   Reason = "undecodable"
	UnknownSchema Reason = "unknown_schema"
)

var reasons = []Reason{Undecodable, UnknownSchema}

const (
	maxDetail = 1024      // bytes of HeaderDetail
	maxWhole  = 768 << 10 // bytes of a value that is kept whole: brokers refuse records above 1 MiB
	cutTo     = 256 << 10 // bytes that are kept of others
	// keptAside is how long the topic keeps records: longer than usage.v1, so that
	// there is time to look.
	keptAside = 14 * 24 * time.Hour
	// told is how many records of one batch are told of one by one.
	told = 10
)

// An aside is a record that is not an event.
type aside struct {
	record *kafka.Record
	reason Reason
	detail string
}

// asideTopic is where asides go.
func asideTopic(name string, replicas int16) kafka.Topic {
	return kafka.Topic{
		Name: name, Partitions: 1, Replication: replicas,
		Config: map[string]string{"cleanup.policy": "delete", "retention.ms": strconv.FormatInt(keptAside.Milliseconds(), 10)},
	}
}

// written is the record as it is set aside.
func (a *aside) written(topic string) kafka.Record {
	r := a.record
	value := r.Value
	headers := append(slices.Clone(r.Headers),
		kafka.Header{Key: HeaderReason, Value: []byte(a.reason)},
		kafka.Header{Key: HeaderDetail, Value: []byte(strings.ToValidUTF8(a.detail[:min(len(a.detail), maxDetail)], ""))},
		kafka.Header{Key: HeaderTopic, Value: []byte(r.Topic)},
		kafka.Header{Key: HeaderPartition, Value: strconv.AppendInt(nil, int64(r.Partition), 10)},
		kafka.Header{Key: HeaderOffset, Value: strconv.AppendInt(nil, r.Offset, 10)},
	)
	if len(value) > maxWhole {
		headers = append(headers, kafka.Header{Key: HeaderCut, Value: strconv.AppendInt(nil, int64(len(value)), 10)})
		value = value[:cutTo]
	}
	return kafka.Record{Topic: topic, Key: r.Key, Value: value, Headers: headers, Partition: kafka.ByKey}
}

// tell logs what was set aside, never the values.
func tell(log *slog.Logger, asides []aside, topic string) {
	for i := range asides[:min(len(asides), told)] {
		a := &asides[i]
		log.Error("record set aside", "reason", string(a.reason), "detail", a.detail,
			"topic", a.record.Topic, "partition", a.record.Partition, "offset", a.record.Offset,
			"key", string(a.record.Key), "to", topic)
	}
	if n := len(asides) - told; n > 0 {
		log.Error("more records set aside", "records", n, "to", topic)
	}
}
