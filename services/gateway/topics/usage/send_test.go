package usage_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock.dev/schemas"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/gateway/topics/usage"
	"penstock.dev/services/gateway/topics/usage/spool"
	"penstock.dev/services/internal/kafka"
)

// TestNumbers guarantees that 100,000 events of concurrent requests are
// numbered per stream without a gap and without a repeat, in the order in which
// their partitions have them.
func TestNumbers(t *testing.T) {
	t.Parallel()
	r := start(t, newCluster(), &registry{}, nil)
	const requests, each = 8, 12_500
	var all sync.WaitGroup
	for w := range requests {
		all.Go(func() {
			for i := range each {
				r.Record(event(w*each + i))
			}
		})
	}
	all.Wait()
	r.until("all events", func() bool { return r.metric("acknowledged_total") == requests*each })
	events := r.cluster.events(t, r.registry)
	exactly(t, events, requests*each)
	if err := r.stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v", err)
	}
	if got := r.metric("recorded_total"); got != requests*each || r.metric("oldest_seconds") != 0 || r.metric("buffer_bytes") != 0 {
		t.Errorf("%v recorded, oldest %v s, %v bytes in memory", got, r.metric("oldest_seconds"), r.metric("buffer_bytes"))
	}
}

// TestOrder guarantees that what one request tells is numbered in its order, also
// when so much is told at once that requests make room themselves, and that
// nothing is kept once Run has ended, which is counted.
func TestOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, newCluster(), &registry{}, nil)
	r.tell(5000)
	if got := r.metric("recorded_total"); got != 5000 {
		t.Fatalf("%v recorded before anything is sent, want 5000", got)
	}
	r.run()
	r.tell(5000)
	r.until("all events", func() bool { return r.metric("acknowledged_total") == float64(r.made) })
	events := r.cluster.events(t, r.registry)
	exactly(t, events, r.made)
	last := map[usagev1.UUID]int64{}
	for _, e := range events {
		if e.Cost < last[e.StreamID] {
			t.Fatalf("event %d is numbered after %d", e.Cost, last[e.StreamID])
		}
		last[e.StreamID] = e.Cost
	}
	_ = r.stop()
	r.tell(10)
	if got := r.metric("lost_total", "stopped"); got != 10 {
		t.Errorf("%v lost after the end, want 10", got)
	}
}

// TestLinger guarantees that an event is sent within its linger, and that those
// of one linger travel together.
func TestLinger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newCluster(), &registry{}, nil)
		synctest.Wait()
		r.Record(event(1))
		time.Sleep(4 * time.Millisecond)
		synctest.Wait()
		if n := r.cluster.count(); n != 0 {
			t.Errorf("%d sent before the linger was over", n)
		}
		r.Record(event(1))
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if n := r.cluster.count(); n != 2 {
			t.Errorf("%d sent at its end, want 2", n)
		}
	})
}

// TestAway guarantees what happens while Kafka is away: the first second stays
// in memory, then everything goes to disk, which metrics and readiness say; and
// when Kafka is back it gets everything, once and in order, and nothing is left
// on disk.
func TestAway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		r := start(t, c, &registry{}, in(dir))
		r.tell(10)
		time.Sleep(100 * time.Millisecond)
		c.pause()
		r.tell(100)
		time.Sleep(900 * time.Millisecond)
		r.tell(100)
		synctest.Wait()
		if n := files(t, dir); len(n) > 0 || r.Ready(t.Context()) != nil {
			t.Errorf("within a second: files %v, ready %v", n, r.Ready(t.Context()))
		}
		for range 100 {
			time.Sleep(300 * time.Millisecond)
			r.tell(100)
		}
		time.Sleep(writeTime)
		synctest.Wait()
		if n := files(t, dir); len(n) == 0 || r.metric("spool_bytes") == 0 || r.metric("spooling_partitions") == 0 || r.metric("oldest_seconds") < 30 {
			t.Errorf("files %v, %v bytes, oldest %v s", n, r.metric("spool_bytes"), r.metric("oldest_seconds"))
		}
		if err := r.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "go to disk") {
			t.Errorf("ready: %v, want a remark", err)
		}
		c.resume()
		time.Sleep(time.Second)
		r.tell(5)
		time.Sleep(time.Second)
		synctest.Wait()
		exactly(t, c.events(t, r.registry), r.made)
		if n := files(t, dir); len(n) > 0 || r.metric("spool_bytes") != 0 || r.Ready(t.Context()) != nil || r.metric("oldest_seconds") != 0 {
			t.Errorf("afterwards: files %v, ready %v, oldest %v s", n, r.Ready(t.Context()), r.metric("oldest_seconds"))
		}
		if r.metric("repeats_total") != 0 || r.metric("acknowledged_total") != float64(r.made) {
			t.Errorf("%v repeats, %v acknowledged", r.metric("repeats_total"), r.metric("acknowledged_total"))
		}
	})
}

