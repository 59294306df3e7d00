package proof

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"penstock.dev/deploy/local/estate"
)

// A reader reads a topic as a stranger would: with a Kafka client, the schema
// registry and nothing of Penstock's code. It is for one goroutine.
type reader struct {
	client   *kgo.Client
	registry *sr.Client
	schemas  map[int]*avro.Schema
	seen     int // records, also of others
}

// An event is the value of a record, by the names of its schema's fields.
type event map[string]any

// text is a field that is a string or a symbol.
func (e event) text(field string) string {
	s, _ := e[field].(string)
	return s
}

// readFrom opens a topic where it ends now: what is read came later.
func readFrom(ctx context.Context, e *estate.Estate, topic string) (*reader, error) {
	registry, err := sr.NewClient(sr.URLs(strings.Split(e.Env["SCHEMA_REGISTRY_URL"], ",")...))
	if err != nil {
		return nil, err
	}
	brokers := kgo.SeedBrokers(strings.Split(e.Env["KAFKA_BROKERS"], ",")...)
	asking, err := kgo.NewClient(brokers)
	if err != nil {
		return nil, err
	}
	defer asking.Close()
	ends, err := kadm.NewClient(asking).ListEndOffsets(ctx, topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return nil, err
	}
	from := map[string]map[int32]kgo.Offset{topic: {}}
	ends.Each(func(o kadm.ListedOffset) { from[topic][o.Partition] = kgo.NewOffset().At(o.Offset) })
	client, err := kgo.NewClient(brokers, kgo.ConsumePartitions(from),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return nil, err
	}
	return &reader{client: client, registry: registry, schemas: map[int]*avro.Schema{}}, nil
}

func (r *reader) close() { r.client.Close() }

// take reads events until enough says so, or for so long at most. That time is
// up is no error: what is missing, the proof will find missing.
func (r *reader) take(ctx context.Context, within time.Duration, enough func(key string, e event) bool) error {
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for done := false; !done; {
		fetched := r.client.PollFetches(bounded)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if bounded.Err() != nil {
			return nil
		}
		if err := fetched.Err(); err != nil {
			return err
		}
		for _, record := range fetched.Records() {
			e, err := r.decode(ctx, record.Value)
			if err != nil {
				return err
			}
			r.seen++
			done = enough(string(record.Key), e) || done
		}
	}
	return nil
}

// decode reads a value in the wire format of schema registries: a zero byte, the
// id of the schema in four bytes, and Avro.
func (r *reader) decode(ctx context.Context, value []byte) (event, error) {
	const head = 5
	if len(value) < head || value[0] != 0 {
		return nil, fmt.Errorf("a record of %d bytes is not framed as Avro of a registry", len(value))
	}
	id := int(binary.BigEndian.Uint32(value[1:head]))
	schema := r.schemas[id]
	if schema == nil {
		text, err := r.registry.SchemaByID(ctx, id)
		if err != nil {
			return nil, err
		}
		if schema, err = avro.Parse(text.Schema); err != nil {
			return nil, err
		}
		r.schemas[id] = schema
	}
	var v any
	if _, err := schema.Decode(value[head:], &v); err != nil {
		return nil, err
	}
	fields, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("a record is a %T", v)
	}
	return fields, nil
}
