package schemas_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock.dev/schemas"
	"penstock.dev/schemas/internal/codec/codectest"
	"penstock.dev/schemas/internal/schemastest"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
)

// TestTruncated guarantees that no sample passes when it is cut, at any byte, or
// has a byte too many.
func TestTruncated(t *testing.T) {
	t.Parallel()

	for _, p := range topics(t) {
		for _, name := range p.names() {
			s := p.samples[name]
			for n := range s.body {
				if _, err := p.read(t.Context(), p.newest, s.key, s.body[:n]); !errors.Is(err, wire.ErrPoison) {
					t.Errorf("%s %s cut to %d of %d bytes: %v, want %v", p.name, name, n, len(s.body), err, wire.ErrPoison)
				}
			}
			if _, err := p.read(t.Context(), p.newest, s.key, append(slices.Clone(s.body), 0)); !errors.Is(err, wire.ErrPoison) {
				t.Errorf("%s %s with a byte too many: %v, want %v", p.name, name, err, wire.ErrPoison)
			}
		}
	}
}

// TestMutated guarantees that bytes which were changed at random are refused as
// poison or read as a record within its bounds, and nothing else: no panic and
// no error that a consumer would retry for ever.
func TestMutated(t *testing.T) {
	t.Parallel()

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, p := range topics(t) {
		read, refused := 0, 0
		for range 3000 {
			s := p.samples[p.names()[rng.IntN(len(p.samples))]]
			body := slices.Clone(s.body)
			for range 1 + rng.IntN(3) {
				body[rng.IntN(len(body))] = byte(rng.Uint32())
			}
			_, err := p.read(t.Context(), p.newest, s.key, body)
			switch {
			case err == nil, errors.Is(err, wire.ErrSkip), errors.Is(err, wire.ErrSetAside):
				read++
			case errors.Is(err, wire.ErrPoison):
				refused++
			default:
				t.Fatalf("%s %x: %v", p.name, body, err)
			}
		}
		if read < 100 || refused < 100 {
			t.Errorf("%s: %d were read and %d refused: the mutations no longer test both", p.name, read, refused)
		}
	}
}

// longs returns numbers as Avro writes them.
func longs(vs ...int64) (b []byte) {
	for _, v := range vs {
		b = binary.AppendVarint(b, v)
	}
	return b
}

// TestBombs guarantees that a body which promises more than it holds is poison,
// at once and in the memory of an ordinary record, whatever version it is
// written with.
func TestBombs(t *testing.T) {
	e := schemastest.Decision()
	e.Counters = nil
	whole := usagev1.AppendEvent(nil, &e)
	prefix := whole[:len(whole)-3] // up to the counters
	tail := []byte{0, 0, 0}

	// What tomorrow's writers may add in the counters' place, and today's readers skip.
	array := edit(t, schemas.UsageV1, `{"name": "counters"`, `{"name": "notes", "type": {"type": "array", "items": "string"}, "default": []}, {"name": "counters"`)
	deep := edit(t, schemas.UsageV1, `{"name": "counters"`, `{"name": "list", "type": {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}}, {"name": "counters"`)

	var blocks []byte
	for range 1000 { // of one counter each, which is all zeros
		blocks = slices.Concat(blocks, longs(1), make([]byte, 16))
	}
	tests := []struct {
		name, writer string
		body         []byte
	}{
		{"an array of 2^62", schemas.UsageV1, slices.Concat(prefix, longs(1<<62))},
		{"an array of 2^40", schemas.UsageV1, slices.Concat(prefix, longs(1<<40))},
		{"an array of 10^8", schemas.UsageV1, slices.Concat(prefix, longs(100_000_000))},
		{"an array of 10^6", schemas.UsageV1, slices.Concat(prefix, longs(1_000_000))},
		{"an array of -10^8, of no bytes", schemas.UsageV1, slices.Concat(prefix, longs(-100_000_000, 0))},
		{"an array of -2^63, of no bytes", schemas.UsageV1, slices.Concat(prefix, longs(math.MinInt64, 0), tail)},
		{"an array whose blocks overflow", schemas.UsageV1, slices.Concat(prefix, longs(1), make([]byte, 16), longs(math.MaxInt64))},
		{"an array that lies of its bytes", schemas.UsageV1, slices.Concat(prefix, longs(-1, 1<<40), make([]byte, 16), tail)},
		{"an array of a thousand blocks", schemas.UsageV1, slices.Concat(prefix, blocks, tail)},
		{"a string of 2^62", schemas.UsageV1, slices.Concat(prefix, longs(1, 1<<62))},
		{"a string of 2^31", schemas.UsageV1, slices.Concat(prefix, longs(1, 1<<31))},
		{"a string of -1", schemas.UsageV1, slices.Concat(prefix, longs(1, -1))},
		{"a number of eleven bytes", schemas.UsageV1, slices.Concat(prefix, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})},
		{"a skipped array of 2^62", array, slices.Concat(prefix, longs(1<<62))},
		{"a skipped array of 10^9", array, slices.Concat(prefix, longs(1_000_000_000))},
		{"a skipped array of 2^62 bytes", array, slices.Concat(prefix, longs(-1, 1<<62))},
		{"a skipped array of -2^63", array, slices.Concat(prefix, longs(math.MinInt64, 0), tail)},
		{"a skipped string of 2^62", array, slices.Concat(prefix, longs(1, 1<<62))},
		{"a skipped string of -5", array, slices.Concat(prefix, longs(1, -5, 0), tail)},
		{"a skipped list of 60,000 levels", deep, slices.Concat(prefix, []byte(strings.Repeat("\x02", 60_000)))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := usagev1.NewDecoder(schemastest.IDs(usagev1.Subject, tt.writer))
			value := wire.Frame(nil, 1, tt.body)
			_, _ = d.Decode(t.Context(), []byte("acme"), nil) // so that only the body is measured
			if _, err := d.Decode(t.Context(), []byte("acme"), wire.Frame(nil, 1, prefix)); !errors.Is(err, wire.ErrPoison) {
				t.Fatalf("the schema is not read: %v", err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, err := d.Decode(t.Context(), []byte("acme"), value)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, wire.ErrPoison) {
				t.Errorf("Decode = %v, want %v", err, wire.ErrPoison)
			}
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 4<<20 || took > 2*time.Second {
				t.Errorf("it took %d bytes and %v", grown, took)
			}
		})
	}
}

