package usage

import (
	"runtime"
	"sync"
	"testing"

	"penstock.dev/services/gateway/decide"
)

// TestRing guarantees that what many put at once is found once each, in the
// order of each of them, over many laps.
func TestRing(t *testing.T) {
	t.Parallel()
	const writers, each = 8, 20_000
	var r ring
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range int64(each) {
				for !r.add(&decide.Usage{RulesVersion: int64(w), Cost: i}) {
					runtime.Gosched()
				}
			}
		})
	}
	var next [writers]int64
	for n := 0; n < writers*each; {
		told := r.first()
		if told == nil {
			runtime.Gosched()
			continue
		}
		if told.Cost != next[told.RulesVersion] {
			t.Fatalf("number %d of writer %d, want %d", told.Cost, told.RulesVersion, next[told.RulesVersion])
		}
		next[told.RulesVersion]++
		r.drop()
		n++
	}
	all.Wait()
	if r.first() != nil || r.len() != 0 {
		t.Errorf("%d are left", r.len())
	}
}

// TestRingFull guarantees that a full ring takes nothing, takes one for each that
// is dropped, and keeps nothing alive that was dropped.
func TestRingFull(t *testing.T) {
	t.Parallel()
	var r ring
	for i := range int64(ringSize) {
		if !r.add(&decide.Usage{Cost: i, Tenant: "acme"}) {
			t.Fatalf("full after %d", i)
		}
	}
	for i := range int64(ringSize) {
		if r.add(&decide.Usage{}) {
			t.Fatal("took one more than there is room for")
		}
		if got := r.first().Cost; got != i {
			t.Fatalf("first is %d, want %d", got, i)
		}
		r.drop()
		if s := &r.slots[i]; s.told.Tenant != "" {
			t.Fatal("what was dropped is still there")
		}
		if !r.add(&decide.Usage{Cost: ringSize + i}) || r.len() != ringSize {
			t.Fatalf("no room after a drop, %d there", r.len())
		}
	}
}

// BenchmarkRing measures a decision's way into the ring and out of it.
func BenchmarkRing(b *testing.B) {
	var r ring
	told := decide.Usage{Tenant: "acme", Service: "payments"}
	for b.Loop() {
		r.add(&told)
		r.drop()
	}
}
