package counters_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
)

// TestUncountableDecisionsAreNotSent guarantees that a decision whose numbers
// cannot be counted is refused before it can spoil a batch.
func TestUncountableDecisionsAreNotSent(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]limit.Decision{
		"a negative cost":  {Charges: []limit.Charge{gcra("acme", 10, time.Second, 10, -1)}},
		"a cost of 2^53":   {Charges: []limit.Charge{gcra("acme", 10, time.Second, 10, 1<<53)}},
		"no window":        {Charges: []limit.Charge{gcra("acme", 10, 0, 10, 1)}},
		"no period":        {Charges: []limit.Charge{{Algorithm: "quota", Cost: 1, Limit: 1}}},
		"no algorithm":     {Charges: []limit.Charge{{Cost: 1, Limit: 1}}},
		"too many charges": {Charges: make([]limit.Charge, 256)},
		"a note too long":  {Request: limit.Request{ID: "r", Note: make([]byte, limit.MaxNote+1)}},
	} {
		if _, err := counters.NewPart(&d); !errors.Is(err, limit.ErrBounds) {
			t.Errorf("%s: %v, want ErrBounds", name, err)
		}
	}
}

// FuzzParseAnswer guarantees that no reply, however broken, is taken for an
// answer of another length, or kills the process.
func FuzzParseAnswer(f *testing.F) {
	d := limit.Decision{Charges: []limit.Charge{gcra("acme", 10, time.Second, 10, 1)}}
	for _, status := range "AaDSRCVEx" {
		for _, n := range []int{0, 7, 8, 25, 26, 49, 67, 90} {
			f.Add(string(status) + strings.Repeat("\x00", n))
			f.Add(string(status) + strings.Repeat("\xff", n))
		}
	}
	f.Add("")
	f.Fuzz(func(t *testing.T, reply string) {
		a, err := counters.ParseAnswer(reply, &d)
		if err == nil && !a.Stale && !a.Conflict && !a.Replayed && len(a.Results) != 1 {
			t.Errorf("%q is read as %+v", reply, a)
		}
	})
}
