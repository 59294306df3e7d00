//go:build integration

package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/estest"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// sampleDay is when all of the sample happened. It stays, so that the answers in
// QUERIES.md do.
const sampleDay = "ratelimit-usage-2026.11.30"

// samples is filled by the test that asks first.
var samples struct {
	sync.Mutex
	urls map[string]string
}

// sampled returns the URLs of both stores by name, once the sample events have
// gone the whole way: onto usage.v1, and from there by this service into either.
// They are in indices of the default prefix, which no other test here uses.
func sampled(t *testing.T) map[string]string {
	t.Helper()
	samples.Lock()
	defer samples.Unlock()
	if samples.urls != nil {
		return samples.urls
	}
	broker := kafkatest.Start(t)
	events := produceSample(t, broker)
	urls := map[string]string{}
	for _, flavor := range estest.Flavors {
		store := estest.Shared(t, flavor)
		p := boot.Process{
			Service: "usage-indexer", Getenv: func(string) string { return "" }, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
			Args: []string{
				"replay", "-days", "1", "-kafka-brokers", strings.Join(broker.Brokers, ","), "-schema-registry", broker.RegistryURL,
				"-elasticsearch-url", store.URL, "-retention", "0", "-replicas", "0",
			},
		}
		if err := run(t.Context(), p); err != nil {
			t.Fatalf("%s: %v", flavor, err)
		}
		if n := store.Count(sampleDay); n != events {
			t.Fatalf("%s has %d documents of %d events", flavor, n, events)
		}
		urls[string(flavor)] = store.URL
	}
	samples.urls = urls
	return urls
}

// produceSample puts testdata/sample.jsonl onto the topic and returns how many
// events that is.
func produceSample(t *testing.T, broker *kafkatest.Broker) int {
	t.Helper()
	broker.CreateTopic(usagev1.Topic, usagev1.Partitions)
	id, err := kafka.NewRegistry(broker.RegistryURL).Register(t.Context(), usagev1.Subject, schemas.UsageV1)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/sample.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var records []*kafkatest.Record
	for line := range bytes.Lines(text) {
		var fields map[string]any
		d := json.NewDecoder(bytes.NewReader(line))
		d.UseNumber()
		if err := d.Decode(&fields); err != nil {
			t.Fatalf("line %d: %v", len(records)+1, err)
		}
		var e usagev1.Event
		if err := fill(reflect.ValueOf(&e).Elem(), fields); err != nil {
			t.Fatalf("line %d: %v", len(records)+1, err)
		}
		if err := e.Validate(); err != nil {
			t.Fatalf("line %d: %v", len(records)+1, err)
		}
		records = append(records, &kafkatest.Record{
			Topic: usagev1.Topic, Partition: int32(e.StreamID[15]), // the sample's streams are named for their partition
			Key: usagev1.Key(e.Tenant, e.ClientAddress), Value: wire.Frame(nil, id, usagev1.AppendEvent(nil, &e)),
		})
	}
	broker.Produce(records...)
	return len(records)
}

// fill sets a record to what JSON says of it under the names of its schema, as
// deploy/examples/consumer prints it: ids and times as text, bytes in
// hexadecimal, enums by their symbols. What JSON leaves out stays zero.
func fill(into reflect.Value, from any) error {
	switch into.Kind() { //nolint:exhaustive // the rest are scalars
	case reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		return fill(into.Elem(), from)
	case reflect.Struct:
		fields, _ := from.(map[string]any)
		left := len(fields)
		for i := range into.NumField() {
			name := into.Type().Field(i).Tag.Get("avro")
			if v, ok := fields[name]; ok {
				left--
				if err := fill(into.Field(i), v); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
		if left > 0 {
			return fmt.Errorf("%v has %d fields that %v has not", fields, left, into.Type())
		}
		return nil
	case reflect.Slice:
		if text, ok := from.(string); ok {
			b, err := hex.DecodeString(text)
			into.SetBytes(b)
			return err
		}
		items, _ := from.([]any)
		into.Set(reflect.MakeSlice(into.Type(), len(items), len(items)))
		for i, v := range items {
			if err := fill(into.Index(i), v); err != nil {
				return err
			}
		}
		return nil
	}
	return scalar(into, from)
}

func scalar(into reflect.Value, from any) error {
	text := fmt.Sprint(from)
	switch into.Kind() { //nolint:exhaustive // records have no others
	case reflect.String:
		into.SetString(text)
		return nil
	case reflect.Bool:
		into.SetBool(from == true)
		return nil
	case reflect.Array: // an id
		b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
		if err == nil && len(b) == into.Len() {
			reflect.Copy(into, reflect.ValueOf(b))
			return nil
		}
	case reflect.Uint8: // an enum
		for n := range uint64(32) {
			if into.SetUint(n); fmt.Sprint(into.Interface()) == text {
				return nil
			}
		}
	case reflect.Int32, reflect.Int64:
		if n, ok := from.(json.Number); ok {
			i, err := n.Int64()
			into.SetInt(i)
			return err
		}
		at, err := time.Parse(time.RFC3339, text)
		into.SetInt(at.UnixMicro())
		return err
	}
	return fmt.Errorf("%q is no %v", text, into.Type())
}