// writeTime is after how long what was recorded is on disk, while things go
// there.
const writeTime = 150 * time.Millisecond

// TestKilled guarantees what a kill may cost: of an outage's events those of
// the last moment only. What was on disk is sent by the next run, and what the
// killed one had sent is recognised as repeats.
func TestKilled(t *testing.T) {
	t.Parallel()
	dir, after := t.TempDir(), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		reg := &registry{}
		r := start(t, c, reg, in(dir))
		r.tell(50)
		time.Sleep(100 * time.Millisecond)
		c.pause()
		for range 50 {
			r.tell(20)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(writeTime)
		kept := r.made
		r.tell(7)
		synctest.Wait()
		if err := os.CopyFS(after, os.DirFS(dir)); err != nil { // the state of the disk when the process is gone
			t.Fatal(err)
		}
		next := newCluster()
		next.records = map[int32][]kafka.Record{}
		c.resume() // nothing more of the first run counts
		second := start(t, next, reg, in(after))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		events := next.events(t, reg)
		if _, repeats := distinct(t, events); repeats != 0 || len(events) != kept-50 {
			t.Errorf("%d events with %d repeats come from disk, want %d of %d", len(events), repeats, kept-50, r.made-50)
		}
		second.tell(3)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := next.count(); n != kept-50+3 {
			t.Errorf("%d events, want 3 more", n)
		}
	})
}

// TestFC34 guarantees that an ordinary stop loses nothing: 436 events are
// waiting for a broker that is paused when the process is told to stop. Where
// the broker resumes 3 s later, exactly those are on usage.v1; where it does
// not, they are on disk within the grace, and sent after the restart.
func TestFC34(t *testing.T) {
	t.Parallel()
	const queued = 436
	for _, resumes := range []bool{true, false} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			c, reg := newCluster(), &registry{}
			r := start(t, c, reg, in(dir))
			time.Sleep(time.Second)
			c.pause()
			r.tell(queued)
			time.Sleep(20 * time.Millisecond)
			if resumes {
				time.AfterFunc(3*time.Second, c.resume)
			}
			began := time.Now()
			err := r.stop()
			if took := time.Since(began); !errors.Is(err, context.Canceled) || took > 11*time.Second {
				t.Errorf("resumes %v: Run = %v after %v", resumes, err, took)
			}
			if resumes {
				exactly(t, c.events(t, reg), queued)
				if n := files(t, dir); len(n) > 0 {
					t.Errorf("%v is left on disk", n)
				}
				return
			}
			if !strings.Contains(r.lines.String(), fmt.Sprintf(`"on_disk":%d,"lost":0`, queued)) {
				t.Errorf("the log does not say what is on disk: %s", r.lines)
			}
			c = newCluster()
			start(t, c, reg, in(dir))
			time.Sleep(time.Second)
			synctest.Wait()
			exactly(t, c.events(t, reg), queued)
		})
	}
}

// TestStopWithoutDisk guarantees that a stop which has nowhere to put events
// says how many are lost, and is a failure.
func TestStopWithoutDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		r := start(t, c, &registry{}, nil)
		time.Sleep(time.Second)
		c.pause()
		r.tell(436)
		err := r.stop()
		if err == nil || !strings.Contains(err.Error(), "436 usage events") || !strings.Contains(r.lines.String(), `"lost":436`) {
			t.Errorf("Run = %v, log %s", err, r.lines)
		}
		if got := r.metric("lost_total", "stopped"); got != 436 {
			t.Errorf("%v lost, want 436", got)
		}
		r.tell(1)
		if got := r.metric("lost_total", "stopped"); got != 437 {
			t.Errorf("what comes later is not counted: %v", got)
		}
	})
}

