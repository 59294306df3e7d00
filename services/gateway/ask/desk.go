package ask

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/receipt"
)

// A Catalogue is what must be known before a decision is asked for. It is one
// revision: a decide.Snapshot.
type Catalogue interface {
	Key(digest [32]byte) (decide.Key, bool)
	// UnknownKey is the answer where there is no such key.
	UnknownKey(q decide.Query, at time.Time) decide.Decision
}

// A Decider decides, and corrects what it decided: a decide.Service.
type Decider interface {
	Decide(ctx context.Context, q decide.Query) (decide.Decision, error)
	DecideAll(ctx context.Context, b *decide.Batch)
	Refund(ctx context.Context, r decide.Receipt, id string, units int64) (decide.Correction, error)
	Settle(ctx context.Context, r decide.Receipt, cost int64) (decide.Correction, error)
}

// A Recorder is told of every decision and correction that makes an event,
// once. It must neither block nor fail. What u points to must not change any
// more: it may be looked at later.
type Recorder interface {
	Record(u decide.Usage)
}

// Config says who may ask.
type Config struct {
	Tokens   []string     // bearer tokens of trusted callers; none: nobody may ask
	Receipts receipt.Keys // sign and verify receipts; none: answers have none, and nothing can be corrected
}

// Deps is what a Desk works with. All are required but Recorder and Now.
type Deps struct {
	Catalogue func() Catalogue // the one in force
	Decider   Decider
	Recorder  Recorder
	Now       func() time.Time // the best estimate of the counter store's clock, by which receipts age; nil: this process's
}

// A Desk answers questions. It is safe for concurrent use.
type Desk struct {
	deps     Deps
	tokens   [][sha256.Size]byte // digests: equal in length whatever a caller sends
	receipts receipt.Keys
}

// New returns a Desk.
func New(cfg Config, deps Deps) *Desk {
	d := &Desk{deps: deps, receipts: cfg.Receipts}
	if d.deps.Now == nil {
		d.deps.Now = time.Now
	}
	for _, token := range cfg.Tokens {
		d.tokens = append(d.tokens, sha256.Sum256([]byte(token)))
	}
	return d
}

// Trusts reports whether the values of an authorization header or metadatum
// are one, with one of the tokens. The time that this takes says nothing about
// them.
func (d *Desk) Trusts(authorization []string) bool {
	if len(authorization) != 1 {
		return false
	}
	scheme, token, _ := strings.Cut(authorization[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return false
	}
	digest := sha256.Sum256([]byte(strings.Trim(token, " ")))
	found := 0
	for i := range d.tokens {
		found |= subtle.ConstantTimeCompare(digest[:], d.tokens[i][:])
	}
	return found == 1
}

// Answer resolves the API key of a question, if it has one, asks, and tells the
// recorder. Errors are Faults, or the Decider's.
func (d *Desk) Answer(ctx context.Context, q *Question) (decide.Decision, error) {
	began := time.Now()
	if q.Secret != "" {
		rules := d.deps.Catalogue()
		known, err := q.identify(rules)
		if err != nil {
			return decide.Decision{}, err
		}
		if !known {
			answer := rules.UnknownKey(q.Query, began)
			d.record(&answer, q, time.Since(began))
			return answer, nil
		}
		began = time.Now()
	}
	answer, err := d.deps.Decider.Decide(ctx, q.Query)
	if err == nil {
		d.record(&answer, q, time.Since(began))
	}
	return answer, err
}

// record tells of a decision.
func (d *Desk) record(answer *decide.Decision, q *Question, took time.Duration) {
	if d.deps.Recorder == nil {
		return
	}
	if u, ok := answer.Usage(); ok {
		u.Latency, u.KeyDigest, u.Labels = took, q.digest, q.Told
		d.deps.Recorder.Record(u)
	}
}

// Item is the JSON path of a field of one question of a batch.
func Item(i int, field string) string {
	path := "decisions[" + strconv.Itoa(i) + "]"
	if field == "body" {
		return path
	}
	return path + "." + field
}

// An Outcome is what became of one question of a batch: a decision or an error.
type Outcome struct {
	Decision *decide.Decision // nil where there is an error
	Err      error
}

// A Batch is questions that are asked together, and what became of each. The
// zero Batch is an empty one. Its memory serves one batch after another, as that
// of a decide.Batch.
type Batch struct {
	Questions []Question
	Outcomes  []Outcome // of each question, once they are answered

	asked  decide.Batch
	places []int // of those that were asked
}

// Reset makes b an empty batch.
func (b *Batch) Reset() {
	clear(b.Questions)
	clear(b.Outcomes)
	b.Questions, b.Outcomes, b.places = b.Questions[:0], b.Outcomes[:0], b.places[:0]
	b.asked.Reset()
}

// AnswerAll answers the questions of b, each as if it had come alone. Where an API
// key contradicts one of them the error is Faults, and none is decided. It is
// ErrGone when nobody reads the answers any more.
func (d *Desk) AnswerAll(ctx context.Context, b *Batch) error {
	began := time.Now()
	rules := d.deps.Catalogue()
	strangers := b.identify(rules)
	var list Faults
	for i := range b.Outcomes {
		for _, f := range FaultsOf(b.Outcomes[i].Err) {
			list.Add(Item(i, f.Field), f.Message)
		}
	}
	if err := list.Err(); err != nil {
		return err
	}
	return d.answer(ctx, b, rules, strangers, began)
}

// AnswerEach is AnswerAll, but that a contradiction is the outcome of its own
// question and of no other.
func (d *Desk) AnswerEach(ctx context.Context, b *Batch) error {
	began := time.Now()
	rules := d.deps.Catalogue()
	return d.answer(ctx, b, rules, b.identify(rules), began)
}

// identify looks up the API keys. What contradicts its question has that for an
// outcome; strangers are the questions whose key there is not, in order.
func (b *Batch) identify(rules Catalogue) (strangers []int) {
	b.Outcomes = slices.Grow(b.Outcomes[:0], len(b.Questions))[:len(b.Questions)]
	for i := range b.Questions {
		b.Outcomes[i] = Outcome{}
		if b.Questions[i].Secret == "" {
			continue
		}
		known, err := b.Questions[i].identify(rules)
		if b.Outcomes[i].Err = err; !known && err == nil {
			strangers = append(strangers, i)
		}
	}
	return strangers
}

// answer asks, and tells the recorder.
func (d *Desk) answer(ctx context.Context, b *Batch, rules Catalogue, strangers []int, began time.Time) error {
	asked, places := &b.asked, b.places[:0]
	asked.Reset()
	for i := range b.Questions {
		q, o := &b.Questions[i], &b.Outcomes[i]
		switch {
		case o.Err != nil:
		case len(strangers) > 0 && strangers[0] == i:
			strangers = strangers[1:]
			o.Decision = new(rules.UnknownKey(q.Query, began))
			d.record(o.Decision, q, time.Since(began))
		default:
			asked.Queries, places = append(asked.Queries, &q.Query), append(places, i)
		}
	}
	b.places = places
	if len(places) == 0 {
		return nil
	}
	d.deps.Decider.DecideAll(ctx, asked)
	took := time.Since(began)
	for n, i := range places {
		o := &b.Outcomes[i]
		if o.Err = asked.Errs[n]; o.Err == nil {
			o.Decision = &asked.Decisions[n]
			d.record(o.Decision, &b.Questions[i], took)
		}
	}
	if ctx.Err() != nil && (len(b.Outcomes) > 1 || b.Outcomes[0].Err != nil) { // whoever asked does not read what the others came to
		return ErrGone
	}
	return nil
}
