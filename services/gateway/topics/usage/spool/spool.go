// Package spool keeps usage events on disk while Kafka does not take them: per
// partition a queue of files, written at the end and read at the beginning.
//
// What was written and not synced survives the end of the process, and what was
// synced that of the machine. How far a file was sent stands in its header, so
// that little is sent again after a restart. A record that is damaged is left
// out; what follows a torn one is cut. It is not safe for concurrent use, but
// for what says so.
package spool

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Errors of a spool. Every other one is the file system's own.
var (
	// ErrFull reports that the bound is reached.
	ErrFull = errors.New("spool is full")
	// ErrLocked reports a directory that another process uses.
	ErrLocked = errors.New("spool is in use by another process")
)

// DefaultRoll is the size at which a file is followed by another one, in bytes.
const DefaultRoll = 4 << 20

// A Config says where a spool is and how large it may get.
type Config struct {
	Dir    string
	Bound  int64    // of all files together, bytes
	Roll   int64    // of one file; 0 means DefaultRoll
	Schema [32]byte // of the bodies that are written from now on
}

// A Spool is a directory of files.
type Spool struct {
	cfg     Config
	lock    *os.File
	run     int64 // of this process, greater than any former one's
	queues  map[int32]*Queue
	unsaved []*os.File // written since the last TakeUnsynced
	grown   bool       // files were made since

	bytes   atomic.Int64
	damaged func(path, what string, records int)
}

// Open opens the spool in cfg.Dir, which it makes when it is missing, with what
// former runs left there. It fails with ErrLocked while another process uses
// it. Damaged is told of records that cannot be read, with their number, at
// least 1.
func Open(cfg Config, now time.Time, damaged func(path, what string, records int)) (*Spool, error) {
	if cfg.Roll == 0 {
		cfg.Roll = DefaultRoll
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(cfg.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrLocked, cfg.Dir)
		}
		return nil, fmt.Errorf("spool: lock %s: %w", cfg.Dir, err)
	}
	s := &Spool{cfg: cfg, lock: lock, run: now.UnixMicro(), queues: map[int32]*Queue{}, damaged: damaged}
	if err := s.find(); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("spool: %w", err)
	}
	return s, nil
}

// suffix ends the name of a file of records; one that cannot be read gets
// another one behind it.
const (
	suffix = ".usage"
	aside  = ".aside"
)

// A name is that of a file: run, partition and number within both.
type name struct {
	run       int64
	partition int32
	number    int
}

func (n name) String() string {
	return fmt.Sprintf("%016x-%05d-%08d%s", n.run, n.partition, n.number, suffix)
}

func parseName(s string) (n name, ok bool) {
	if !strings.HasSuffix(s, suffix) {
		return n, false
	}
	_, err := fmt.Sscanf(s, "%016x-%05d-%08d"+suffix, &n.run, &n.partition, &n.number)
	return n, err == nil && n.String() == s
}

// find queues the files of former runs, oldest first.
func (s *Spool) find() error {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return err
	}
	var names []name
	for _, e := range entries {
		if n, ok := parseName(e.Name()); ok {
			names = append(names, n)
			s.run = max(s.run, n.run+1)
		}
	}
	slices.SortFunc(names, func(a, b name) int {
		return cmp.Or(cmp.Compare(a.run, b.run), cmp.Compare(a.number, b.number))
	})
	for _, n := range names {
		path := filepath.Join(s.cfg.Dir, n.String())
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		q := s.Queue(n.partition)
		q.segments = append(q.segments, &segment{path: path, size: info.Size(), former: true})
		s.bytes.Add(info.Size())
	}
	return nil
}

// Queue returns the queue of a partition.
func (s *Spool) Queue(partition int32) *Queue {
	q := s.queues[partition]
	if q == nil {
		q = &Queue{spool: s, partition: partition}
		s.queues[partition] = q
	}
	return q
}

// Partitions lists the partitions whose queues hold something, in order.
func (s *Spool) Partitions() []int32 {
	var list []int32
	for p, q := range s.queues {
		if !q.Empty() {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	return list
}

// Bytes is the size of all files together. It is safe for concurrent use.
func (s *Spool) Bytes() int64 { return s.bytes.Load() }

// A Flush is what has been written and not synced. Sync may run beside all
// else.
type Flush struct {
	dir   string // empty: no file was made
	files []*os.File
}

// TakeUnsynced returns what has been written since the last time, and false
// when that is nothing.
func (s *Spool) TakeUnsynced() (Flush, bool) {
	f := Flush{files: s.unsaved}
	if s.grown {
		f.dir = s.cfg.Dir
	}
	s.unsaved, s.grown = nil, false
	return f, len(f.files) > 0 || f.dir != ""
}

// Sync returns when the disk has it. A file that was sent and deleted meanwhile
// needs none.
func (f Flush) Sync() error {
	var errs []error
	for _, file := range f.files {
		if err := file.Sync(); err != nil && !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if f.dir != "" {
		errs = append(errs, syncDir(f.dir))
	}
	return errors.Join(errs...)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// wrote notes that a file has something to sync.
func (s *Spool) wrote(f *os.File) {
	if !slices.Contains(s.unsaved, f) {
		s.unsaved = append(s.unsaved, f)
	}
}

// Close syncs and closes every file and lets another process in.
func (s *Spool) Close() error {
	var errs []error
	if f, ok := s.TakeUnsynced(); ok {
		errs = append(errs, f.Sync())
	}
	for _, q := range s.queues {
		for _, g := range q.segments {
			errs = append(errs, g.close())
		}
	}
	return errors.Join(append(errs, s.lock.Close())...)
}
