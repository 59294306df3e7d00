package decide

import (
	"slices"
	"strings"
)

// A segment is one node of a service's path templates.
type segment struct {
	literal map[string]*segment
	any     *segment       // below a parameter, e.g. {id}
	ends    []*EndpointDef // templates that end here, by method and then id
}

// Endpoint finds the endpoint of a path behind its service's prefix, or nil. A
// template that is equal to the path beats one with parameters, and of two with
// parameters the one whose literal part is further left; among equal templates
// a method beats any, and HEAD is GET where it is not named itself, because
// upstreams run the same handler. A slash at the end and ;parameters of a
// segment do not count. Letters do: /a is not /A.
func (s *Snapshot) Endpoint(service, method, path string) *EndpointDef {
	root, ok := s.paths.Get(service)
	if !ok {
		return nil
	}
	return root.find(method, path)
}

// EndpointByID returns an endpoint by its id, nil when it is not in the
// catalogue.
func (s *Snapshot) EndpointByID(id string) *EndpointDef {
	e, _ := s.endpoints.Get(id)
	return e
}

func (n *segment) find(method, path string) *EndpointDef {
	path = strings.TrimPrefix(path, "/")
	if path == "" {
		return n.end(method)
	}
	name, rest, _ := strings.Cut(path, "/")
	name, _, _ = strings.Cut(name, ";")
	if next, ok := n.literal[name]; ok {
		if e := next.find(method, rest); e != nil {
			return e
		}
	}
	if n.any != nil && name != "" {
		return n.any.find(method, rest)
	}
	return nil
}

// end is the best of the templates that end here.
func (n *segment) end(method string) *EndpointDef {
	also := method
	if method == "HEAD" {
		also = "GET"
	}
	for _, m := range [...]string{method, also, ""} {
		for _, e := range n.ends {
			if e.Method == m {
				return e
			}
		}
	}
	return nil
}

// grow adds a template.
func (n *segment) grow(e *EndpointDef) {
	for name := range strings.SplitSeq(strings.Trim(e.Path, "/"), "/") {
		if name != "" {
			n = n.child(name)
		}
	}
	n.ends = append(n.ends, e)
	slices.SortFunc(n.ends, func(a, b *EndpointDef) int { return strings.Compare(a.ID, b.ID) })
}

func (n *segment) child(name string) *segment {
	if strings.HasPrefix(name, "{") && strings.HasSuffix(name, "}") {
		if n.any == nil {
			n.any = &segment{}
		}
		return n.any
	}
	name, _, _ = strings.Cut(name, ";")
	next := n.literal[name]
	if next == nil {
		if n.literal == nil {
			n.literal = map[string]*segment{}
		}
		next = &segment{}
		n.literal[name] = next
	}
	return next
}

func (d *draft) addEndpoint(e *EndpointDef) {
	d.endpoints.Set(e.ID, e)
	if d.w.endpoints[e.Service] == nil {
		d.w.endpoints[e.Service] = map[string]*EndpointDef{}
	}
	d.w.endpoints[e.Service][e.ID] = e
	d.stale[e.Service] = true
}

func (d *draft) removeEndpoint(e *EndpointDef) {
	d.endpoints.Delete(e.ID)
	delete(d.w.endpoints[e.Service], e.ID)
	d.stale[e.Service] = true
}

// rebuildPaths makes the templates of every changed service anew, once for all
// its changes.
func (d *draft) rebuildPaths() {
	for service := range d.stale {
		if len(d.w.endpoints[service]) == 0 {
			delete(d.w.endpoints, service)
			d.paths.Delete(service)
			continue
		}
		root := &segment{}
		for _, e := range d.w.endpoints[service] {
			root.grow(e)
		}
		d.paths.Set(service, root)
	}
}
