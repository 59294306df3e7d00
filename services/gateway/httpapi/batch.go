package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"penstock.dev/services/gateway/decide"
)

// maxQuestions is how many a batch may have.
const maxQuestions = 100

// parseBatch reads a batch. The error is faults.
func parseBatch(body string) (qs []question, err error) {
	err = read(body, func(s *scanner, list *faults) {
		given := false
		s.object("", func(field string) {
			if field != "decisions" {
				s.wrong(field, "is not a field of a batch", list)
				return
			}
			given = true
			s.array(field, maxQuestions, func(i int) {
				var own faults
				qs = append(qs, s.question(&own))
				for _, f := range own {
					list.add(item(i, f.Field), f.Message)
				}
				if s.fault != nil {
					s.fault.Field = item(i, s.fault.Field)
				}
			})
		})
		if s.fault == nil && (!given || len(qs) == 0) {
			list.add("decisions", fmt.Sprintf("has no items, want 1 to %d", maxQuestions))
		}
	})
	return qs, err
}

// item is the JSON path of a field of one question.
func item(i int, field string) string {
	path := "decisions[" + strconv.Itoa(i) + "]"
	if field == "body" {
		return path
	}
	return path + "." + field
}

// An outcome is what became of one question of a batch.
type outcome struct {
	decision decide.Decision
	err      error
}

// batch answers many questions, each as if it had come alone. What is wrong
// with one of them is found before any is decided.
func (a *API) batch(_ http.Header, r *http.Request, b *buffer) error {
	qs, err := parseBatch(string(b.in))
	if err != nil {
		return err
	}
	outcomes, err := a.answerAll(r.Context(), qs)
	if err != nil {
		return err
	}
	b.out = append(b.out[:0], `{"decisions":[`...)
	for i := range outcomes {
		if i > 0 {
			b.out = append(b.out, ',')
		}
		b.out = a.appendOutcome(b.out, &outcomes[i])
	}
	b.out = append(b.out, "]}\n"...)
	return nil
}

// answerAll resolves the API keys, asks, and tells the recorder.
func (a *API) answerAll(ctx context.Context, qs []question) ([]outcome, error) {
	began := time.Now()
	rules := a.deps.Catalogue()
	outcomes := make([]outcome, len(qs))
	asked, index := make([]decide.Query, 0, len(qs)), make([]int, 0, len(qs))
	var strangers []int
	var list faults
	for i := range qs {
		known, err := true, error(nil)
		if qs[i].secret != "" {
			known, err = qs[i].identify(rules)
		}
		for _, f := range faultsOf(err) {
			list.add(item(i, f.Field), f.Message)
		}
		if !known {
			strangers = append(strangers, i)
			continue
		}
		asked, index = append(asked, qs[i].Query), append(index, i)
	}
	if len(list) > 0 {
		return nil, list
	}
	for _, i := range strangers {
		outcomes[i].decision = rules.UnknownKey(qs[i].Query, began)
		a.record(&outcomes[i].decision, &qs[i], time.Since(began))
	}
	if len(asked) == 0 {
		return outcomes, nil
	}
	decisions, errs := a.deps.Decider.DecideAll(ctx, asked)
	took := time.Since(began)
	for n, i := range index {
		outcomes[i] = outcome{decisions[n], errs[n]}
		if errs[n] == nil {
			a.record(&outcomes[i].decision, &qs[i], took)
		}
	}
	if ctx.Err() != nil { // whoever asked does not read what the others came to
		return nil, errGone
	}
	return outcomes, nil
}

// appendOutcome appends the JSON of one answer.
func (a *API) appendOutcome(dst []byte, o *outcome) []byte {
	if o.err == nil {
		dst = a.appendDecision(dst, &o.decision)
		if o.decision.Replayed {
			dst = append(dst, `,"replayed":true`...)
		}
		return append(dst, '}')
	}
	p := problemOf(o.err)
	if p.status == http.StatusInternalServerError {
		a.deps.Log.Error("question not decided", "error", o.err.Error())
	}
	dst = strconv.AppendInt(append(dst, `{"outcome":"DENY","status":`...), int64(p.status), 10)
	dst = appendString(append(dst, `,"code":`...), p.code)
	return append(dst, `,"degraded":false,"limits":[]}`...)
}
