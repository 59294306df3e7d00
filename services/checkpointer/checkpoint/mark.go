package checkpoint

import (
	"cmp"
	"slices"
	"time"

	"penstock.dev/services/internal/limit"
)

// A Mark is all that was told of one decision's corrections.
type Mark struct {
	Tenant   string
	Decision [16]byte
	Settled  int64 // the cost it was settled at; -1: not
	Before   int64 // units given back by refunds before that
	Refunds  []Correction
	Until    time.Time // when it may be forgotten
}

// Marks gathers corrections by decision, each once.
func Marks(made []Correction) []Mark {
	made = slices.Clone(made)
	slices.SortStableFunc(made, func(a, b Correction) int {
		return cmp.Or(compareDecisions(&a, &b), a.At.Compare(b.At))
	})
	var marks []Mark
	for i := range made {
		c := &made[i]
		if len(marks) == 0 || marks[len(marks)-1].Tenant != c.Tenant || marks[len(marks)-1].Decision != c.Decision {
			marks = append(marks, Mark{Tenant: c.Tenant, Decision: c.Decision, Settled: -1})
		}
		marks[len(marks)-1].add(c)
	}
	return marks
}

// compareDecisions orders corrections by the decision that they correct.
func compareDecisions(a, b *Correction) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), slices.Compare(a.Decision[:], b.Decision[:]))
}

func (m *Mark) add(c *Correction) {
	if until := c.At.Add(limit.RememberCorrections); until.After(m.Until) {
		m.Until = until
	}
	if c.Refund != "" {
		if !slices.ContainsFunc(m.Refunds, func(r Correction) bool { return r.Refund == c.Refund }) {
			m.Refunds = append(m.Refunds, *c)
		}
		return
	}
	if m.Settled >= 0 {
		return
	}
	m.Settled = c.Units
	for _, r := range m.Refunds {
		m.Before += r.Units
	}
}
