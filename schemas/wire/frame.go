package wire

import (
	"encoding/binary"
	"fmt"
)

// HeaderSize is how many bytes of a value come before its body.
const HeaderSize = 5

// Frame appends to dst a value that holds body, written with schema id.
func Frame(dst []byte, id uint32, body []byte) []byte {
	dst = append(dst, 0)
	dst = binary.BigEndian.AppendUint32(dst, id)
	return append(dst, body...)
}

// Unframe returns the schema id and the body of a value. The body aliases
// value. What is no framed value is ErrPoison, and so is an empty one: a
// tombstone has no value to unframe.
func Unframe(value []byte) (id uint32, body []byte, err error) {
	switch {
	case len(value) < HeaderSize:
		return 0, nil, fmt.Errorf("%w: value is %d bytes, want a header of %d", ErrPoison, len(value), HeaderSize)
	case value[0] != 0:
		return 0, nil, fmt.Errorf("%w: value begins with byte %#02x, want 0", ErrPoison, value[0])
	}
	return binary.BigEndian.Uint32(value[1:HeaderSize]), value[HeaderSize:], nil
}