// TestGrace guarantees that the end is over before the process's grace is, also
// when other parts have used most of it.
func TestGrace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c, stopping := newCluster(), make(chan struct{})
		r := start(t, c, &registry{}, func(cfg *usage.Config) { cfg.Dir, cfg.Stopping, cfg.Grace = dir, stopping, 20*time.Second })
		time.Sleep(time.Second)
		c.pause()
		r.tell(10)
		began := time.Now()
		close(stopping)
		time.Sleep(12 * time.Second) // the gate drains
		_ = r.stop()
		if took := time.Since(began); took > 18*time.Second || took < 16*time.Second {
			t.Errorf("stopped after %v, want about 17s", took)
		}
	})
}

// TestMemoryBound guarantees that memory is bounded: what does not fit is lost
// and counted, its number is used up so that readers see the gap, and nothing
// else is lost.
func TestMemoryBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, reg := newCluster(), &registry{}
		r := start(t, c, reg, func(cfg *usage.Config) { cfg.Buffer = 4 << 20 })
		time.Sleep(time.Second)
		c.pause()
		r.tell(60_000)
		lost := int(r.metric("lost_total", "memory_full"))
		if used := r.metric("buffer_bytes"); lost == 0 || used > 4<<20 || used < 3<<20 || r.metric("buffer_limit_bytes") != 4<<20 {
			t.Errorf("%d lost with %v bytes in use", lost, used)
		}
		c.resume()
		time.Sleep(time.Second)
		made := r.made
		r.tell(10)
		time.Sleep(time.Second)
		synctest.Wait()
		events := c.events(t, reg)
		if len(events)+lost != r.made {
			t.Errorf("%d events and %d lost, want %d", len(events), lost, r.made)
		}
		gaps := int64(0)
		last := map[usagev1.UUID]int64{}
		for _, e := range events {
			gaps += e.Sequence - last[e.StreamID] - 1
			last[e.StreamID] = e.Sequence
		}
		if gaps != int64(lost) {
			t.Errorf("gaps of %d events in the streams, %d were lost of %d", gaps, lost, made)
		}
		if err := r.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d usage events were lost", lost)) {
			t.Errorf("ready: %v, want a remark", err)
		}
		time.Sleep(10 * time.Second)
		r.tell(1)
		time.Sleep(time.Second)
		if !strings.Contains(r.lines.String(), "usage events were lost") {
			t.Error("the log does not say so")
		}
	})
}

// TestMemoryShort guarantees that half of the memory in use is a reason to go to
// disk at once, so that a burst with Kafka away costs no event.
func TestMemoryShort(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c, reg := newCluster(), &registry{}
		r := start(t, c, reg, func(cfg *usage.Config) { cfg.Buffer, cfg.Dir = 4<<20, dir })
		time.Sleep(time.Second)
		c.pause()
		for range 60 {
			r.tell(1000)
			synctest.Wait()
		}
		if lost := r.metric("lost_total", "memory_full"); lost > 0 || r.metric("spool_bytes") < 5<<20 {
			t.Errorf("%v lost, %v bytes on disk", lost, r.metric("spool_bytes"))
		}
		c.resume()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		exactly(t, c.events(t, reg), r.made)
	})
}

// TestSpoolBound guarantees that the disk is bounded too: what fits neither
// there nor in memory is lost by that reason, and what is kept is sent.
func TestSpoolBound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c, reg := newCluster(), &registry{}
		r := start(t, c, reg, func(cfg *usage.Config) { cfg.Buffer, cfg.Dir, cfg.Spool = 4<<20, dir, 2<<20 })
		time.Sleep(time.Second)
		c.pause()
		for range 100 {
			r.tell(1000)
			time.Sleep(20 * time.Millisecond)
		}
		lost := int(r.metric("lost_total", "spool_full"))
		if bytes := r.metric("spool_bytes"); lost == 0 || bytes > 2<<20 || bytes < 1<<20 {
			t.Errorf("%d lost with %v bytes on disk", lost, bytes)
		}
		c.resume()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		all := int(r.metric("lost_total", "memory_full")) + lost
		events, repeats := distinct(t, c.events(t, reg)) // those under way when Kafka went away may come twice
		if n := len(events); n+all != r.made {
			t.Errorf("%d events, %d repeats and %d lost, want %d", n, repeats, all, r.made)
		}
		if n := files(t, dir); len(n) > 0 {
			t.Errorf("%v is left", n)
		}
	})
}

