// Package codectest asks the Avro libraries what tests want to know of them.
package codectest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"

	hamba "github.com/hamba/avro/v2"
	twmb "github.com/twmb/avro"
)

// Compatible returns why reader, as Avro JSON text, cannot read what was written
// with writer, in hamba's opinion or twmb's, or nil. Each call has checkers of
// its own: a shared hamba checker remembers schemas without their defaults and
// then accepts what it must refuse.
func Compatible(reader, writer string) error {
	hr, err := hamba.ParseWithCache(reader, "", &hamba.SchemaCache{})
	if err != nil {
		return fmt.Errorf("hamba: reader: %w", err)
	}
	hw, err := hamba.ParseWithCache(writer, "", &hamba.SchemaCache{})
	if err != nil {
		return fmt.Errorf("hamba: writer: %w", err)
	}
	if err := hamba.NewSchemaCompatibility().Compatible(hr, hw); err != nil {
		return fmt.Errorf("hamba: %w", err)
	}
	tr, err := twmb.Parse(reader)
	if err != nil {
		return fmt.Errorf("twmb: reader: %w", err)
	}
	tw, err := twmb.Parse(writer)
	if err != nil {
		return fmt.Errorf("twmb: writer: %w", err)
	}
	if err := twmb.CheckCompatibility(tw, tr); err != nil {
		return fmt.Errorf("twmb: %w", err)
	}
	return nil
}

// parsed holds the schemas that twmb has parsed: tests ask for the same ones.
var parsed sync.Map

func parse(schema string) (*twmb.Schema, error) {
	if s, ok := parsed.Load(schema); ok {
		if s, ok := s.(*twmb.Schema); ok {
			return s, nil
		}
	}
	s, err := twmb.Parse(schema)
	if err == nil {
		parsed.Store(schema, s)
	}
	return s, err
}

// Encode returns the body of v as twmb writes it. v may be a struct or a
// map[string]any, whose missing fields take their defaults.
func Encode(schema string, v any) ([]byte, error) {
	s, err := parse(schema)
	if err != nil {
		return nil, err
	}
	return s.Encode(v)
}

// JSON returns v as Avro JSON, indented.
func JSON(schema string, v any) ([]byte, error) {
	s, err := parse(schema)
	if err != nil {
		return nil, err
	}
	text, err := s.EncodeJSON(v, twmb.TaggedUnions())
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// FromJSON returns the body of a value in Avro JSON.
func FromJSON(schema string, text []byte) ([]byte, error) {
	s, err := parse(schema)
	if err != nil {
		return nil, err
	}
	var v any
	if err := s.DecodeJSON(text, &v, twmb.TaggedUnions()); err != nil {
		return nil, err
	}
	return s.Encode(v)
}
