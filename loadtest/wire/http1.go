package wire

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// An http1 is a connection of HTTP/1.1, one request at a time.
type http1 struct {
	*conn
	busy bool
	i    int
	due  int64
	body []byte // of an answer that came in chunks
}

func (h *http1) begin(i int, due int64) bool {
	if h.busy {
		return false
	}
	h.busy, h.i, h.due = true, i, due
	h.out = append(h.out, h.run.Requests[i]...)
	return true
}

func (h *http1) abandon(why string) {
	if h.busy {
		h.busy = false
		h.lost(why)
	}
}

var errHTTP1 = errors.New("HTTP/1.1")

func (h *http1) parse(in []byte) (int, error) {
	end := bytes.Index(in, []byte("\r\n\r\n"))
	if end < 0 {
		return 0, nil
	}
	head, rest := in[:end], in[end+4:]
	if !h.busy || len(head) < 12 || !bytes.HasPrefix(head, []byte("HTTP/1.1 ")) {
		return 0, fmt.Errorf("%w: %q answers no request", errHTTP1, head)
	}
	status, err := strconv.Atoi(string(head[9:12]))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errHTTP1, err)
	}
	length, chunked, last, err := framing(head)
	if err != nil {
		return 0, err
	}
	body, used, whole := rest, length, len(rest) >= length
	if chunked {
		if body, used, err = h.chunks(rest); err != nil {
			return 0, err
		}
		whole = used > 0
	}
	if !whole {
		return 0, nil
	}
	if !chunked {
		body = rest[:length]
	}
	h.busy = false
	h.closing = h.closing || last
	h.finish(h.i, h.due, h.run.Judge(h.i, status, body), status, body)
	return end + 4 + used, nil
}

// framing reads how long a body is, and whether the connection ends after it.
func framing(head []byte) (length int, chunked, last bool, err error) {
	length = -1
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, false, false, fmt.Errorf("%w: %w", errHTTP1, err)
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			chunked = bytes.EqualFold(value, []byte("chunked"))
		case bytes.EqualFold(name, []byte("connection")):
			last = bytes.EqualFold(value, []byte("close"))
		}
	}
	if length < 0 && !chunked {
		return 0, false, false, fmt.Errorf("%w: an answer without a length: %q", errHTTP1, head)
	}
	return length, chunked, last, nil
}

// chunks reads a body in chunks without trailers; used is 0 until all of it has
// come.
func (h *http1) chunks(in []byte) (body []byte, used int, err error) {
	h.body = h.body[:0]
	for at := 0; ; {
		n := bytes.Index(in[at:], []byte("\r\n"))
		if n < 0 {
			return nil, 0, nil
		}
		size, err := strconv.ParseUint(string(in[at:at+n]), 16, 31)
		if err != nil {
			return nil, 0, fmt.Errorf("%w: %w", errHTTP1, err)
		}
		at += n + 2
		if len(in) < at+int(size)+2 {
			return nil, 0, nil
		}
		h.body = append(h.body, in[at:at+int(size)]...)
		at += int(size) + 2
		if size == 0 {
			return h.body, at, nil
		}
	}
}