// TestFullSpoolLeavesMemory guarantees that while the disk is full memory is
// used to its bound: a trickle of events is kept for as long as there is room,
// however often the disk is tried.
func TestFullSpoolLeavesMemory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c, reg := newCluster(), &registry{}
		r := start(t, c, reg, func(cfg *usage.Config) { cfg.Buffer, cfg.Dir, cfg.Spool = 8<<20, dir, 1<<20 })
		time.Sleep(time.Second)
		c.pause()
		for before := -1.0; r.metric("spool_bytes") != before || before == 0; {
			before = r.metric("spool_bytes")
			r.tell(500)
			time.Sleep(2 * time.Second)
		}
		if used := r.metric("buffer_bytes"); used > 2<<20 {
			t.Fatalf("%v bytes of memory are in use already", used)
		}
		for range 1200 {
			r.tell(1)
			time.Sleep(100 * time.Millisecond)
		}
		if lost := r.metric("lost_total", "spool_full") + r.metric("lost_total", "memory_full"); lost > 0 {
			t.Errorf("%v events lost with %v bytes of memory in use", lost, r.metric("buffer_bytes"))
		}
		c.resume()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		exactly(t, c.events(t, reg), r.made)
	})
}

// TestDiskFails guarantees that a disk which takes nothing delays nothing and
// loses nothing that memory can hold; and that it is used once it can be.
func TestDiskFails(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "usage")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // a file, where a directory is to be made
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		c, reg := newCluster(), &registry{}
		r := start(t, c, reg, func(cfg *usage.Config) { cfg.Buffer, cfg.Dir = 4<<20, dir })
		time.Sleep(time.Second)
		if err := r.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "no disk") {
			t.Errorf("ready: %v, want a remark", err)
		}
		c.pause()
		r.tell(100)
		time.Sleep(5 * time.Second)
		c.resume()
		time.Sleep(time.Second)
		synctest.Wait()
		exactly(t, c.events(t, reg), r.made)
		c.pause()
		r.tell(60_000)
		if r.metric("lost_total", "disk_failed") == 0 || r.metric("spool_failures_total", "open") == 0 {
			t.Error("neither the loss nor the failure is counted")
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := files(t, dir); len(n) == 0 {
			t.Error("nothing is on disk though it can be")
		}
		c.resume()
	})
}

// TestGivenUp guarantees that what Kafka's client gives up, here because the
// topic is gone, is sent again in order, that the topic is made again, and that
// a repeat is counted.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, reg := newCluster(), &registry{}
		r := start(t, c, reg, func(cfg *usage.Config) { cfg.Replicas = 3 })
		time.Sleep(time.Second)
		c.set(func() {
			c.partitions = 0
			c.refuse = func(kafka.Record) error {
				if c.partitions == 0 {
					return fmt.Errorf("produce: %w", kafka.ErrNoTopic)
				}
				return nil
			}
		})
		r.tell(100)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		exactly(t, c.events(t, reg), r.made)
		if r.metric("repeats_total") == 0 {
			t.Error("no repeat is counted")
		}
		want := kafka.Topic{Name: "usage.v1", Partitions: 6, Replication: 3}
		if got := c.ensured[0]; got.Name != want.Name || got.Partitions != want.Partitions || got.Replication != want.Replication ||
			got.Config["cleanup.policy"] != "delete" || got.Config["retention.ms"] != "604800000" {
			t.Errorf("made %+v", got)
		}
	})
}

// TestRefused guarantees that an event which Kafka refuses for good costs itself
// only: those that travelled with it are sent.
func TestRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, reg := newCluster(), &registry{}
		r := start(t, c, reg, nil)
		time.Sleep(time.Second)
		batch := errors.New("none yet")
		alone := 0
		c.refuse = func(rec kafka.Record) error {
			body := rec.Value[wire.HeaderSize:]
			if strings.Contains(string(body), "too large") {
				batch = fmt.Errorf("produce: %w", kafka.ErrTooLarge)
				alone++
				return batch
			}
			if errors.Is(batch, kafka.ErrTooLarge) && alone == 1 { // the whole batch fails with it
				return batch
			}
			return nil
		}
		for i := range 9 {
			u := event(i)
			u.Tenant = "acme"
			if i == 4 {
				u.User = "too large"
			}
			r.Record(u)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		var costs []int64
		for _, e := range c.events(t, reg) {
			costs = append(costs, e.Cost)
		}
		if want := []int64{0, 1, 2, 3, 5, 6, 7, 8}; !slices.Equal(costs, want) || r.metric("lost_total", "refused") != 1 {
			t.Errorf("events %v, %v refused; want %v", costs, r.metric("lost_total", "refused"), want)
		}
	})
}

