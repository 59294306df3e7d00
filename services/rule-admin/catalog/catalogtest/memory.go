// Package catalogtest is for tests of what uses a catalogue: a store in memory,
// and the suite that every store has to pass.
package catalogtest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
)

// Memory is a store in memory. Its time stands still but for Advance. It is
// safe for concurrent use.
type Memory struct {
	mu       sync.Mutex
	now      time.Time
	revision int64
	objects  map[catalog.Kind]map[string]*catalog.Object
	entries  []catalog.Entry
	granted  map[string]map[string]int64
	failure  error
}

// NewMemory returns an empty store whose time is now.
func NewMemory(now time.Time) *Memory {
	return &Memory{now: now, objects: map[catalog.Kind]map[string]*catalog.Object{}, granted: map[string]map[string]int64{}}
}

// Grant sets what a tenant was granted of a meter.
func (m *Memory) Grant(tenant, meter string, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.granted[tenant] == nil {
		m.granted[tenant] = map[string]int64{}
	}
	m.granted[tenant][meter] = total
}

// Advance moves the store's time on.
func (m *Memory) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = m.now.Add(d)
}

// Fail makes every call end with err; nil ends that.
func (m *Memory) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failure = err
}

// Object returns the object, or catalog.ErrNotFound.
func (m *Memory) Object(_ context.Context, kind catalog.Kind, id string) (*catalog.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil {
		return nil, m.failure
	}
	if o := m.objects[kind][id]; o != nil {
		return o, nil
	}
	return nil, fmt.Errorf("%w: %s %s", catalog.ErrNotFound, kind, id)
}

// List returns a page.
func (m *Memory) List(_ context.Context, kind catalog.Kind, after string, most int) ([]*catalog.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil {
		return nil, m.failure
	}
	var page []*catalog.Object
	for _, o := range m.objects[kind] {
		if o.ID > after {
			page = append(page, o)
		}
	}
	page = sorted(page)
	return page[:min(len(page), most)], nil
}

// Audit returns entries, the newest first.
func (m *Memory) Audit(_ context.Context, q catalog.Search) ([]catalog.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil {
		return nil, m.failure
	}
	var page []catalog.Entry
	for _, e := range slices.Backward(m.entries) {
		if (q.Before == 0 || e.Revision < q.Before) && (q.Kind == "" || e.Kind == q.Kind) &&
			(q.ObjectID == "" || e.ObjectID == q.ObjectID) && (q.Actor == "" || e.Actor == q.Actor) && len(page) < q.Most {
			page = append(page, e)
		}
	}
	return page, nil
}

// Change runs decide and writes what it returns.
func (m *Memory) Change(ctx context.Context, kind catalog.Kind, id string, _ []catalog.Ref, decide catalog.Decide) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil {
		return m.failure
	}
	at := catalog.Moment{Revision: m.revision + 1, Now: m.now}
	change, err := decide(ctx, memoryTx{m}, at, m.objects[kind][id])
	if err != nil {
		return err
	}
	entry := catalog.Entry{
		ID: fmt.Sprintf("00000000-0000-7000-8000-%012d", at.Revision), At: at.Now, Actor: change.Caller.Actor, Role: change.Caller.Role,
		Action: change.Action, Kind: kind, ObjectID: id, RequestID: change.RequestID, Revision: at.Revision,
	}
	if entry.Before, err = shown(change.Before); err != nil {
		return err
	}
	if entry.After, err = shown(change.After); err != nil {
		return err
	}
	m.revision = at.Revision
	m.entries = append(m.entries, entry)
	if m.objects[kind] == nil {
		m.objects[kind] = map[string]*catalog.Object{}
	}
	delete(m.objects[kind], id)
	if change.After != nil {
		m.objects[kind][id] = change.After
	}
	return nil
}

// Counting returns what a page of usage is made of.
func (m *Memory) Counting(_ context.Context, after string, most int, only string) (catalog.Counting, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := catalog.Counting{Granted: map[string]map[string]int64{}}
	if m.failure != nil {
		return out, m.failure
	}
	for id, o := range m.objects[catalog.KindTenant] {
		if id == only || only == "" && id > after {
			out.Tenants = append(out.Tenants, o)
		}
	}
	out.Tenants = sorted(out.Tenants)
	out.Tenants = out.Tenants[:min(len(out.Tenants), most)]
	mine := map[string]bool{"": true}
	for _, o := range out.Tenants {
		mine[o.ID] = true
		if m.granted[o.ID] != nil {
			out.Granted[o.ID] = maps.Clone(m.granted[o.ID])
		}
	}
	for _, o := range m.objects[catalog.KindRule] {
		r := o.Body.(*catalog.Rule) // a rule's body
		kind := catalog.Or(r.Does, "")
		if (kind == string(rule.Quota) || kind == string(rule.Wallet)) && mine[selectors(r).Tenant] {
			out.Rules = append(out.Rules, o)
		}
	}
	out.Rules = sorted(out.Rules)
	return out, nil
}

// KeyOf returns the API key whose secret has the digest, or nil.
func (m *Memory) KeyOf(_ context.Context, digest []byte) (*catalog.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil {
		return nil, m.failure
	}
	for _, o := range m.objects[catalog.KindAPIKey] {
		if bytes.Equal(o.Kept.Digest, digest) {
			return o, nil
		}
	}
	return nil, nil
}

