package outbox_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"penstock.dev/services/outbox-relay/outbox"
)

// TestConfirmedFollowsTheLowestOutstanding guarantees that a position is given
// up only when every event before it is stored: later acknowledgements do not
// move it past an earlier one that is missing (case FC-18).
func TestConfirmedFollowsTheLowestOutstanding(t *testing.T) {
	t.Parallel()
	l := outbox.NewLedger(5)
	want := func(step string, p outbox.Position) {
		t.Helper()
		if got := l.Confirmed(); got != p {
			t.Errorf("%s: confirmed %d, want %d", step, got, p)
		}
	}
	want("at the start", 5)
	e1, e2, e3 := l.Begin(), l.Begin(), l.Begin()
	e1.Add()
	e1.End(10)
	e2.Add()
	e2.Add()
	e2.End(20)
	e3.End(30)
	e2.Stored()
	e2.Stored()
	want("the first event is outstanding", 5)
	l.Idle(40)
	want("an idle log does not move past it either", 5)
	e1.Stored()
	want("all is stored", 30)
	l.Idle(40)
	want("nothing is outstanding", 40)
	l.Idle(35)
	want("a position never falls", 40)
}

// TestConfirmedWaitsForTheCommit guarantees that a transaction whose end has
// not been read holds the position, though all events seen of it are stored.
func TestConfirmedWaitsForTheCommit(t *testing.T) {
	t.Parallel()
	l := outbox.NewLedger(0)
	tx := l.Begin()
	tx.Add()
	tx.Stored()
	l.Idle(50)
	if got := l.Confirmed(); got != 0 {
		t.Errorf("confirmed %d inside a transaction, want 0", got)
	}
	tx.End(10)
	if got := l.Confirmed(); got != 10 {
		t.Errorf("confirmed %d, want 10", got)
	}
}

// TestLedgerAgreesWithItsDefinition guarantees on random interleavings that the
// confirmed position is the end of the longest prefix of complete transactions,
// and that the count of outstanding events is right.
func TestLedgerAgreesWithItsDefinition(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	type txn struct {
		tx      *outbox.Transaction
		pending int
		ended   bool
		end     outbox.Position
	}
	moved := 0
	for range 200 {
		l, all := outbox.NewLedger(0), []*txn{}
		for step := range 200 {
			switch k := rng.IntN(4); {
			case k == 0 && (len(all) == 0 || all[len(all)-1].ended):
				all = append(all, &txn{tx: l.Begin()})
			case k == 1 && len(all) > 0 && !all[len(all)-1].ended:
				last := all[len(all)-1]
				last.tx.Add()
				last.pending++
			case k == 2 && len(all) > 0 && !all[len(all)-1].ended:
				last := all[len(all)-1]
				last.ended, last.end = true, outbox.Position(step+1)
				last.tx.End(last.end)
			case k == 3 && len(all) > 0:
				if some := all[rng.IntN(len(all))]; some.pending > 0 {
					some.tx.Stored()
					some.pending--
				}
			}
			want, pending, whole := outbox.Position(0), 0, true
			for _, x := range all {
				pending += x.pending
				if whole = whole && x.ended && x.pending == 0; whole {
					want = x.end
				}
			}
			if got := l.Confirmed(); got != want {
				t.Fatalf("confirmed %d, want %d", got, want)
			}
			if got := l.Pending(); got != pending {
				t.Fatalf("pending %d, want %d", got, pending)
			}
			if want > 0 {
				moved++
			}
		}
	}
	if moved < 1000 {
		t.Errorf("the position had moved in %d steps only: the generator no longer tests it", moved)
	}
}
