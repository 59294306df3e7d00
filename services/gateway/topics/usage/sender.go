package usage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/services/gateway/topics/usage/spool"
	"penstock.dev/services/internal/kafka"
)

const (
	// patience is how long an event may wait in memory before its partition
	// goes to disk.
	patience = time.Second
	// writeEvery is how often a partition that goes to disk is written there.
	writeEvery = 100 * time.Millisecond
	// maxFlying bounds the batches that Kafka's client has at a time: with
	// chunkSize, 8 MiB.
	maxFlying = 64
	// maxRefused is how many events in a row may be given up because Kafka
	// refuses each for good. More than that is no fault of theirs, and they wait.
	maxRefused = 3
	// drainFor is how long the end waits for Kafka.
	drainFor = 10 * time.Second
	// reserve is the part of the process's grace that the end leaves for
	// writing to disk and for the parts that stop after this one.
	reserve = 3 * time.Second
	// idle is how long the sender sleeps when there is nothing to do.
	idle = time.Minute
)

// A sender is the one goroutine that moves events on.
type sender struct {
	*Usage
	ctx    context.Context
	disk   disk
	flying int // batches
	turn   int // which partition comes first

	ownAcks  int64     // events of this run that Kafka has
	looked   time.Time // when it last emptied the ring
	napped   bool      // since then it slept until the first event
	told     time.Time // when losses were last told
	lostTold int64
	stopped  time.Time // when the process was told to stop
}

// Run sends what is recorded until ctx ends, and then what is left, for 10 s at
// most; what Kafka has not taken by then is on disk when it returns. The error
// is ctx's, or says that events were lost in the end.
func (u *Usage) Run(ctx context.Context) error {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var helpers sync.WaitGroup
	helpers.Go(func() { u.facts.learn(running) })
	s := &sender{Usage: u, ctx: running, disk: disk{usage: u, synced: make(chan error, 1)}}
	stopping := u.cfg.Stopping
	for ctx.Err() == nil {
		t := time.NewTimer(s.nap(s.pass(time.Now(), false)))
		select {
		case <-ctx.Done():
		case <-u.wakes:
		case err := <-s.disk.synced:
			s.disk.syncEnded(err)
		case <-stopping:
			s.stopped, stopping = time.Now(), nil
		case <-t.C:
		}
		t.Stop()
	}
	before := s.ownAcks
	s.drain()
	cancel()
	helpers.Wait()
	return s.finish(ctx, before)
}

// drain sends until nothing is left or there is no more time.
func (s *sender) drain() {
	deadline := time.Now().Add(drainFor)
	if s.cfg.Grace > 0 && !s.stopped.IsZero() {
		if end := s.stopped.Add(s.cfg.Grace - reserve); end.Before(deadline) {
			deadline = end
		}
	}
	for {
		now := time.Now()
		next := s.pass(now, true)
		if s.empty() || !now.Before(deadline) {
			return
		}
		if next.After(deadline) {
			next = deadline
		}
		t := time.NewTimer(s.nap(next))
		select {
		case <-s.wakes:
		case err := <-s.disk.synced:
			s.disk.syncEnded(err)
		case <-t.C:
		}
		t.Stop()
	}
}

// nap is how long to sleep until next. Who sleeps for longer than the linger is
// woken by the next event, and else finds it in time.
func (s *sender) nap(next time.Time) time.Duration {
	sleep := time.Until(next)
	s.napped = sleep > s.cfg.Linger
	s.asleep.Store(s.napped)
	if s.napped && s.ring.len() > 0 { // it came before anybody knew
		s.asleep.Store(false)
		return 0
	}
	return sleep
}

// look empties the ring.
func (s *sender) look(now time.Time) {
	since := now
	if !s.napped {
		since = latest(s.looked, now.Add(-s.cfg.Linger))
	}
	s.encode(since)
	s.looked = now
}

// empty reports whether Kafka has everything.
func (s *sender) empty() bool {
	if s.ring.len() > 0 {
		return false
	}
	for _, p := range *s.all.Load() {
		if p.batch != nil || p.oldest() != nil || p.queue != nil && !p.queue.Empty() {
			return false
		}
	}
	return true
}

// pass moves every partition on as far as it goes, and returns when to look
// again at the latest. Hurry leaves nobody waiting for company.
func (s *sender) pass(now time.Time, hurry bool) (next time.Time) {
	next = now.Add(idle)
	soon := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	s.look(now)
	soon(s.disk.open(now))
	if n := s.facts.count(); n > 0 && int(n) != len(*s.table.Load()) {
		s.shape(n, now)
	}
	all := *s.all.Load()
	s.turn++
	var oldest time.Time
	spooling := 0
	for i := range all {
		p := all[(i+s.turn)%len(all)]
		soon(s.step(p, now, hurry))
		if p.spooling {
			spooling++
		}
		if b := p.batch; b != nil && (oldest.IsZero() || b.born.Before(oldest)) {
			oldest = b.born
		}
	}
	s.note(now, spooling, oldest)
	soon(s.disk.sync(now))
	return next
}

