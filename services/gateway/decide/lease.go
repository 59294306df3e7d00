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
// no more is sold than the store has charged. A lease ends with its time, its
// window, its rule or its store; what is left of it is given back, once. Questions
// that no lease covers are asked.
//
// It is safe for concurrent use; who spends takes no lock. Close it.
type Leases struct {
	*Denials
	holder func(limit.Identity) Holder
	now    func() time.Time
	most   int
	sold   [1 << 12]meter
	held   atomic.Pointer[trie.Map[uint64, *account]] // by the hash of the counter; of two with one hash the first

	mu     sync.Mutex // of who changes what is held, and who begins work
	closed bool
	work   sync.WaitGroup

	taken, spent, returned, lost atomic.Int64
}

// An account is what is held of one counter: up to two leases, so that the next is
// there before the last is spent. Together they are no more than the rule says.
type account struct {
	place  uint64       // hash of the counter
	charge limit.Charge // of a lease
	terms  rule.Lease

	older, newer atomic.Pointer[lease] // are spent in this order; nil: none
	moving       atomic.Bool           // there will be others in a moment
	paused       atomic.Bool           // none is taken for a while: one was refused

	turn chan struct{} // of one: who takes leases and gives them back
	gone bool          // it is not held any more; of whose turn it is
}

// A lease is units that were charged beforehand.
type lease struct {
	units     int64
	holder    Holder
	taken     time.Time     // when they were charged, by the store's clock
	asked     time.Time     // a moment before, by this process's
	until     time.Time     // nothing is spent from then on, by this process's
	remaining int64         // in the counter, once they were charged
	reset     time.Duration // of the counter then
	left      atomic.Int64  // ended: it has
	timer     *time.Timer
}

// ended is what is left of a lease that has ended.
const ended = -1

// Pauses between two attempts to lease one counter, after a refusal: as long as
// the store says that it takes, within these.
const (
	minLeasePause = 10 * time.Millisecond
	maxLeasePause = time.Second
)

// closers is how many accounts are given back at once when all are.
const closers = 64

// NewLeases returns a Store that asks next and holds units of most counters at
// most; 0: it always asks. Holder says who has a counter. Now is this process's
// clock.
func NewLeases(next *Denials, holder func(limit.Identity) Holder, most int, now func() time.Time) *Leases {
	l := &Leases{Denials: next, holder: holder, most: most, now: now}
	l.hold(noAccounts)
	return l
}

var noAccounts = trie.New[uint64, *account](func(place uint64) uint64 { return place })

func (l *Leases) hold(m trie.Map[uint64, *account]) { l.held.Store(&m) }

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

// Len is how many counters have a lease, or have been refused one a moment ago.
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
		case r.Lease == nil || !cuts(r) || units < 1 || units > r.Lease.Batch():
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

// sells reports whether a is of a counter, and of these terms.
func (a *account) sells(c *limit.Charge, terms rule.Lease) bool {
	return a.terms == terms && a.charge.Limit == c.Limit && a.charge.Burst == c.Burst && a.charge.Counter == c.Counter
}

// leases are those of an account, in the order in which they are spent; nil: none.
func (a *account) leases() [2]*lease { return [...]*lease{a.older.Load(), a.newer.Load()} }

// left is how many units can be spent.
func (a *account) left() (sum int64) {
	for _, k := range a.leases() {
		if k != nil {
			sum += max(0, k.left.Load())
		}
	}
	return sum
}

// A taking is units that were taken of a lease.
type taking struct {
	account *account
	lease   *lease
	left    int64 // of the lease
}

// take takes units of one lease.
func (a *account) take(units int64) (taking, bool) {
	for _, k := range a.leases() {
		if k == nil {
			continue
		}
		for left := k.left.Load(); left >= units; left = k.left.Load() {
			if k.left.CompareAndSwap(left, left-units) {
				return taking{a, k, left - units}, true
			}
		}
	}
	return taking{}, false
}

// spend answers a question from leases of all its counters, or not at all.
func (l *Leases) spend(asked *limit.Decision) (limit.Answer, bool) {
	held := l.held.Load()
	if len(asked.Leases) == 0 || held.Len() == 0 {
		return limit.Answer{}, false
	}
	var few [8]taking
	from := few[:0]
	for i := range asked.Charges {
		c := &asked.Charges[i]
		a, found := held.Get(hashOf(c.Counter))
		if !found || !a.sells(c, asked.Leases[i]) {
			break
		}
		t, ok := a.take(c.Cost)
		if !ok {
			break
		}
		from = append(from, t)
	}
	if len(from) == len(asked.Charges) {
		if answer, ok := l.answer(from); ok {
			return answer, true
		}
	}
	l.putBack(asked.Charges, from)
	return limit.Answer{}, false
}

