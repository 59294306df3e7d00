package spool_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/gateway/topics/usage/spool"
)

var (
	t0     = time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC)
	schema = [32]byte{1, 2, 3}
)

// A rig is a spool under test, and what it said was damaged.
type rig struct {
	*spool.Spool
	t       testing.TB
	damaged int
	said    []string
}

func open(t testing.TB, dir string, change func(*spool.Config)) *rig {
	t.Helper()
	r := &rig{t: t}
	cfg := spool.Config{Dir: dir, Bound: 1 << 30, Schema: schema}
	if change != nil {
		change(&cfg)
	}
	var err error
	r.Spool, err = spool.Open(cfg, t0, func(_, what string, n int) {
		r.damaged += n
		r.said = append(r.said, what)
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) close() {
	r.t.Helper()
	if err := r.Close(); err != nil {
		r.t.Fatal(err)
	}
}

// records are sealed records whose bodies are the given texts.
func records(texts ...string) (b []byte) {
	for _, text := range texts {
		start := len(b)
		b = append(spool.Begin(b, []byte("key-"+text)), text...)
		spool.End(b, start)
	}
	spool.Seal(b)
	return b
}

func (r *rig) append(p int32, texts ...string) {
	r.t.Helper()
	if err := r.Queue(p).Append(records(texts...)); err != nil {
		r.t.Fatal(err)
	}
}

// read takes the next batch and returns the bodies in it.
func (r *rig) read(p int32, room int) (texts []string, b spool.Batch, ok bool) {
	r.t.Helper()
	b, ok = r.Queue(p).Read(make([]byte, room))
	for _, at := range b.At {
		key, value, _ := spool.Parse(b.Bytes[at:])
		text := string(value[spool.Room:])
		if string(key) != "key-"+text {
			r.t.Fatalf("key %q of %q", key, text)
		}
		texts = append(texts, text)
	}
	return texts, b, ok
}

// drain reads and sends everything.
func (r *rig) drain(p int32) (texts []string) {
	r.t.Helper()
	for {
		some, b, ok := r.read(p, spool.MaxRecord)
		if !ok {
			return texts
		}
		texts = append(texts, some...)
		r.Queue(p).Sent(b.Mark)
	}
}

// files are the names in a directory, but for the lock.
func files(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "lock" {
			names = append(names, e.Name())
		}
	}
	return names
}

func numbered(from, to int) (texts []string) {
	for i := from; i < to; i++ {
		texts = append(texts, fmt.Sprintf("event %d %s", i, strings.Repeat("x", i%300)))
	}
	return texts
}

// TestOrder guarantees that a queue gives back what was written, in order, over
// as many files as that took, one queue apart from another; and that nothing is
// left on disk once it was sent.
func TestOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := open(t, dir, func(c *spool.Config) { c.Roll = 2000 })
	want := numbered(0, 500)
	for i := range 100 {
		r.append(0, want[5*i:5*i+5]...)
		r.append(1, "other")
	}
	if n := len(files(t, dir)); n < 10 {
		t.Errorf("%d files, want many", n)
	}
	if got := r.drain(0); !slices.Equal(got, want) {
		t.Errorf("read %d records, not the %d that were written in their order", len(got), len(want))
	}
	if got := r.drain(1); len(got) != 100 || !r.Queue(0).Empty() || !r.Queue(1).Empty() {
		t.Errorf("%d records of the other queue, want 100 and then none", len(got))
	}
	if left := files(t, dir); len(left) > 0 || r.Bytes() != 0 || r.damaged > 0 {
		t.Errorf("left %v, %d bytes, %d damaged", left, r.Bytes(), r.damaged)
	}
}

