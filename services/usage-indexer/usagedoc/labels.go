package usagedoc

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// A pair is one label.
type pair struct{ key, value string }

// fewLabels are read without a map. More are rare.
const fewLabels = 16

// labels appends the labels twice: as an object, which comes back with the
// document as it was sent and is not searched, and as a list of key=value, which
// is searched. So customers choose words, never field names.
func labels(dst []byte, object string) []byte {
	if object == "" {
		return dst
	}
	var few [fewLabels]pair
	pairs, ok := simple(few[:0], object)
	if !ok {
		pairs = read(object)
	}
	if len(pairs) == 0 {
		return dst
	}
	dst = append(dst, `,"labels":`...)
	for i, p := range pairs {
		dst = append(dst, "{,"[min(i, 1)])
		dst = quote(dst, p.key)
		dst = append(dst, ':')
		dst = quote(dst, p.value)
	}
	dst = append(dst, `},"labelPairs":`...)
	for i, p := range pairs {
		dst = append(dst, "[,"[min(i, 1)], '"')
		dst = inside(dst, p.key)
		dst = append(dst, '=')
		dst = inside(dst, p.value)
		dst = append(dst, '"')
	}
	return append(dst, ']')
}

// read takes any object of strings. Of a key that is there twice, which a store
// refuses, the last counts. What is no object of strings has no labels.
func read(object string) []pair {
	var all map[string]string
	if json.Unmarshal([]byte(object), &all) != nil {
		return nil
	}
	pairs := make([]pair, 0, len(all))
	for _, k := range slices.Sorted(maps.Keys(all)) {
		pairs = append(pairs, pair{k, all[k]})
	}
	return pairs
}

// simple appends the labels of an object as nearly all are: a few, without
// escapes, each once. It reports false for any other, and for what is none.
func simple(dst []pair, s string) ([]pair, bool) {
	if !utf8.ValidString(s) {
		return nil, false
	}
	s, ok := token(s, '{')
	if !ok {
		return nil, false
	}
	if rest, ok := token(s, '}'); ok {
		return dst, strings.TrimLeft(rest, " \t\r\n") == ""
	}
	for len(dst) < fewLabels {
		var p pair
		if p.key, s, ok = literal(s); !ok {
			return nil, false
		}
		if s, ok = token(s, ':'); !ok {
			return nil, false
		}
		if p.value, s, ok = literal(s); !ok {
			return nil, false
		}
		if slices.ContainsFunc(dst, func(q pair) bool { return q.key == p.key }) {
			return nil, false
		}
		dst = append(dst, p)
		rest, more := token(s, ',')
		if !more {
			s, ok = token(s, '}')
			return dst, ok && strings.TrimLeft(s, " \t\r\n") == ""
		}
		s = rest
	}
	return nil, false
}

// token returns what follows c, and whether s begins with it.
func token(s string, c byte) (string, bool) {
	s = strings.TrimLeft(s, " \t\r\n")
	if s == "" || s[0] != c {
		return "", false
	}
	return s[1:], true
}

// literal returns the JSON string that s begins with, if it is one without
// escapes, and what follows it.
func literal(s string) (string, string, bool) {
	s, ok := token(s, '"')
	if !ok {
		return "", "", false
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return s[:i], s[i+1:], true
		case c == '\\' || c < 0x20:
			return "", "", false
		}
	}
	return "", "", false
}
