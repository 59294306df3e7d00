//go:build acceptance

package acceptance_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// A schema is a .avsc file as JSON, to say what a subscriber must see of a
// record without asking anybody's decoder.
type schema struct {
	root  any
	names map[string]map[string]any // named types, by full name and by short one
}

func parseSchema(text string) (*schema, error) {
	s := &schema{names: map[string]map[string]any{}}
	if err := json.Unmarshal([]byte(text), &s.root); err != nil {
		return nil, err
	}
	s.collect(s.root, "")
	return s, nil
}

func (s *schema) collect(t any, namespace string) {
	switch t := t.(type) {
	case []any:
		for _, branch := range t {
			s.collect(branch, namespace)
		}
	case map[string]any:
		if ns, ok := t["namespace"].(string); ok {
			namespace = ns
		}
		if name, ok := t["name"].(string); ok {
			s.names[name], s.names[namespace+"."+name] = t, t
		}
		for _, f := range list(t["fields"]) {
			s.collect(object(f)["type"], namespace)
		}
		s.collect(t["type"], namespace)
		s.collect(t["items"], namespace)
	}
}

func object(v any) map[string]any {
	o, _ := v.(map[string]any)
	return o
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

// shown turns Avro's own JSON of a value into what deploy/examples/consumer
// prints: unions without their tags, bytes in hexadecimal, ids as UUIDs, times
// as RFC 3339.
func (s *schema) shown(t, v any) any {
	switch t := t.(type) {
	case string:
		switch named := s.names[t]; {
		case named != nil:
			return s.shown(named, v)
		case t == "bytes":
			return hex.EncodeToString(latin1(v))
		}
	case []any:
		for tag, inner := range object(v) { // of one branch
			return s.shown(s.branch(t, tag), inner)
		}
		return nil
	case map[string]any:
		switch t["type"] {
		case "record":
			out := map[string]any{}
			for _, f := range list(t["fields"]) {
				name, _ := object(f)["name"].(string)
				out[name] = s.shown(object(f)["type"], object(v)[name])
			}
			return out
		case "array":
			out := make([]any, 0, len(list(v)))
			for _, item := range list(v) {
				out = append(out, s.shown(t["items"], item))
			}
			return out
		case "fixed":
			return uuidText(latin1(v))
		case "long":
			return instant(t["logicalType"], v)
		}
	}
	return v
}

// branch is the type of a union that Avro's JSON tags so.
func (s *schema) branch(union []any, tag string) any {
	for _, t := range union {
		if t == tag || object(t)["type"] == tag {
			return t
		}
	}
	return tag
}

// initial is the value of a record or field that its writer left alone: every
// default of the schema, as shown.
func (s *schema) initial(t any) map[string]any {
	if name, ok := t.(string); ok {
		t = s.names[name]
	}
	out := map[string]any{}
	for _, f := range list(object(t)["fields"]) {
		name, _ := object(f)["name"].(string)
		switch d := object(f)["default"].(type) {
		case float64:
			out[name] = json.Number(strconv.FormatFloat(d, 'f', -1, 64))
		default:
			out[name] = d
		}
	}
	return out
}

// latin1 is how Avro's JSON spells bytes: a character each.
func latin1(v any) []byte {
	s, _ := v.(string)
	b := make([]byte, 0, len(s))
	for _, r := range s {
		b = append(b, byte(r))
	}
	return b
}

func uuidText(b []byte) string {
	if len(b) != 16 {
		return hex.EncodeToString(b)
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// micros is how the example spells an instant.
func micros(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }

func instant(logical, v any) any {
	n, ok := v.(json.Number)
	if !ok {
		return v
	}
	i, err := n.Int64()
	switch {
	case err != nil:
		return v
	case logical == "timestamp-micros":
		return micros(time.UnixMicro(i))
	case logical == "timestamp-millis":
		return micros(time.UnixMilli(i))
	}
	return v
}
