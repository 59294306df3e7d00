package devbroker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The broker compacts a partition by deleting its files and writing new ones: a
// kill in between would lose acknowledged records. So its own timer is put off
// for ever, and compaction goes through here:
//
//  1. every file of a compacted topic gets a second name (a hard link) in the
//     directory "compacting";
//  2. the broker compacts;
//  3. the second names go away.
//
// A start that finds second names knows that the process died in 1, 2 or 3.
// Compaction always keeps the newest batch and writes it last, so a partition
// that ends where its second names end, or later, is whole; one that ends
// before is put back.

// neverMillis is 34 years, in the unit of log.cleaner.backoff.ms.
const neverMillis = 1 << 40

// sweepEvery is how often topics are compacted although nothing was written to
// them, so that tombstones expire.
const sweepEvery = time.Hour

// clean compacts until ctx ends.
func (b *Broker) clean(ctx context.Context) {
	tick := time.NewTicker(b.cfg.CompactEvery)
	defer tick.Stop()
	var last string
	var swept time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			state, err := b.fingerprint(ctx)
			if err == nil && (state != last || now.Sub(swept) >= sweepEvery) {
				if err = b.Compact(ctx); err == nil {
					swept = now
					state, err = b.fingerprint(ctx)
				}
				last = state
			}
			if err != nil && ctx.Err() == nil {
				b.log.Warn("topics not compacted", "error", err.Error())
			}
		}
	}
}

// Compact compacts every compacted topic now, and removes what has outlived its
// topic's retention.
func (b *Broker) Compact(ctx context.Context) error {
	b.cleaning.Lock()
	defer b.cleaning.Unlock()
	if b.cfg.DataDir == "" {
		b.cluster.Compact()
		return nil
	}
	partitions, err := b.compacted(ctx)
	if err != nil {
		return err
	}
	if err := secure(b.logDir(), b.safeDir(), partitions); err != nil {
		return errors.Join(err, os.RemoveAll(b.safeDir()))
	}
	b.cluster.Compact()
	return os.RemoveAll(b.safeDir())
}

// compacted returns the directories of the partitions of compacted topics,
// relative to the directory of all partitions.
func (b *Broker) compacted(ctx context.Context) ([]string, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers()...), kgo.ClientID("cleaner"), kgo.DisableClientMetrics())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopicsWithInternal(ctx)
	if err != nil {
		return nil, err
	}
	configs, err := admin.DescribeTopicConfigs(ctx, topics.Names()...)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, c := range configs {
		if !slices.ContainsFunc(c.Configs, func(c kadm.Config) bool {
			return c.Key == "cleanup.policy" && strings.Contains(c.MaybeValue(), "compact")
		}) {
			continue
		}
		for _, p := range topics[c.Name].Partitions.Numbers() {
			dirs = append(dirs, fmt.Sprintf("%s-%d", url.PathEscape(c.Name), p))
		}
	}
	slices.Sort(dirs)
	return dirs, nil
}

// fingerprint changes when something was written to a compacted topic.
func (b *Broker) fingerprint(ctx context.Context) (string, error) {
	if b.cfg.DataDir == "" {
		return time.Now().String(), nil
	}
	dirs, err := b.compacted(ctx)
	if err != nil {
		return "", err
	}
	var s strings.Builder
	for _, d := range dirs {
		files, err := logFiles(filepath.Join(b.logDir(), "partitions", d))
		if err != nil {
			return "", err
		}
		for _, f := range files {
			if info, err := os.Stat(f); err == nil {
				fmt.Fprintf(&s, "%s %d %d\n", f, info.Size(), info.ModTime().UnixNano())
			}
		}
	}
	return s.String(), nil
}

// secure gives every file of the partitions a second name.
func secure(logDir, safeDir string, partitions []string) error {
	if err := os.RemoveAll(safeDir); err != nil {
		return err
	}
	for _, p := range partitions {
		files, err := logFiles(filepath.Join(logDir, "partitions", p))
		if err != nil {
			return err
		}
		if len(files) == 0 {
			continue
		}
		if err := os.MkdirAll(filepath.Join(safeDir, p), 0o750); err != nil {
			return err
		}
		for _, f := range files {
			if err := os.Link(f, filepath.Join(safeDir, p, filepath.Base(f))); err != nil {
				return err
			}
		}
	}
	return nil
}

// restore puts back the partitions whose compaction did not end and forgets the
// second names. It returns how many it put back. It may itself be interrupted:
// the newest file comes back last, so until then the partition ends too early.
func restore(logDir, safeDir string) (int, error) {
	entries, err := os.ReadDir(safeDir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n := 0
	for _, e := range entries {
		back, err := restorePartition(filepath.Join(logDir, "partitions", e.Name()), filepath.Join(safeDir, e.Name()))
		if err != nil {
			return n, fmt.Errorf("%s: %w", e.Name(), err)
		}
		if back {
			n++
		}
	}
	return n, os.RemoveAll(safeDir)
}

func restorePartition(live, safe string) (bool, error) {
	had, err := endOf(safe)
	if err != nil {
		return false, err
	}
	has, err := endOf(live)
	if err != nil || has >= had {
		return false, err
	}
	half, err := logFiles(live)
	if err != nil {
		return false, err
	}
	for _, f := range half {
		if err := os.Remove(f); err != nil {
			return false, err
		}
	}
	if err := os.MkdirAll(live, 0o750); err != nil {
		return false, err
	}
	files, err := logFiles(safe)
	if err != nil {
		return false, err
	}
	for _, f := range files {
		if err := os.Link(f, filepath.Join(live, filepath.Base(f))); err != nil {
			return false, err
		}
	}
	return true, nil
}

// logFiles returns the files of a partition, oldest first, each index before
// its segment. A partition without a directory has none.
func logFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	type file struct {
		base int64
		name string
	}
	var files []file
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		base, err := strconv.ParseInt(strings.TrimSuffix(e.Name(), ext), 10, 64)
		if err == nil && (ext == ".dat" || ext == ".idx") {
			files = append(files, file{base, e.Name()})
		}
	}
	slices.SortFunc(files, func(a, b file) int {
		if a.base != b.base {
			return int(max(-1, min(1, a.base-b.base)))
		}
		return -strings.Compare(a.name, b.name) // .idx before .dat
	})
	paths := make([]string, len(files))
	for i, f := range files {
		paths[i] = filepath.Join(dir, f.name)
	}
	return paths, nil
}

// endOf returns the offset after the last whole batch of a partition, 0 when it
// has none.
func endOf(dir string) (int64, error) {
	files, err := logFiles(dir)
	if err != nil {
		return 0, err
	}
	end := int64(0)
	for _, f := range files {
		if filepath.Ext(f) != ".dat" {
			continue
		}
		segment, err := os.ReadFile(f)
		if err != nil {
			return 0, err
		}
		end = max(end, endOfSegment(segment))
	}
	return end, nil
}

// endOfSegment walks the batches of a segment, each 8 bytes of first offset, 4
// of length of what follows, and at byte 23 the last record's distance.
func endOfSegment(segment []byte) int64 {
	const header, delta = 12, 23
	end := int64(0)
	for len(segment) >= header {
		size := header + int(binary.BigEndian.Uint32(segment[8:]))
		if size < delta+4 || size > len(segment) {
			break
		}
		end = int64(binary.BigEndian.Uint64(segment)) + int64(binary.BigEndian.Uint32(segment[delta:])) + 1
		segment = segment[size:]
	}
	return end
}
