package canon

import (
	"errors"
	"fmt"
	"strings"
)

// ErrPath reports a path that two programs could read as two different paths.
// Match it with errors.Is; the text says what is wrong with it.
var ErrPath = errors.New("ambiguous path")

var (
	errRelative  = fmt.Errorf("%w: it does not begin with a slash", ErrPath)
	errEscape    = fmt.Errorf("%w: a percent sign without two hexadecimal digits", ErrPath)
	errSlash     = fmt.Errorf("%w: an encoded slash (%%2F)", ErrPath)
	errBackslash = fmt.Errorf("%w: a backslash", ErrPath)
	errZero      = fmt.Errorf("%w: a zero byte", ErrPath)
	errFragment  = fmt.Errorf("%w: a number sign, which begins a fragment", ErrPath)
	errQuery     = fmt.Errorf("%w: a question mark", ErrPath)
	errTwice     = fmt.Errorf("%w: an encoded percent sign that hides another escape", ErrPath)
	errOverlong  = fmt.Errorf("%w: an overlong UTF-8 sequence", ErrPath)
	errDots      = fmt.Errorf("%w: a dot segment with parameters", ErrPath)
	errMany      = fmt.Errorf("%w: too many ways up and down", ErrPath)
	errClimbs    = fmt.Errorf("%w: it climbs above its root", ErrPath)

	// ErrClimbs reports a path that leaves the prefix it began in.
	ErrClimbs = fmt.Errorf("%w: it climbs above the prefix of its service", ErrPath)
)

// A Path is one spelling of a request's path. The zero Path is invalid.
type Path struct {
	// Match is what rules are matched against: decoded once and completely,
	// without parameters and without a trailing slash. It begins with "/".
	Match string

	// Upstream is what the upstream is sent: escaped, with the parameters and
	// the trailing slash of the request. It begins with "/".
	Upstream string

	climbs []climb
}

// maxClimbs bounds the runs of ".." in a path; each remembers where it began.
const maxClimbs = 16

// A climb is one run of ".." in a path.
type climb struct {
	from string // what would have been matched before it
	left int    // segments that it left
}

// ParsePath reads the path of a request as it was sent, escaped and without
// its query. Percent-escapes of unreserved characters are decoded, dot segments
// and doubled slashes are removed, and what remains of the escapes is written
// in upper case. An error wraps ErrPath.
//
// ParsePath of an Upstream returns that Upstream, and the same Match.
func ParsePath(raw string) (Path, error) {
	if raw == "" || raw[0] != '/' {
		return Path{}, errRelative
	}
	if plain(raw) {
		match := raw
		if len(match) > 1 && match[len(match)-1] == '/' {
			match = match[:len(match)-1]
		}
		return Path{Match: match, Upstream: raw}, nil
	}
	return rewrite(raw)
}

// Climbs reports whether the path leaves, on its way, a prefix that it was in
// or ends in. Depth returns how many segments the prefix of a path has.
func (p Path) Climbs(depth func(match string) int) bool {
	for _, c := range p.climbs {
		if c.left < depth(c.from) || c.left < depth(p.Match) {
			return true
		}
	}
	return false
}

// Behind returns Upstream without its first n segments. It begins with "/".
func (p Path) Behind(n int) string {
	rest := p.Upstream
	for n > 0 && len(rest) > 1 {
		end := strings.IndexByte(rest[1:], '/') + 1
		if end == 0 {
			return "/"
		}
		if name(rest[1:end]) != "" {
			n--
		}
		rest = rest[end:]
	}
	return rest
}

// Segments returns how many segments a prefix such as "/payments" has.
func Segments(prefix string) (n int) {
	for segment := range strings.SplitSeq(prefix, "/") {
		if segment != "" {
			n++
		}
	}
	return n
}

// plain reports whether raw is its own canonical spelling and holds neither
// escapes nor parameters. It may say no of a path that is.
func plain(raw string) bool {
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '/':
			if i+1 < len(raw) && (raw[i+1] == '/' || raw[i+1] == '.') {
				return false
			}
		case c == ';' || class[c] == 0:
			return false
		}
	}
	return true
}

// rewrite is ParsePath for everything that is not plain.
func rewrite(raw string) (Path, error) {
	b := builder{out: make([]byte, 0, len(raw)+16), starts: make([]int, 0, 16)}
	for rest := raw; rest != ""; {
		segment := rest[1:] // without the slash
		if end := strings.IndexByte(segment, '/'); end >= 0 {
			segment, rest = segment[:end], segment[end:]
		} else {
			rest = ""
		}
		if err := b.add(segment); err != nil {
			return Path{}, err
		}
	}
	if b.dir {
		b.out = append(b.out, '/')
	}
	upstream := string(b.out)
	return Path{Match: match(upstream), Upstream: upstream, climbs: b.climbs}, nil
}

// A builder puts a canonical path together.
type builder struct {
	out    []byte
	starts []int // where in out each segment's slash is
	named  int   // segments among them that have a name
	climbs []climb
	up     bool // the segment before was ".."
	dir    bool // the path ends in a slash
}

