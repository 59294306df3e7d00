package decide

import (
	"slices"
	"strings"
)

// A route is what leads to a service: one of its hosts, or "" for any, and its
// path prefix without a slash at the end.
type route struct {
	host, prefix string
}

// maxDeepest bounds the segments of a path that are tried as a prefix; a prefix
// has at most 1,024 bytes, so it has no more.
const maxDeepest = 512

// Route finds the service of a request and the path behind its prefix, which
// begins with "/". A service that names the host beats one that names none;
// then the longest path prefix wins, whole segments only; then the smaller id.
// The host is in lower case without a port.
func (s *Snapshot) Route(host, path string) (svc *ServiceDef, rest string, ok bool) {
	var buf [16]int
	ends := prefixEnds(buf[:0], path, s.deepest)
	for _, h := range [...]string{host, ""} {
		for _, end := range slices.Backward(ends) {
			if found, ok := s.routes.Get(route{h, path[:end]}); ok {
				return found[0], rooted(path[end:]), true
			}
		}
		if h == "" {
			break
		}
	}
	return nil, "", false
}

// prefixEnds appends where each prefix of whole segments ends, from the empty
// one on, up to deepest segments.
func prefixEnds(ends []int, path string, deepest int) []int {
	ends = append(ends, 0)
	for i := 1; i < len(path) && len(ends) <= deepest; i++ {
		if path[i] == '/' {
			ends = append(ends, i)
		}
	}
	if len(ends) <= deepest && len(path) > 1 && path[len(path)-1] != '/' {
		ends = append(ends, len(path))
	}
	return ends
}

func rooted(path string) string {
	if path == "" {
		return "/"
	}
	return path
}

func (d *draft) addService(v *ServiceDef) {
	d.services.Set(v.ID, v)
	for _, r := range v.routes() {
		d.deepest = min(max(d.deepest, strings.Count(r.prefix, "/")), maxDeepest)
		old, _ := d.routes.Get(r)
		at, _ := slices.BinarySearchFunc(old, v.ID, func(o *ServiceDef, id string) int { return strings.Compare(o.ID, id) })
		d.routes.Set(r, slices.Insert(slices.Clone(old), at, v))
	}
}

func (d *draft) removeService(v *ServiceDef) {
	d.services.Delete(v.ID)
	for _, r := range v.routes() {
		old, _ := d.routes.Get(r)
		left := slices.DeleteFunc(slices.Clone(old), func(o *ServiceDef) bool { return o == v })
		if len(left) == 0 {
			d.routes.Delete(r)
			continue
		}
		d.routes.Set(r, left)
	}
}

// routes are all ways that lead to a service.
func (v *ServiceDef) routes() []route {
	prefix := strings.TrimRight(v.PathPrefix, "/")
	if len(v.Hosts) == 0 {
		return []route{{"", prefix}}
	}
	routes := make([]route, 0, len(v.Hosts))
	for _, h := range v.Hosts {
		if r := (route{strings.ToLower(h), prefix}); !slices.Contains(routes, r) {
			routes = append(routes, r)
		}
	}
	return routes
}
