package checkpoint

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"penstock.dev/services/internal/limit"
)

// ErrUnavailable reports books, a store or a topic that cannot serve now and may
// later.
var ErrUnavailable = errors.New("not available")

// ErrReplaced reports a store that was emptied or replaced while it was being
// restored.
var ErrReplaced = errors.New("emptied or replaced meanwhile")

// Page is how many counters are asked for at once.
const Page = 10_000

// Books are the durable side: what counters have come to.
type Books interface {
	// Kept returns what the books contain.
	Kept(ctx context.Context) (Kept, error)
	// Begin remembers since when the store is kept, unless it is known.
	Begin(ctx context.Context, since time.Time) error
	// Parts returns parts of usage.v1 as they are contained.
	Parts(ctx context.Context, partitions []int32) ([]*Part, error)
	// Save raises counters to what parts and live say, and contains the parts, in
	// one transaction. It returns what the books then say of those counters, and
	// the parts that somebody else has contained meanwhile: of those only the
	// totals were taken.
	Save(ctx context.Context, parts []*Part, live map[string]limit.Totals) (held []Saved, stale []*Part, err error)
	// Raise raises counters and returns those that were lower or not there.
	Raise(ctx context.Context, saved []Saved) (held []Saved, err error)
	// Counters returns those that are not over, by key, after a key.
	Counters(ctx context.Context, after string, n int, now time.Time) ([]Counter, error)
	// Corrections returns n at most of those since a time, by tenant, decision and
	// refund, that come after one; the zero Correction comes before all.
	Corrections(ctx context.Context, since time.Time, after Correction, n int) ([]Correction, error)
	// Tidy forgets what is over and returns what is left.
	Tidy(ctx context.Context, now time.Time) (Stock, error)
	// Lock takes the lock under which a store is restored. Held is false when
	// another instance has it.
	Lock(ctx context.Context) (release func(), held bool, err error)
}

// Kept is what the books contain.
type Kept struct {
	Any   bool      // the store was kept before
	Since time.Time // since when, by its clock
}

// Stock is what the books hold.
type Stock struct {
	Counters     int64
	Wallets      int64
	Unattributed int64 // units by which what was used differs from what was told, without their sign
}

// A Store is the counter store.
type Store interface {
	Look(ctx context.Context) ([]int, error)
	Claim(ctx context.Context, lost []int) (Claim, error) // nil: somebody vouches by now
	Restore(ctx context.Context, saved []Saved) (Restored, error)
	Remember(ctx context.Context, marks []Mark, now time.Time) (int, error)
	Vouch(ctx context.Context, c Claim, since time.Time) error
	Read(ctx context.Context, keys []string) ([]limit.Totals, error)
	Each(ctx context.Context, take func([]Saved) error) error
}

// A Claim is what is being restored.
type Claim interface {
	Covers(key string) bool
	Since() time.Time // when what it holds began
}

// Restored counts what became of counters.
type Restored struct {
	Added, Raised int // there was none, or it said less
	Unreadable    int
}

// Usage is the topic that tells of every charge.
type Usage interface {
	// Tail reads what parts do not contain, up to where it ends when that begins. It
	// gives up when nothing has come for as long as patience, and returns what had.
	// Whole is false where the topic no longer had all of it.
	Tail(ctx context.Context, parts []*Part, patience time.Duration) (all []*Part, whole bool, err error)
}

// Config says how a Keeper keeps.
type Config struct {
	Watch    time.Duration // between looks at the store
	Every    time.Duration // between checkpoints
	Sweep    time.Duration // between sweeps of all counters
	Patience time.Duration // for the next of usage.v1, while a store waits to be restored
}

// A Keeper keeps what a store counts, and restores it. Its parts Guard, Save and
// Sweep may run at the same time, and on many instances.
type Keeper struct {
	cfg    Config
	books  Books
	store  Store
	usage  Usage
	report Report
	now    func() time.Time

	seen    atomic.Bool // the store answered the last look
	vouched atomic.Bool // and somebody vouches for all of it
	begun   atomic.Bool // the books know that it is kept
}

