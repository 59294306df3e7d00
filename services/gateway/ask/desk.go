package ask

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
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
	DecideAll(ctx context.Context, qs []decide.Query) ([]decide.Decision, []error)
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
	Decision decide.Decision
	Err      error
}

// AnswerAll answers many questions, each as if it had come alone. Where an API
// key contradicts one of them the error is Faults, and none is decided. It is
// ErrGone when nobody reads the answers any more.
func (d *Desk) AnswerAll(ctx context.Context, qs []Question) ([]Outcome, error) {
	began := time.Now()
	rules := d.deps.Catalogue()
	callers := identifyAll(rules, qs)
	var list Faults
	for i := range callers {
		for _, f := range FaultsOf(callers[i].err) {
			list.Add(Item(i, f.Field), f.Message)
		}
	}
	if err := list.Err(); err != nil {
		return nil, err
	}
	return d.answerAll(ctx, rules, qs, callers, began)
}

// AnswerEach is AnswerAll, but that a contradiction is the outcome of its own
// question and of no other.
func (d *Desk) AnswerEach(ctx context.Context, qs []Question) ([]Outcome, error) {
	if len(qs) == 1 {
		decision, err := d.Answer(ctx, &qs[0])
		if err != nil && ctx.Err() != nil {
			return nil, ErrGone
		}
		return []Outcome{{decision, err}}, nil
	}
	began := time.Now()
	rules := d.deps.Catalogue()
	return d.answerAll(ctx, rules, qs, identifyAll(rules, qs), began)
}

// A caller is what the API key of a question came to.
type caller struct {
	stranger bool  // there is no such key
	err      error // it contradicts the question
}

func identifyAll(rules Catalogue, qs []Question) []caller {
	callers := make([]caller, len(qs))
	for i := range qs {
		if qs[i].Secret != "" {
			known, err := qs[i].identify(rules)
			callers[i] = caller{stranger: !known && err == nil, err: err}
		}
	}
	return callers
}

// answerAll asks, and tells the recorder.
func (d *Desk) answerAll(ctx context.Context, rules Catalogue, qs []Question, callers []caller, began time.Time) ([]Outcome, error) {
	outcomes := make([]Outcome, len(qs))
	asked, index := make([]decide.Query, 0, len(qs)), make([]int, 0, len(qs))
	for i := range qs {
		switch {
		case callers[i].err != nil:
			outcomes[i].Err = callers[i].err
		case callers[i].stranger:
			outcomes[i].Decision = rules.UnknownKey(qs[i].Query, began)
			d.record(&outcomes[i].Decision, &qs[i], time.Since(began))
		default:
			asked, index = append(asked, qs[i].Query), append(index, i)
		}
	}
	if len(asked) == 0 {
		return outcomes, nil
	}
	decisions, errs := d.deps.Decider.DecideAll(ctx, asked)
	took := time.Since(began)
	for n, i := range index {
		outcomes[i] = Outcome{decisions[n], errs[n]}
		if errs[n] == nil {
			d.record(&outcomes[i].Decision, &qs[i], took)
		}
	}
	if ctx.Err() != nil { // whoever asked does not read what the others came to
		return nil, ErrGone
	}
	return outcomes, nil
}
