package decide

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"penstock.dev/services/gateway/decide/trie"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// A Holder is who has a counter: one run of one store.
type Holder interface {
	// Lasts reports whether no other is known to have it by now.
	Lasts() bool
	// GiveBack gives back what c charged at a time by the store's clock, and
	// returns how many units that were counted still. It is never repeated.
	GiveBack(ctx context.Context, c limit.Charge, at time.Time) (int64, error)
}

// Leases is a Store that takes units of busy counters before they are asked for,
// and spends them without asking (docs/adr/0072). It spends what was charged, so
// no more is sold than the store has charged. A lease ends when it is spent, with
// its time, its window, its rule or its store; what is left of it is given back,
// once. Questions that a lease does not cover are asked.
//
// It is safe for concurrent use; who spends takes no lock. Close it.
type Leases struct {
	*Denials
	holder func(limit.Identity) Holder
	now    func() time.Time
	most   int
	sold   [1 << 12]meter
	held   atomic.Pointer[trie.Map[uint64, *lease]] // by the hash of the counter; of two with one hash the first

	mu     sync.Mutex // of who changes what is held
	closed bool
	work   sync.WaitGroup

	taken, spent, returned, lost atomic.Int64
}

// A lease is units of one counter that were charged beforehand. One whose charge
// costs nothing is a word that none is to be taken: while one is on its way, and
// for a while after a refusal.
type lease struct {
	place     uint64       // hash of the counter
	charge    limit.Charge // of all its units
	ttl       time.Duration
	holder    Holder
	taken     time.Time     // when they were charged, by the store's clock
	asked     time.Time     // a moment before, by this process's
	until     time.Time     // nothing is spent from then on, by this process's
	remaining int64         // in the counter, once they were charged
	reset     time.Duration // of the counter then
	left      atomic.Int64  // far below 0: it has ended
	timer     *time.Timer
}

// ended is what is left of a lease that has ended. Who takes units at that moment
// and puts them back does not bring it above 0.
const ended = math.MinInt64 / 2

// Pauses between two attempts to lease one counter, after a refusal: as long as
// the store says that it takes, within these.
const (
	minLeasePause = 10 * time.Millisecond
	maxLeasePause = time.Second
)

// closers is how many leases are given back at once when all are.
const closers = 64

// NewLeases returns a Store that asks next and holds most leases at most; 0: it
// always asks. Holder says who has a counter. Now is this process's clock.
func NewLeases(next *Denials, holder func(limit.Identity) Holder, most int, now func() time.Time) *Leases {
	l := &Leases{Denials: next, holder: holder, most: most, now: now}
	l.hold(noLeases)
	return l
}

var noLeases = trie.New[uint64, *lease](func(place uint64) uint64 { return place })

func (l *Leases) hold(m trie.Map[uint64, *lease]) { l.held.Store(&m) }

// LeaseUnits is what has become of units that were leased.
type LeaseUnits struct {
	Taken    int64
	Spent    int64 // by leases that have ended
	Returned int64
	Lost     int64 // may be charged, and can neither be spent nor given back
}

// Units returns what has become of the units of all leases so far.
func (l *Leases) Units() LeaseUnits {
	return LeaseUnits{l.taken.Load(), l.spent.Load(), l.returned.Load(), l.lost.Load()}
}

// Len is how many counters have a lease, or are not to be leased for a moment.
func (l *Leases) Len() int { return l.held.Load().Len() }

// Decide is Store's.
func (l *Leases) Decide(ctx context.Context, asked limit.Decision) (limit.Answer, error) {
	if a, ok := l.spend(&asked); ok {
		return a, nil
	}
	a, err := l.Denials.Decide(ctx, asked)
	l.learn(&asked, &a, err)
	return a, err
}

// DecideAll is Store's.
func (l *Leases) DecideAll(ctx context.Context, asked []limit.Decision) ([]limit.Answer, []error) {
	answers, errs, open := decideRest(ctx, l.Denials, asked, func(i int) (limit.Answer, bool) { return l.spend(&asked[i]) })
	for _, i := range open {
		l.learn(&asked[i], &answers[i], errs[i])
	}
	return answers, errs
}

// leases are what may be held of each counter that a request asks: nothing unless
// all of them are of enforced rates that say so, and nobody asks for the answer
// again.
func (in *inquiry) leases() []rule.Lease {
	if in.peek || in.remembers() {
		return nil
	}
	for _, r := range in.winners {
		units := in.units(r)
		switch {
		case r.Lease == nil || !cuts(r) || units < 1 || units > r.Lease.Units:
			return nil
		case r.Algorithm == rule.SlidingWindowLog && len(in.winners) > 1:
			// A log gives back only what was charged at the very time that a receipt
			// names, which is of one lease.
			return nil
		}
	}
	leases := make([]rule.Lease, len(in.winners))
	for i, r := range in.winners {
		leases[i] = *r.Lease
	}
	return leases
}

