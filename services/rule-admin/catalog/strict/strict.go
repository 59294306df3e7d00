// Package strict reads JSON from strangers and forgives nothing: unknown
// fields, fields given twice, wrong types and null are faults, each with the
// path of the field. encoding/json alone matches names in any case, keeps the
// last of two fields, and stops at the first fault.
package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"penstock.dev/services/internal/rule"
)

// maxDepth is how deep objects and lists may nest. No catalogue object needs
// more than four.
const maxDepth = 16

// ErrUnreadable reports text that is no single JSON object. Match it with
// errors.Is; the text says where.
var ErrUnreadable = errors.New("unreadable JSON")

// An Object is a JSON object that is being read. Each field is taken once, by
// name and type; Close then complains about those that nobody asked for. Faults
// of the whole document are kept together.
type Object struct {
	path   string
	names  []string
	values map[string]any // string, json.Number, bool, nil, []any, *Object
	faults *rule.Faults
}

// Parse returns the object that text holds. The error wraps ErrUnreadable.
func Parse(text []byte) (*Object, error) {
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("%w: not UTF-8", ErrUnreadable)
	}
	if at := loneSurrogate(text); at >= 0 {
		return nil, fmt.Errorf("%w: half of a surrogate pair at byte %d", ErrUnreadable, at)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	p := parser{d: d, faults: &rule.Faults{}}
	token, err := p.token()
	if err != nil {
		return nil, err
	}
	if token != json.Delim('{') {
		return nil, fmt.Errorf("%w: want an object", ErrUnreadable)
	}
	o, err := p.object("", 1)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: more text after the object, at byte %d", ErrUnreadable, d.InputOffset())
	}
	return o, nil
}

type parser struct {
	d      *json.Decoder
	faults *rule.Faults
}

func (p *parser) token() (json.Token, error) {
	t, err := p.d.Token()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%w: ends too early, at byte %d", ErrUnreadable, p.d.InputOffset())
	case err != nil:
		return nil, fmt.Errorf("%w: %w, at byte %d", ErrUnreadable, err, p.d.InputOffset())
	}
	return t, nil
}

func (p *parser) object(path string, depth int) (*Object, error) {
	o := &Object{path: path, values: map[string]any{}, faults: p.faults}
	for {
		t, err := p.token()
		if err != nil {
			return nil, err
		}
		if t == json.Delim('}') {
			return o, nil
		}
		name, _ := t.(string) // the decoder lets nothing else be a name
		v, err := p.value(o.at(name), depth)
		if err != nil {
			return nil, err
		}
		if _, twice := o.values[name]; twice {
			p.faults.Add(o.at(name), "is there twice")
			continue
		}
		o.names = append(o.names, name)
		o.values[name] = v
	}
}

func (p *parser) value(path string, depth int) (any, error) {
	t, err := p.token()
	if err != nil {
		return nil, err
	}
	delim, nested := t.(json.Delim)
	switch {
	case !nested:
		return t, nil
	case depth >= maxDepth:
		return nil, fmt.Errorf("%w: %s nests deeper than %d", ErrUnreadable, path, maxDepth)
	case delim == '{':
		return p.object(path, depth+1)
	}
	items := []any{}
	for p.d.More() {
		v, err := p.value(item(path, len(items)), depth+1)
		if err != nil {
			return nil, err
		}
		items = append(items, v)
	}
	_, err = p.token() // the closing bracket
	return items, err
}

func item(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// loneSurrogate returns where text escapes half of a surrogate pair, which no
// UTF-8 can hold, or -1. encoding/json would put U+FFFD in its place.
func loneSurrogate(text []byte) int {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		if hi := escaped(text[i:]); hi >= 0xd800 && hi < 0xe000 {
			lo := rune(-1)
			if i+6 <= len(text) {
				lo = escaped(text[i+6:])
			}
			if hi >= 0xdc00 || lo < 0xdc00 || lo >= 0xe000 {
				return i
			}
			i += 10
		}
		i++ // whatever is escaped
	}
	return -1
}

// escaped returns the code unit that text begins with as \uXXXX, or -1.
func escaped(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}

// Faults returns what was wrong so far, in the whole document.
func (o *Object) Faults() rule.Faults { return *o.faults }

// Names returns the fields that nobody has taken yet, in the order they came.
func (o *Object) Names() []string {
	left := []string{}
	for _, name := range o.names {
		if _, ok := o.values[name]; ok {
			left = append(left, name)
		}
	}
	return left
}

// Close adds a fault for each field that nobody took.
func (o *Object) Close() {
	if o == nil {
		return
	}
	for _, name := range o.Names() {
		o.faults.Add(o.at(name), "is no field")
	}
}

// at is the path of a field. A name that is no plain word is quoted, so that
// no path can pretend to be another.
func (o *Object) at(name string) string {
	plain := name != "" && len(name) <= 128 && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r == '.' || r == '[' || r == ']' || r == '"' || r == 0x7f
	})
	switch {
	case !plain:
		if len(name) > 128 {
			name = strings.ToValidUTF8(name[:128], "") + "…"
		}
		return o.path + "[" + strconv.Quote(name) + "]"
	case o.path == "":
		return name
	}
	return o.path + "." + name
}

