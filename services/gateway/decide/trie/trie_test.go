package trie_test

import (
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/services/gateway/decide/trie"
)

// TestMapIsAMap guarantees that whatever is set and deleted, in whatever order
// and batches, a map holds what Go's own map would, and that every earlier map
// still holds what it held: also when hashes collide in part or altogether.
func TestMapIsAMap(t *testing.T) {
	t.Parallel()

	seed := maphash.MakeSeed()
	hashes := []struct {
		name string
		hash func(int) uint64
	}{
		{"a good hash", func(k int) uint64 { return maphash.Comparable(seed, k) }},
		{"few hashes", func(k int) uint64 { return uint64(k % 7) }},
		{"hashes that differ in their last bits only", func(k int) uint64 { return uint64(k) << 58 }},
		{"one hash", func(int) uint64 { return 42 }},
	}
	for _, tt := range hashes {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			rngSeed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", rngSeed)
			rng := rand.New(rand.NewPCG(rngSeed, 0))
			m, want := trie.New[int, int](tt.hash), map[int]int{}
			type version struct {
				m    trie.Map[int, int]
				want map[int]int
			}
			var history []version
			for range 150 {
				e := m.Edit()
				for range rng.IntN(40) {
					k := rng.IntN(300)
					if rng.IntN(2) == 0 {
						v := rng.Int()
						e.Set(k, v)
						want[k] = v
					} else {
						e.Delete(k)
						delete(want, k)
					}
					if e.Len() != len(want) {
						t.Fatalf("Len = %d, want %d", e.Len(), len(want))
					}
				}
				m = e.Map()
				history = append(history, version{m, maps.Clone(want)})
			}
			for i, h := range history {
				if diff := cmp.Diff(h.want, maps.Collect(h.m.All())); diff != "" {
					t.Fatalf("version %d (-want +got):\n%s", i, diff)
				}
				for k := range 300 {
					got, ok := h.m.Get(k)
					if want, wantOK := h.want[k]; got != want || ok != wantOK {
						t.Fatalf("version %d: Get(%d) = %d %v, want %d %v", i, k, got, ok, want, wantOK)
					}
				}
			}
		})
	}
}

// TestEditorGoesOn guarantees that a map taken from an editor does not see what
// the editor does afterwards.
func TestEditorGoesOn(t *testing.T) {
	t.Parallel()

	e := trie.New[int, string](func(k int) uint64 { return uint64(k) }).Edit()
	e.Set(1, "a")
	first := e.Map()
	e.Set(1, "b")
	e.Set(33, "c")
	if v, _ := first.Get(1); v != "a" || first.Len() != 1 {
		t.Errorf("the first map has %q and %d pairs, want a and 1", v, first.Len())
	}
	if v, _ := e.Get(33); v != "c" {
		t.Errorf("the editor has %q, want c", v)
	}
}

// TestMapShrinks guarantees that a map that was emptied holds no nodes that a
// fresh one would not: a pair left alone moves up again.
func TestMapShrinks(t *testing.T) {
	t.Parallel()

	e := trie.New[int, int](func(k int) uint64 { return uint64(k) << 40 }).Edit()
	for k := range 1000 {
		e.Set(k, k)
	}
	for k := 1; k < 1000; k++ {
		e.Delete(k)
	}
	if got := e.Map().Nodes(); got != 1 {
		t.Errorf("a map of one pair has %d nodes, want 1", got)
	}
}

// BenchmarkSet measures one change of a map of a million pairs.
func BenchmarkSet(b *testing.B) {
	seed := maphash.MakeSeed()
	e := trie.New[int, int](func(k int) uint64 { return maphash.Comparable(seed, k) }).Edit()
	for k := range 1_000_000 {
		e.Set(k, k)
	}
	m := e.Map()
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		e := m.Edit()
		e.Set(i%1_000_000, i)
		m = e.Map()
	}
}
