package frozen

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"penstock.dev/loadtest/stats"
)

// TestJudge guarantees by which rule each answer is judged: those that were due
// while the store hung, by their mode; and that what is not a degraded decision
// without numbers is wrong.
func TestJudge(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	w := window{from: start.Add(time.Second), to: start.Add(2 * time.Second)}
	ask := func(at time.Duration, a answer, err error) result {
		return result{answer: a, due: start.Add(at), took: at, err: err}
	}
	pass := answer{Outcome: "ALLOW", Status: 200, Degraded: true}
	limited := answer{Outcome: "DENY", Status: 429, Code: "rate-limited", Degraded: true}
	closed := answer{Outcome: "DENY", Status: 503, Code: "store-unavailable", Degraded: true}
	numbered := pass
	numbered.Limits = []json.RawMessage{json.RawMessage(`{}`)}
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	var r Result
	r.judge([]result{ // in turn: open, closed, local
		ask(ms(100), answer{Outcome: "ALLOW", Status: 200}, nil), ask(ms(200), closed, nil), ask(ms(950), pass, nil),
		ask(ms(1100), pass, nil), ask(ms(1101), closed, nil), ask(ms(1102), limited, nil),
		ask(ms(1200), closed, nil), ask(ms(1201), pass, nil), ask(ms(1202), pass, nil),
		ask(ms(1300), numbered, nil), ask(ms(1301), limited, nil), ask(ms(1302), pass, errors.New("gone")),
		ask(ms(1990), answer{}, nil), ask(ms(1991), answer{}, nil), ask(ms(1992), answer{}, nil),
		ask(ms(2100), pass, nil), ask(ms(2101), closed, nil), ask(ms(2500), answer{}, nil),
	}, w)
	if r.Early != 1 || r.Failed != 1 || r.Before.Count != 2 || r.Frozen.Count != 12 || r.After.Count != 3 || time.Duration(r.Hung) != time.Second || time.Duration(r.Recovered) != ms(101) {
		t.Errorf("%+v", r)
	}
	if o, c, l := r.Open.Took, r.Closed.Took, r.Local.Took; o.Count != 4 || time.Duration(o.Max) != ms(1990) || time.Duration(c.Max) != ms(1991) || time.Duration(l.Max) != ms(1992) {
		t.Errorf("open took %+v, closed %+v, local %+v", o, c, l)
	}
	r.Open.Took, r.Closed.Took, r.Local.Took = stats.Summary{}, stats.Summary{}, stats.Summary{}
	r.Open.Example, r.Closed.Example, r.Local.Example = "", "", ""
	if r.Open != (Answers{Sent: 3, Passed: 1, Wrong: 2}) || r.Closed != (Answers{Sent: 3, Closed: 1, Wrong: 2}) || r.Local != (Answers{Sent: 3, Passed: 1, Limited: 1, Wrong: 1}) {
		t.Errorf("open %+v, closed %+v, local %+v", r.Open, r.Closed, r.Local)
	}
}
