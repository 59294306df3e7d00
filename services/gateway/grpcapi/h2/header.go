package h2

import (
	"bytes"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// A Field is one header or trailer. Names are in lower case.
type Field struct{ Name, Value string }

// maxContinuations is how many CONTINUATION frames a header block may take: a
// list of the allowed size needs one or two (CVE-2024-27316 and its kin).
const maxContinuations = 8

// A request is a header block, decoded.
type request struct {
	method, scheme, path, authority string
	contentType, timeout, host      string
	encoding                        string // grpc-encoding

	fields []Field // what is metadata to the handler
	length int64   // content-length, or -1

	malformed string // why the request is malformed (RFC 9113 §8.1.1), or ""
	regular   bool   // a field that is no pseudo header has been seen
	size      int    // as SETTINGS_MAX_HEADER_LIST_SIZE counts
}

func (r *request) reset() {
	*r = request{fields: r.fields[:0], length: -1}
}

func (r *request) bad(why string) {
	if r.malformed == "" {
		r.malformed = why
	}
}

// A decoder turns header blocks into requests. A block must pass through it
// even if nobody wants it, for the table that both sides share moves with it
// (RFC 7541 §2.2).
type decoder struct {
	hpack *hpack.Decoder
	limit int // of request.size
	req   request

	// A block that consists of indexed fields alone leaves the table as it is:
	// until another block moves it, equal bytes mean the same request.
	last  []byte
	valid bool
}

// tableSize is the table of the peer's header blocks: the size that holds
// without a word about it (§6.5.2).
const tableSize = 4096

func newDecoder(limit int) *decoder {
	d := &decoder{limit: limit}
	d.hpack = hpack.NewDecoder(tableSize, d.field)
	d.hpack.SetMaxStringLength(limit)
	return d
}

// decode returns the request of a block, valid until the next call. An error
// means that the tables differ from now on (COMPRESSION_ERROR), or that a
// single string passes all bounds.
func (d *decoder) decode(block []byte) (*request, error) {
	if d.valid && bytes.Equal(block, d.last) {
		return &d.req, nil
	}
	d.valid = false
	d.req.reset()
	d.hpack.SetEmitEnabled(true)
	if _, err := d.hpack.Write(block); err != nil {
		return nil, fault(CompressionError, err.Error())
	}
	if err := d.hpack.Close(); err != nil {
		return nil, fault(CompressionError, err.Error())
	}
	if indexed(block) {
		d.last = append(d.last[:0], block...)
		d.valid = true
	}
	return &d.req, nil
}

// indexed reports whether a block has nothing but indexed fields of one byte
// (RFC 7541 §6.1).
func indexed(block []byte) bool {
	for _, b := range block {
		if b < 0x81 || b == 0xff {
			return false
		}
	}
	return true
}

// tooLarge reports whether the list passed the bound; the rest of it was not
// looked at.
func (d *decoder) tooLarge() bool { return d.req.size > d.limit }

// field takes one field of the block that is being decoded.
func (d *decoder) field(f hpack.HeaderField) {
	r := &d.req
	r.size += int(f.Size())
	if r.size > d.limit {
		d.hpack.SetEmitEnabled(false)
		return
	}
	if strings.HasPrefix(f.Name, ":") {
		r.pseudo(f.Name, f.Value)
		return
	}
	r.regular = true
	switch {
	case !validName(f.Name):
		r.bad("a field name has a character that is not allowed")
	case !validValue(f.Value):
		r.bad("a field value has a character that is not allowed")
	default:
		r.header(f.Name, f.Value)
	}
}

// pseudo takes a pseudo header (RFC 9113 §8.3).
func (r *request) pseudo(name, value string) {
	var to *string
	switch name {
	case ":method":
		to = &r.method
	case ":scheme":
		to = &r.scheme
	case ":path":
		to = &r.path
	case ":authority":
		to = &r.authority
	default:
		r.bad("an unknown pseudo header")
		return
	}
	switch {
	case r.regular:
		r.bad("a pseudo header after a field")
	case *to != "":
		r.bad("a pseudo header twice")
	case value == "" && name != ":authority", !validValue(value):
		r.bad("a pseudo header without a good value")
	}
	*to = value
}

// header takes an ordinary field (§8.2).
func (r *request) header(name, value string) {
	switch name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		r.bad("a field that is about a connection of HTTP/1")
	case "te":
		if value != "trailers" {
			r.bad("te is not trailers")
		}
	case "content-length":
		n, err := strconv.ParseUint(value, 10, 63)
		if err != nil || r.length >= 0 && r.length != int64(n) {
			r.bad("content-length is no number")
			return
		}
		r.length = int64(n)
	case "host":
		r.host = value
	case "content-type":
		r.contentType = value
	case "grpc-timeout":
		r.timeout = value
	case "grpc-encoding":
		r.encoding = value
	case "grpc-accept-encoding", "accept-encoding": // answers are never compressed
	default:
		r.fields = append(r.fields, Field{name, value})
	}
}

// wellFormed reports whether the block may begin a request (§8.3.1). CONNECT,
// which has fewer pseudo headers, is not served.
func (r *request) wellFormed() bool {
	return r.malformed == "" && r.method != "" && r.scheme != "" && r.path != "" &&
		(r.path[0] == '/' || r.path == "*") && (r.host == "" || r.authority == "" || r.host == r.authority)
}

// wellEnded reports whether the block may end one (§8.1).
func (r *request) wellEnded() bool {
	return r.malformed == "" && r.method == "" && r.scheme == "" && r.path == "" && r.authority == ""
}

// nameBytes are the characters of a field name: those of a token of RFC 9110
// §5.6.2 without upper case.
var nameBytes = func() (t [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz") {
		t[c] = true
	}
	return t
}()

func validName(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		if !nameBytes[s[i]] {
			return false
		}
	}
	return true
}

// validValue refuses what §8.2.1 does: NUL, CR and LF anywhere, blanks around.
func validValue(s string) bool {
	if s == "" {
		return true
	}
	for i := range len(s) {
		if c := s[i]; c == 0 || c == '\r' || c == '\n' {
			return false
		}
	}
	first, last := s[0], s[len(s)-1]
	return first != ' ' && first != '\t' && last != ' ' && last != '\t'
}
