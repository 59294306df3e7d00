package decide

import (
	"context"
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
// most; of two that share a place the newer one is kept.
type Denials struct {
	Store
	now     func() time.Time
	places  []atomic.Pointer[denial]
	tenants [1 << 12]hint
	hits    atomic.Uint64 // apart from what everybody reads
}

// A hint is about all tenants of one hash; counters that no tenant owns are of one
// without a name.
type hint struct {
	until       atomic.Int64 // the end of the last denial, ns since 1970: after it there is nothing to look for
	corrections atomic.Uint64
}

// A denial is immutable.
type denial struct {
	charges     []limit.Charge
	answer      limit.Answer
	at          time.Time // when the answer was there
	until       time.Time // as if the store had said so the moment it was asked
	corrections uint64    // before it was asked
}

// NewDenials returns a Store that asks next and holds size denials at most; 0:
// it always asks. Now is this process's clock.
func NewDenials(next Store, size int, now func() time.Time) *Denials {
	return &Denials{Store: next, now: now, places: make([]atomic.Pointer[denial], size)}
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
	return &d.tenants[hashOf(tenant)%uint64(len(d.tenants))]
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

// place is where the denial of a question is.
func (d *Denials) place(asked *limit.Decision) *atomic.Pointer[denial] {
	h := uint64(len(asked.Charges))
	for i := range asked.Charges {
		h = h*31 + hashOf(asked.Charges[i])
	}
	return &d.places[h%uint64(len(d.places))]
}

// recall is the answer to a question that was refused.
func (d *Denials) recall(q *question, asked *limit.Decision) (limit.Answer, bool) {
	if q.hint == nil {
		return limit.Answer{}, false
	}
	if q.at.UnixNano() >= q.hint.until.Load() {
		return limit.Answer{}, false
	}
	known := d.place(asked).Load()
	if known == nil || known.corrections != q.corrections || !q.at.Before(known.until) || q.at.Before(known.at) || !slices.Equal(known.charges, asked.Charges) {
		return limit.Answer{}, false
	}
	d.hits.Add(1)
	return known.after(q.at.Sub(known.at).Truncate(time.Microsecond)), true
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
	k := &denial{charges: slices.Clone(asked.Charges), answer: *a, at: d.now(), until: q.at.Add(wait), corrections: q.corrections}
	k.answer.Results = slices.Clone(a.Results) // which lie among those of others
	d.place(asked).Store(k)
	for end := k.until.UnixNano(); ; {
		last := q.hint.until.Load()
		if last >= end || q.hint.until.CompareAndSwap(last, end) {
			return
		}
	}
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
