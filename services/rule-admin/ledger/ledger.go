// Package ledger knows what was granted to wallets: top-ups, each made once
// however often it is asked for, and the end of those that expire.
//
// What was consumed lives in the counter store. The ledger only ever says how
// much was granted in all, so that a gateway which hears it twice changes
// nothing (docs/adr/0055).
package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
)

// A TopUp is units that were granted to a wallet.
type TopUp struct {
	ID        string
	Tenant    string
	Meter     string
	Units     int64 // 1 to rule.Unlimited
	Priority  int32 // the lower is spent first
	ExpiresAt time.Time
	Reason    string

	GrantedTotal int64 // of the wallet, after it
	GrantedAt    time.Time
	GrantedBy    string // actor
	Revision     int64  // that made it

	Spent        int64     // of its units, as far as was read
	ExpiredAt    time.Time // when what was left was taken off the total; zero: it was not
	ExpiredUnits int64     // that were left then
}

// A Wallet is what a tenant was granted of a meter, and what was last read of
// its counters.
type Wallet struct {
	Tenant  string
	Meter   string
	Granted int64 // less what expired
	limit.Totals
	Owed int64 // spent beyond what was granted; negative: given back, of top-ups that have expired
}

// Books are what a turn may look at: nothing of them changes until it ends.
type Books struct {
	Catalogued bool   // the tenant is
	Renewable  bool   // every wallet rule of the tenant and the meter is, and there is one
	First      *TopUp // that was made with the key; nil: none
	Asked      []byte // the fingerprint of what was asked with it
	Wallet     Wallet
	Open       []TopUp // of the wallet, that have not expired, oldest first
}

// An Entry is what a turn writes.
type Entry struct {
	TopUp     TopUp  // the one that was made, or that expired
	Key       string // of one that was made; empty: it expired
	Asked     []byte // the fingerprint of what was asked with the key
	Before    *TopUp // of one that expired
	Wallet    Wallet
	Spent     []TopUp // open ones of which more, or less, is spent now
	Caller    catalog.Caller
	RequestID string
}

// A Store keeps the books. Its errors are the catalogue's.
type Store interface {
	// TopUp returns the top-up that was made with the tenant's key, nil when
	// there is none, and the fingerprint of what was asked.
	TopUp(ctx context.Context, tenant, key string) (*TopUp, []byte, error)

	// TopUps returns at most most top-ups of a tenant, the newest first, below a
	// revision (0: from the newest), or ErrNotFound when there is no such tenant
	// and never was one with top-ups.
	TopUps(ctx context.Context, tenant string, below int64, most int) ([]TopUp, error)

	// Due returns at most most top-ups that have expired and still count, the
	// longest overdue first, and how many there are.
	Due(ctx context.Context, most int) (due []TopUp, total int, err error)

	// Counters returns the counters that a prepaid wallet of the tenant has.
	Counters(ctx context.Context, tenant, meter string) ([]limit.Identity, error)

	// Turn runs decide while nothing else is changed, and writes what it
	// returns, all of it or nothing; nothing when that is nil.
	Turn(ctx context.Context, tenant, meter, key string, decide func(Books, catalog.Moment) (*Entry, error)) error
}

// Counters reads what was consumed.
type Counters interface {
	// Usage returns the totals of each counter, in order.
	Usage(ctx context.Context, ids []limit.Identity) ([]limit.Totals, error)

	// VouchedFor returns nil when a tenant's totals are what was counted, and not
	// what is left of it.
	VouchedFor(ctx context.Context, tenant string) error

	// Lock takes a lock that ends by itself after ttl. held is false when
	// somebody else has it.
	Lock(ctx context.Context, name string, ttl time.Duration) (release func(), held bool, err error)
}

// A Ledger makes top-ups and ends them. It is safe for concurrent use.
type Ledger struct {
	store    Store
	counters Counters // nil: there are none
	warn     Warn
}

// Warn notes that something was done without what a store would have said, or
// waits for it. The message is a constant that says which; the error, why.
type Warn func(message string, err error)

// New returns a ledger on the books. Without counters nothing can expire, and
// nothing but the books keeps two calls with one key apart.
func New(store Store, counters Counters, warn Warn) *Ledger {
	return &Ledger{store: store, counters: counters, warn: warn}
}

// List returns at most most top-ups of a tenant, the newest first, below a
// revision (0: from the newest).
func (l *Ledger) List(ctx context.Context, tenant string, below int64, most int) ([]TopUp, error) {
	if err := known(tenant); err != nil {
		return nil, err
	}
	return l.store.TopUps(ctx, tenant, below, most)
}

func known(tenant string) error {
	var f rule.Faults
	if f.ID("id", tenant); len(f) > 0 {
		return fmt.Errorf("%w: %s %.128q", catalog.ErrNotFound, catalog.KindTenant, tenant)
	}
	return nil
}

// The lock in front of the books.
const (
	lockTTL  = 10 * time.Second // longer than a top-up takes
	lockWait = time.Second      // for whoever has it; then the books decide
	lockPoll = 20 * time.Millisecond
)

