package topics

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/maphash"
	"io"
	"os"
	"path/filepath"
	"time"

	"penstock.dev/services/gateway/decide/trie"
)

// A snapshot file is a line that names its format, then numbers as varints and
// texts behind their length, then the SHA-256 of all of it. It is written
// beside the old one and renamed, so there is always a whole one. Another
// format is another line, and is refused by name.
const (
	snapshotFile   = "rules.snapshot"
	snapshotFormat = "penstock rules snapshot v1\n"
)

// errSnapshot reports a snapshot that is not used. The text says why.
var errSnapshot = errors.New("snapshot refused")

// A snapshot is what was in force at a time.
type snapshot struct {
	taken    time.Time
	revision int64             // of the rules
	schemas  map[uint32]string // that the values were written with, by id
	records  records
	voids    map[string]mark // keys under which nothing was in force, and the record that was set aside
}

// records are the records in force, by key.
type records = trie.Map[string, kept]

// A kept is a record as it came.
type kept struct {
	version int64
	value   []byte // framed
}

func newRecords() records {
	seed := maphash.MakeSeed()
	return trie.New[string, kept](func(key string) uint64 { return maphash.String(seed, key) })
}

// A mark is one record of the log, which a later record of the same key is not.
type mark struct {
	partition int32
	offset    int64
	timestamp int64 // µs
	sum       uint32
}

// saveSnapshot makes s the snapshot in dir. It returns when the disk has it.
func saveSnapshot(dir string, s *snapshot) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	path := filepath.Join(dir, snapshotFile)
	f, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
			err = fmt.Errorf("snapshot: %w", err)
		}
	}()
	err = writeSnapshot(f, s)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// loadSnapshot returns the snapshot in dir, nil when there is none. The error
// wraps errSnapshot when there is one that cannot be used, and names it.
func loadSnapshot(dir string) (*snapshot, error) {
	path := filepath.Join(dir, snapshotFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSnapshot, err)
	}
	s, err := readSnapshot(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errSnapshot, path, err)
	}
	return s, nil
}

func writeSnapshot(w io.Writer, s *snapshot) error {
	out := &writer{buf: bufio.NewWriterSize(w, 1<<20), sum: sha256.New()}
	out.raw([]byte(snapshotFormat))
	out.int(s.taken.UnixMicro())
	out.int(s.revision)
	out.int(int64(len(s.schemas)))
	for id, text := range s.schemas {
		out.int(int64(id))
		out.text(text)
	}
	out.int(int64(s.records.Len()))
	for key, k := range s.records.All() {
		out.text(key)
		out.int(k.version)
		out.bytes(k.value)
	}
	out.int(int64(len(s.voids)))
	for key, m := range s.voids {
		out.text(key)
		for _, n := range [...]int64{int64(m.partition), m.offset, m.timestamp, int64(m.sum)} {
			out.int(n)
		}
	}
	sum := out.sum.Sum(nil)
	out.raw(sum)
	if out.err != nil {
		return out.err
	}
	return out.buf.Flush()
}

// readSnapshot is the opposite of writeSnapshot. The records alias b.
func readSnapshot(b []byte) (*snapshot, error) {
	line, _, _ := bytes.Cut(b[:min(len(b), 64)], []byte("\n"))
	if string(line)+"\n" != snapshotFormat {
		return nil, fmt.Errorf("begins with %.40q, want %q", line, snapshotFormat[:len(snapshotFormat)-1])
	}
	end := len(b) - sha256.Size
	if end < len(snapshotFormat) {
		return nil, fmt.Errorf("is cut off after %d bytes", len(b))
	}
	if sum := sha256.Sum256(b[:end]); !bytes.Equal(sum[:], b[end:]) {
		return nil, errors.New("checksum does not match: it is torn or was changed")
	}
	in := &reader{rest: b[len(snapshotFormat):end]}
	s := &snapshot{taken: time.UnixMicro(in.int()).UTC(), revision: in.int(), schemas: map[uint32]string{}, voids: map[string]mark{}}
	for range in.count() {
		id := uint32(in.int())
		s.schemas[id] = string(in.bytes())
	}
	e := newRecords().Edit()
	for range in.count() {
		e.Set(string(in.bytes()), kept{in.int(), in.bytes()})
	}
	s.records = e.Map()
	for range in.count() {
		key := string(in.bytes())
		s.voids[key] = mark{int32(in.int()), in.int(), in.int(), uint32(in.int())}
	}
	if in.bad || len(in.rest) > 0 {
		return nil, errors.New("has another shape than its format")
	}
	return s, nil
}

// A writer writes and sums. After an error it does nothing.
type writer struct {
	buf     *bufio.Writer
	sum     hash.Hash
	scratch []byte
	err     error
}

func (w *writer) raw(b []byte) {
	if w.err == nil {
		w.sum.Write(b)
		_, w.err = w.buf.Write(b)
	}
}

func (w *writer) int(n int64) {
	w.scratch = binary.AppendVarint(w.scratch[:0], n)
	w.raw(w.scratch)
}

func (w *writer) bytes(b []byte) {
	w.int(int64(len(b)))
	w.raw(b)
}

func (w *writer) text(s string) { w.bytes([]byte(s)) }

// A reader reads what a writer wrote. After a fault it is bad and reads nothing.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) int() int64 {
	n, size := binary.Varint(r.rest)
	if size <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

// count is a number of things, none when it cannot be one.
func (r *reader) count() int64 {
	if n := r.int(); n >= 0 && n <= int64(len(r.rest)) {
		return n
	}
	r.bad, r.rest = true, nil
	return 0
}

func (r *reader) bytes() []byte {
	n := r.count()
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}