// Surroundings returns a tenant, and a service with its endpoints.
func (m *Memory) Surroundings(_ context.Context, tenant, service string) (catalog.Surroundings, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil {
		return catalog.Surroundings{}, m.failure
	}
	out := catalog.Surroundings{Tenant: m.objects[catalog.KindTenant][tenant], Service: m.objects[catalog.KindService][service]}
	for _, o := range m.objects[catalog.KindEndpoint] {
		if catalog.Or(o.Body.(*catalog.Endpoint).Service, "") == service { // an endpoint's body
			out.Endpoints = append(out.Endpoints, o)
		}
	}
	return out, nil
}

// Candidates returns the rules that may apply to a request, and extra.
func (m *Memory) Candidates(_ context.Context, q *rule.Request, extra string, most int) ([]*catalog.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil {
		return nil, m.failure
	}
	holds := func(selector, value string) bool { return selector == "" || selector == value }
	var first, near, far []*catalog.Object
	for id, o := range m.objects[catalog.KindRule] {
		s := selectors(o.Body.(*catalog.Rule)) // a rule's body
		switch {
		case id == extra:
			first = append(first, o)
		case !holds(s.Tenant, q.Tenant) || !holds(s.Application, q.Application) || !holds(s.User, q.User) || !holds(s.APIKey, q.APIKey):
		case holds(s.Plan, q.Plan) && holds(s.Service, q.Service) && holds(s.Endpoint, q.Endpoint):
			near = append(near, o)
		default:
			far = append(far, o)
		}
	}
	all := slices.Concat(first, sorted(near), sorted(far))
	return all[:min(len(all), most)], nil
}

// selectors are a rule's, empty where it has none.
func selectors(r *catalog.Rule) rule.Match {
	m := r.Match
	if m == nil {
		return rule.Match{}
	}
	return rule.Match{
		Tenant: catalog.Or(m.Tenant, ""), Plan: catalog.Or(m.Plan, ""), Application: catalog.Or(m.Application, ""), User: catalog.Or(m.User, ""),
		APIKey: catalog.Or(m.APIKey, ""), Service: catalog.Or(m.Service, ""), Endpoint: catalog.Or(m.Endpoint, ""),
	}
}

func sorted(objects []*catalog.Object) []*catalog.Object {
	slices.SortFunc(objects, func(a, b *catalog.Object) int { return cmp.Compare(a.ID, b.ID) })
	return objects
}

func shown(o *catalog.Object) (json.RawMessage, error) {
	if o == nil {
		return json.RawMessage("null"), nil
	}
	return json.Marshal(o)
}

type memoryTx struct{ m *Memory }

// Object returns another object, or nil.
func (t memoryTx) Object(_ context.Context, kind catalog.Kind, id string) (*catalog.Object, error) {
	return t.m.objects[kind][id], nil
}

// Referrers returns objects that refer to one.
func (t memoryTx) Referrers(_ context.Context, kind catalog.Kind, id string, most int) ([]catalog.Referrer, int, error) {
	var all []catalog.Referrer
	for _, objects := range t.m.objects {
		for _, o := range objects {
			for _, r := range o.Body.Refs() {
				if r.Kind == kind && r.ID == id {
					all = append(all, catalog.Referrer{Kind: o.Kind, ID: o.ID, Field: r.Field})
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b catalog.Referrer) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Field, b.Field))
	})
	return all[:min(len(all), most)], len(all), nil
}

// TenantPeriods returns the periods that rules leave to the tenant.
func (t memoryTx) TenantPeriods(_ context.Context, tenant string) ([]catalog.RulePeriod, error) {
	var all []catalog.RulePeriod
	for id, o := range t.m.objects[catalog.KindRule] {
		r := o.Body.(*catalog.Rule) // a rule's body
		if r.Match != nil && catalog.Or(r.Match.Tenant, "") != "" && *r.Match.Tenant != tenant {
			continue
		}
		if leaves(r.Period) || o.Kept.Previous != nil && leaves(&o.Kept.Previous.Period) {
			all = append(all, catalog.RulePeriod{RuleID: id, Period: *r.Period, Previous: o.Kept.Previous, ChangedAt: o.ChangedAt})
		}
	}
	slices.SortFunc(all, func(a, b catalog.RulePeriod) int { return cmp.Compare(a.RuleID, b.RuleID) })
	return all, nil
}

// Rival returns the smallest id of another object that claims the same.
func (t memoryTx) Rival(_ context.Context, id string, claim catalog.Claim) (string, error) {
	rival := ""
	for other, o := range t.m.objects[claim.Kind] {
		if c, _ := catalog.ClaimOf(o.Body); other != id && c.Overlaps(claim) && (rival == "" || other < rival) {
			rival = other
		}
	}
	return rival, nil
}

// leaves reports whether a period leaves its zone or anchor to the tenant.
func leaves(p *catalog.Period) bool {
	return p != nil && (p.Zone == nil || catalog.Or(p.Alignment, "") == "anniversary" && p.Anchor == nil)
}