// New returns a keeper.
func New(cfg Config, books Books, store Store, usage Usage, report Report, now func() time.Time) *Keeper {
	return &Keeper{cfg: cfg, books: books, store: store, usage: usage, report: report, now: now}
}

// A Report is told what a keeper did.
type Report interface {
	// Missed is told that something failed and is tried again.
	Missed(ctx context.Context, doing string, err error)
	// Done is told that what may have been missed before went well.
	Done(ctx context.Context, doing string)
	// Saved is told of a checkpoint.
	Saved(counters int, took time.Duration)
	// Began is told that a store of which nothing was known is kept from now on.
	Began(ctx context.Context)
	// Recovered is told of a store that was restored.
	Recovered(ctx context.Context, r Recovery)
	// Lowered is told of counters that said less than was known, and were raised, and of
	// those that cannot be read.
	Lowered(ctx context.Context, r Restored)
	// Stock is told what the books hold.
	Stock(s Stock)
}

// A Recovery is how a store was restored.
type Recovery struct {
	Restored
	Marks  int
	Tail   bool  // what usage.v1 tells beyond the checkpoint is in it
	Whole  bool  // and all of that was there
	Reason error // why not
	Took   time.Duration
}

// Ready returns why the store is not kept, or nil.
func (k *Keeper) Ready() error {
	switch {
	case !k.seen.Load():
		return errNotSeen
	case !k.vouched.Load():
		return errRestoring
	}
	return nil
}

var (
	errNotSeen   = errors.New("the counter store does not answer")
	errRestoring = errors.New("the counter store is being restored: quotas and wallets are left to their failure modes")
)

// Guard looks at the store again and again, and restores what it has lost.
func (k *Keeper) Guard(ctx context.Context) error {
	return every(ctx, k.cfg.Watch, func() { k.tell(ctx, "look at the counter store", k.Look(ctx)) })
}

// tell reports how something went, but for what was given up because ctx ended.
func (k *Keeper) tell(ctx context.Context, doing string, err error) {
	switch {
	case err == nil:
		k.report.Done(ctx, doing)
	case ctx.Err() == nil:
		k.report.Missed(ctx, doing, err)
	}
}

// Look looks at the store once, and restores it where nobody vouches for it.
func (k *Keeper) Look(ctx context.Context) error {
	lost, err := k.store.Look(ctx)
	k.seen.Store(err == nil)
	if err != nil {
		return err
	}
	k.vouched.Store(len(lost) == 0)
	if len(lost) == 0 {
		return k.known(ctx)
	}
	release, held, err := k.books.Lock(ctx)
	if err != nil || !held {
		return err
	}
	defer release()
	return k.Recover(ctx, lost)
}

// known has the books know that the store is kept: from now on, what they do not
// hold is not nothing.
func (k *Keeper) known(ctx context.Context) error {
	if k.begun.Load() {
		return nil
	}
	if err := k.books.Begin(ctx, k.now()); err != nil {
		return err
	}
	k.begun.Store(true)
	return nil
}

// Recover restores what Look found. Many may do so at once.
func (k *Keeper) Recover(ctx context.Context, lost []int) error {
	began := k.now()
	claim, err := k.store.Claim(ctx, lost)
	if err != nil || claim == nil {
		return err
	}
	kept, err := k.books.Kept(ctx)
	if err != nil {
		return err
	}
	if !kept.Any {
		return k.begin(ctx, claim)
	}
	r, since, err := k.restore(ctx, claim, kept)
	if err != nil {
		return err
	}
	if err := k.store.Vouch(ctx, claim, since); err != nil {
		return err
	}
	r.Took = k.now().Sub(began)
	k.report.Recovered(ctx, r)
	return nil
}

// begin vouches for a store as it is: nothing is known of one before it.
func (k *Keeper) begin(ctx context.Context, claim Claim) error {
	if err := k.books.Begin(ctx, claim.Since()); err != nil {
		return err
	}
	if err := k.store.Vouch(ctx, claim, time.Time{}); err != nil {
		return err
	}
	k.report.Began(ctx)
	return nil
}

