package codec_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"penstock.dev/schemas"
	"penstock.dev/schemas/internal/codec"
	"penstock.dev/schemas/internal/codec/codectest"
	"penstock.dev/schemas/internal/schemastest"
	"penstock.dev/schemas/wire"
)

// everything is a schema with every type that Avro has, so that a writer of
// another house is gone over as well as ours.
const everything = `{"type": "record", "name": "All", "fields": [
	{"name": "null", "type": "null"}, {"name": "boolean", "type": "boolean"},
	{"name": "int", "type": "int"}, {"name": "long", "type": "long"},
	{"name": "float", "type": "float"}, {"name": "double", "type": "double"},
	{"name": "bytes", "type": "bytes"}, {"name": "string", "type": "string"},
	{"name": "fixed", "type": {"type": "fixed", "name": "F", "size": 3}},
	{"name": "enum", "type": {"type": "enum", "name": "E", "symbols": ["a", "b"]}},
	{"name": "array", "type": {"type": "array", "items": "F"}},
	{"name": "map", "type": {"type": "map", "values": {"type": "array", "items": "E"}}},
	{"name": "union", "type": ["null", "All", "string"]},
	{"name": "time", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}`

func all(union any) map[string]any {
	return map[string]any{
		"null": nil, "boolean": true, "int": 1, "long": int64(1) << 40, "float": float32(1), "double": 2.0,
		"bytes": []byte("bytes"), "string": "string", "fixed": []byte("abc"), "enum": "b",
		"array": []any{[]byte("abc"), []byte("def")}, "map": map[string]any{"k": []any{"a", "b"}},
		"union": union, "time": int64(5),
	}
}

func decoder(t testing.TB, schema string) *codec.Decoder {
	t.Helper()
	r, err := codec.NewReader(schema)
	if err != nil {
		t.Fatal(err)
	}
	d, err := r.Of(schema)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDecodeEverything guarantees that a body of any type is read when it is
// whole, and refused when it is cut anywhere or a byte too long.
func TestDecodeEverything(t *testing.T) {
	t.Parallel()

	d := decoder(t, everything)
	for _, union := range []any{nil, "text", all(nil), all(all("deep"))} {
		body, err := codectest.Encode(everything, all(union))
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := d.Decode(body, &v); err != nil {
			t.Errorf("whole: %v", err)
		}
		for n := range body {
			if err := d.Decode(body[:n], &v); err == nil {
				t.Errorf("cut to %d of %d bytes it is read", n, len(body))
			}
		}
		if err := d.Decode(append(slices.Clone(body), 0), &v); err == nil || !strings.Contains(err.Error(), "1 bytes are left over") {
			t.Errorf("a byte too many: %v", err)
		}
	}
}

// TestDecodeDeep guarantees that types which nest in themselves are followed
// only so far.
func TestDecodeDeep(t *testing.T) {
	t.Parallel()

	const list = `{"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}`
	d := decoder(t, list)
	var v any
	for levels, ok := range map[int]bool{20: true, 1000: false, 1_000_000: false} {
		err := d.Decode(append(bytes.Repeat([]byte{2}, levels), 0), &v)
		if (err == nil) != ok {
			t.Errorf("%d levels: %v", levels, err)
		}
	}
}

// TestAppendOneBlock guarantees that a long array is written as one block, as
// other implementations do: hamba's own are of 100 items.
func TestAppendOneBlock(t *testing.T) {
	t.Parallel()

	r := schemastest.Rate()
	r.Rule.Match.Networks = slices.Repeat([]string{"198.51.100.0/24"}, 256)
	e, err := codec.NewEncoder(schemas.RulesV1)
	if err != nil {
		t.Fatal(err)
	}
	got, err := e.Append([]byte("before"), &r)
	if err != nil {
		t.Fatal(err)
	}
	want, err := codectest.Encode(schemas.RulesV1, &r)
	if err != nil || !bytes.Equal(got, append([]byte("before"), want...)) {
		t.Errorf("hamba writes %d bytes, twmb %d (%v)", len(got), len(want), err)
	}
}

// TestAppendFails guarantees that what cannot be written leaves dst as it was.
func TestAppendFails(t *testing.T) {
	t.Parallel()

	e, err := codec.NewEncoder(schemas.RulesV1)
	if err != nil {
		t.Fatal(err)
	}
	r := schemastest.Rate()
	r.Rule.Mode = "sometimes"
	if got, err := e.Append([]byte("before"), &r); err == nil || string(got) != "before" {
		t.Errorf("Append = %q, %v", got, err)
	}
}

// TestNoSchema guarantees that a text which is no schema is an error, at once
// where it is the code's own and as poison where it is a writer's.
func TestNoSchema(t *testing.T) {
	t.Parallel()

	for _, text := range []string{"", "{", `"nothing"`, `{"type": "record"}`} {
		if _, err := codec.NewEncoder(text); err == nil {
			t.Errorf("NewEncoder(%q) succeeds", text)
		}
		if _, err := codec.NewReader(text); err == nil {
			t.Errorf("NewReader(%q) succeeds", text)
		}
		var v any
		ids := wire.NewIDs(nil, "s")
		ids.Seed(map[uint32]string{1: text})
		if err := codec.NewValues(everything, 100, ids).Decode(t.Context(), wire.Frame(nil, 1, nil), &v); !errors.Is(err, wire.ErrPoison) {
			t.Errorf("a value under %q: %v, want %v", text, err, wire.ErrPoison)
		}
		if err := codec.NewValues(text, 100, schemastest.IDs("s", everything)).Decode(t.Context(), wire.Frame(nil, 1, nil), &v); err == nil || errors.Is(err, wire.ErrPoison) {
			t.Errorf("a reader of %q: %v, want an error that is no record's fault", text, err)
		}
	}
}