// TestRestart guarantees that a later run goes on where the former one was: it
// sends what that had not sent, in order and before its own, and little of what
// it had.
func TestRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := numbered(0, 40)
	for run, part := range [][]string{want[:10], want[10:20], want[20:30]} {
		r := open(t, dir, func(c *spool.Config) { c.Roll = 500 })
		if run > 0 && (len(r.Partitions()) != 1 || r.Partitions()[0] != 7 || r.Bytes() == 0) {
			t.Errorf("run %d finds %v with %d bytes", run, r.Partitions(), r.Bytes())
		}
		r.append(7, part...)
		r.close()
	}
	r := open(t, dir, nil)
	first, b, _ := r.read(7, 1<<20)
	if !b.Mark.Former() || b.Schema != schema {
		t.Errorf("former %v, schema %x", b.Mark.Former(), b.Schema)
	}
	r.Queue(7).Sent(b.Mark)
	r.append(7, want[30:]...)
	r.close()
	r = open(t, dir, nil)
	if rest := r.drain(7); !slices.Equal(append(first, rest...), want) {
		t.Errorf("read %d and then %d, want %d in all", len(first), len(rest), len(want))
	}
}

// TestSentInPart guarantees that a batch in the middle of a file is not read
// again after a restart once it was sent, and is when it was not.
func TestSentInPart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := numbered(300, 600)
	r := open(t, dir, nil)
	r.append(0, want...)
	sent, b, _ := r.read(0, spool.MaxRecord)
	r.Queue(0).Sent(b.Mark)
	lost, _, _ := r.read(0, spool.MaxRecord)
	if len(sent) == 0 || len(lost) == 0 {
		t.Fatal("the file is too small for two batches")
	}
	r.close()
	r = open(t, dir, nil)
	if got := r.drain(0); !slices.Equal(got, want[len(sent):]) {
		t.Errorf("read %d records, want %d", len(got), len(want)-len(sent))
	}
}

// TestClaim guarantees that what its sender has in memory is not read, and is
// there after a restart unless it was sent.
func TestClaim(t *testing.T) {
	t.Parallel()
	for _, sent := range []bool{false, true} {
		dir := t.TempDir()
		r := open(t, dir, nil)
		r.append(0, "on its way")
		mark := r.Queue(0).Claim()
		r.append(0, "next")
		if sent {
			r.Queue(0).Sent(mark)
			if got, _, _ := r.read(0, 1<<20); !slices.Equal(got, []string{"next"}) {
				t.Errorf("read %v, want next", got)
			}
		}
		r.close()
		want := []string{"on its way", "next"}
		if sent {
			want = want[1:]
		}
		if got := open(t, dir, nil).drain(0); !slices.Equal(got, want) {
			t.Errorf("sent %v: %v after a restart, want %v", sent, got, want)
		}
	}
}

// TestBound guarantees that files never exceed the bound together, that what
// does not fit is refused whole, and that sending makes room.
func TestBound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := open(t, dir, func(c *spool.Config) { c.Bound, c.Roll = 10_000, 1000 })
	written := 0
	for range 1000 {
		err := r.Queue(int32(written % 3)).Append(records(strings.Repeat("x", 100)))
		if errors.Is(err, spool.ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		written++
	}
	var size int64
	for _, name := range files(t, dir) {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > 10_000 || size != r.Bytes() || size < 9000 {
		t.Errorf("%d bytes on disk, %d counted, want up to 10000", size, r.Bytes())
	}
	n := len(r.drain(0)) + len(r.drain(1))
	r.append(0, "again")
	if n += len(r.drain(2)); n != written {
		t.Errorf("%d read, want %d", n, written)
	}
	if got := r.drain(0); !slices.Equal(got, []string{"again"}) {
		t.Errorf("read %v", got)
	}
}

// TestLocked guarantees that one process uses a directory at a time, and the
// next one once it has left.
func TestLocked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := open(t, dir, nil)
	if _, err := spool.Open(spool.Config{Dir: dir}, t0, nil); !errors.Is(err, spool.ErrLocked) {
		t.Errorf("a second one: %v, want ErrLocked", err)
	}
	r.close()
	open(t, dir, nil).close()
}

