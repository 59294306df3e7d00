// Package catalogtest is for tests of what uses a catalogue: a store in memory,
// and the suite that every store has to pass.
package catalogtest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

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
	failure  error
}

// NewMemory returns an empty store whose time is now.
func NewMemory(now time.Time) *Memory {
	return &Memory{now: now, objects: map[catalog.Kind]map[string]*catalog.Object{}}
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
	slices.SortFunc(page, func(a, b *catalog.Object) int { return cmp.Compare(a.ID, b.ID) })
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
