package trie

import "slices"

// An Editor makes one map from another. It copies a node the first time it
// changes it and changes its own copies in place, so many changes cost little
// more than the nodes they touch. It is not safe for concurrent use.
type Editor[K comparable, V any] struct {
	m     Map[K, V]
	owner *owner
}

// Edit returns an editor that begins with m, which stays as it is.
func (m Map[K, V]) Edit() *Editor[K, V] { return &Editor[K, V]{m: m, owner: &owner{}} }

// Map returns the map as it is now. The editor can go on; what it changes from
// then on is not seen in the map it returned.
func (e *Editor[K, V]) Map() Map[K, V] {
	e.owner = &owner{}
	return e.m
}

// Len returns the number of pairs.
func (e *Editor[K, V]) Len() int { return e.m.size }

// Get returns the value of k.
func (e *Editor[K, V]) Get(k K) (V, bool) { return e.m.Get(k) }

// Set gives k the value v.
func (e *Editor[K, V]) Set(k K, v V) {
	if e.m.root == nil {
		e.m.root = &node[K, V]{owner: e.owner}
	}
	e.m.root = e.set(e.m.root, pair[K, V]{k, v}, e.m.hash(k), 0)
}

// Delete removes k, if it is there.
func (e *Editor[K, V]) Delete(k K) {
	if _, ok := e.m.Get(k); !ok {
		return
	}
	e.m.size--
	e.m.root = e.remove(e.m.root, k, e.m.hash(k), 0)
}

// set returns a node of this editor's like n, with p in it. h is what is left
// of the hash at this level.
func (e *Editor[K, V]) set(n *node[K, V], p pair[K, V], h uint64, level int) *node[K, V] {
	n = e.own(n)
	if level == depth {
		if i := n.find(p.key); i >= 0 {
			n.pairs[i] = p
			return n
		}
		e.m.size++
		n.pairs = append(n.pairs, p)
		return n
	}
	bit := uint64(1) << (h & (slots - 1))
	switch {
	case n.below&bit != 0:
		i := index(n.below, bit)
		n.children[i] = e.set(n.children[i], p, h>>fan, level+1)
	case n.inline&bit == 0:
		e.m.size++
		n.pairs = slices.Insert(n.pairs, index(n.inline, bit), p)
		n.inline |= bit
	case n.pairs[index(n.inline, bit)].key == p.key:
		n.pairs[index(n.inline, bit)] = p
	default:
		e.split(n, bit, p, h, level)
	}
	return n
}

// split moves the pair in a slot of n one level down and puts p beside it.
func (e *Editor[K, V]) split(n *node[K, V], bit uint64, p pair[K, V], h uint64, level int) {
	i := index(n.inline, bit)
	old := n.pairs[i]
	n.pairs = slices.Delete(n.pairs, i, i+1)
	n.inline &^= bit
	child := e.set(&node[K, V]{owner: e.owner}, old, e.m.hash(old.key)>>(fan*(level+1)), level+1)
	child = e.set(child, p, h>>fan, level+1)
	e.m.size-- // old was there before
	n.children = slices.Insert(n.children, index(n.below, bit), child)
	n.below |= bit
}

// remove returns a node of this editor's like n, without k, which is in it. A
// child that is left with one pair gives it back to its parent, so a map's
// shape does not depend on how it came about.
func (e *Editor[K, V]) remove(n *node[K, V], k K, h uint64, level int) *node[K, V] {
	n = e.own(n)
	if level == depth {
		i := n.find(k)
		n.pairs = slices.Delete(n.pairs, i, i+1)
		return n
	}
	bit := uint64(1) << (h & (slots - 1))
	if n.inline&bit != 0 {
		i := index(n.inline, bit)
		n.pairs = slices.Delete(n.pairs, i, i+1)
		n.inline &^= bit
		return n
	}
	i := index(n.below, bit)
	child := e.remove(n.children[i], k, h>>fan, level+1)
	n.children[i] = child
	if len(child.children) == 0 && len(child.pairs) == 1 {
		n.children = slices.Delete(n.children, i, i+1)
		n.below &^= bit
		n.pairs = slices.Insert(n.pairs, index(n.inline, bit), child.pairs[0])
		n.inline |= bit
	}
	return n
}

// own returns n itself when this editor made it, else its own copy.
func (e *Editor[K, V]) own(n *node[K, V]) *node[K, V] {
	if n.owner == e.owner {
		return n
	}
	return &node[K, V]{
		owner: e.owner, inline: n.inline, below: n.below,
		pairs: slices.Clone(n.pairs), children: slices.Clone(n.children),
	}
}