// TopUp makes a top-up, or returns the one that was made with its key.
//
// The lock keeps all but one of many calls at once from waiting for their turn
// at the books. Once a top-up is made it is left to end by itself, so that a
// call which looked before finds what was made and not the lock. It is a
// courtesy: without it, or when it is lost, the unique key of the books decides.
func (l *Ledger) TopUp(ctx context.Context, r Request) (made TopUp, replayed bool, err error) {
	if err := known(r.Tenant); err != nil {
		return TopUp{}, false, err
	}
	if first, err := l.replay(ctx, r); first != nil || err != nil {
		return deref(first), first != nil, err
	}
	if l.counters != nil {
		first, release, failed := l.wait(ctx, r)
		if first != nil || failed != nil {
			return deref(first), first != nil, failed
		}
		defer func() {
			if err != nil {
				release()
			}
		}()
	}
	totals := l.consumed(ctx, r.Tenant, r.Meter)
	err = l.store.Turn(ctx, r.Tenant, r.Meter, r.Key, func(b Books, at catalog.Moment) (*Entry, error) {
		if b.First != nil {
			made, replayed = *b.First, true
			return nil, r.same(b.Asked)
		}
		e, err := r.grant(b, at, totals, l.counters != nil)
		if err == nil {
			made = e.TopUp
		}
		return e, err
	})
	return made, replayed, err
}

func deref(t *TopUp) TopUp {
	if t == nil {
		return TopUp{}
	}
	return *t
}

// replay returns what was made with the key, or nil.
func (l *Ledger) replay(ctx context.Context, r Request) (*TopUp, error) {
	first, asked, err := l.store.TopUp(ctx, r.Tenant, r.Key)
	if err != nil || first == nil {
		return nil, err
	}
	if err := r.same(asked); err != nil {
		return nil, err
	}
	return first, nil
}

// wait takes the lock of a key, or waits for what its holder makes.
func (l *Ledger) wait(ctx context.Context, r Request) (first *TopUp, release func(), err error) {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for start := time.Now(); ; {
		release, held, err := l.counters.Lock(ctx, "topup:"+r.Tenant+":"+r.Key, lockTTL)
		switch {
		case err != nil:
			l.warn("no lock in front of a top-up: the database alone keeps its key", err)
			return nil, func() {}, nil
		case held:
			return nil, release, nil
		case time.Since(start) >= lockWait:
			return nil, func() {}, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("%w: %w", catalog.ErrUnavailable, ctx.Err())
		}
		if first, err := l.replay(ctx, r); first != nil || err != nil {
			return first, nil, err
		}
	}
}

// consumed reads the counters of a wallet; nil when they cannot be read.
func (l *Ledger) consumed(ctx context.Context, tenant, meter string) *limit.Totals {
	if l.counters == nil {
		return nil
	}
	t, err := l.read(ctx, tenant, meter)
	if err != nil {
		l.warn("top-up made without a look at what was consumed", err)
		return nil
	}
	return &t
}

func (l *Ledger) read(ctx context.Context, tenant, meter string) (sum limit.Totals, err error) {
	ids, err := l.store.Counters(ctx, tenant, meter)
	if err != nil {
		return sum, err
	}
	all, err := l.counters.Usage(ctx, ids)
	if err != nil {
		return sum, err
	}
	// Behind the reading: what was emptied before it is noticed.
	if err := l.counters.VouchedFor(ctx, tenant); err != nil {
		return sum, err
	}
	for _, t := range all {
		sum.Consumed += t.Consumed
		sum.Refunded += t.Refunded
	}
	return sum, nil
}

// How often the ledger looks for what has expired, and how much it ends at
// once. Unspent units end within 5 s of their time.
const (
	expireEvery = time.Second
	expireMost  = 500
)

// Expire ends top-ups whose time has come, until ctx ends, and reports how many
// are overdue after each look. Several instances may do so at once.
func (l *Ledger) Expire(ctx context.Context, report func(overdue int)) error {
	if l.counters == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	silent := false // about what it has said already
	for {
		overdue, err := l.ExpireDue(ctx)
		if err != nil && ctx.Err() == nil && !silent {
			l.warn("top-ups that have expired still count", err)
		}
		silent = err != nil
		if ctx.Err() == nil {
			report(overdue)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ExpireDue ends every top-up whose time has come, and returns how many are
// left. One whose counters cannot be read waits: what was spent of it is never
// guessed.
func (l *Ledger) ExpireDue(ctx context.Context) (overdue int, err error) {
	for {
		due, total, err := l.store.Due(ctx, expireMost)
		if err != nil || len(due) == 0 {
			return total, err
		}
		for i, t := range due {
			if err := l.expire(ctx, t); err != nil {
				return total - i, err
			}
		}
		if len(due) == total {
			return 0, nil
		}
	}
}

// system is who ends top-ups, for the audit.
var system = catalog.Caller{Actor: "rule-admin", Role: "system"}

func (l *Ledger) expire(ctx context.Context, t TopUp) error {
	totals, err := l.read(ctx, t.Tenant, t.Meter)
	if err != nil {
		return err
	}
	return l.store.Turn(ctx, t.Tenant, t.Meter, "", func(b Books, at catalog.Moment) (*Entry, error) {
		w, spent := b.Wallet.settle(b.Open, totals)
		for i := range b.Open {
			o := &b.Open[i]
			if o.ID != t.ID || at.Now.Before(o.ExpiresAt) {
				continue
			}
			before := *o
			o.ExpiredAt, o.ExpiredUnits = at.Now, o.Units-o.Spent
			w.Granted -= o.ExpiredUnits
			return &Entry{TopUp: *o, Before: &before, Wallet: w, Spent: spent, Caller: system, RequestID: "expiry"}, nil
		}
		return nil, nil // another instance was faster
	})
}

var errReused = errors.New("the key was used for another top-up")