// take returns the field's value of the wanted type. False means absent, or
// present and a fault.
func take[T any](o *Object, name, want string) (v T, ok bool) {
	if o == nil {
		return v, false
	}
	raw, there := o.values[name]
	if !there {
		return v, false
	}
	delete(o.values, name)
	return as[T](o.faults, o.at(name), raw, want)
}

func as[T any](faults *rule.Faults, path string, raw any, want string) (T, bool) {
	v, ok := raw.(T)
	if !ok {
		faults.Add(path, "is %s, want %s", typeOf(raw), want)
	}
	return v, ok
}

func typeOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "text"
	case json.Number:
		return "a number"
	case bool:
		return "true or false"
	case []any:
		return "a list"
	default:
		return "an object"
	}
}

// Text takes a string; nil when it is absent.
func (o *Object) Text(name string) *string {
	if s, ok := take[string](o, name, "text"); ok {
		return &s
	}
	return nil
}

// Bool takes true or false; nil when it is absent.
func (o *Object) Bool(name string) *bool {
	if b, ok := take[bool](o, name, "true or false"); ok {
		return &b
	}
	return nil
}

const whole = "a whole number"

// Int takes a whole number; nil when it is absent. One beyond 64 bits becomes
// the nearest that fits, so that it is out of bounds and not of a wrong type.
func (o *Object) Int(name string) *int64 {
	n, ok := take[json.Number](o, name, whole)
	if !ok {
		return nil
	}
	v, ok := integer(n.String())
	if !ok {
		o.faults.Add(o.at(name), "is %.40s, want %s", n, whole)
		return nil
	}
	return &v
}

// Object takes an object; nil when it is absent.
func (o *Object) Object(name string) *Object {
	v, _ := take[*Object](o, name, "an object")
	return v
}

// Texts takes a list of strings; nil when it is absent.
func (o *Object) Texts(name string) []string {
	items, ok := take[[]any](o, name, "a list")
	if !ok {
		return nil
	}
	texts := make([]string, 0, len(items))
	for i, raw := range items {
		if s, ok := as[string](o.faults, item(o.at(name), i), raw, "text"); ok {
			texts = append(texts, s)
		}
	}
	return texts
}

// Objects takes a list of objects; nil when it is absent.
func (o *Object) Objects(name string) []*Object {
	items, ok := take[[]any](o, name, "a list")
	if !ok {
		return nil
	}
	objects := make([]*Object, 0, len(items))
	for i, raw := range items {
		if v, ok := as[*Object](o.faults, item(o.at(name), i), raw, "an object"); ok {
			objects = append(objects, v)
		}
	}
	return objects
}

// An Either is an item of a list that holds numbers and objects.
type Either struct {
	Int    *int64
	Object *Object
}

// Either takes a list of whole numbers and objects; nil when it is absent.
func (o *Object) Either(name string) []Either {
	items, ok := take[[]any](o, name, "a list")
	if !ok {
		return nil
	}
	out := make([]Either, 0, len(items))
	for i, raw := range items {
		switch v := raw.(type) {
		case *Object:
			out = append(out, Either{Object: v})
		case json.Number:
			if n, ok := integer(v.String()); ok {
				out = append(out, Either{Int: &n})
				continue
			}
			o.faults.Add(item(o.at(name), i), "is %.40s, want %s or an object", v, whole)
		default:
			o.faults.Add(item(o.at(name), i), "is %s, want %s or an object", typeOf(raw), whole)
		}
	}
	return out
}

// integer returns the value of a JSON number that is whole, however it is
// written (100, 1e2, 100.0), and the nearest int64 when it does not fit.
func integer(s string) (int64, bool) {
	negative := strings.HasPrefix(s, "-")
	mantissa, exponent, _ := strings.Cut(strings.ToLower(strings.TrimPrefix(s, "-")), "e")
	intPart, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(intPart+fraction, "0")
	shift := 0
	if exponent != "" {
		e, err := strconv.ParseInt(exponent, 10, 32)
		if err != nil { // far out of range, either way
			e = math.MaxInt32
			if strings.HasPrefix(exponent, "-") {
				e = math.MinInt32
			}
		}
		shift = int(e)
	}
	shift -= len(fraction)
	trimmed := strings.TrimRight(digits, "0")
	shift += len(digits) - len(trimmed)
	switch {
	case trimmed == "":
		return 0, true
	case shift < 0:
		return 0, false
	case len(trimmed)+shift > 19:
		return saturate(negative), true
	}
	v, err := strconv.ParseInt(trimmed+strings.Repeat("0", shift), 10, 64)
	if err != nil {
		return saturate(negative), true
	}
	if negative {
		v = -v
	}
	return v, true
}

func saturate(negative bool) int64 {
	if negative {
		return math.MinInt64
	}
	return math.MaxInt64
}
