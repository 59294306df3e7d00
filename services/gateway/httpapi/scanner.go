package httpapi

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"penstock.dev/services/gateway/ask"
)

// A scanner reads the JSON of a question. It is strict where encoding/json is
// not: names are compared as they are written, a name may come once, half a
// surrogate pair is no text, and null is no text either. What is no JSON ends
// its reading; a value that is JSON and wrong can be skipped.
type scanner struct {
	text  string // valid UTF-8
	at    int
	fault *ask.Fault
}

// fail takes note of the first fault.
func (s *scanner) fail(field, message string) {
	if s.fault == nil {
		s.fault = &ask.Fault{Field: field, Message: message}
	}
	s.at = len(s.text)
}

// maxWrong is how many values of one question are skipped and named; the next
// one ends the reading.
const maxWrong = 16

// wrong names a value that may be any JSON, and skips it.
func (s *scanner) wrong(field, message string, list *ask.Faults) {
	switch {
	case s.fault != nil:
	case len(*list) >= maxWrong:
		s.fail(field, message+"; what follows was not read")
	case !s.skip():
		s.fail(field, message)
	default:
		list.Add(field, message)
	}
}

// skip reads a value and forgets it. It returns false where there is none.
func (s *scanner) skip() bool {
	var v json.RawMessage
	dec := json.NewDecoder(strings.NewReader(s.text[s.at:]))
	if dec.Decode(&v) != nil {
		return false
	}
	s.at += int(dec.InputOffset())
	return true
}

// starts reports whether the next value begins with one of some bytes.
func (s *scanner) starts(with string) bool {
	s.space()
	return s.at < len(s.text) && strings.IndexByte(with, s.text[s.at]) >= 0
}

// space skips white space.
func (s *scanner) space() {
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return
		}
	}
}

// take skips white space and then c, if it is there.
func (s *scanner) take(c byte) bool {
	s.space()
	if s.at < len(s.text) && s.text[s.at] == c {
		s.at++
		return true
	}
	return false
}

// rest reports whether anything but white space is left.
func (s *scanner) rest() bool {
	s.space()
	return s.at < len(s.text)
}

// object reads an object. Each is called with every name, unescaped, and must
// read its value.
func (s *scanner) object(field string, each func(name string)) {
	where := field
	if where == "" {
		where = "body"
	}
	if !s.take('{') {
		s.fail(where, "is not a JSON object")
		return
	}
	if s.take('}') {
		return
	}
	seen := make([]string, 0, 12)
	for s.fault == nil {
		name := s.string(where)
		if s.fault == nil && !s.take(':') {
			s.fail(where, "is not JSON: a name without a value")
		}
		for _, n := range seen {
			if n == name {
				s.fail(member(field, name), "is given twice")
			}
		}
		if s.fault != nil {
			return
		}
		seen = append(seen, name)
		each(name)
		switch {
		case s.fault != nil:
		case s.take('}'):
			return
		case !s.take(','):
			s.fail(where, "is not JSON: neither a comma nor an end behind "+strconv.Quote(name))
		}
	}
}

// array reads an array of at most so many values. Each is called before every
// one, and must read it.
func (s *scanner) array(field string, most int, each func(i int)) {
	if s.fault != nil {
		return
	}
	if !s.take('[') {
		s.fail(field, "is not a JSON array")
		return
	}
	if s.take(']') {
		return
	}
	for i := 0; s.fault == nil; i++ {
		if i == most {
			s.fail(field, fmt.Sprintf("has more than %d items", most))
			return
		}
		each(i)
		switch {
		case s.fault != nil:
		case s.take(']'):
			return
		case !s.take(','):
			s.fail(field, "is not JSON: neither a comma nor an end behind an item")
		}
	}
}

// member is the JSON path of a member.
func member(field, name string) string {
	if field == "" {
		return name
	}
	return field + "." + name
}

// string reads a string.
func (s *scanner) string(field string) string {
	if s.fault != nil {
		return ""
	}
	if !s.take('"') {
		s.fail(field, "is not a JSON string")
		return ""
	}
	start := s.at
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == '"':
			s.at++
			return s.text[start : s.at-1]
		case c == '\\':
			return s.unescape(field, start)
		case c < ' ':
			s.fail(field, "holds a control character that is not escaped")
			return ""
		}
	}
	s.fail(field, "has no end")
	return ""
}

// unescape reads a string that has an escape at s.at.
func (s *scanner) unescape(field string, start int) string {
	out := append(make([]byte, 0, 2*(s.at-start)+64), s.text[start:s.at]...)
	for s.at < len(s.text) {
		c := s.text[s.at]
		s.at++
		switch {
		case c == '"':
			return string(out)
		case c < ' ':
			s.fail(field, "holds a control character that is not escaped")
			return ""
		case c != '\\':
			out = append(out, c)
			continue
		}
		r, ok := s.escape()
		if !ok {
			s.fail(field, "holds an escape that is none")
			return ""
		}
		out = utf8.AppendRune(out, r)
	}
	s.fail(field, "has no end")
	return ""
}

// escape reads what follows a backslash.
func (s *scanner) escape() (rune, bool) {
	if s.at >= len(s.text) {
		return 0, false
	}
	c := s.text[s.at]
	s.at++
	if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
		return rune("\"\\/\b\f\n\r\t"[i]), true
	}
	if c != 'u' {
		return 0, false
	}
	r, ok := s.hex()
	if !ok || !utf16.IsSurrogate(r) {
		return r, ok
	}
	if !strings.HasPrefix(s.text[s.at:], `\u`) {
		return 0, false
	}
	s.at += 2
	low, ok := s.hex()
	r = utf16.DecodeRune(r, low)
	return r, ok && r != utf8.RuneError
}

// hex reads four hexadecimal digits.
func (s *scanner) hex() (rune, bool) {
	if s.at+4 > len(s.text) {
		return 0, false
	}
	n, err := strconv.ParseUint(s.text[s.at:s.at+4], 16, 16)
	s.at += 4
	return rune(n), err == nil
}

// integer reads a number without fraction and exponent and returns its digits.
func (s *scanner) integer(field string, list *ask.Faults) string {
	s.space()
	start := s.at
	for s.at < len(s.text) && strings.IndexByte("+-.0123456789Ee", s.text[s.at]) >= 0 {
		s.at++
	}
	number := s.text[start:s.at]
	digits := strings.TrimPrefix(number, "-")
	switch {
	case number != "" && !json.Valid([]byte(number)):
		s.fail(field, "is not a number")
	case digits == "" || strings.Trim(digits, "0123456789") != "":
		s.at = start
		s.wrong(field, "is not a whole number", list)
	default:
		return number
	}
	return ""
}
