package decide

import (
	"context"
	"hash/maphash"
	"slices"
	"sync/atomic"
	"time"

	"penstock.dev/services/internal/limit"
)

// maxDenied is how long a denial is repeated without asking the store at most:
// what a refund elsewhere makes room for is refused for so much longer.
const maxDenied = time.Second

// Denials is a Store that repeats what it was refused. Until the wait is over,
// and for a second at most, the same question (the same counters, limits, periods
// and costs) is refused again without asking. A change of the rules that matters
// changes the question. A correction through here ends the denials of the
// tenants whose counters it touches. Questions under a request id are always asked:
// they may repeat one that was charged.
//
// The other limits of a repeated answer are as they were, their resets nearer.
//
// It is safe for concurrent use, without locks. It holds so many denials at
// most; of those that share a few places the last to end are kept.
type Denials struct {
	Store
	now     func() time.Time
	places  []place
	tenants [1 << 12]hint
	hits    atomic.Uint64 // apart from what everybody reads
}

// A hint is about all tenants of one hash; counters that no tenant owns are of one
// without a name.
type hint struct {
	until       atomic.Int64 // the end of the last denial, ns since 1970: after it there is nothing to look for
	corrections atomic.Uint64
}

// A place holds a denial. Its hash is that of the question, or of one before it:
// whoever looks for another need not look at the denial, which is in no cache.
type place struct {
	hash   atomic.Uint64
	denial atomic.Pointer[denial]
}

// ways is how many places share the denials of so many hashes.
const ways = 4

// A denial is immutable, and in one piece where it is of one charge.
type denial struct {
	at          time.Time // when the answer was there
	until       time.Time // as if the store had said so the moment it was asked
	corrections uint64    // before it was asked
	charges     []limit.Charge
	answer      limit.Answer

	charge [1]limit.Charge
	result [1]limit.Result
}

// NewDenials returns a Store that asks next and holds size denials at most; 0:
// it always asks. Now is this process's clock.
func NewDenials(next Store, size int, now func() time.Time) *Denials {
	return &Denials{Store: next, now: now, places: make([]place, size)}
}

// Hits is how many questions were answered without the store.
func (d *Denials) Hits() uint64 { return d.hits.Load() }

// A question is a decision on its way to the store.
type question struct {
	hint        *hint // of its first counter; nil: it is never recalled, nor kept
	corrections uint64
	at          time.Time
}

// Decide is Store's.
func (d *Denials) Decide(ctx context.Context, asked limit.Decision) (limit.Answer, error) {
	q := d.ask(&asked)
	if a, ok := d.recall(&q, &asked); ok {
		return a, nil
	}
	a, err := d.Store.Decide(ctx, asked)
	d.keep(&q, &asked, &a, err)
	return a, err
}

// DecideAll is Store's.
func (d *Denials) DecideAll(ctx context.Context, asked []limit.Decision) ([]limit.Answer, []error) {
	var few [16]question
	questions := few[:]
	if len(asked) > len(few) {
		questions = make([]question, len(asked))
	}
	answers, errs, open := decideRest(ctx, d.Store, asked, func(i int) (limit.Answer, bool) {
		questions[i] = d.ask(&asked[i])
		return d.recall(&questions[i], &asked[i])
	})
	for _, i := range open {
		d.keep(&questions[i], &asked[i], &answers[i], errs[i])
	}
	return answers, errs
}

// decideRest is next's DecideAll, but for what is known. Open are those that next
// was asked.
func decideRest(ctx context.Context, next Store, asked []limit.Decision, known func(i int) (limit.Answer, bool)) (answers []limit.Answer, errs []error, open []int) {
	open = make([]int, 0, len(asked))
	for i := range asked {
		a, ok := known(i)
		if !ok {
			open = append(open, i)
			continue
		}
		if answers == nil {
			answers = make([]limit.Answer, len(asked))
		}
		answers[i] = a
	}
	if len(open) == len(asked) {
		answers, errs = next.DecideAll(ctx, asked)
		return answers, errs, open
	}
	errs = make([]error, len(asked))
	if len(open) == 0 {
		return answers, errs, nil
	}
	rest := make([]limit.Decision, len(open))
	for n, i := range open {
		rest[n] = asked[i]
	}
	said, failed := next.DecideAll(ctx, rest)
	for n, i := range open {
		answers[i], errs[i] = said[n], failed[n]
	}
	return answers, errs, open
}

// Correct is Store's.
func (d *Denials) Correct(ctx context.Context, c limit.Correction) (limit.CorrectionAnswer, error) {
	a, err := d.Store.Correct(ctx, c)
	for i := range c.Items { // also after an error: it may have been made
		d.Forget(c.Items[i].Counter.Tenant)
	}
	return a, err
}

// Forget ends the denials that asked a counter of a tenant, or where it is empty one
// that no tenant owns: something was given back.
func (d *Denials) Forget(tenant string) { d.hintOf(tenant).corrections.Add(1) }

func (d *Denials) hintOf(tenant string) *hint {
	return &d.tenants[maphash.String(seed, tenant)%uint64(len(d.tenants))]
}

