package h2

import (
	"errors"
	"strconv"
	"time"
)

// A Code is a status of gRPC.
type Code uint8

// The statuses of gRPC.
const (
	OK                 Code = 0
	Canceled           Code = 1
	Unknown            Code = 2
	InvalidArgument    Code = 3
	DeadlineExceeded   Code = 4
	NotFound           Code = 5
	AlreadyExists      Code = 6
	PermissionDenied   Code = 7
	ResourceExhausted  Code = 8
	FailedPrecondition Code = 9
	Aborted            Code = 10
	OutOfRange         Code = 11
	Unimplemented      Code = 12
	Internal           Code = 13
	Unavailable        Code = 14
	DataLoss           Code = 15
	Unauthenticated    Code = 16
)

// prefixLen is the length of what stands before each message: a flag and four
// bytes of length.
const prefixLen = 5

// maxMessage bounds grpc-message in the answer, after encoding. It is for
// people to read.
const maxMessage = 1024

var errTimeout = errors.New("malformed grpc-timeout")

// parseTimeout reads grpc-timeout: one to eight digits and a unit.
func parseTimeout(s string) (time.Duration, error) {
	if len(s) < 2 || len(s) > 9 {
		return 0, errTimeout
	}
	var unit time.Duration
	switch s[len(s)-1] {
	case 'H':
		unit = time.Hour
	case 'M':
		unit = time.Minute
	case 'S':
		unit = time.Second
	case 'm':
		unit = time.Millisecond
	case 'u':
		unit = time.Microsecond
	case 'n':
		unit = time.Nanosecond
	default:
		return 0, errTimeout
	}
	var n int64
	for _, c := range []byte(s[:len(s)-1]) {
		if c < '0' || c > '9' {
			return 0, errTimeout
		}
		n = n*10 + int64(c-'0')
	}
	if century := int64(100 * 365 * 24 * time.Hour); n > century/int64(unit) {
		return time.Duration(century), nil // eight digits of hours do not fit in a Duration
	}
	return time.Duration(n) * unit, nil
}

// isGRPC reports whether a content-type is application/grpc, of any message
// format: the handler knows its own.
func isGRPC(contentType string) bool {
	const grpc = "application/grpc"
	if len(contentType) < len(grpc) || contentType[:len(grpc)] != grpc {
		return false
	}
	return len(contentType) == len(grpc) || contentType[len(grpc)] == '+' || contentType[len(grpc)] == ';'
}

// appendPercent appends a grpc-message: printable ASCII as it is, everything
// else and the percent sign as %XX. Of a text that is too long it appends the
// beginning.
func appendPercent(b []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	limit := len(b) + maxMessage - len("%XX")
	for i := 0; i < len(s) && len(b) <= limit; i++ {
		if c := s[i]; c >= ' ' && c <= '~' && c != '%' {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return b
}

// appendCode appends a status as grpc-status has it.
func appendCode(b []byte, c Code) []byte { return strconv.AppendUint(b, uint64(c), 10) }