// TestDamage guarantees what becomes of a file that does not hold what was
// written: a damaged record is left out and counted, what follows a torn one is
// cut, what is no such file is put aside, and everything else is sent.
func TestDamage(t *testing.T) {
	t.Parallel()
	texts := []string{"first", "second", "third"}
	all := records(texts...)
	_, _, size := spool.Parse(all)
	_, _, second := spool.Parse(all[size:])
	second += size
	const header = 72
	for _, tt := range []struct {
		name    string
		damage  func(b []byte) []byte
		want    []string
		damaged int
		aside   bool
	}{
		{"nothing", func(b []byte) []byte { return b }, texts, 0, false},
		{"a bit of a body", func(b []byte) []byte { b[header+second-1] ^= 1; return b }, []string{"first", "third"}, 1, false},
		{"a bit of a checksum", func(b []byte) []byte { b[header+5] ^= 1; return b }, texts[1:], 1, false},
		{"the length of a key", func(b []byte) []byte { b[header+8] ^= 1; return b }, texts[1:], 1, false},
		{"a length beyond the file", func(b []byte) []byte { b[header+2] = 200; return b }, nil, 1, false},
		{"the last record cut", func(b []byte) []byte { return b[:len(b)-3] }, texts[:2], 1, false},
		{"its head cut", func(b []byte) []byte { return b[:header+second+2] }, texts[:2], 1, false},
		{"zeros at the end", func(b []byte) []byte { return append(b, make([]byte, 4096)...) }, texts, 1, false},
		{"cut between records", func(b []byte) []byte { return b[:header+second] }, texts[:2], 0, false},
		{"nothing but a header", func(b []byte) []byte { return b[:header] }, nil, 0, false},
		{"not even that", func(b []byte) []byte { return b[:20] }, nil, 0, false},
		{"empty", func([]byte) []byte { return nil }, nil, 0, false},
		{"another format", func(b []byte) []byte { b[15] = '2'; return b }, nil, 1, true},
		{"a bit of the header", func(b []byte) []byte { b[30] ^= 1; return b }, nil, 1, true},
		{"how far it was sent", func(b []byte) []byte { b[header-1] ^= 1; return b }, texts, 0, false},
		{"sent beyond what there is", func(b []byte) []byte {
			for i := range 8 {
				b[header-16+i], b[header-8+i] = 0x7f, 0x80
			}
			return b
		}, nil, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r := open(t, dir, nil)
			r.append(3, texts...)
			r.close()
			path := filepath.Join(dir, files(t, dir)[0])
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, tt.damage(b), 0o600); err != nil {
				t.Fatal(err)
			}
			r = open(t, dir, nil)
			if got := r.drain(3); !slices.Equal(got, tt.want) || r.damaged != tt.damaged {
				t.Errorf("read %v, %d damaged %v; want %v, %d", got, r.damaged, r.said, tt.want, tt.damaged)
			}
			left := files(t, dir)
			if aside := len(left) == 1 && strings.HasSuffix(left[0], ".aside"); aside != tt.aside || !aside && len(left) > 0 || r.Bytes() != 0 {
				t.Errorf("left %v and %d bytes", left, r.Bytes())
			}
			r.append(3, "on")
			if got := r.drain(3); !slices.Equal(got, []string{"on"}) {
				t.Errorf("read %v after that", got)
			}
		})
	}
}

// TestGone guarantees that a file which somebody deleted costs itself only.
func TestGone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := open(t, dir, func(c *spool.Config) { c.Roll = 100 })
	r.append(0, numbered(0, 1)...)
	r.append(0, numbered(200, 201)...)
	r.append(0, numbered(201, 202)...)
	r.close()
	if err := os.Remove(filepath.Join(dir, files(t, dir)[1])); err != nil {
		t.Fatal(err)
	}
	r = open(t, dir, nil)
	if err := os.Remove(filepath.Join(dir, files(t, dir)[1])); err != nil { // after it was found
		t.Fatal(err)
	}
	if got := r.drain(0); !slices.Equal(got, numbered(0, 1)) || r.damaged != 1 {
		t.Errorf("read %v, %d damaged", got, r.damaged)
	}
}

// TestFullDisk guarantees that a write which the disk refuses half way leaves no
// half record behind: what comes later is read whole.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := open(t, dir, nil)
	r.append(0, "before")
	r.FailWrites(0)
	if err := r.Queue(0).Append(records("refused")); err == nil {
		t.Fatal("the write succeeded")
	}
	r.append(0, "after")
	if got := r.drain(0); !slices.Equal(got, []string{"before", "after"}) || r.damaged > 0 {
		t.Errorf("read %v, %d damaged", got, r.damaged)
	}
}