// add appends one segment, as it was sent.
func (b *builder) add(segment string) error {
	at := len(b.out)
	var err error
	if b.out, err = appendSegment(append(b.out, '/'), segment); err != nil {
		return err
	}
	text := string(b.out[at+1:])
	base := name(text)
	switch {
	case base == "." || base == "..":
		b.out, b.dir = b.out[:at], true
		if base != text {
			return errDots
		}
		if base == ".." {
			return b.climb()
		}
	case text == "":
		b.out, b.dir = b.out[:at], true
	default:
		b.starts, b.dir, b.up = append(b.starts, at), false, false
		if base != "" {
			b.named++
		}
	}
	return nil
}

// climb takes the last segment back.
func (b *builder) climb() error {
	switch {
	case len(b.starts) == 0:
		return errClimbs
	case b.up:
	case len(b.climbs) == maxClimbs:
		return errMany
	default:
		b.climbs, b.up = append(b.climbs, climb{from: match(string(b.out))}), true
	}
	last := b.starts[len(b.starts)-1]
	if name(string(b.out[last+1:])) != "" {
		b.named--
	}
	b.out, b.starts = b.out[:last], b.starts[:len(b.starts)-1]
	b.climbs[len(b.climbs)-1].left = b.named
	return nil
}

// appendSegment appends the canonical spelling of one segment.
func appendSegment(dst []byte, s string) ([]byte, error) {
	const hex = "0123456789ABCDEF"
	start := len(dst)
	before := byte(0) // the byte before, decoded
	for i := 0; i < len(s); i++ {
		c := s[i]
		escaped := c == '%'
		if escaped {
			if i+2 >= len(s) || unhex(s[i+1]) < 0 || unhex(s[i+2]) < 0 {
				return dst, errEscape
			}
			c = byte(unhex(s[i+1])<<4 | unhex(s[i+2]))
			i += 2
		}
		if err := refuse(c, before, escaped); err != nil {
			return dst, err
		}
		before = c
		if keep := class[c]; keep == unreserved || keep == delimiter && !escaped {
			dst = append(dst, c)
		} else {
			dst = append(dst, '%', hex[c>>4], hex[c&15])
		}
	}
	if hidden(dst[start:]) {
		return dst, errTwice
	}
	return dst, nil
}

// refuse returns why a byte may not be in a path, or nil.
func refuse(c, before byte, escaped bool) error {
	switch {
	case c == 0:
		return errZero
	case c == '\\':
		return errBackslash
	case c == '/' && escaped:
		return errSlash
	case c == '#' && !escaped:
		return errFragment
	case c == '?' && !escaped:
		return errQuery
	case c >= 0x80 && c < 0xC0 && (before == 0xC0 || before == 0xC1), // a 7-bit character in two bytes
		before == 0xE0 && c >= 0x80 && c < 0xA0, // in three
		before == 0xF0 && c >= 0x80 && c < 0x90: // in four
		return errOverlong
	}
	return nil
}

// hidden reports whether a canonical segment, decoded, holds what a second
// decoding would decode: %25 and two hexadecimal digits, or u and four.
func hidden(s []byte) bool {
	for i := 0; i+4 < len(s); i++ {
		if s[i] != '%' || s[i+1] != '2' || s[i+2] != '5' {
			continue
		}
		if hexadecimal(s[i+3:], 2) || (s[i+3] == 'u' || s[i+3] == 'U') && hexadecimal(s[i+4:], 4) {
			return true
		}
	}
	return false
}

func hexadecimal(s []byte, n int) bool {
	if len(s) < n {
		return false
	}
	for _, c := range s[:n] {
		if unhex(c) < 0 {
			return false
		}
	}
	return true
}

// name returns a canonical segment without its parameters. An escaped
// semicolon begins parameters too: some upstreams decode first and cut then.
func name(segment string) string {
	if i := strings.IndexByte(segment, ';'); i >= 0 {
		segment = segment[:i]
	}
	if i := strings.Index(segment, "%3B"); i >= 0 {
		segment = segment[:i]
	}
	return segment
}

// match decodes a canonical path and drops its parameters and empty segments.
func match(upstream string) string {
	out := make([]byte, 0, len(upstream))
	for segment := range strings.SplitSeq(upstream, "/") {
		base := name(segment)
		if base == "" {
			continue
		}
		out = append(out, '/')
		for i := 0; i < len(base); i++ {
			if base[i] == '%' {
				out = append(out, byte(unhex(base[i+1])<<4|unhex(base[i+2])))
				i += 2
			} else {
				out = append(out, base[i])
			}
		}
	}
	if len(out) == 0 {
		return "/"
	}
	return string(out)
}

// The classes of RFC 3986 that may stand in a path segment unescaped.
const (
	unreserved = 1 // means the same escaped and not
	delimiter  = 2 // may mean something else when escaped
)

// class holds the class of each byte; 0 is always escaped. The slash is a
// delimiter here and never reaches a segment.
var class = func() (t [256]byte) {
	for _, c := range "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~" {
		t[c] = unreserved
	}
	for _, c := range "!$&'()*+,;=:@/" {
		t[c] = delimiter
	}
	return t
}()

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
