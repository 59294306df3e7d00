package catalog

import (
	"context"
	"slices"
	"strings"

	"penstock.dev/services/internal/rule"
)

// A Claim is which requests a service or an endpoint takes, in the one spelling
// by which a gateway compares. Of two that overlap, one would silently take the
// other's traffic.
type Claim struct {
	Kind    Kind     // KindService or KindEndpoint
	Hosts   []string // of a service; empty: any host that no other service names
	Service string   // of an endpoint
	Method  string   // of an endpoint; empty: any that no other endpoint names
	Path    string   // prefix or template, without a slash at the end; parameters are {}
}

// ClaimOf returns what a body claims; nothing unless it is a service or an
// endpoint.
func ClaimOf(body Body) (c Claim, ok bool) {
	switch b := body.(type) {
	case *Service:
		return Claim{Kind: KindService, Hosts: b.Hosts, Path: strings.TrimRight(Or(b.PathPrefix, ""), "/")}, true
	case *Endpoint:
		segments := strings.Split(strings.TrimRight(Or(b.Path, ""), "/"), "/")
		for i, s := range segments {
			if strings.HasPrefix(s, "{") {
				segments[i] = "{}"
			}
		}
		return Claim{
			Kind: KindEndpoint, Service: Or(b.Service, ""), Method: Or(b.Method, ""), Path: strings.Join(segments, "/"),
		}, true
	}
	return Claim{}, false
}

// Overlaps reports whether a request can be meant by both, with nothing to
// prefer one.
func (c Claim) Overlaps(d Claim) bool {
	return c.Kind == d.Kind && c.Service == d.Service && c.Method == d.Method && c.Path == d.Path &&
		(len(c.Hosts) == 0 && len(d.Hosts) == 0 || slices.ContainsFunc(c.Hosts, func(h string) bool { return slices.Contains(d.Hosts, h) }))
}

// unrivalled refuses a body that claims the requests of another object.
func unrivalled(ctx context.Context, tx Tx, id string, body Body) error {
	claim, ok := ClaimOf(body)
	if !ok {
		return nil
	}
	other, err := tx.Rival(ctx, id, claim)
	if err != nil || other == "" {
		return err
	}
	field, collection := "path_prefix", "services"
	if claim.Kind == KindEndpoint {
		field, collection = "path", "endpoints"
	}
	var f rule.Faults
	f.Add(field, "is already that of %s/%s", collection, other)
	return faultError(ErrConflict, f)
}