// ask begins a question.
func (d *Denials) ask(asked *limit.Decision) question {
	if len(d.places) == 0 || asked.Request.ID != "" || asked.Weigh || len(asked.Charges) == 0 {
		return question{}
	}
	h := d.hintOf(asked.Charges[0].Counter.Tenant)
	q := question{hint: h, corrections: h.corrections.Load(), at: d.now()}
	for i := 1; i < len(asked.Charges); i++ {
		if tenant := asked.Charges[i].Counter.Tenant; tenant != asked.Charges[i-1].Counter.Tenant {
			q.corrections += d.hintOf(tenant).corrections.Load() // each only rises, and so does the sum
		}
	}
	return q
}

// hashOfAsked is of what tells questions apart. Those that differ only in what it
// leaves out share places.
func hashOfAsked(asked *limit.Decision) uint64 {
	h := uint64(len(asked.Charges))
	for i := range asked.Charges {
		c := &asked.Charges[i]
		id := &c.Counter
		h = mix(mix(h, uint64(c.Cost)), uint64(c.Limit)^uint64(c.Window)^uint64(id.Subject)<<48)
		for _, s := range [...]string{id.Tenant, id.Application, id.User, id.APIKey, id.Address, id.Meter} {
			if s != "" {
				h = mix(h, maphash.String(seed, s))
			}
		}
	}
	return h
}

// shared are the places where the denial of a question may be.
func (d *Denials) shared(hash uint64) []place {
	if len(d.places) < ways {
		return d.places
	}
	first := hash % uint64(len(d.places)/ways) * ways
	return d.places[first : first+ways]
}

// recall is the answer to a question that was refused.
func (d *Denials) recall(q *question, asked *limit.Decision) (limit.Answer, bool) {
	if q.hint == nil {
		return limit.Answer{}, false
	}
	if q.at.UnixNano() >= q.hint.until.Load() {
		return limit.Answer{}, false
	}
	hash := hashOfAsked(asked)
	shared := d.shared(hash)
	for i := range shared {
		p := &shared[i]
		if p.hash.Load() != hash {
			continue
		}
		if known := p.denial.Load(); known != nil && known.holds(q) && slices.Equal(known.charges, asked.Charges) {
			d.hits.Add(1)
			return known.after(q.at.Sub(known.at).Truncate(time.Microsecond)), true
		}
	}
	return limit.Answer{}, false
}

// holds reports whether k, if it is of the same charges, is q's answer.
func (k *denial) holds(q *question) bool {
	return k.corrections == q.corrections && q.at.Before(k.until) && !q.at.Before(k.at)
}

// after is the answer as it is so much later.
func (k *denial) after(passed time.Duration) limit.Answer {
	a := k.answer
	a.Now = a.Now.Add(passed)
	a.Results = slices.Clone(a.Results)
	for i := range a.Results {
		r := &a.Results[i]
		r.Reset = max(0, r.Reset-passed)
		if r.RetryAfter != limit.Never {
			r.RetryAfter = max(0, r.RetryAfter-passed)
		}
	}
	return a
}

// keep remembers what the store refused.
func (d *Denials) keep(q *question, asked *limit.Decision, a *limit.Answer, err error) {
	if q.hint == nil || err != nil {
		return
	}
	wait := refusedFor(asked, a)
	if wait <= 0 {
		return
	}
	k := &denial{answer: *a, at: d.now(), until: q.at.Add(wait), corrections: q.corrections}
	k.charges = append(k.charge[:0], asked.Charges...) // which lie among those of others
	k.answer.Results = append(k.result[:0], a.Results...)
	d.put(k, hashOfAsked(asked))
	for end := k.until.UnixNano(); ; {
		last := q.hint.until.Load()
		if last >= end || q.hint.until.CompareAndSwap(last, end) {
			return
		}
	}
}

// put puts k where the same question was denied, else where nothing is, or what
// ends first.
func (d *Denials) put(k *denial, hash uint64) {
	shared := d.shared(hash)
	best := &shared[0]
	for i := range shared {
		p := &shared[i]
		if p.hash.Load() == hash {
			best = p
			break
		}
		if p.endsAt().Before(best.endsAt()) {
			best = p
		}
	}
	best.denial.Store(k)
	best.hash.Store(hash)
}

// endsAt is when a place's denial ends; zero: it has none.
func (p *place) endsAt() time.Time {
	if k := p.denial.Load(); k != nil {
		return k.until
	}
	return time.Time{}
}

// refusedFor is how long an answer is to be repeated; 0 is not at all.
func refusedFor(asked *limit.Decision, a *limit.Answer) (wait time.Duration) {
	if a.Allowed || a.Charged || a.Stale || a.Lost || a.Replayed || a.Conflict || len(a.Results) != len(asked.Charges) {
		return 0
	}
	for i := range a.Results {
		if c := &asked.Charges[i]; !a.Results[i].Passed && !c.Soft && !c.Counter.Shadow {
			wait = max(wait, a.Results[i].RetryAfter)
			if a.Results[i].RetryAfter == limit.Never {
				return maxDenied
			}
		}
	}
	return min(wait, maxDenied)
}