// TestAllRefused guarantees that a topic which refuses everything for good, as
// one whose limit was set too low, is waited for: no more than a few events are
// given up.
func TestAllRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c, reg := newCluster(), &registry{}
		r := start(t, c, reg, in(dir))
		time.Sleep(time.Second)
		c.set(func() { c.refuse = func(kafka.Record) error { return kafka.ErrTooLarge } })
		for i := range 200 {
			u := event(i)
			u.Tenant = "acme"
			r.Record(u)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if lost := r.metric("lost_total", "refused"); lost != 3 || len(files(t, dir)) == 0 {
			t.Errorf("%v given up, files %v", lost, files(t, dir))
		}
		c.set(func() { c.refuse = nil })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := c.count(); n != 197 || r.metric("lost_total", "refused") != 3 {
			t.Errorf("%d events afterwards, want 197", n)
		}
	})
}

// TestRegistryAway guarantees that events wait for the schema's id where nobody
// knows it, on disk, and that a gateway which knew it needs no registry.
func TestRegistryAway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c, reg := newCluster(), &registry{away: errors.New("away")}
		r := start(t, c, reg, in(dir))
		r.tell(50)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := files(t, dir); c.count() != 0 || len(n) == 0 {
			t.Errorf("%d sent, files %v", c.count(), n)
		}
		reg.mu.Lock()
		reg.away = nil
		reg.mu.Unlock()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		exactly(t, c.events(t, reg), r.made)
		_ = r.stop()

		reg.mu.Lock()
		reg.away = errors.New("away")
		reg.mu.Unlock()
		c.set(func() { c.away, c.records = errors.New("away"), map[int32][]kafka.Record{} })
		second := start(t, c, reg, in(dir))
		second.tell(50)
		time.Sleep(time.Second)
		synctest.Wait()
		exactly(t, c.events(t, reg), second.made)
	})
}

// TestRegistryAnew guarantees that a registry which was made anew is believed
// and not what was remembered.
func TestRegistryAnew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newCluster(), &registry{}, in(dir))
		time.Sleep(time.Second)
		_ = r.stop()
		c, reg := newCluster(), &registry{first: 40}
		r = start(t, c, reg, in(dir))
		time.Sleep(time.Second)
		r.tell(10)
		time.Sleep(time.Second)
		synctest.Wait()
		exactly(t, c.events(t, reg), r.made)
		if id := binary.BigEndian.Uint32(c.all()[0].Value[1:]); id != 40 {
			t.Errorf("framed with id %d, want 40", id)
		}
	})
}

// TestMorePartitions guarantees that partitions which are added are used, by
// streams of their own, without a gap in the others; and that a gateway which
// starts without Kafka numbers by the number it knew.
func TestMorePartitions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c, reg := newCluster(), &registry{}
		r := start(t, c, reg, in(dir))
		r.tell(100)
		time.Sleep(time.Second)
		c.set(func() { c.partitions = 13 })
		time.Sleep(time.Minute)
		r.tell(100)
		time.Sleep(time.Second)
		synctest.Wait()
		exactly(t, c.events(t, reg), r.made)
		if n := len(c.records); n <= 6 {
			t.Errorf("%d partitions are used", n)
		}
		_ = r.stop()
		c.set(func() { c.away, c.records = errors.New("away"), map[int32][]kafka.Record{} })
		r = start(t, c, reg, in(dir))
		r.tell(1000)
		time.Sleep(time.Second)
		synctest.Wait()
		for _, rec := range c.all() {
			if want := kafka.PartitionOf(rec.Key, 13); rec.Partition != want {
				t.Fatalf("%s lies in %d, want %d", rec.Key, rec.Partition, want)
			}
		}
	})
}