// answer is that of a decision which spends what was taken, now, if none of the
// leases has ended by then.
func (l *Leases) answer(from []taking) (limit.Answer, bool) {
	now := l.now() // after the units were taken: they are spent no later than then
	for i := range from {
		if k := from[i].lease; !now.Before(k.until) || !k.holder.Lasts() {
			return limit.Answer{}, false
		}
	}
	a := limit.Answer{Allowed: true, Charged: true, Results: make([]limit.Result, len(from))}
	for i := range from {
		t, k := &from[i], from[i].lease
		passed := now.Sub(k.asked)
		a.Results[i] = limit.Result{Passed: true, Remaining: k.remaining + t.left, Reset: max(0, k.reset-passed)}
		if k.taken.After(a.Taken) {
			a.Taken, a.Now = k.taken, k.taken.Add(passed.Truncate(time.Microsecond))
		}
		if reserve := t.account.terms.Reserve(); t.left <= reserve && t.account.left() <= reserve {
			l.refill(t.account)
		}
	}
	return a, true
}

// putBack puts units back that were taken, where they may still be spent. Who has
// fallen to the reserve does not rise above it: others may have been taken beside.
func (k *lease) putBack(units, reserve int64) bool {
	for left := k.left.Load(); left >= 0 && (left > reserve || left+units <= reserve); left = k.left.Load() {
		if k.left.CompareAndSwap(left, left+units) {
			return true
		}
	}
	return false
}

// putBack puts back what was taken and is not spent, or gives it back.
func (l *Leases) putBack(charges []limit.Charge, from []taking) {
	for i := range from {
		a, k, units := from[i].account, from[i].lease, charges[i].Cost
		if k.putBack(units, a.terms.Reserve()) {
			continue
		}
		l.spent.Add(-units) // as which they count when the lease ends
		if !l.behind(func() { l.giveBack(a, k, units) }) {
			l.lost.Add(units)
		}
	}
}

// behind does f behind the answers, unless all is over.
func (l *Leases) behind(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.work.Go(f)
	}
	return !l.closed
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

// learn begins to hold counters that the store was asked about, where as much was
// sold of them within a lease's time as may be held, and ends what is of another
// rule or store by now.
func (l *Leases) learn(asked *limit.Decision, answer *limit.Answer, err error) {
	if len(asked.Leases) == 0 || l.most == 0 || err != nil || !answer.Charged {
		return
	}
	for i := range asked.Charges {
		c, terms := &asked.Charges[i], asked.Leases[i]
		place := hashOf(c.Counter)
		sold := &l.sold[place%uint64(len(l.sold))]
		busy := sold.add(l.now(), c.Cost, terms.TTL) >= terms.Units
		a, found := l.held.Load().Get(place)
		switch {
		case !found:
			if busy {
				sold.Store(0) // so that leases which are not spent are not followed by others
				l.begin(place, c, terms)
			}
		case a.charge.Counter != c.Counter:
		case !a.sells(c, terms) || a.lost():
			l.move(a, l.end)
		default:
			if left := a.left(); left < c.Cost && left <= terms.Units/2 {
				l.refill(a)
			}
		}
	}
}

// lost reports whether another store has the counter by now.
func (a *account) lost() bool {
	for _, k := range a.leases() {
		if k != nil && !k.holder.Lasts() {
			return true
		}
	}
	return false
}

// begin holds a counter, if there is room.
func (l *Leases) begin(place uint64, c *limit.Charge, terms rule.Lease) {
	a := &account{place: place, charge: *c, terms: terms, turn: make(chan struct{}, 1)}
	a.charge.Cost = terms.Batch()
	l.mu.Lock()
	held := l.held.Load()
	_, found := held.Get(place)
	room := !found && !l.closed && held.Len() < l.most
	if room {
		edit := held.Edit()
		edit.Set(place, a)
		l.hold(edit.Map())
	}
	l.mu.Unlock()
	if room {
		l.refill(a)
	}
}

// move does work on an account behind the answers, unless some is under way.
func (l *Leases) move(a *account, work func(*account)) {
	if !a.moving.CompareAndSwap(false, true) {
		return
	}
	l.behind(func() {
		a.turn <- struct{}{}
		defer func() { <-a.turn }()
		defer a.moving.Store(false)
		if !a.gone {
			work(a)
		}
	})
}

