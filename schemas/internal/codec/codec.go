// Package codec is the one place that knows Avro libraries.
//
// It encodes with hamba/avro and decodes with twmb/avro, always. hamba is no
// longer maintained and must not decode what others can write: a hostile block
// count gives it a slice of impossible length and no error, or a loop without
// end (docs/adr/0005). Its bytes are those of every other implementation once
// the block size header is off.
package codec

import (
	"fmt"

	hamba "github.com/hamba/avro/v2"
	twmb "github.com/twmb/avro"
)

// blockLength keeps every array in one block, as other implementations write
// it: no array of the schemas may have that many items.
const blockLength = 1 << 16

// An Encoder writes Go values with one schema. It is safe for concurrent use.
type Encoder struct {
	api    hamba.API
	schema hamba.Schema
}

// NewEncoder returns an encoder for schema, as Avro JSON text.
func NewEncoder(schema string) (*Encoder, error) {
	parsed, err := hamba.ParseWithCache(schema, "", &hamba.SchemaCache{})
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	return &Encoder{
		api:    hamba.Config{DisableBlockSizeHeader: true, BlockLength: blockLength}.Freeze(),
		schema: parsed,
	}, nil
}

// Append appends the Avro body of v, without framing, to dst.
func (e *Encoder) Append(dst []byte, v any) ([]byte, error) {
	body, err := e.api.Marshal(e.schema, v)
	if err != nil {
		return dst, err
	}
	return append(dst, body...), nil
}

// A Reader is the schema that its owner's Go types were made from.
type Reader struct {
	schema *twmb.Schema
}

// NewReader returns a reader of schema, as Avro JSON text.
func NewReader(schema string) (*Reader, error) {
	parsed, err := twmb.Parse(schema)
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	return &Reader{schema: parsed}, nil
}

// Of returns a decoder of what was written with schema writer. It fails when
// writer is no schema, or none that the reader can read.
func (r *Reader) Of(writer string) (*Decoder, error) {
	parsed, err := twmb.Parse(writer)
	if err != nil {
		return nil, fmt.Errorf("writer's schema: %w", err)
	}
	resolved, err := twmb.Resolve(parsed, r.schema)
	if err != nil {
		return nil, fmt.Errorf("writer's schema: %w", err)
	}
	body, err := shapeOf(parsed.Canonical())
	if err != nil {
		return nil, fmt.Errorf("writer's schema: %w", err)
	}
	return &Decoder{schema: resolved, body: body}, nil
}

// A Decoder reads bodies of one writer's schema into the reader's Go types. It
// is safe for concurrent use.
type Decoder struct {
	schema *twmb.Schema
	body   *shape // as the writer's schema has it
}

// Decode reads the whole body into v, a pointer. Bytes left over are an error.
// It checks neither bounds nor UTF-8: what it accepts is still to be validated.
// Its time and memory are in proportion to the body, whatever the body claims.
func (d *Decoder) Decode(body []byte, v any) error {
	rest, err := d.body.walk(body, 0)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("%d bytes are left over", len(rest))
	}
	if rest, err = d.schema.Decode(body, v); err != nil {
		return err
	}
	if len(rest) > 0 { // the two disagree on what the schema says
		return fmt.Errorf("%d bytes were not read", len(rest))
	}
	return nil
}
