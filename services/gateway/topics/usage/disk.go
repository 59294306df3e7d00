package usage

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock.dev/services/gateway/topics/usage/spool"
)

// diskRetry is how long a disk is left alone that refused something.
const diskRetry = time.Second

// A disk is the sender's hand on the spool. What it cannot write stays in
// memory; it never ends the sender.
type disk struct {
	usage *Usage
	spool *spool.Spool // nil: none, or not opened yet
	again time.Time    // not before, after a failure
	said  string       // the last failure

	synced  chan error
	syncs   sync.WaitGroup
	syncing bool
	due     time.Time // of the next sync
}

// open opens the spool once its directory is free, and gives every partition
// what former runs left. It returns when to try again.
func (d *disk) open(now time.Time) (next time.Time) {
	next = now.Add(idle)
	if d.spool != nil || d.usage.cfg.Dir == "" {
		return next
	}
	if now.Before(d.again) {
		return d.again
	}
	s, err := spool.Open(spool.Config{Dir: d.usage.cfg.Dir, Bound: d.usage.cfg.Spool, Schema: current}, now, d.damaged)
	if err != nil {
		d.failed(opening, err, now)
		return d.again
	}
	d.spool, d.said = s, ""
	d.usage.spool.Store(s)
	d.usage.why.Store(lostNoSpool)
	for _, index := range s.Partitions() {
		d.usage.adopt(index, now)
	}
	for _, p := range *d.usage.all.Load() {
		p.queue = s.Queue(p.index)
	}
	if n := s.Bytes(); n > 0 {
		d.usage.log.Info("usage events of a former run are on disk", "bytes", n)
	}
	return next
}

// adopt makes sure that there is a partition of an index.
func (u *Usage) adopt(index int32, now time.Time) {
	all := *u.all.Load()
	for _, p := range all {
		if p.index == index {
			return
		}
	}
	all = append(append([]*partition(nil), all...), newPartition(index, now))
	u.all.Store(&all)
}

// ready reports whether new events can go to disk.
func (d *disk) ready() bool { return d.spool != nil && d.usage.cfg.Spool > 0 }

// write writes what a partition has in memory: what is on its way, what is full,
// and now and then what is not. It returns when to write again.
func (d *disk) write(p *partition, now time.Time) (next time.Time) {
	if now.Before(d.again) {
		return d.again
	}
	if p.queue == nil {
		p.queue = d.spool.Queue(p.index)
	}
	if due := p.written.Add(writeEvery); !now.Before(due) {
		if p.backlog() == 0 { // else the disk has refused, and a chunk that is closed holds memory that nobody uses
			p.close()
		}
		p.written = now
	}
	if err := d.keep(p); err != nil {
		d.failed(writing, err, now)
		return d.again
	}
	return p.written.Add(writeEvery)
}

// keep writes the batch on its way and then every full chunk.
func (d *disk) keep(p *partition) error {
	if b := p.batch; b != nil && !b.onDisk {
		spool.Seal(b.buf)
		if err := p.queue.Append(b.buf); err != nil {
			return err
		}
		b.mark, b.onDisk = p.queue.Claim(), true
	}
	for {
		c := p.oldest()
		if c == nil || p.backlog() == 0 {
			break
		}
		spool.Seal(c.buf)
		if err := p.queue.Append(c.buf); err != nil {
			return err
		}
		d.usage.free.put(p.pop())
	}
	if d.said != "" {
		d.usage.log.Info("the disk takes usage events again")
		d.said = ""
	}
	d.usage.why.Store(lostNoSpool)
	return nil
}

// failed takes note of what the disk refused.
func (d *disk) failed(o operation, err error, now time.Time) {
	d.again = now.Add(diskRetry)
	why := int32(lostDisk)
	if errors.Is(err, spool.ErrFull) {
		why, d.again = lostFull, now.Add(writeEvery)
	} else {
		d.usage.metrics.failures.WithLabelValues(string(o)).Inc()
	}
	d.usage.why.Store(why)
	text := err.Error()
	d.usage.problem.Store(&text)
	if text != d.said {
		d.usage.log.Error("usage events cannot be kept on disk", "operation", string(o), "error", text)
		d.said = text
	}
}

// damaged is told of records that were on disk and cannot be read.
func (d *disk) damaged(path, what string, records int) {
	d.usage.lost[lostDamaged].Add(int64(records))
	d.usage.log.Error("usage events on disk cannot be read", "file", path, "cause", what, "records_at_least", records)
}

// sync starts a sync when one is due, beside the sender: a slow disk delays
// nothing. It returns when the next one is.
func (d *disk) sync(now time.Time) (next time.Time) {
	if d.spool == nil || d.syncing || now.Before(d.due) {
		return later(now, d.due, now.Add(idle))
	}
	f, ok := d.spool.TakeUnsynced()
	if !ok {
		return now.Add(idle)
	}
	d.syncing, d.due = true, now.Add(d.usage.cfg.Sync)
	d.syncs.Go(func() { d.synced <- f.Sync() })
	return now.Add(idle)
}

// syncEnded takes note of how a sync ended.
func (d *disk) syncEnded(err error) {
	d.syncing = false
	if err != nil {
		d.failed(syncing, fmt.Errorf("sync: %w", err), time.Now())
	}
}

// rest writes everything that a partition has, at the end.
func (d *disk) rest(p *partition) {
	if !d.ready() {
		return
	}
	if p.queue == nil {
		p.queue = d.spool.Queue(p.index)
	}
	if err := d.keep(p); err != nil {
		d.failed(writing, err, time.Now())
	}
}

// close returns when the disk has what was written.
func (d *disk) close() error {
	d.syncs.Wait()
	if d.spool == nil {
		return nil
	}
	return d.spool.Close()
}
