// Package trie is a map that never changes: a hash array mapped trie (Bagwell,
// "Ideal Hash Trees", 2001). A changed map shares all but one path with the one
// it was made from, so an old one stays valid, costs nothing to keep while it
// is read, and needs no lock.
package trie

import (
	"iter"
	"math/bits"
)

const (
	fan   = 6 // bits of the hash consumed per level
	slots = 1 << fan
	depth = (64 + fan - 1) / fan // levels that a hash of 64 bits can tell apart
)

// A Map is an immutable map. A Map is made by New; copying it is free. It is
// safe for concurrent use.
type Map[K comparable, V any] struct {
	hash func(K) uint64
	root *node[K, V]
	size int
}

// New returns an empty map that places keys by hash. Equal keys must have equal
// hashes; unequal ones may, at the price of a linear search among them.
func New[K comparable, V any](hash func(K) uint64) Map[K, V] {
	return Map[K, V]{hash: hash}
}

// A node holds, for each of its slots, either pairs or a child. Below the last
// level a node holds every pair whose hashes are equal.
type node[K comparable, V any] struct {
	inline   uint64 // slots that hold a pair, in the order of pairs
	below    uint64 // slots that hold a child, in the order of children
	pairs    []pair[K, V]
	children []*node[K, V]
	owner    *owner // the editor that may change this node in place
}

type pair[K comparable, V any] struct {
	key   K
	value V
}

// An owner is an identity. It has a size because pointers to distinct values
// without one may be equal.
type owner struct{ _ byte }

// Len returns the number of pairs.
func (m Map[K, V]) Len() int { return m.size }

// Get returns the value of k.
func (m Map[K, V]) Get(k K) (V, bool) {
	var none V
	n := m.root
	if n == nil {
		return none, false
	}
	h := m.hash(k)
	for range depth {
		bit := uint64(1) << (h & (slots - 1))
		switch {
		case n.below&bit != 0:
			n = n.children[index(n.below, bit)]
		case n.inline&bit != 0:
			if p := &n.pairs[index(n.inline, bit)]; p.key == k {
				return p.value, true
			}
			return none, false
		default:
			return none, false
		}
		h >>= fan
	}
	if i := n.find(k); i >= 0 {
		return n.pairs[i].value, true
	}
	return none, false
}

// All yields every pair, in no particular order.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		if m.root != nil {
			m.root.all(yield)
		}
	}
}

func (n *node[K, V]) all(yield func(K, V) bool) bool {
	for i := range n.pairs {
		if !yield(n.pairs[i].key, n.pairs[i].value) {
			return false
		}
	}
	for _, c := range n.children {
		if !c.all(yield) {
			return false
		}
	}
	return true
}

// find is the position of k in a node below the last level, or -1.
func (n *node[K, V]) find(k K) int {
	for i := range n.pairs {
		if n.pairs[i].key == k {
			return i
		}
	}
	return -1
}

// index is how many slots before bit are taken.
func index(taken, bit uint64) int { return bits.OnesCount64(taken & (bit - 1)) }
