package trie

// Nodes counts the nodes of a map.
func (m Map[K, V]) Nodes() int {
	if m.root == nil {
		return 0
	}
	return m.root.count()
}

func (n *node[K, V]) count() int {
	total := 1
	for _, c := range n.children {
		total += c.count()
	}
	return total
}
