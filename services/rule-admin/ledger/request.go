package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/catalog/strict"
)

// MaxKey is the longest Idempotency-Key, in bytes.
const MaxKey = 255

// A Request asks for a top-up.
type Request struct {
	Tenant    string
	Key       string // idempotency key, the tenant's
	Meter     string
	Units     int64
	Priority  int32
	ExpiresAt time.Time // zero: never
	Reason    string
	ID        string // of the top-up, if it is made
	Caller    catalog.Caller
	RequestID string
}

// Read reads what a top-up asks for. The error is ErrMalformed or ErrInvalid.
// Whether expires_at lies ahead is not judged here: a replay comes later.
func (r *Request) Read(text []byte) error {
	o, err := strict.Parse(text)
	if err != nil {
		return fmt.Errorf("%w: %w", catalog.ErrMalformed, err)
	}
	meter, units, reason := o.Text("meter"), o.Int("units"), o.Text("reason")
	priority, expires := o.Int("priority"), o.Text("expires_at")
	o.Close()
	if faults := o.Faults(); len(faults) > 0 {
		return &catalog.FaultError{Err: catalog.ErrMalformed, Faults: faults}
	}
	var f rule.Faults
	if r.Meter = catalog.Or(meter, ""); meter == nil {
		f.Add("meter", "is missing")
	} else {
		f.Meter("meter", r.Meter)
	}
	if r.Units = catalog.Or(units, 0); units == nil {
		f.Add("units", "is missing")
	} else {
		f.Range("units", r.Units, 1, rule.Unlimited)
	}
	r.Reason = catalog.Or(reason, "")
	f.Text("reason", r.Reason, 0, rule.MaxText)
	p := catalog.Or(priority, 0)
	f.Range("priority", p, -rule.MaxPriority, rule.MaxPriority)
	r.Priority = int32(max(-rule.MaxPriority, min(p, rule.MaxPriority)))
	if expires != nil {
		r.ExpiresAt = catalog.Instant(&f, "expires_at", *expires)
	}
	if len(f) > 0 {
		return &catalog.FaultError{Err: catalog.ErrInvalid, Faults: f}
	}
	return nil
}

// fingerprint is of what is asked, however it was written.
func (r *Request) fingerprint() []byte {
	expires := ""
	if !r.ExpiresAt.IsZero() {
		expires = r.ExpiresAt.UTC().Format(time.RFC3339Nano)
	}
	text, _ := json.Marshal([]any{r.Meter, r.Units, r.Priority, expires, r.Reason}) // of texts and numbers
	sum := sha256.Sum256(text)
	return sum[:]
}

// same refuses a request that is not the one that its key was used for.
func (r *Request) same(asked []byte) error {
	if bytes.Equal(asked, r.fingerprint()) {
		return nil
	}
	var f rule.Faults
	f.Add("Idempotency-Key", "%v: send the same body, or another key", errReused)
	return &catalog.FaultError{Err: catalog.ErrInvalid, Faults: f}
}

// grant is the top-up, given the books. totals are what was consumed; nil: not
// known.
func (r *Request) grant(b Books, at catalog.Moment, totals *limit.Totals, expires bool) (*Entry, error) {
	if !b.Catalogued {
		return nil, fmt.Errorf("%w: %s %s", catalog.ErrNotFound, catalog.KindTenant, r.Tenant)
	}
	var f rule.Faults
	if r.Units > rule.Unlimited-b.Wallet.Granted {
		f.Add("units", "is %d, and %d are granted: want at most %d in all", r.Units, b.Wallet.Granted, rule.Unlimited)
	}
	if b.Renewable {
		f.Add("meter", "is %q, which only renewable wallets sell to this tenant: they sell their limit each period and no top-ups", r.Meter)
	}
	switch {
	case r.ExpiresAt.IsZero():
	case !r.ExpiresAt.After(at.Now):
		f.Add("expires_at", "is %s, which is not ahead", r.ExpiresAt.Format(time.RFC3339Nano))
	case !expires:
		f.Add("expires_at", "is set, and this service has no counter store (-redis-url) to see what is left then")
	}
	if len(f) > 0 {
		return nil, &catalog.FaultError{Err: catalog.ErrInvalid, Faults: f}
	}
	e := &Entry{Key: r.Key, Asked: r.fingerprint(), Wallet: b.Wallet, Caller: r.Caller, RequestID: r.RequestID}
	e.Wallet.Tenant, e.Wallet.Meter = r.Tenant, r.Meter
	if totals != nil {
		e.Wallet, e.Spent = e.Wallet.settle(b.Open, *totals)
	}
	e.Wallet.Granted += r.Units
	e.TopUp = TopUp{
		ID: r.ID, Tenant: r.Tenant, Meter: r.Meter, Units: r.Units, Priority: r.Priority, ExpiresAt: r.ExpiresAt, Reason: r.Reason,
		GrantedTotal: e.Wallet.Granted, GrantedAt: at.Now, GrantedBy: r.Caller.Actor, Revision: at.Revision,
	}
	// What was spent beyond what was granted is paid from it first.
	e.TopUp.Spent = min(max(0, e.Wallet.Owed), r.Units)
	e.Wallet.Owed -= e.TopUp.Spent
	return e, nil
}
