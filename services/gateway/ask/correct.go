package ask

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"penstock.dev/services/gateway/decide"
)

// A Refund is what is to be given back of a decision.
type Refund struct {
	DecisionID string
	Receipt    string
	ID         string // empty: the decision's
	Units      *int64 // nil: all that is left
}

// A Settlement is what a decision has cost in the end.
type Settlement struct {
	DecisionID string
	Receipt    string
	Cost       int64
}

// NeedReceipt says what is wrong with a correction without a receipt, and
// NeedCost with a settlement without a cost.
const (
	NeedReceipt = "is required: the answer of the decision has it"
	NeedCost    = "is required: the true cost"
)

// DecisionID reads the id of a decision, in either case. The error is Faults.
func DecisionID(text string) (id [16]byte, err error) {
	wrong := Faults{{"decision_id", "is not the id of a decision"}}
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return id, wrong
	}
	digits := text[:8] + text[9:13] + text[14:18] + text[19:23] + text[24:]
	if _, err := hex.Decode(id[:], []byte(digits)); err != nil {
		return id, wrong
	}
	return id, nil
}

// AppendID appends an id as the faces spell it.
func AppendID(dst []byte, id [16]byte) []byte {
	for i, end := range [...]int{4, 6, 8, 10, 16} {
		start := [...]int{0, 4, 6, 8, 10}[i]
		if i > 0 {
			dst = append(dst, '-')
		}
		dst = hex.AppendEncode(dst, id[start:end])
	}
	return dst
}

// ID is an id as the faces spell it.
func ID(id [16]byte) string { return string(AppendID(make([]byte, 0, 36), id)) }

// Refund gives back, and tells the recorder. Errors are Faults, ErrReceipt or
// the Decider's.
func (d *Desk) Refund(ctx context.Context, r Refund) (decide.Correction, error) {
	return d.correct(r.DecisionID, r.Receipt, func(receipt decide.Receipt) (decide.Correction, error) {
		id, units := r.ID, int64(0)
		if id == "" {
			id = ID(receipt.DecisionID)
		}
		if r.Units != nil {
			units = *r.Units
		}
		return d.deps.Decider.Refund(ctx, receipt, id, units)
	})
}

// Settle charges the rest or gives the difference back, and tells the recorder.
// Errors are Faults, ErrReceipt or the Decider's.
func (d *Desk) Settle(ctx context.Context, s Settlement) (decide.Correction, error) {
	return d.correct(s.DecisionID, s.Receipt, func(receipt decide.Receipt) (decide.Correction, error) {
		return d.deps.Decider.Settle(ctx, receipt, s.Cost)
	})
}

func (d *Desk) correct(decision, receipt string, apply func(decide.Receipt) (decide.Correction, error)) (decide.Correction, error) {
	id, err := DecisionID(decision)
	if err != nil {
		return decide.Correction{}, err
	}
	began := time.Now()
	opened, err := d.open(receipt, id)
	if err != nil {
		return decide.Correction{}, err
	}
	done, err := apply(opened)
	if err != nil {
		return decide.Correction{}, err
	}
	if u, ok := done.Usage(); ok && d.deps.Recorder != nil {
		u.Latency = time.Since(began)
		d.deps.Recorder.Record(u)
	}
	return done, nil
}

// goodFor is how long a receipt is good: as long as corrections are remembered.
const goodFor = 7 * 24 * time.Hour

// The first byte of what is sealed.
const (
	nothing = 0 // the decision charged nothing; its id follows
	charged = 1 // a decide.Receipt follows
)

// Receipt is that of a decision, signed. A peek has none, and neither has the
// repeat of a decision whose charges are not known any more.
func (d *Desk) Receipt(answer *decide.Decision) string {
	if d.receipts.None() || answer.Peek {
		return ""
	}
	r, ok := answer.Receipt()
	switch {
	case ok:
		return d.receipts.Seal(r.AppendBinary(append(make([]byte, 0, 512), charged)))
	case answer.Replayed:
		return ""
	default:
		return d.receipts.Seal(append([]byte{nothing}, answer.ID[:]...))
	}
}

// open reads the receipt that a correction of a decision presents.
func (d *Desk) open(text string, id [16]byte) (r decide.Receipt, err error) {
	invalid := func(why string) error { return fmt.Errorf("%w: %s", ErrReceipt, why) }
	if d.receipts.None() {
		return r, invalid("this gateway has no keys for receipts (its -receipt-keys)")
	}
	body, err := d.receipts.Open(text)
	if err != nil || len(body) == 0 {
		return r, invalid("it is unreadable, was altered, or is signed by a key that this gateway does not know (its -receipt-keys)")
	}
	switch body[0] {
	case nothing:
		copy(r.DecisionID[:], body[1:])
		r.At = time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16)) // as UUIDs of version 7 say it
	case charged:
		if r, err = decide.ParseReceipt(body[1:]); err != nil {
			return r, invalid("this version of the gateway cannot read it")
		}
	default:
		return r, invalid("this version of the gateway cannot read it")
	}
	switch {
	case r.DecisionID != id:
		return r, invalid("it is that of another decision")
	case d.deps.Now().Sub(r.At) >= goodFor:
		return r, invalid("it is older than 7 days")
	case body[0] == nothing:
		return r, decide.ErrNothingCharged
	}
	return r, nil
}