// restore brings back what was claimed. Since is when what the store then holds
// began, zero where that is not known to be all.
func (k *Keeper) restore(ctx context.Context, claim Claim, kept Kept) (r Recovery, since time.Time, err error) {
	// The topic's end is read after the loss was noticed, so all that was told of
	// by then is in the tail.
	type told struct {
		parts []*Part
		whole bool
		err   error
	}
	tail := make(chan told, 1)
	// Where that begins is read before the counters: what is contained from then on
	// is in both.
	contained, err := k.books.Parts(ctx, nil)
	if err != nil {
		return r, since, err
	}
	reading, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		parts, whole, err := k.usage.Tail(reading, contained, k.cfg.Patience)
		tail <- told{parts, whole, err}
	}()
	err = k.restoreBooks(ctx, claim, &r)
	if err != nil {
		stop()
	}
	t := <-tail
	if err != nil {
		return r, since, err
	}
	if ctx.Err() != nil {
		return r, since, ctx.Err()
	}
	r.Tail, r.Whole, r.Reason = t.err == nil, t.err == nil && t.whole, t.err
	var made []Correction
	for _, p := range t.parts {
		made = append(made, p.Made...)
	}
	if err := k.restoreCounters(ctx, claim, Merge(t.parts, func(*Part) bool { return true }), &r); err != nil {
		return r, since, err
	}
	if err := k.restoreMarks(ctx, made, &r); err != nil {
		return r, since, err
	}
	if r.Whole {
		since = kept.Since
	}
	return r, since, nil
}

func (k *Keeper) restoreBooks(ctx context.Context, claim Claim, r *Recovery) error {
	for after := ""; ; {
		page, err := k.books.Counters(ctx, after, Page, k.now())
		if err != nil {
			return err
		}
		if len(page) == 0 {
			return nil
		}
		list := make([]*Counter, len(page))
		for i := range page {
			list[i] = &page[i]
		}
		if err := k.restoreCounters(ctx, claim, list, r); err != nil {
			return err
		}
		after = page[len(page)-1].Key
	}
}

func (k *Keeper) restoreCounters(ctx context.Context, claim Claim, list []*Counter, r *Recovery) error {
	saved := make([]Saved, 0, len(list))
	for _, c := range list {
		if claim.Covers(c.Key) {
			saved = append(saved, c.Saved())
		}
	}
	if len(saved) == 0 {
		return nil
	}
	n, err := k.store.Restore(ctx, saved)
	r.Added, r.Raised, r.Unreadable = r.Added+n.Added, r.Raised+n.Raised, r.Unreadable+n.Unreadable
	return err
}

// restoreMarks restores what is known of corrections by the books and by the
// tail, in all of the store: a mark that is there stays. A decision is whole
// before it is restored: those of the last one in a page wait for the next.
func (k *Keeper) restoreMarks(ctx context.Context, told []Correction, r *Recovery) error {
	since, after, waiting := k.now().Add(-limit.RememberCorrections), Correction{}, told
	for {
		page, err := k.books.Corrections(ctx, since, after, Page)
		if err != nil {
			return err
		}
		waiting = append(waiting, page...)
		if len(page) < Page {
			return k.remember(ctx, Marks(waiting), r)
		}
		after = page[len(page)-1]
		whole, rest := []Correction(nil), []Correction(nil)
		for i := range waiting {
			if compareDecisions(&waiting[i], &after) < 0 {
				whole = append(whole, waiting[i])
			} else {
				rest = append(rest, waiting[i])
			}
		}
		if err := k.remember(ctx, Marks(whole), r); err != nil {
			return err
		}
		waiting = rest
	}
}

func (k *Keeper) remember(ctx context.Context, marks []Mark, r *Recovery) error {
	for len(marks) > 0 {
		some := marks[:min(Page, len(marks))]
		n, err := k.store.Remember(ctx, some, k.now())
		if err != nil {
			return err
		}
		r.Marks += n
		marks = marks[len(some):]
	}
	return nil
}

