package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/decide"
)

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

// A correction is what is to be done about a decision.
type correction struct {
	receipt string
	id      string // of a refund
	units   *int64 // of a refund; nil: all that is left
	cost    *int64 // of a settlement
}

// parseCorrection reads the body of one. The error is ask.Faults.
func parseCorrection(v verb, body string) (c correction, err error) {
	err = read(body, func(s *scanner, list *ask.Faults) {
		s.object("", func(field string) {
			switch {
			case field == "receipt":
				c.receipt = s.bounded(field, maxBody, list)
			case field == "refund_id" && v == refund:
				c.id = s.bounded(field, ask.MaxRefundID, list)
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
		if c.receipt == "" && !list.Name("receipt") {
			list.Add("receipt", ask.NeedReceipt)
		}
		if v == settle && c.cost == nil && !list.Name("cost") {
			list.Add("cost", ask.NeedCost)
		}
	})
	return c, err
}

// correct refunds or settles a decision.
func (a *API) correct(h http.Header, r *http.Request, b *buffer) error {
	id, v, _ := correctionPath(strings.TrimPrefix(r.URL.Path, decisionsPath))
	if _, err := ask.DecisionID(id); err != nil { // before the body is looked at
		return err
	}
	c, err := parseCorrection(v, string(b.in))
	if err != nil {
		return err
	}
	done, err := a.apply(r.Context(), v, id, &c)
	if err != nil {
		return err
	}
	if done.Replayed {
		h.Set(replayedHeader, "true")
	}
	b.out = appendCorrection(b.out[:0], v, &done)
	return nil
}

// apply makes the correction.
func (a *API) apply(ctx context.Context, v verb, decision string, c *correction) (decide.Correction, error) {
	if v == settle {
		return a.desk.Settle(ctx, ask.Settlement{DecisionID: decision, Receipt: c.receipt, Cost: *c.cost})
	}
	return a.desk.Refund(ctx, ask.Refund{DecisionID: decision, Receipt: c.receipt, ID: c.id, Units: c.units})
}

func appendCorrection(dst []byte, v verb, c *decide.Correction) []byte {
	if v == settle {
		dst = appendUUID(append(dst, `{"decision_id":`...), c.DecisionID)
		dst = strconv.AppendInt(append(dst, `,"cost":`...), c.Cost, 10)
	} else {
		dst = ask.AppendString(append(dst, `{"refund_id":`...), c.Refund)
	}
	dst = strconv.AppendInt(append(dst, `,"units":`...), c.Units, 10)
	dst = strconv.AppendInt(append(dst, `,"refunded_total":`...), c.RefundedTotal, 10)
	return append(dst, "}\n"...)
}
