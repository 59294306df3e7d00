package schemas_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"penstock.dev/schemas"
	"penstock.dev/schemas/internal/codec"
	"penstock.dev/schemas/internal/schemastest"
	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
)

// A topic is what the tests of this package go through, once for each schema.
type topic struct {
	name    string
	newest  string
	samples map[string]sample

	decoder func(writer string) decode
	made    map[string]decode // what decoder made, by writer
}

// A decode reads values that were written with one schema, framed as id 1.
type decode func(ctx context.Context, key string, value []byte) (any, error)

// A sample is a record, the key it goes under and its body.
type sample struct {
	key    string
	record any
	body   []byte
}

// topics returns the three topics, and their samples as the newest writer writes
// them.
func topics(t testing.TB) []topic {
	t.Helper()
	rules := topic{name: rulesv1.Topic, newest: schemas.RulesV1, samples: map[string]sample{}, made: map[string]decode{}}
	for name, r := range schemastest.Rules() {
		body, err := rulesv1.AppendRecord(nil, &r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		rules.samples[name] = sample{rulesv1.Key(r.Kind, r.ID), r, body}
	}
	rules.decoder = func(writer string) decode {
		d := rulesv1.NewDecoder(schemastest.IDs(rulesv1.Subject, writer))
		return func(ctx context.Context, key string, value []byte) (any, error) {
			return d.Decode(ctx, []byte(key), value)
		}
	}

	usage := topic{name: usagev1.Topic, newest: schemas.UsageV1, samples: map[string]sample{}, made: map[string]decode{}}
	for name, e := range schemastest.Usage() {
		usage.samples[name] = sample{usagev1.Key(e.Tenant, e.ClientAddress), e, usagev1.AppendEvent(nil, &e)}
	}
	usage.decoder = func(writer string) decode {
		d := usagev1.NewDecoder(schemastest.IDs(usagev1.Subject, writer))
		return func(ctx context.Context, key string, value []byte) (any, error) {
			return d.Decode(ctx, []byte(key), value)
		}
	}

	events := topic{name: quotaeventsv1.Topic, newest: schemas.QuotaEventsV1, samples: map[string]sample{}, made: map[string]decode{}}
	for name, e := range schemastest.QuotaEvents() {
		body, err := quotaeventsv1.AppendEvent(nil, &e)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		events.samples[name] = sample{quotaeventsv1.Key(e.TenantID), e, body}
	}
	events.decoder = func(writer string) decode {
		d := quotaeventsv1.NewDecoder(schemastest.IDs(quotaeventsv1.Subject, writer))
		return func(ctx context.Context, key string, value []byte) (any, error) {
			return d.Decode(ctx, []byte(key), value)
		}
	}
	return []topic{rules, usage, events}
}

// names returns the samples' names in order.
func (p topic) names() []string { return slices.Sorted(maps.Keys(p.samples)) }

// read decodes a body with the topic's decoder, as written with the schema
// writer.
func (p topic) read(ctx context.Context, writer, key string, body []byte) (any, error) {
	if p.made[writer] == nil {
		p.made[writer] = p.decoder(writer)
	}
	return p.made[writer](ctx, key, wire.Frame(nil, 1, body))
}

// resolved holds the decoders that tests have asked for, by reader and writer.
var resolved sync.Map

func resolve(reader, writer string) (*codec.Decoder, error) {
	pair := [2]string{reader, writer}
	if d, ok := resolved.Load(pair); ok {
		if d, ok := d.(*codec.Decoder); ok {
			return d, nil
		}
	}
	r, err := codec.NewReader(reader)
	if err != nil {
		return nil, err
	}
	d, err := r.Of(writer)
	if err == nil {
		resolved.Store(pair, d)
	}
	return d, err
}

// generic reads a body without Go types of its own.
func generic(reader, writer string, body []byte) (map[string]any, error) {
	d, err := resolve(reader, writer)
	if err != nil {
		return nil, err
	}
	var v any
	if err := d.Decode(body, &v); err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("read %T, want a record", v)
	}
	return m, nil
}

// keyOf returns the key that a record goes under.
func (p topic) keyOf(record map[string]any) string {
	switch p.name {
	case rulesv1.Topic:
		return fmt.Sprint(record["kind"], "/", record["id"])
	case usagev1.Topic:
		return usagev1.Key(fmt.Sprint(record["tenant"]), fmt.Sprint(record["client_address"]))
	default:
		return fmt.Sprint(record["tenant_id"])
	}
}