// SaveParts makes a checkpoint of parts of usage.v1: of every counter that they
// told of, what they and the store say is in the books together with how far they
// were read. It returns the parts that others have contained. A store that says
// less than the books is raised; the books never say less than they did.
func (k *Keeper) SaveParts(ctx context.Context, parts []*Part) (stale []*Part, err error) {
	began := k.now()
	changed := Merge(parts, func(*Part) bool { return true })
	live, asked, err := k.read(ctx, changed)
	k.tell(ctx, "read the counter store for a checkpoint", err)
	held, stale, err := k.books.Save(ctx, parts, live)
	if err != nil {
		return nil, err
	}
	k.report.Saved(len(changed), k.now().Sub(began))
	if asked {
		err = k.heal(ctx, held, live)
	}
	return stale, err
}

// read asks the store what counters have come to, where somebody vouches for it:
// what another holds says nothing.
func (k *Keeper) read(ctx context.Context, changed []*Counter) (live map[string]limit.Totals, asked bool, err error) {
	live = make(map[string]limit.Totals, len(changed))
	if !k.vouched.Load() {
		return live, false, nil
	}
	for len(changed) > 0 {
		some := changed[:min(Page, len(changed))]
		changed = changed[len(some):]
		keys := make([]string, len(some))
		for i, c := range some {
			keys[i] = c.Key
		}
		totals, err := k.store.Read(ctx, keys)
		if err != nil {
			return live, false, err
		}
		for i, key := range keys {
			live[key] = totals[i]
		}
	}
	return live, true, nil
}

// heal raises counters in the store that say less than is held.
func (k *Keeper) heal(ctx context.Context, held []Saved, live map[string]limit.Totals) error {
	low := make([]Saved, 0)
	for _, s := range held {
		if t := live[s.Key]; s.Consumed > t.Consumed || s.Refunded > t.Refunded {
			low = append(low, s)
		}
	}
	return k.raise(ctx, low)
}

// raise restores counters of a store that somebody vouches for, and reports those
// that said less, or nothing that can be read: what they lost was deleted or set behind
// everybody's back.
func (k *Keeper) raise(ctx context.Context, saved []Saved) error {
	if len(saved) == 0 {
		return nil
	}
	n, err := k.store.Restore(ctx, saved)
	if k.vouched.Load() && n != (Restored{}) {
		k.report.Lowered(ctx, n)
	}
	return err
}

// Sweep compares all counters of the books and of the store, again and again.
func (k *Keeper) Sweep(ctx context.Context) error {
	return every(ctx, k.cfg.Sweep, func() { k.tell(ctx, "sweep all counters", k.SweepOnce(ctx)) })
}

// sweepPage and sweepPause keep a sweep from being felt by those who decide.
const (
	sweepPage  = 1000
	sweepPause = 5 * time.Millisecond
)

// Tidy forgets what is over in the books, and reports what they hold.
func (k *Keeper) Tidy(ctx context.Context) error {
	stock, err := k.books.Tidy(ctx, k.now())
	if err == nil {
		k.report.Stock(stock)
	}
	return err
}

// SweepOnce raises the store to what the books say, and the books to what the store
// says, where somebody vouches for it.
func (k *Keeper) SweepOnce(ctx context.Context) error {
	if !k.vouched.Load() {
		return k.Tidy(ctx)
	}
	for after := ""; ; {
		page, err := k.books.Counters(ctx, after, sweepPage, k.now())
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		saved := make([]Saved, len(page))
		for i := range page {
			saved[i] = page[i].Saved()
		}
		if err := k.raise(ctx, saved); err != nil {
			return err
		}
		after = page[len(page)-1].Key
		if err := pause(ctx, sweepPause); err != nil {
			return err
		}
	}
	if err := k.store.Each(ctx, func(saved []Saved) error {
		if _, err := k.books.Raise(ctx, saved); err != nil {
			return err
		}
		return pause(ctx, sweepPause)
	}); err != nil {
		return err
	}
	return k.Tidy(ctx)
}

// every calls do at once and then again and again, until ctx ends.
func every(ctx context.Context, interval time.Duration, do func()) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		do()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