// note keeps what the metrics and the log tell of.
func (s *sender) note(now time.Time, spooling int, oldest time.Time) {
	us := int64(0)
	if !oldest.IsZero() {
		us = oldest.UnixMicro()
	}
	s.oldest.Store(us)
	switch before := int(s.spooling.Swap(int32(spooling))); {
	case before == 0 && spooling > 0:
		s.log.Warn("usage events go to disk until Kafka takes them", "partitions", spooling)
	case before > 0 && spooling == 0:
		s.problem.Store(nil)
		s.log.Info("Kafka has the usage events that were on disk")
	}
	const every = 10 * time.Second
	if lost := s.lostSoFar(); lost > s.lostTold && now.Sub(s.told) >= every {
		s.log.Error("usage events were lost", "events", lost-s.lostTold, "since_start", lost, "reasons", s.lostBy())
		s.told, s.lostTold = now, lost
	}
}

func (u *Usage) lostSoFar() (n int64) {
	for i := range u.lost {
		n += u.lost[i].Load()
	}
	return n
}

// lostBy is how many events were lost by which reason.
func (u *Usage) lostBy() string {
	text := ""
	for i, why := range reasons {
		if n := u.lost[i].Load(); n > 0 {
			text += fmt.Sprintf(" %s %d", why, n)
		}
	}
	return text
}

