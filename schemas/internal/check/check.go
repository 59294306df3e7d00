// Package check holds the bounds that the schemas promise in their docs.
package check

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"penstock.dev/schemas/wire"
)

// MaxExact is 2^53-1, up to which every reader counts whole numbers exactly:
// Go, JSON and the Lua of Redis.
const MaxExact = 1<<53 - 1

// The years 1 to 9999, which is what RFC 3339 can say, in seconds since 1970.
const (
	minSecond = -62135596800
	maxSecond = 253402300799
)

// A Check goes over the fields of one record and keeps the first fault that it
// finds. The zero Check is ready.
type Check struct {
	path  []step
	space [6]step // of path: records nest less deep than that
	fault *wire.FieldError
}

// A step is a field, and an item of it where index is 0 or more.
type step struct {
	name  string
	index int
}

// Err returns the first fault, a *wire.FieldError, or nil.
func (c *Check) Err() error {
	if c.fault == nil {
		return nil
	}
	return c.fault
}

// Enter says that the fields that follow are those of a record in field name.
func (c *Check) Enter(name string) { c.push(name, -1) }

// EnterItem says that the fields that follow are those of item index of name.
func (c *Check) EnterItem(name string, index int) { c.push(name, index) }

// Leave ends what the last Enter or EnterItem began.
func (c *Check) Leave() { c.path = c.path[:len(c.path)-1] }

func (c *Check) push(name string, index int) {
	if c.path == nil {
		c.path = c.space[:0]
	}
	c.path = append(c.path, step{name, index})
}

// Fail reports a fault of field name. The format is only read for the first.
func (c *Check) Fail(name, format string, args ...any) {
	if c.fault != nil {
		return
	}
	var b strings.Builder
	for _, s := range c.path {
		b.WriteString(s.name)
		if s.index >= 0 {
			b.WriteString(Item("", s.index))
		}
		b.WriteByte('.')
	}
	c.fault = &wire.FieldError{Field: b.String() + name, Problem: fmt.Sprintf(format, args...)}
}

// That reports a fault of field name unless ok. The problem is a constant.
func (c *Check) That(ok bool, name, problem string) {
	if !ok {
		c.Fail(name, "%s", problem)
	}
}

// Bytes wants UTF-8 of least to most bytes.
func (c *Check) Bytes(name, s string, least, most int) {
	if len(s) < least || len(s) > most {
		c.Fail(name, "is %d bytes, want %d to %d", len(s), least, most)
	} else if !utf8.ValidString(s) {
		c.Fail(name, "is not UTF-8")
	}
}

// Characters wants UTF-8 of least to most characters.
func (c *Check) Characters(name, s string, least, most int) {
	if n := utf8.RuneCountInString(s); n < least || n > most {
		c.Fail(name, "is %d characters, want %d to %d", n, least, most)
	} else if !utf8.ValidString(s) {
		c.Fail(name, "is not UTF-8")
	}
}

// Range wants a number of least to most.
func (c *Check) Range(name string, v, least, most int64) {
	if v < least || v > most {
		c.Fail(name, "is %d, want %d to %d", v, least, most)
	}
}

// Items wants an array of at most most items.
func (c *Check) Items(name string, n, most int) {
	if n > most {
		c.Fail(name, "has %d items, want at most %d", n, most)
	}
}

// Micros wants a time in microseconds since 1970 that RFC 3339 can say.
func (c *Check) Micros(name string, v int64) { c.time(name, v, 1_000_000) }

// Millis wants a time in milliseconds since 1970 that RFC 3339 can say.
func (c *Check) Millis(name string, v int64) { c.time(name, v, 1_000) }

func (c *Check) time(name string, v, perSecond int64) {
	if v < minSecond*perSecond || v >= (maxSecond+1)*perSecond {
		c.Fail(name, "is %d, want a time of the years 1 to 9999", v)
	}
}

// ID wants a catalogue id: 1 to 128 of A-Z a-z 0-9 . _ ~ -, not . or .. alone.
func (c *Check) ID(name, s string) {
	switch {
	case len(s) < 1 || len(s) > 128:
		c.Fail(name, "is %d characters, want 1 to 128", len(s))
	case s == "." || s == "..":
		c.Fail(name, "is %q", s)
	default:
		c.alphabet(name, s, "._~-", true)
	}
}

// OptionalID wants a catalogue id or nothing.
func (c *Check) OptionalID(name, s string) {
	if s != "" {
		c.ID(name, s)
	}
}

// Meter wants the name of a meter: 1 to 64 of a-z 0-9 . _ -.
func (c *Check) Meter(name, s string) {
	if len(s) < 1 || len(s) > 64 {
		c.Fail(name, "is %d characters, want 1 to 64", len(s))
		return
	}
	c.alphabet(name, s, "._-", false)
}

// Feature wants the name of a feature: 1 to 64 of a-z 0-9 . -.
func (c *Check) Feature(name, s string) {
	if len(s) < 1 || len(s) > 64 {
		c.Fail(name, "is %d characters, want 1 to 64", len(s))
		return
	}
	c.alphabet(name, s, ".-", false)
}

// Zone wants the name of a time zone, of at least least characters.
func (c *Check) Zone(name, s string, least int) {
	if len(s) < least || len(s) > 64 {
		c.Fail(name, "is %d characters, want %d to 64", len(s), least)
		return
	}
	c.alphabet(name, s, "/._+-", true)
}

// Currency wants an ISO 4217 code: 3 letters A-Z.
func (c *Check) Currency(name, s string) {
	ok := len(s) == 3
	for i := 0; ok && i < len(s); i++ {
		ok = s[i] >= 'A' && s[i] <= 'Z'
	}
	if !ok {
		c.Fail(name, "is %.16q, want 3 letters A-Z", s)
	}
}

// alphabet wants a-z, 0-9, marks, and A-Z where upper.
func (c *Check) alphabet(name, s, marks string, upper bool) {
	for i := range len(s) {
		b := s[i]
		if b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || upper && b >= 'A' && b <= 'Z' || strings.IndexByte(marks, b) >= 0 {
			continue
		}
		c.Fail(name, "has byte %#02x at %d, want letters, digits and any of %s", b, i, marks)
		return
	}
}

// Ascending wants numbers of least to most that rise from item to item.
func (c *Check) Ascending(name string, vs []int32, least, most int64) {
	for i, v := range vs {
		switch {
		case int64(v) < least || int64(v) > most:
			c.Fail(Item(name, i), "is %d, want %d to %d", v, least, most)
		case i > 0 && v <= vs[i-1]:
			c.Fail(Item(name, i), "is %d after %d, want them to rise", v, vs[i-1])
		}
	}
}

// Descending wants numbers of least to most that fall from item to item.
func (c *Check) Descending(name string, vs []int64, least, most int64) {
	for i, v := range vs {
		switch {
		case v < least || v > most:
			c.Fail(Item(name, i), "is %d, want %d to %d", v, least, most)
		case i > 0 && v >= vs[i-1]:
			c.Fail(Item(name, i), "is %d after %d, want them to fall", v, vs[i-1])
		}
	}
}

// Item names item index of field name.
func Item(name string, index int) string { return name + "[" + strconv.Itoa(index) + "]" }
