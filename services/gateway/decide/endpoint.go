package decide

import "penstock.dev/services/internal/endpoint"

// templates are the path templates of one service.
type templates = endpoint.Tree[*EndpointDef]

// Endpoint finds the endpoint of a path behind its service's prefix, or nil.
// Package endpoint says which template a path is taken for.
func (s *Snapshot) Endpoint(service, method, path string) *EndpointDef {
	paths, ok := s.paths.Get(service)
	if !ok {
		return nil
	}
	e, _ := paths.Find(method, path)
	return e
}

// EndpointByID returns an endpoint by its id, nil when it is not in the
// catalogue.
func (s *Snapshot) EndpointByID(id string) *EndpointDef {
	e, _ := s.endpoints.Get(id)
	return e
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
		paths := &templates{}
		for _, e := range d.w.endpoints[service] {
			paths.Add(e.ID, e.Method, e.Path, e)
		}
		d.paths.Set(service, paths)
	}
}