// TestFewerPartitions guarantees that events that were numbered for partitions
// that a topic made anew does not have are sent all the same, streams whole.
func TestFewerPartitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, reg := newCluster(), &registry{}
		c.partitions, c.away = 2, errors.New("away")
		r := start(t, c, reg, nil)
		r.tell(100) // by the usual number
		time.Sleep(500 * time.Millisecond)
		c.set(func() { c.away = nil })
		time.Sleep(5 * time.Second)
		r.tell(100)
		time.Sleep(time.Second)
		synctest.Wait()
		exactly(t, c.events(t, reg), r.made)
		for p := range c.records {
			if p > 1 {
				t.Errorf("partition %d is used", p)
			}
		}
	})
}

// TestFormerSchema guarantees that a file is framed with the schema that its
// bodies were written with, by an id that is asked for or was known, and that
// one of which nobody knows the schema is put aside and counted.
func TestFormerSchema(t *testing.T) {
	t.Parallel()
	body := usagev1.AppendEvent(nil, &usagev1.Event{Tenant: "acme"})
	older := sha256.Sum256([]byte("a schema of long ago"))
	write := func(dir string) {
		s, err := spool.Open(spool.Config{Dir: dir, Bound: 1 << 20, Schema: older}, t0, func(string, string, int) {})
		if err != nil {
			t.Fatal(err)
		}
		record := append(spool.Begin(nil, []byte("acme")), body...)
		spool.End(record, 0)
		spool.Seal(record)
		if err := errors.Join(s.Queue(0).Append(record), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	known, unknown := t.TempDir(), t.TempDir()
	write(known)
	write(unknown)
	state := fmt.Sprintf(`{"partitions":6,"schemas":{"%x":77}}`, older)
	if err := os.WriteFile(filepath.Join(known, "state.json"), []byte(state), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		r := start(t, c, &registry{}, in(known))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if all := c.all(); len(all) != 1 || binary.BigEndian.Uint32(all[0].Value[1:]) != 77 || string(all[0].Value[5:]) != string(body) {
			t.Errorf("sent %v", all)
		}
		_ = r.stop()

		c = newCluster()
		r = start(t, c, &registry{}, in(unknown))
		time.Sleep(5 * time.Second)
		r.tell(1)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := files(t, unknown); c.count() != 1 || len(n) != 1 || !strings.HasSuffix(n[0], ".aside") || r.metric("lost_total", "damaged") != 1 {
			t.Errorf("%d sent, files %v, %v lost", c.count(), n, r.metric("lost_total", "damaged"))
		}
	})
	if len(schemas.Published(usagev1.Topic)) == 0 {
		t.Error("no schema is published: a file of the last release could not be framed")
	}
}

// TestSecondGateway guarantees that a gateway which finds its directory in use,
// as during a restart, waits for it in memory and then has it.
func TestSecondGateway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c, reg := newCluster(), &registry{}
		first := start(t, c, reg, in(dir))
		time.Sleep(100 * time.Millisecond)
		c.pause()
		first.tell(100)
		time.Sleep(2 * time.Second)
		other := newCluster()
		second := start(t, other, reg, in(dir))
		second.made = 1000
		second.tell(50)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := other.count(); n != 50 {
			t.Errorf("the second has sent %d, want its own 50 and none of the first's", n)
		}
		_ = first.stop()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := other.count(); n != 150 {
			t.Errorf("the second has sent %d, want also what the first left behind", n)
		}
	})
}

// TestOrderOfFormerEvents guarantees that a tenant's events of a former run come
// before those of this one.
func TestOrderOfFormerEvents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c, reg := newCluster(), &registry{}
		c.pause()
		made := 0
		for range 3 {
			r := start(t, c, reg, in(dir))
			r.made = made
			r.tell(1000)
			time.Sleep(2 * time.Second)
			r.tell(1000)
			made = r.made
			_ = r.stop()
			c = newCluster()
			c.pause()
		}
		c = newCluster()
		r := start(t, c, reg, in(dir))
		r.made = made
		r.tell(1000)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		events := c.events(t, reg)
		exactly(t, events, r.made)
		last := map[string]int64{}
		for _, e := range events {
			if e.Cost < last[e.Tenant] {
				t.Fatalf("event %d of %s comes after %d", e.Cost, e.Tenant, last[e.Tenant])
			}
			last[e.Tenant] = e.Cost
		}
	})
}

var _ usage.Producer = (*kafka.Client)(nil)
