package counters_test

import (
	"context"
	"errors"
	"net"
	"slices"
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
	for _, status := range "ATaDSLRCVEx" {
		for _, n := range []int{0, 7, 8, 25, 26, 41, 49, 67, 90} {
			f.Add(string(status) + strings.Repeat("\x00", n))
			f.Add(string(status) + strings.Repeat("\xff", n))
		}
	}
	f.Add("")
	f.Fuzz(func(t *testing.T, reply string) {
		a, err := counters.ParseAnswer(reply, &d)
		if err == nil && !a.Stale && !a.Lost && !a.Conflict && !a.Replayed && len(a.Results) != 1 {
			t.Errorf("%q is read as %+v", reply, a)
		}
	})
}

// FuzzParseCorrection guarantees that no reply, however broken, is taken for a
// correction of another number of counters, or kills the process.
func FuzzParseCorrection(f *testing.F) {
	for _, effect := range "CRXSTLVx" {
		for _, n := range []int{0, 32, 33, 34, 57, 81, 82} {
			f.Add(string(effect)+strings.Repeat("\x00", n), 2)
			f.Add(string(effect)+strings.Repeat("\xff", n), 1)
		}
	}
	f.Add("", 0)
	f.Fuzz(func(t *testing.T, reply string, n int) {
		n %= 256
		if n < 0 {
			n = -n
		}
		a, _, err := counters.ParseCorrection(reply, n)
		switch {
		case err != nil && (a.Effect != "" || a.Items != nil):
			t.Errorf("%q is read as %+v and as %v", reply, a, err)
		case err == nil && a.Effect == "":
			t.Errorf("%q is read as an answer of no effect", reply)
		case err == nil && a.Effect == limit.Corrected && len(a.Items) != n, err == nil && a.Effect != limit.Corrected && len(a.Items) != 0:
			t.Errorf("%q is read as %+v, of %d counters", reply, a, n)
		}
	})
}

// TestUncountableCorrectionsAreNotSent guarantees that a correction whose
// numbers cannot be counted is refused before anything is sent.
func TestUncountableCorrectionsAreNotSent(t *testing.T) {
	t.Parallel()
	s, err := counters.OpenWith(counters.Config{URL: "redis://203.0.113.1:1", Budget: time.Second}, "", func(context.Context, string, string) (net.Conn, error) {
		t.Error("it dialled")
		return nil, net.ErrClosed
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	good := limit.Correction{Tenant: "acme", At: time.Unix(1, 0), Cost: 1, Refund: "r"}
	for name, spoil := range map[string]func(*limit.Correction){
		"no cost":                 func(c *limit.Correction) { c.Cost = 0 },
		"a cost of 2^53":          func(c *limit.Correction) { c.Cost = 1 << 53 },
		"negative units":          func(c *limit.Correction) { c.Units = -1 },
		"a negative settlement":   func(c *limit.Correction) { c.Refund, c.Settle = "", -1 },
		"a refund id too long":    func(c *limit.Correction) { c.Refund = strings.Repeat("r", limit.MaxRefundID+1) },
		"a time before the epoch": func(c *limit.Correction) { c.At = time.Unix(-1, 0) },
		"too many items": func(c *limit.Correction) {
			c.Items = slices.Repeat([]limit.Item{{Charge: gcra("acme", 1, time.Second, 1, 1)}}, 256)
		},
		"an item of no window": func(c *limit.Correction) { c.Items = []limit.Item{{Charge: gcra("acme", 1, 0, 1, 1)}} },
	} {
		c := good
		spoil(&c)
		if _, err := s.Correct(t.Context(), c); !errors.Is(err, limit.ErrBounds) || errors.Is(err, counters.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrBounds", name, err)
		}
	}
}
