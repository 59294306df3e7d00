package codec

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// Bounds of a body that no writer of the house's schemas comes near. twmb makes
// an array anew for each of its blocks, so that many small ones cost the square
// of their number: without maxBlocks, a body of 1 MiB takes minutes.
const (
	maxBlocks = 16 // of one array
	maxDepth  = 64 // of types within types
)

// A shape is a type as far as its bytes are concerned.
type shape struct {
	kind  string
	size  int      // of a fixed, in bytes
	parts []*shape // a record's fields, a union's branches, the items of an array or map
}

// shapeOf returns the shape of a schema in parsing canonical form.
func shapeOf(canonical []byte) (*shape, error) {
	return shapeIn(canonical, map[string]*shape{})
}

func shapeIn(raw json.RawMessage, names map[string]*shape) (*shape, error) {
	var name string
	if json.Unmarshal(raw, &name) == nil {
		if s, ok := names[name]; ok {
			return s, nil
		}
		return &shape{kind: name}, nil
	}
	var branches []json.RawMessage
	if json.Unmarshal(raw, &branches) == nil {
		s := &shape{kind: "union"}
		return s, s.add(branches, names)
	}
	var t struct {
		Type          json.RawMessage
		Name          string
		Size          int
		Items, Values json.RawMessage
		Fields        []struct{ Type json.RawMessage }
	}
	if err := json.Unmarshal(raw, &t); err != nil {
		return nil, err
	}
	s := &shape{size: t.Size}
	if err := json.Unmarshal(t.Type, &s.kind); err != nil {
		return nil, err
	}
	if t.Name != "" {
		names[t.Name] = s
	}
	var parts []json.RawMessage
	for _, f := range t.Fields {
		parts = append(parts, f.Type)
	}
	switch s.kind {
	case "array":
		parts = append(parts, t.Items)
	case "map":
		parts = append(parts, t.Values)
	}
	return s, s.add(parts, names)
}

func (s *shape) add(parts []json.RawMessage, names map[string]*shape) error {
	for _, p := range parts {
		part, err := shapeIn(p, names)
		if err != nil {
			return err
		}
		s.parts = append(s.parts, part)
	}
	return nil
}

var errShort = errors.New("the body ends too early")

// walk goes over one value at the start of src and returns what follows it. It
// takes time in proportion to src and allocates nothing.
func (s *shape) walk(src []byte, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("types nest deeper than %d", maxDepth)
	}
	switch s.kind {
	case "null":
		return src, nil
	case "boolean":
		return skip(src, 1)
	case "int", "long", "enum":
		_, rest, err := number(src)
		return rest, err
	case "float":
		return skip(src, 4)
	case "double":
		return skip(src, 8)
	case "fixed":
		return skip(src, int64(s.size))
	case "bytes", "string":
		n, rest, err := number(src)
		if err != nil {
			return nil, err
		}
		return skip(rest, n)
	case "record":
		for _, field := range s.parts {
			var err error
			if src, err = field.walk(src, depth+1); err != nil {
				return nil, err
			}
		}
		return src, nil
	case "union":
		n, rest, err := number(src)
		if err != nil {
			return nil, err
		}
		if n < 0 || n >= int64(len(s.parts)) {
			return nil, fmt.Errorf("branch %d of a union of %d", n, len(s.parts))
		}
		return s.parts[n].walk(rest, depth+1)
	case "array", "map":
		return s.walkBlocks(src, depth)
	}
	return nil, fmt.Errorf("type %q is none", s.kind)
}

// walkBlocks goes over the blocks of an array or map, up to the empty one.
func (s *shape) walkBlocks(src []byte, depth int) ([]byte, error) {
	for blocks := 0; ; blocks++ {
		n, rest, err := number(src)
		if err != nil || n == 0 {
			return rest, err
		}
		if blocks == maxBlocks {
			return nil, fmt.Errorf("an array of more than %d blocks", maxBlocks)
		}
		if n < 0 { // then its size in bytes follows, for readers that skip
			n = -n
			if _, rest, err = number(rest); err != nil {
				return nil, err
			}
		}
		if n < 0 || n > int64(len(rest)) { // an item takes a byte at least
			return nil, errShort
		}
		for src = rest; n > 0; n-- {
			if s.kind == "map" {
				size, rest, err := number(src)
				if err != nil {
					return nil, err
				}
				if src, err = skip(rest, size); err != nil {
					return nil, err
				}
			}
			if src, err = s.parts[0].walk(src, depth+1); err != nil {
				return nil, err
			}
		}
	}
}

func number(src []byte) (int64, []byte, error) {
	v, n := binary.Varint(src)
	switch {
	case n == 0:
		return 0, nil, errShort
	case n < 0:
		return 0, nil, errors.New("a number of more than 64 bits")
	}
	return v, src[n:], nil
}

func skip(src []byte, n int64) ([]byte, error) {
	if n < 0 || n > int64(len(src)) {
		return nil, errShort
	}
	return src[n:], nil
}
