// Package endpoint finds the endpoint of a path: it matches paths against the
// templates of one service.
package endpoint

import (
	"slices"
	"strings"
)

// A Tree holds the templates of one service and what each stands for. Once
// nothing more is added, it is safe for concurrent use. The zero Tree is empty.
type Tree[E any] struct{ root segment[E] }

// A segment is one node of a tree.
type segment[E any] struct {
	literal map[string]*segment[E]
	any     *segment[E] // below a parameter, e.g. {id}
	ends    []end[E]    // templates that end here, by id
}

// An end is one template.
type end[E any] struct {
	id, method string // method empty: any
	endpoint   E
}

// Find returns what the template of a path behind its service's prefix stands
// for. A template that is equal to the path beats one with parameters, and of
// two with parameters the one whose literal part is further left; among equal
// templates a method beats any, and HEAD is GET where it is not named itself,
// because upstreams run the same handler. A slash at the end and ;parameters of
// a segment do not count. Letters do: /a is not /A.
func (t *Tree[E]) Find(method, path string) (E, bool) { return t.root.find(method, path) }

func (n *segment[E]) find(method, path string) (none E, ok bool) {
	path = strings.TrimPrefix(path, "/")
	if path == "" {
		return n.end(method)
	}
	name, rest, _ := strings.Cut(path, "/")
	name, _, _ = strings.Cut(name, ";")
	if next, ok := n.literal[name]; ok {
		if e, ok := next.find(method, rest); ok {
			return e, true
		}
	}
	if n.any != nil && name != "" {
		return n.any.find(method, rest)
	}
	return none, false
}

// end is the best of the templates that end here.
func (n *segment[E]) end(method string) (none E, ok bool) {
	also := method
	if method == "HEAD" {
		also = "GET"
	}
	for _, m := range [...]string{method, also, ""} {
		for i := range n.ends {
			if n.ends[i].method == m {
				return n.ends[i].endpoint, true
			}
		}
	}
	return none, false
}

// Add adds a template. Of two that are alike, the one with the smaller id is
// found.
func (t *Tree[E]) Add(id, method, template string, e E) {
	n := &t.root
	for name := range strings.SplitSeq(strings.Trim(template, "/"), "/") {
		if name != "" {
			n = n.child(name)
		}
	}
	n.ends = append(n.ends, end[E]{id, method, e})
	slices.SortFunc(n.ends, func(a, b end[E]) int { return strings.Compare(a.id, b.id) })
}

func (n *segment[E]) child(name string) *segment[E] {
	if strings.HasPrefix(name, "{") && strings.HasSuffix(name, "}") {
		if n.any == nil {
			n.any = &segment[E]{}
		}
		return n.any
	}
	name, _, _ = strings.Cut(name, ";")
	next := n.literal[name]
	if next == nil {
		if n.literal == nil {
			n.literal = map[string]*segment[E]{}
		}
		next = &segment[E]{}
		n.literal[name] = next
	}
	return next
}
