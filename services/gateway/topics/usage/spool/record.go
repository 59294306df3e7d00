package spool

import (
	"encoding/binary"
	"hash/crc32"
)

// A record is the length of what follows its checksum, the checksum of the
// length and of all that, the length of the key, the key, room for a frame, and
// the body. Numbers are little-endian. It is the same in memory and on disk; in
// memory the checksum may still be missing.
const (
	lengthSize = 4
	sumSize    = 4
	keySize    = 2
	headSize   = lengthSize + sumSize + keySize

	// Room is how many bytes are free in front of a body, for its frame.
	Room = 5
	// MaxKey and MaxBody bound what a record holds, in bytes.
	MaxKey  = 512
	MaxBody = 64 << 10
	// MaxRecord is the longest record, in bytes.
	MaxRecord = headSize + MaxKey + Room + MaxBody
)

var table = crc32.MakeTable(crc32.Castagnoli)

// Begin appends all of a record but its body, which follows. The key is at most
// MaxKey bytes.
func Begin(dst, key []byte) []byte {
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(key)))
	dst = append(dst, key...)
	return append(dst, 0, 0, 0, 0, 0)
}

// End ends the record that begins at dst[start:].
func End(dst []byte, start int) {
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst)-start-lengthSize-sumSize))
}

// Overhead is how many bytes a record has beside its body.
func Overhead(key []byte) int { return headSize + len(key) + Room }

// Parse returns the parts of the record that b begins with, and its size. The
// value is room for a frame and the body. The record is one that Begin and End
// have made, or a Queue has read.
func Parse(b []byte) (key, value []byte, size int) {
	size = lengthSize + sumSize + int(binary.LittleEndian.Uint32(b))
	end := headSize + int(binary.LittleEndian.Uint16(b[lengthSize+sumSize:]))
	return b[headSize:end:end], b[end:size:size], size
}

// Seal fills in the checksums of whole records.
func Seal(records []byte) {
	for len(records) > 0 {
		_, _, size := Parse(records)
		binary.LittleEndian.PutUint32(records[lengthSize:], sum(records[:size]))
		records = records[size:]
	}
}

// sum is the checksum of a record.
func sum(record []byte) uint32 {
	return crc32.Update(crc32.Checksum(record[:lengthSize], table), table, record[lengthSize+sumSize:])
}

// A state is what check says of bytes.
type state int

const (
	whole   state = iota // a record, as it was written
	damaged              // something of a record's size that is none
	torn                 // nothing that can be stepped over
)

// check says what b begins with, and its size unless it is torn.
func check(b []byte) (s state, size int) {
	if len(b) < headSize {
		return torn, 0
	}
	n := binary.LittleEndian.Uint32(b)
	if n < keySize+Room || n > MaxRecord-lengthSize-sumSize || int(n) > len(b)-lengthSize-sumSize {
		return torn, 0
	}
	size = lengthSize + sumSize + int(n)
	key := int(binary.LittleEndian.Uint16(b[lengthSize+sumSize:]))
	if binary.LittleEndian.Uint32(b[lengthSize:]) != sum(b[:size]) || key > MaxKey || headSize+key+Room > size {
		return damaged, size
	}
	return whole, size
}
