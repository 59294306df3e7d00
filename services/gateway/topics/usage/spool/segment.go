package spool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
)

// A file begins with what it is, the partition, the schema of its bodies and a
// checksum of that; then how far it was sent, and the complement of that. The
// last two are written again and again.
const (
	magic      = "penstock usage 1"
	fixedSize  = len(magic) + 4 + 32 + 4
	headerSize = int64(fixedSize + 16)
)

// errFormat reports a file that this version cannot read.
var errFormat = errors.New("is no file of usage events, or of another format")

// A segment is one file.
type segment struct {
	path   string
	file   *os.File // nil: not opened yet
	schema [32]byte
	former bool // of a former run
	ended  bool // nothing more is written to it

	// Places in the file, in bytes: behind its last record, behind what was
	// read, and behind what was sent.
	size, read, sent int64
}

func header(partition int32, schema [32]byte) []byte {
	b := make([]byte, 0, headerSize)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(partition))
	b = append(b, schema[:]...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, table))
	return appendSent(b, headerSize)
}

func appendSent(b []byte, sent int64) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(sent))
	return binary.LittleEndian.AppendUint64(b, ^uint64(sent))
}

// open opens a file of a former run and reads its header.
func (g *segment) open() error {
	if g.file != nil {
		return nil
	}
	f, err := os.OpenFile(g.path, os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	if g.size < headerSize { // its writer ended before there was anything in it
		g.file, g.read, g.sent = f, g.size, g.size
		return nil
	}
	b := make([]byte, headerSize)
	if _, err := f.ReadAt(b, 0); err != nil {
		_ = f.Close()
		return fmt.Errorf("spool: %w", err)
	}
	sum := binary.LittleEndian.Uint32(b[fixedSize-4:])
	if !bytes.HasPrefix(b, []byte(magic)) || sum != crc32.Checksum(b[:fixedSize-4], table) {
		_ = f.Close()
		return errFormat
	}
	g.file, g.read = f, headerSize
	copy(g.schema[:], b[len(magic)+4:])
	sent, not := binary.LittleEndian.Uint64(b[fixedSize:]), binary.LittleEndian.Uint64(b[fixedSize+8:])
	if sent == ^not && sent >= uint64(headerSize) {
		g.read = int64(min(sent, uint64(g.size))) // what is behind it was lost, and had been sent
	}
	g.sent = g.read
	return nil
}

// keepSent notes how far the file was sent. Where the disk does not take that,
// some of it is sent again after a restart.
func (g *segment) keepSent(at int64) {
	g.sent = at
	_, _ = g.file.WriteAt(appendSent(nil, at), int64(fixedSize))
}

func (g *segment) close() error {
	if g.file == nil {
		return nil
	}
	return g.file.Close()
}
