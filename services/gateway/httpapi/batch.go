package httpapi

import (
	"net/http"
	"strconv"

	"penstock.dev/services/gateway/ask"
)

// parseBatch reads a batch. The error is ask.Faults.
func parseBatch(body string) (qs []ask.Question, err error) {
	err = read(body, func(s *scanner, list *ask.Faults) {
		given := false
		s.object("", func(field string) {
			if field != "decisions" {
				s.wrong(field, "is not a field of a batch", list)
				return
			}
			given = true
			s.array(field, ask.MaxQuestions, func(i int) {
				var own ask.Faults
				qs = append(qs, s.question(&own))
				for _, f := range own {
					list.Add(ask.Item(i, f.Field), f.Message)
				}
				if s.fault != nil {
					s.fault.Field = ask.Item(i, s.fault.Field)
				}
			})
		})
		if s.fault == nil && (!given || len(qs) == 0) {
			list.Add("decisions", ask.NoQuestions())
		}
	})
	return qs, err
}

// batch answers many questions, each as if it had come alone. What is wrong
// with one of them is found before any is decided.
func (a *API) batch(_ http.Header, r *http.Request, b *buffer) error {
	qs, err := parseBatch(string(b.in))
	if err != nil {
		return err
	}
	all := ask.Batch{Questions: qs}
	if err := a.desk.AnswerAll(r.Context(), &all); err != nil {
		return err
	}
	b.out = append(b.out[:0], `{"decisions":[`...)
	for i := range all.Outcomes {
		if i > 0 {
			b.out = append(b.out, ',')
		}
		b.out = a.appendOutcome(b.out, &all.Outcomes[i])
	}
	b.out = append(b.out, "]}\n"...)
	return nil
}

// appendOutcome appends the JSON of one answer.
func (a *API) appendOutcome(dst []byte, o *ask.Outcome) []byte {
	if o.Err == nil {
		dst = a.appendDecision(dst, o.Decision)
		if o.Decision.Replayed {
			dst = append(dst, `,"replayed":true`...)
		}
		return append(dst, '}')
	}
	p := problemOf(o.Err)
	if p.Internal() {
		a.log.Error("question not decided", "error", o.Err.Error())
	}
	dst = strconv.AppendInt(append(dst, `{"outcome":"DENY","status":`...), int64(p.Status), 10)
	dst = ask.AppendString(append(dst, `,"code":`...), p.Code)
	return append(dst, `,"degraded":false,"limits":[]}`...)
}