// refill takes the next lease of an account.
func (l *Leases) refill(a *account) {
	if !a.paused.Load() {
		l.move(a, l.next)
	}
}

// next takes a lease. What is left of those before it is given back first, but for
// what may be held beside it.
func (l *Leases) next(a *account) {
	l.finish(a, a.older.Swap(nil))
	if a.left() > a.terms.Reserve() {
		l.finish(a, a.newer.Swap(nil))
	}
	k, wait := l.fetch(a)
	if k == nil {
		a.paused.Store(true)
		time.AfterFunc(min(max(wait, minLeasePause), maxLeasePause), func() {
			a.paused.Store(false)
			l.over(a)
		})
		return
	}
	a.older.Store(a.newer.Load())
	a.newer.Store(k)
	k.timer = time.AfterFunc(k.until.Sub(l.now()), func() { l.over(a) })
}

// fetch has the store charge a lease and returns it, or how long not to try
// again. What nobody knows to be charged counts as spent.
func (l *Leases) fetch(a *account) (*lease, time.Duration) {
	k := &lease{units: a.charge.Cost, holder: l.holder(a.charge.Counter), asked: l.now()}
	said, err := l.Denials.Decide(context.Background(), limit.Decision{Charges: []limit.Charge{a.charge}})
	if err == nil && !said.Allowed && len(said.Results) == 1 {
		return nil, min(a.terms.TTL, said.Results[0].RetryAfter)
	}
	l.taken.Add(k.units)
	if err != nil || !said.Charged || len(said.Results) != 1 || !k.holder.Lasts() {
		l.lost.Add(k.units)
		return nil, maxLeasePause
	}
	k.taken, k.remaining, k.reset = said.Now, said.Results[0].Remaining, said.Results[0].Reset
	k.until = k.asked.Add(a.terms.TTL)
	if a.charge.Algorithm == rule.FixedWindow || a.charge.Algorithm == rule.SlidingWindowCounter {
		k.until = k.asked.Add(min(a.terms.TTL, k.reset)) // the window ends later than that: the store was asked before it said how much later
	}
	k.left.Store(k.units)
	return k, 0
}

// over ends the leases of an account whose time is over, and the account where
// there are no others.
func (l *Leases) over(a *account) {
	l.behind(func() {
		a.turn <- struct{}{}
		defer func() { <-a.turn }()
		now, idle := l.now(), true
		for _, p := range [...]*atomic.Pointer[lease]{&a.older, &a.newer} {
			switch k := p.Load(); {
			case k == nil:
			case now.Before(k.until):
				idle = false
			default:
				p.Store(nil)
				l.finish(a, k)
			}
		}
		if idle && !a.paused.Load() {
			l.end(a)
		}
	})
}

// end gives back what is left of an account, and holds it no longer.
func (l *Leases) end(a *account) {
	l.finish(a, a.older.Swap(nil))
	l.finish(a, a.newer.Swap(nil))
	l.mu.Lock()
	defer l.mu.Unlock()
	if !a.gone && !l.closed {
		edit := l.held.Load().Edit()
		edit.Delete(a.place)
		l.hold(edit.Map())
	}
	a.gone = true
}

// finish ends a lease, nil being none, and gives back what is left of it.
func (l *Leases) finish(a *account, k *lease) {
	if k == nil {
		return
	}
	left := k.left.Swap(ended)
	if left < 0 {
		return
	}
	if k.timer != nil {
		k.timer.Stop()
	}
	l.spent.Add(k.units - left)
	l.giveBack(a, k, left)
}

func (l *Leases) giveBack(a *account, k *lease, units int64) {
	if units == 0 {
		return
	}
	c := a.charge
	c.Cost = units
	given, err := k.holder.GiveBack(context.Background(), c, k.taken)
	if err != nil {
		given = 0
	}
	l.returned.Add(given)
	l.lost.Add(units - given)
	l.Forget(c.Counter.Tenant)
}

// Close gives back what is left of all leases. Nothing is leased from then on.
func (l *Leases) Close() error {
	l.mu.Lock()
	l.closed = true
	held := l.held.Load()
	l.hold(noAccounts)
	l.mu.Unlock()
	l.work.Wait()
	var giving sync.WaitGroup
	places := make(chan struct{}, closers)
	for _, a := range held.All() {
		places <- struct{}{}
		giving.Go(func() {
			a.turn <- struct{}{}
			l.end(a)
			<-places
		})
	}
	giving.Wait()
	return nil
}
