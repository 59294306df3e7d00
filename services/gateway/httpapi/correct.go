package httpapi

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"penstock.dev/services/gateway/decide"
)

// maxRefundID is how long the id of a refund may be, in bytes.
const maxRefundID = 128

// A verb is what a correction does.
type verb string

const (
	refund verb = "refund"
	settle verb = "settle"
)

// correctionPath reads what is behind /v1/decisions in the path of a correction:
// /{decision_id}/{verb}.
func correctionPath(rest string) (id string, v verb, ok bool) {
	rest, ok = strings.CutPrefix(rest, "/")
	if !ok {
		return "", "", false
	}
	id, last, _ := strings.Cut(rest, "/")
	v = verb(last)
	return id, v, id != "" && (v == refund || v == settle)
}

// parseUUID reads an id as appendUUID writes it, in either case.
func parseUUID(text string) (id [16]byte, ok bool) {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return id, false
	}
	digits := text[:8] + text[9:13] + text[14:18] + text[19:23] + text[24:]
	n, err := hex.Decode(id[:], []byte(digits))
	return id, err == nil && n == len(id)
}

// A correction is what is to be done about a decision.
type correction struct {
	receipt string
	id      string // of a refund
	units   *int64 // of a refund; nil: all that is left
	cost    *int64 // of a settlement
}

// parseCorrection reads the body of one. The error is faults.
func parseCorrection(v verb, body string) (c correction, err error) {
	err = read(body, func(s *scanner, list *faults) {
		s.object("", func(field string) {
			switch {
			case field == "receipt":
				c.receipt = s.bounded(field, maxBody, list)
			case field == "refund_id" && v == refund:
				c.id = s.bounded(field, maxRefundID, list)
			case field == "units" && v == refund:
				c.units = s.units(field, 1, list)
			case field == "cost" && v == settle:
				c.cost = s.units(field, 0, list)
			default:
				s.wrong(field, "is not a field of a "+string(v), list)
			}
		})
		if s.fault != nil {
			return
		}
		if c.receipt == "" && !list.name("receipt") {
			list.add("receipt", "is required: the answer of the decision has it")
		}
		if v == settle && c.cost == nil && !list.name("cost") {
			list.add("cost", "is required: the true cost")
		}
	})
	return c, err
}

// correct refunds or settles a decision.
func (a *API) correct(h http.Header, r *http.Request, b *buffer) error {
	text, v, _ := correctionPath(strings.TrimPrefix(r.URL.Path, decisionsPath))
	id, ok := parseUUID(text)
	if !ok {
		return faults{{"decision_id", "is not the id of a decision"}}
	}
	c, err := parseCorrection(v, string(b.in))
	if err != nil {
		return err
	}
	began := time.Now()
	receipt, err := a.open(c.receipt, id)
	if err != nil {
		return err
	}
	done, err := a.apply(r.Context(), v, &receipt, &c)
	if err != nil {
		return err
	}
	if u, ok := done.Usage(); ok && a.deps.Recorder != nil {
		u.Latency = time.Since(began)
		a.deps.Recorder.Record(u)
	}
	if done.Replayed {
		h.Set(replayedHeader, "true")
	}
	b.out = appendCorrection(b.out[:0], v, &done)
	return nil
}

// apply makes the correction.
func (a *API) apply(ctx context.Context, v verb, receipt *decide.Receipt, c *correction) (decide.Correction, error) {
	if v == settle {
		return a.deps.Decider.Settle(ctx, *receipt, *c.cost)
	}
	if c.id == "" {
		c.id = uuidText(receipt.DecisionID)
	}
	units := int64(0)
	if c.units != nil {
		units = *c.units
	}
	return a.deps.Decider.Refund(ctx, *receipt, c.id, units)
}

func appendCorrection(dst []byte, v verb, c *decide.Correction) []byte {
	if v == settle {
		dst = appendUUID(append(dst, `{"decision_id":`...), c.DecisionID)
		dst = strconv.AppendInt(append(dst, `,"cost":`...), c.Cost, 10)
	} else {
		dst = appendString(append(dst, `{"refund_id":`...), c.Refund)
	}
	dst = strconv.AppendInt(append(dst, `,"units":`...), c.Units, 10)
	dst = strconv.AppendInt(append(dst, `,"refunded_total":`...), c.RefundedTotal, 10)
	return append(dst, "}\n"...)
}

// goodFor is how long a receipt is good: as long as corrections are remembered.
const goodFor = 7 * 24 * time.Hour

// The first byte of what is sealed.
const (
	nothing = 0 // the decision charged nothing; its id follows
	charged = 1 // a decide.Receipt follows
)

// receipt is that of a decision, signed. A peek has none, and neither has the
// repeat of a decision whose charges are not known any more.
func (a *API) receipt(d *decide.Decision) string {
	if a.receipts.None() || d.Peek {
		return ""
	}
	r, ok := d.Receipt()
	switch {
	case ok:
		return a.receipts.Seal(r.AppendBinary(append(make([]byte, 0, 512), charged)))
	case d.Replayed:
		return ""
	default:
		return a.receipts.Seal(append([]byte{nothing}, d.ID[:]...))
	}
}

// open reads the receipt that a correction of a decision presents.
func (a *API) open(text string, id [16]byte) (r decide.Receipt, err error) {
	invalid := func(why string) error { return fmt.Errorf("%w: %s", errReceipt, why) }
	if a.receipts.None() {
		return r, invalid("this gateway has no keys for receipts (its -receipt-keys)")
	}
	body, err := a.receipts.Open(text)
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
	case a.deps.Now().Sub(r.At) >= goodFor:
		return r, invalid("it is older than 7 days")
	case body[0] == nothing:
		return r, decide.ErrNothingCharged
	}
	return r, nil
}

// uuidText is an id as the faces spell it.
func uuidText(id [16]byte) string {
	quoted := appendUUID(make([]byte, 0, 38), id)
	return string(quoted[1 : len(quoted)-1])
}