// sells reports whether k is of these terms.
func (k *lease) sells(c *limit.Charge, terms rule.Lease) bool {
	return k.charge.Cost == terms.Units && k.ttl == terms.TTL && k.charge.Limit == c.Limit && k.charge.Burst == c.Burst &&
		k.charge.Counter == c.Counter
}

// take takes units, and returns how many are left.
func (k *lease) take(units int64) (left int64, ok bool) {
	for {
		left = k.left.Load()
		if left < units {
			return left, false
		}
		if k.left.CompareAndSwap(left, left-units) {
			return left - units, true
		}
	}
}

// spend answers a question from leases of all its counters, or not at all.
func (l *Leases) spend(asked *limit.Decision) (a limit.Answer, ok bool) {
	held := l.held.Load()
	if len(asked.Leases) == 0 || held.Len() == 0 {
		return a, false
	}
	var few [8]*lease
	from := few[:0]
	a = limit.Answer{Allowed: true, Charged: true}
	for i := range asked.Charges {
		c := &asked.Charges[i]
		k, found := held.Get(hashOf(c.Counter))
		if !found || !k.sells(c, asked.Leases[i]) {
			break
		}
		left, enough := k.take(c.Cost)
		if !enough {
			break
		}
		from = append(from, k)
		if a.Results == nil {
			a.Results = make([]limit.Result, len(asked.Charges))
		}
		a.Results[i] = limit.Result{Passed: true, Remaining: k.remaining + left}
	}
	if len(from) < len(asked.Charges) || !l.spentBy(&a, from) {
		l.putBack(asked.Charges, from)
		return limit.Answer{}, false
	}
	return a, true
}

// spentBy fills in when a's units were charged, and are spent: now, if the leases
// that they were taken of have not ended by then.
func (l *Leases) spentBy(a *limit.Answer, from []*lease) bool {
	now := l.now()
	for i, k := range from {
		if !now.Before(k.until) || !k.holder.Lasts() {
			return false
		}
		passed := now.Sub(k.asked)
		a.Results[i].Reset = max(0, k.reset-passed)
		if k.taken.After(a.Taken) {
			a.Taken, a.Now = k.taken, k.taken.Add(passed.Truncate(time.Microsecond))
		}
	}
	return true
}

// putBack puts back what was taken of leases and is not spent.
func (l *Leases) putBack(charges []limit.Charge, from []*lease) {
	for i, k := range from {
		units := charges[i].Cost
		if k.left.Add(units) < 0 { // it has ended meanwhile, and counted these as spent
			l.spent.Add(-units)
			l.giveBackBehind(k, units)
		}
	}
}

// giveBackBehind is giveBack behind the answer, unless all is over.
func (l *Leases) giveBackBehind(k *lease, units int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		l.lost.Add(units)
		return
	}
	l.work.Go(func() { l.giveBack(k, units) })
}

// A meter is what was sold lately of the counters of one hash: since when, in µs
// modulo 2^32, and how many units.
type meter struct{ atomic.Uint64 }

// add adds units and returns how many there are, of ttl at most.
func (m *meter) add(now time.Time, units int64, ttl time.Duration) int64 {
	at := uint32(now.UnixMicro())
	for {
		was := m.Load()
		since, sum := uint32(was>>32), int64(uint32(was))
		if at-since > uint32(ttl.Microseconds()) {
			since, sum = at, 0
		}
		sum = min(sum+units, math.MaxUint32)
		if m.CompareAndSwap(was, uint64(since)<<32|uint64(sum)) {
			return sum
		}
	}
}

// learn takes leases of the counters that the store was asked about, where as
// much was sold of them within a lease's time as one holds, and where one is
// nearly spent. It ends those whose rule or store is another by now.
func (l *Leases) learn(asked *limit.Decision, a *limit.Answer, err error) {
	if len(asked.Leases) == 0 || l.most == 0 || err != nil || !a.Charged {
		return
	}
	for i := range asked.Charges {
		c, terms := &asked.Charges[i], asked.Leases[i]
		place := hashOf(c.Counter)
		sold := &l.sold[place%uint64(len(l.sold))]
		busy := sold.add(l.now(), c.Cost, terms.TTL) >= terms.Units
		k, found := l.held.Load().Get(place)
		switch {
		case !found:
			if busy {
				sold.Store(0) // so that one which is not spent is not followed by the next
				l.renew(nil, l.word(place, c), terms)
			}
		case k.charge.Cost == 0 || k.charge.Counter != c.Counter:
		case !k.sells(c, terms) || !k.holder.Lasts():
			l.leave(k, l.pause(k, maxLeasePause))
		default:
			if left := k.left.Load(); left < c.Cost && left <= terms.Units/2 {
				l.renew(k, l.word(place, c), terms)
			}
		}
	}
}

