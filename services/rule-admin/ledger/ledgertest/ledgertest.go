// Package ledgertest is for tests of what uses a ledger: books in memory, and
// counters that say what they are told to.
package ledgertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/ledger"
)

// wallet names one.
type wallet struct{ tenant, meter string }

// Memory is books in memory. Its time stands still but for Advance. It is safe
// for concurrent use.
type Memory struct {
	mu       sync.Mutex
	now      time.Time
	revision int64
	tenants  map[string]bool
	topUps   []ledger.TopUp // oldest first
	keys     map[wallet]string
	asked    map[string][]byte
	wallets  map[wallet]ledger.Wallet
	entries  []ledger.Entry
	renews   map[wallet]bool
	failure  error
}

// NewMemory returns empty books whose time is now, and the tenants that are in
// the catalogue.
func NewMemory(now time.Time, tenants ...string) *Memory {
	m := &Memory{
		now: now, tenants: map[string]bool{}, keys: map[wallet]string{}, asked: map[string][]byte{}, wallets: map[wallet]ledger.Wallet{},
		renews: map[wallet]bool{},
	}
	for _, t := range tenants {
		m.tenants[t] = true
	}
	return m
}

// Advance moves the time on.
func (m *Memory) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = m.now.Add(d)
}

// Renew makes a tenant's wallet of a meter one that only renewable rules sell.
func (m *Memory) Renew(tenant, meter string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.renews[wallet{tenant, meter}] = true
}

// Fail makes every call end with err; nil ends that.
func (m *Memory) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failure = err
}

// Entries returns what was written.
func (m *Memory) Entries() []ledger.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.entries)
}

// Wallet returns a wallet.
func (m *Memory) Wallet(tenant, meter string) ledger.Wallet {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wallets[wallet{tenant, meter}]
}

// TopUp returns the top-up that was made with the tenant's key.
func (m *Memory) TopUp(_ context.Context, tenant, key string) (*ledger.TopUp, []byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil {
		return nil, nil, m.failure
	}
	first, asked := m.first(tenant, key)
	return first, asked, nil
}

func (m *Memory) first(tenant, key string) (*ledger.TopUp, []byte) {
	id := m.keys[wallet{tenant, key}]
	for _, t := range m.topUps {
		if t.ID == id {
			return &t, m.asked[id]
		}
	}
	return nil, nil
}

// TopUps returns a page.
func (m *Memory) TopUps(_ context.Context, tenant string, below int64, most int) ([]ledger.TopUp, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil {
		return nil, m.failure
	}
	var list []ledger.TopUp
	for _, t := range slices.Backward(m.topUps) {
		if t.Tenant == tenant && (below == 0 || t.Revision < below) && len(list) < most {
			list = append(list, t)
		}
	}
	if len(list) == 0 && below == 0 && !m.tenants[tenant] {
		return nil, fmt.Errorf("%w: %s %s", catalog.ErrNotFound, catalog.KindTenant, tenant)
	}
	return list, nil
}

// Due returns what has expired.
func (m *Memory) Due(_ context.Context, most int) (due []ledger.TopUp, total int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil {
		return nil, 0, m.failure
	}
	for _, t := range m.topUps {
		if !t.ExpiresAt.IsZero() && !t.ExpiresAt.After(m.now) && t.ExpiredAt.IsZero() {
			due = append(due, t)
		}
	}
	slices.SortStableFunc(due, func(a, b ledger.TopUp) int { return a.ExpiresAt.Compare(b.ExpiresAt) })
	return due[:min(len(due), most)], len(due), nil
}

// Counters returns the one that counts everywhere.
func (m *Memory) Counters(_ context.Context, tenant, meter string) ([]limit.Identity, error) {
	return []limit.Identity{{Kind: rule.Wallet, Subject: rule.Tenant, Tenant: tenant, Meter: meter}}, nil
}

// Turn runs decide and writes what it returns.
func (m *Memory) Turn(_ context.Context, tenant, meter, key string, decide func(ledger.Books, catalog.Moment) (*ledger.Entry, error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil {
		return m.failure
	}
	at := catalog.Moment{Revision: m.revision + 1, Now: m.now}
	b := ledger.Books{Catalogued: m.tenants[tenant], Renewable: m.renews[wallet{tenant, meter}], Wallet: m.wallets[wallet{tenant, meter}]}
	b.Wallet.Tenant, b.Wallet.Meter = tenant, meter
	b.First, b.Asked = m.first(tenant, key)
	for _, t := range m.topUps {
		if t.Tenant == tenant && t.Meter == meter && t.ExpiredAt.IsZero() {
			b.Open = append(b.Open, t)
		}
	}
	e, err := decide(b, at)
	if err != nil || e == nil {
		return err
	}
	m.revision = at.Revision
	m.entries = append(m.entries, *e)
	m.wallets[wallet{tenant, meter}] = e.Wallet
	if e.Key != "" {
		m.topUps = append(m.topUps, e.TopUp)
		m.keys[wallet{tenant, e.Key}], m.asked[e.TopUp.ID] = e.TopUp.ID, e.Asked
	}
	for i := range m.topUps {
		t := &m.topUps[i]
		for _, s := range e.Spent {
			if s.ID == t.ID {
				t.Spent = s.Spent
			}
		}
		if t.ID == e.TopUp.ID {
			*t = e.TopUp
		}
	}
	return nil
}

// Counters are counters in memory. They are safe for concurrent use.
type Counters struct {
	mu        sync.Mutex
	totals    map[limit.Identity]limit.Totals
	locks     map[string]bool
	down      error // of everything
	unvouched error
}

// NewCounters returns counters that are all zero.
func NewCounters() *Counters {
	return &Counters{totals: map[limit.Identity]limit.Totals{}, locks: map[string]bool{}}
}

// Set sets what a tenant's wallet has consumed.
func (c *Counters) Set(tenant, meter string, t limit.Totals) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.totals[limit.Identity{Kind: rule.Wallet, Subject: rule.Tenant, Tenant: tenant, Meter: meter}.Canonical()] = t
}

// Fail makes every call end with err; nil ends that.
func (c *Counters) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = err
}

// Doubt makes nobody vouch for the totals; nil ends that.
func (c *Counters) Doubt(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unvouched = err
}

// Usage returns the totals.
func (c *Counters) Usage(_ context.Context, ids []limit.Identity) ([]limit.Totals, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down != nil {
		return nil, c.down
	}
	all := make([]limit.Totals, len(ids))
	for i := range ids {
		all[i] = c.totals[ids[i].Canonical()]
	}
	return all, nil
}

// VouchedFor returns what Doubt was told.
func (c *Counters) VouchedFor(context.Context, string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unvouched
}

// Lock takes a lock, which does not end by itself.
func (c *Counters) Lock(_ context.Context, name string, _ time.Duration) (release func(), held bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down != nil || c.locks[name] {
		return nil, false, c.down
	}
	c.locks[name] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.locks, name)
	}, true, nil
}