// step moves one partition on and returns when to look at it again.
func (s *sender) step(p *partition, now time.Time, hurry bool) (next time.Time) {
	next = now.Add(idle)
	if b := p.batch; b != nil && b.again.IsZero() && b.left.Load() == 0 {
		s.settle(p, b, now)
	}
	if s.disk.ready() && !p.spooling && s.late(p, now) {
		p.spooling, p.written = true, time.Time{}
	}
	if p.spooling {
		next = s.disk.write(p, now)
	}
	if p.batch == nil {
		s.next(p, now, hurry)
	}
	b := p.batch
	switch {
	case b == nil:
		if c := p.oldest(); c != nil { // it gathers company, or what sending needs to know is not known
			next = earliest(next, later(now, c.born.Add(s.cfg.Linger), c.born.Add(patience)))
		}
	case b.flying():
		if !p.spooling {
			next = earliest(next, later(now, b.born.Add(patience)))
		}
	case now.Before(b.again):
		next = earliest(next, b.again)
	default:
		s.send(p, b, now)
	}
	return next
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// later is the first of two times that lies ahead, or a second on.
func later(now time.Time, times ...time.Time) time.Time {
	for _, t := range times {
		if t.After(now) {
			return t
		}
	}
	return now.Add(patience)
}

// late reports whether a partition is to go to disk: its oldest event has waited
// too long, or it has a part in memory running short.
func (s *sender) late(p *partition, now time.Time) bool {
	born := time.Time{}
	if c := p.oldest(); c != nil {
		born = c.born
	}
	if b := p.batch; b != nil {
		born = b.born
	}
	return !born.IsZero() && now.Sub(born) >= patience || p.backlog() > 0 && s.free.short()
}

// next makes the batch that comes next: from disk, or else from memory.
func (s *sender) next(p *partition, now time.Time, hurry bool) {
	if s.facts.count() == 0 || s.flying >= maxFlying {
		return
	}
	if p.queue != nil && !p.queue.Empty() {
		if p.spooling = true; s.nextOnDisk(p, now) {
			return
		}
	}
	p.spooling = p.spooling && p.queue != nil && !p.queue.Empty()
	if p.spooling {
		return
	}
	p.buf = nil
	if _, known, _ := s.facts.id(current); !known {
		return
	}
	c := p.oldest()
	if c == nil {
		return
	}
	if p.backlog() == 0 {
		if !hurry && now.Sub(c.born) < s.cfg.Linger {
			return
		}
		p.close()
	}
	c = p.pop()
	p.batch = &batch{buf: c.buf, at: begins(c.buf, make([]int, 0, c.count)), schema: current, born: c.born, chunk: c, again: now}
	s.onWay.Add(int64(len(c.buf)))
}

// nextOnDisk reads the batch that comes next from disk.
func (s *sender) nextOnDisk(p *partition, now time.Time) bool {
	if p.buf == nil {
		p.buf = make([]byte, chunkSize)
	}
	for {
		read, ok := p.queue.Read(p.buf)
		if !ok {
			return false
		}
		if _, _, err := s.facts.id(read.Schema); err != nil {
			p.queue.SetAside(read, fmt.Errorf("%w: %w", errUnreadable, err))
			continue
		}
		_, value, _ := spool.Parse(read.Bytes[read.At[0]:])
		p.batch = &batch{buf: read.Bytes, at: read.At, schema: read.Schema, born: tsOf(value), mark: read.Mark, onDisk: true, again: now}
		return true
	}
}

// send hands a batch to Kafka's client.
func (s *sender) send(p *partition, b *batch, now time.Time) {
	id, known, _ := s.facts.id(b.schema)
	n := s.facts.count()
	if !known || n == 0 || s.flying >= maxFlying {
		b.again = now.Add(pauseMin)
		return
	}
	b.sent = append(b.sent[:0], b.at...)
	if b.alone {
		b.sent = b.sent[:1]
	}
	b.errs = make([]error, len(b.sent))
	b.again = time.Time{}
	b.left.Store(int32(len(b.sent)))
	if b.pauses > 0 {
		s.metrics.repeats.Add(float64(len(b.sent)))
	}
	s.flying++
	for i, at := range b.sent {
		key, value, _ := spool.Parse(b.buf[at:])
		s.producer.TryProduceTo(s.ctx, p.index%n, kafka.Record{Topic: usagev1.Topic, Key: key, Value: framed(value, id)}, func(err error) {
			b.errs[i] = err
			if b.left.Add(-1) == 0 {
				s.wake()
			}
		})
	}
}

// settle takes note of what became of a batch.
func (s *sender) settle(p *partition, b *batch, now time.Time) {
	s.flying--
	failed := b.at[:0]
	var cause error
	taken, alone := 0, b.alone
	for i, at := range b.sent {
		err := b.errs[i]
		switch {
		case err == nil:
			taken++
			p.refused = 0
			continue
		case kafka.Permanent(err) && alone && p.refused < maxRefused:
			p.refused++
			s.lost[lostRefused].Add(1)
			s.log.Error("Kafka refuses a usage event for good", "partition", p.index, "error", err.Error())
			continue
		case kafka.Permanent(err) && !alone: // or something that travelled with it
			b.alone = true
		default:
			cause = err
		}
		failed = append(failed, at)
	}
	b.at = append(failed, b.at[len(b.sent):]...)
	s.metrics.acknowledged.Add(float64(taken))
	if b.own() {
		s.ownAcks += int64(taken)
	}
	if len(b.at) == 0 {
		s.metrics.delivery.Observe(max(0, now.Sub(b.born).Seconds()))
		s.release(p, b)
		return
	}
	b.again = now
	if cause != nil {
		b.again = now.Add(b.pause())
		text := cause.Error()
		if was := s.problem.Swap(&text); was == nil || *was != text {
			s.log.Warn("Kafka does not take usage events", "partition", p.index, "error", text)
		}
		if errors.Is(cause, kafka.ErrNoTopic) {
			poke(s.facts.look)
		}
	}
}

// release lets go of a batch that is done with.
func (s *sender) release(p *partition, b *batch) {
	p.batch = nil
	if b.onDisk {
		p.queue.Sent(b.mark)
	}
	if b.chunk != nil {
		s.onWay.Add(-int64(len(b.buf)))
		s.free.put(b.chunk)
	}
}

// finish keeps on disk what is left, and says what became of everything.
func (s *sender) finish(ctx context.Context, before int64) error {
	s.ended.Store(true)
	s.encode(time.Now())
	for _, p := range *s.all.Load() {
		p.stop()
		s.disk.rest(p)
	}
	err := s.disk.close()
	recorded, lost := s.recorded(), s.lostSoFar()
	left := s.left()
	s.lost[lostStopping].Add(left)
	onDisk := recorded - s.ownAcks - s.lost[lostRefused].Load() - left
	s.log.Info("usage events told", "delivered", s.ownAcks, "delivered_while_stopping", s.ownAcks-before,
		"on_disk", max(0, onDisk), "lost", lost+left, "spool_bytes", s.spooled())
	if left > 0 {
		return fmt.Errorf("%d usage events were neither taken by Kafka nor kept on disk", left)
	}
	if err != nil {
		return fmt.Errorf("usage events on disk: %w", err)
	}
	return ctx.Err()
}

// left is how many events are in memory only.
func (s *sender) left() (n int64) {
	for _, p := range *s.all.Load() {
		if b := p.batch; b != nil && !b.onDisk {
			n += int64(len(b.at))
		}
		for _, c := range p.full {
			n += int64(c.count)
		}
	}
	return n
}