// word is that no lease of c's counter is to be taken.
func (l *Leases) word(place uint64, c *limit.Charge) *lease {
	k := &lease{place: place, charge: *c}
	k.charge.Cost = 0
	return k
}

// pause is a word about k's counter, for a time.
func (l *Leases) pause(k *lease, wait time.Duration) *lease {
	p := l.word(k.place, &k.charge)
	p.until = l.now().Add(min(max(wait, minLeasePause), maxLeasePause))
	return p
}

// renew takes a lease instead of old, nil being none. Until it is there coming is
// in its place.
func (l *Leases) renew(old, coming *lease, terms rule.Lease) {
	l.swap(coming.place, old, coming, func() {
		if old != nil {
			l.finish(old)
		}
		if k := l.fetch(coming, terms); !l.swap(coming.place, coming, k, nil) {
			l.finish(k)
		}
	})
}

// leave gives back what is left of a lease, and then holds next; nil is nothing.
// So no other is taken meanwhile.
func (l *Leases) leave(k, next *lease) {
	leaving := l.word(k.place, &k.charge)
	l.swap(k.place, k, leaving, func() {
		l.finish(k)
		l.swap(k.place, leaving, next, nil)
	})
}

// swap holds next instead of old, nil being none, until next's time is over, and
// does work behind the answers. It does nothing and returns false where old is
// not what is held, where there is no room, and when all is over.
func (l *Leases) swap(place uint64, old, next *lease, work func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.held.Load()
	if now, _ := held.Get(place); l.closed || now != old || old == nil && held.Len() >= l.most {
		return false
	}
	edit := held.Edit()
	if next == nil {
		edit.Delete(place)
	} else {
		edit.Set(place, next)
		if !next.until.IsZero() {
			next.timer = time.AfterFunc(next.until.Sub(l.now()), func() { l.leave(next, nil) })
		}
	}
	l.hold(edit.Map())
	if work != nil {
		l.work.Go(work)
	}
	return true
}

// fetch has the store charge a lease of coming's counter and returns it, or the
// pause until it may be tried again. What nobody knows to be charged counts as
// spent.
func (l *Leases) fetch(coming *lease, terms rule.Lease) *lease {
	k := &lease{place: coming.place, charge: coming.charge, ttl: terms.TTL, holder: l.holder(coming.charge.Counter), asked: l.now()}
	k.charge.Cost = terms.Units
	a, err := l.Denials.Decide(context.Background(), limit.Decision{Charges: []limit.Charge{k.charge}})
	if err == nil && !a.Allowed && len(a.Results) == 1 {
		return l.pause(coming, min(k.ttl, a.Results[0].RetryAfter))
	}
	l.taken.Add(terms.Units)
	if err != nil || !a.Charged || len(a.Results) != 1 || !k.holder.Lasts() {
		l.lost.Add(terms.Units)
		return l.pause(coming, maxLeasePause)
	}
	k.taken, k.remaining, k.reset = a.Now, a.Results[0].Remaining, a.Results[0].Reset
	k.until = k.asked.Add(k.ttl)
	if alg := k.charge.Algorithm; alg == rule.FixedWindow || alg == rule.SlidingWindowCounter {
		k.until = k.asked.Add(min(k.ttl, k.reset)) // the window ends later than that: the store was asked before it said how much later
	}
	k.left.Store(terms.Units)
	return k
}

// finish ends a lease, if nobody has, and gives back what is left of it.
func (l *Leases) finish(k *lease) {
	left := k.left.Swap(ended)
	if left < 0 {
		return
	}
	if k.timer != nil {
		k.timer.Stop()
	}
	l.spent.Add(k.charge.Cost - left)
	l.giveBack(k, left)
}

func (l *Leases) giveBack(k *lease, units int64) {
	if units == 0 {
		return
	}
	c := k.charge
	c.Cost = units
	given, err := k.holder.GiveBack(context.Background(), c, k.taken)
	if err != nil {
		given = 0
	}
	l.returned.Add(given)
	l.lost.Add(units - given)
	l.Forget(c.Counter.Tenant)
}

// Close ends all leases and gives back what is left of them. Nothing is leased
// from then on.
func (l *Leases) Close() error {
	l.mu.Lock()
	l.closed = true
	held := l.held.Load()
	l.hold(noLeases)
	l.mu.Unlock()
	l.work.Wait()
	var giving sync.WaitGroup
	places := make(chan struct{}, closers)
	for _, k := range held.All() {
		places <- struct{}{}
		giving.Go(func() {
			l.finish(k)
			<-places
		})
	}
	giving.Wait()
	return nil
}
