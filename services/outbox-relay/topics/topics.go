// Package topics writes outbox events to Kafka under the contract of
// Debezium's Outbox Event Router: key, value and headers are equal byte for
// byte to what the real connector writes.
package topics

import (
	"context"
	"fmt"

	"penstock.dev/schemas/rulesv1"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/outbox-relay/outbox"
)

// headerType is where the router's placement type:header:eventType puts the
// column type.
const headerType = "eventType"

// A Publisher writes events. It is safe for concurrent use.
type Publisher struct{ broker *kafka.Client }

// New returns a publisher that writes through broker.
func New(broker *kafka.Client) *Publisher { return &Publisher{broker} }

// Prepare makes sure that rules.v1 exists, compacted, with the given number of
// replicas (0 leaves it to the brokers). It waits for brokers that are away
// until ctx ends.
func (p *Publisher) Prepare(ctx context.Context, replicas int16) error {
	err := p.broker.EnsureTopics(ctx, []kafka.Topic{{
		Name: rulesv1.Topic, Partitions: rulesv1.Partitions, Replication: replicas,
		Config: map[string]string{"cleanup.policy": "compact"},
	}})
	if err != nil {
		return fmt.Errorf("prepare %s: %w", rulesv1.Topic, err)
	}
	return nil
}

// Publish sends e and calls done once, with nil when every in-sync replica has
// it. Events of one key are stored in the order of the calls. It blocks only
// while the producer's buffer is full.
func (p *Publisher) Publish(ctx context.Context, e outbox.Event, done func(error)) {
	p.broker.Produce(ctx, Record(e), done)
}

// Record is e as it stands on the topic.
func Record(e outbox.Event) kafka.Record {
	headers := []kafka.Header{
		{Key: rulesv1.HeaderID, Value: []byte(e.ID)},
		{Key: headerType, Value: []byte(e.Type)},
		{Key: rulesv1.HeaderVersion, Value: []byte(e.Version)},
	}
	return kafka.Record{Topic: e.Topic, Key: []byte(e.Key), Value: e.Payload, Headers: headers}
}
