package strict_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog/strict"
)

// TestUnreadable guarantees what is no JSON object at all.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40)
	for _, text := range []string{
		"", " ", "{", `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `{'a':1}`, "[]", "1", "null", `"a"`, "{}x", "{}{}", `{"a":1}]`, "{\"a\":\"\x01\"}",
		"{\"a\":\"\xff\"}", `{"a":"\ud800"}`, `{"a":"\udc00\ud800"}`, `{"a":"x\ud800\u0041"}`, `{"\ud800":1}`, `{"a":01}`, `{"a":+1}`, `{"a":NaN}`, deep,
		"\ufeff{}",
	} {
		if _, err := strict.Parse([]byte(text)); !errors.Is(err, strict.ErrUnreadable) {
			t.Errorf("Parse(%q) = %v, want unreadable", text, err)
		}
	}
	for _, text := range []string{"{}", " {\n} ", `{"a":"\ud83d\ude00"}`, `{"a":"\\ud800"}`, `{"a":"\u0000"}`} {
		if _, err := strict.Parse([]byte(text)); err != nil {
			t.Errorf("Parse(%q) = %v", text, err)
		}
	}
}

// faults reads text the way every kind of object is read.
func faults(t *testing.T, text string) rule.Faults {
	t.Helper()
	o, err := strict.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	o.Text("text")
	o.Int("int")
	o.Bool("bool")
	o.Texts("texts")
	inner := o.Object("object")
	inner.Int("int")
	inner.Close()
	for _, item := range o.Objects("objects") {
		item.Int("int")
		item.Close()
	}
	for _, e := range o.Either("either") {
		e.Object.Int("left")
		e.Object.Close()
	}
	o.Close()
	return o.Faults()
}

// TestFaults guarantees that every fault is found, with the path of its field.
func TestFaults(t *testing.T) {
	t.Parallel()
	tests := []struct {
		text string
		want string
	}{
		{`{}`, ``},
		{`{"text":"x","int":1,"bool":true,"texts":["a"],"object":{"int":1},"objects":[{"int":1},{}],"either":[1,{"left":2}]}`, ``},
		{`{"text":1}`, `text: is a number, want text`},
		{`{"text":null}`, `text: is null, want text`},
		{`{"int":"1"}`, `int: is text, want a whole number`},
		{`{"int":1.5}`, `int: is 1.5, want a whole number`},
		{`{"bool":"true"}`, `bool: is text, want true or false`},
		{`{"texts":"a"}`, `texts: is text, want a list`},
		{`{"texts":["a",1,null]}`, `texts[1]: is a number, want text; texts[2]: is null, want text`},
		{`{"object":[]}`, `object: is a list, want an object`},
		{`{"object":{"Int":1}}`, `object.Int: is no field`},
		{`{"objects":[{},{"x":1}]}`, `objects[1].x: is no field`},
		{`{"objects":[[]]}`, `objects[0]: is a list, want an object`},
		{`{"either":[true,0.5,{"right":1}]}`, `either[0]: is true or false, want a whole number or an object; either[1]: is 0.5, want a whole number or an object; either[2].right: is no field`},
		{`{"int":1,"int":2}`, `int: is there twice`},
		{`{"object":{"int":1,"int":1}}`, `object.int: is there twice`},
		{`{"TEXT":"x","Int":1}`, `TEXT: is no field; Int: is no field`},
		{`{"":1}`, `[""]: is no field`},
		{`{"object.int":1}`, `["object.int"]: is no field`},
		{`{"object":{"a b":1}}`, `object["a b"]: is no field`},
	}
	for _, tt := range tests {
		if got := faults(t, tt.text).Error(); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.text, got, tt.want)
		}
	}
}

// TestInt guarantees that a whole number is read however it is written, and
// that one which does not fit stays out of every bound.
func TestInt(t *testing.T) {
	t.Parallel()
	tests := []struct {
		text string
		want int64
		ok   bool
	}{
		{"0", 0, true},
		{"-0", 0, true},
		{"0e5", 0, true},
		{"42", 42, true},
		{"-42", -42, true},
		{"1e3", 1000, true},
		{"1E+3", 1000, true},
		{"1.50e1", 15, true},
		{"100.00", 100, true},
		{"12300e-2", 123, true},
		{"9007199254740993", 9007199254740993, true}, // not through a float
		{"9223372036854775807", math.MaxInt64, true},
		{"9223372036854775808", math.MaxInt64, true},
		{"-9223372036854775809", math.MinInt64, true},
		{"1e999999999999999999999", math.MaxInt64, true},
		{"-1e400", math.MinInt64, true},
		{"1e-1", 0, false},
		{"1e-999999999999999999999", 0, false},
		{"0.1", 0, false},
		{"9223372036854775807.5", 0, false},
		{"0e999999999999999999999", 0, true},
	}
	for _, tt := range tests {
		o, err := strict.Parse([]byte(`{"n":` + tt.text + `}`))
		if err != nil {
			t.Fatal(err)
		}
		n := o.Int("n")
		if ok := n != nil; ok != tt.ok || ok && *n != tt.want || ok == (len(o.Faults()) > 0) {
			t.Errorf("%s is %v (%v), want %d, %v", tt.text, n, o.Faults(), tt.want, tt.ok)
		}
	}
}

// FuzzParse guarantees that no text does harm: what is accepted is JSON to
// encoding/json as well, and every fault has a path and a message fit to be
// shown.
func FuzzParse(f *testing.F) {
	f.Add(`{"text":"x","int":1e3,"object":{"int":1},"objects":[{"int":1}],"either":[1,{"left":2}]}`)
	f.Add(`{"a":"\ud800\udc00\\u"}`)
	f.Add("{\"\xff\":1}")
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := strict.Parse([]byte(text)); err != nil {
			if !errors.Is(err, strict.ErrUnreadable) || !utf8.ValidString(err.Error()) {
				t.Errorf("Parse = %q", err)
			}
			return
		}
		if !json.Valid([]byte(text)) {
			t.Errorf("accepted what is no JSON: %q", text)
		}
		for _, fault := range faults(t, text) {
			if fault.Field == "" || len(fault.Field) > 4096 || !utf8.ValidString(fault.Field+fault.Message) {
				t.Errorf("fault %q: %q", fault.Field, fault.Message)
			}
		}
	})
}