// TestSync guarantees that what was written is synced once, files that are gone
// by then included.
func TestSync(t *testing.T) {
	t.Parallel()
	r := open(t, t.TempDir(), nil)
	r.append(0, "a")
	r.append(1, "b")
	f, ok := r.TakeUnsynced()
	r.drain(0)
	if err := f.Sync(); !ok || err != nil {
		t.Errorf("sync: %v %v", ok, err)
	}
	if _, ok := r.TakeUnsynced(); ok {
		t.Error("there is something to sync again")
	}
}

// FuzzRead guarantees that whatever bytes a file has, reading them ends, gives
// records that are whole, accounts for the rest, and leaves a queue that works.
func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	r := open(f, dir, nil)
	r.append(0, "first", "second", strings.Repeat("long", 1000))
	r.close()
	seed, err := os.ReadFile(filepath.Join(dir, files(f, dir)[0]))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed, uint16(0), byte(0))
	f.Add(seed[:len(seed)-1], uint16(80), byte(1))
	f.Add(seed[:40], uint16(0), byte(0))
	f.Fuzz(func(t *testing.T, b []byte, at uint16, flip byte) {
		if len(b) > 1<<20 {
			return // larger than a file gets
		}
		b = slices.Clone(b)
		if int(at) < len(b) {
			b[at] ^= flip
		}
		dir := t.TempDir()
		name := fmt.Sprintf("%016x-%05d-%08d.usage", t0.UnixMicro()-1, 0, 1)
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
		r := open(t, dir, nil)
		for n := 0; ; n++ {
			batch, ok := r.Queue(0).Read(make([]byte, spool.MaxRecord))
			if !ok {
				break
			}
			if n > len(b) {
				t.Fatal("reading does not end")
			}
			for _, at := range batch.At {
				if key, value, size := spool.Parse(batch.Bytes[at:]); len(key) > spool.MaxKey || len(value) < spool.Room || size > spool.MaxRecord {
					t.Fatalf("a record of %d bytes, key %d, value %d", size, len(key), len(value))
				}
			}
			r.Queue(0).Sent(batch.Mark)
		}
		if !r.Queue(0).Empty() || r.Bytes() != 0 {
			t.Fatalf("%d bytes are left", r.Bytes())
		}
		r.append(0, "on")
		if got := r.drain(0); !slices.Equal(got, []string{"on"}) {
			t.Fatalf("read %v after that", got)
		}
	})
}

// TestHistory guarantees that no order of writing, reading, sending and
// restarting loses a record, repeats one that was sent or changes the order.
func TestHistory(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	restarts, several := 0, 0
	for range 10 {
		dir := t.TempDir()
		small := func(c *spool.Config) { c.Roll = 1500 }
		r := open(t, dir, small)
		written, sent := 0, 0
		for range 100 {
			switch rng.IntN(5) {
			case 0, 1:
				n := 1 + rng.IntN(8)
				r.append(0, numbered(written, written+n)...)
				written += n
			case 2, 3:
				got, b, ok := r.read(0, spool.MaxRecord)
				if ok != (sent < written) {
					t.Fatalf("read %v with %d sent of %d", ok, sent, written)
				}
				if !ok {
					continue
				}
				if !slices.Equal(got, numbered(sent, sent+len(got))) {
					t.Fatalf("read %q, want from %d on", got, sent)
				}
				r.Queue(0).Sent(b.Mark)
				if sent += len(got); len(got) > 8 {
					several++
				}
			case 4:
				r.close()
				r = open(t, dir, small)
				restarts++
			}
		}
		if got := r.drain(0); !slices.Equal(got, numbered(sent, written)) || r.damaged > 0 {
			t.Fatalf("%d left, want %d; %d damaged", len(got), written-sent, r.damaged)
		}
	}
	if restarts == 0 || several == 0 {
		t.Error("the history is not one that tests anything")
	}
}