// TestManyBlocks guarantees that an array in many small blocks, which costs twmb
// the square of their number, is poison at once, and that one in a few is read:
// other writers split arrays into blocks of 100.
func TestManyBlocks(t *testing.T) {
	t.Parallel()

	body, err := codectest.Encode(schemas.RulesV1, map[string]any{"kind": "rule", "id": "x", "version": 1, "revision": 1, "changed_at": 1, "rule": map[string]any{
		"mode": "enforce", "kind": "block", "algorithm": "none", "wallet": "none", "on_failure": "open", "meter": "m",
		"match": map[string]any{"networks": slices.Repeat([]any{"::/0"}, 200)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	network := slices.Concat(longs(4), []byte("::/0"))
	one := slices.Concat(longs(200), bytes.Repeat(network, 200))
	at := bytes.Index(body, one)
	if at < 0 {
		t.Fatal("the networks are not where they were")
	}
	split := func(block, items int) []byte {
		b := bytes.Repeat(slices.Concat(longs(int64(block)), bytes.Repeat(network, block)), items/block)
		return slices.Concat(body[:at], b, body[at+len(one):])
	}
	rules := topics(t)[0]
	if r, err := rules.read(t.Context(), schemas.RulesV1, "rule/x", split(100, 200)); err != nil {
		t.Errorf("two blocks of 100: %v, %+v", err, r)
	}
	start := time.Now()
	if _, err := rules.read(t.Context(), schemas.RulesV1, "rule/x", split(1, 170_000)); !errors.Is(err, wire.ErrPoison) {
		t.Errorf("170,000 blocks of 1: %v, want %v", err, wire.ErrPoison)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("170,000 blocks took %v", took)
	}
}

// TestTooLong guarantees that a body above its topic's cap is refused before it
// is read, and one at the cap is read.
func TestTooLong(t *testing.T) {
	t.Parallel()

	limits := map[string]int{rulesv1.Topic: 1 << 20, usagev1.Topic: 64 << 10, "quota-events.v1": 64 << 10}
	for _, p := range topics(t) {
		limit := limits[p.name]
		_, err := p.read(t.Context(), p.newest, "k", make([]byte, limit+1))
		if !errors.Is(err, wire.ErrPoison) || !strings.Contains(err.Error(), "want at most") {
			t.Errorf("%s above its cap: %v", p.name, err)
		}
		if _, err := p.read(t.Context(), p.newest, "k", make([]byte, limit)); err == nil || strings.Contains(err.Error(), "want at most") {
			t.Errorf("%s at its cap: %v, want another reason", p.name, err)
		}
	}
}

// TestForeignSchemas guarantees that a value written with a schema that is none,
// or is another topic's, is poison and not a fault to retry.
func TestForeignSchemas(t *testing.T) {
	t.Parallel()

	for _, p := range topics(t) {
		s := p.samples[p.names()[0]]
		for name, text := range map[string]string{
			"no JSON": "{", "no schema": `{"type": "nothing"}`, "a string": `"string"`,
			"another record": `{"type": "record", "name": "Other", "fields": []}`,
		} {
			for range 2 { // the outcome is remembered
				if _, err := p.read(t.Context(), text, s.key, s.body); !errors.Is(err, wire.ErrPoison) {
					t.Errorf("%s under %s: %v, want %v", p.name, name, err, wire.ErrPoison)
				}
			}
		}
	}
}
