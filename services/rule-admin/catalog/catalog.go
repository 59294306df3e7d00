// Package catalog knows the eight kinds of object that operators write: what
// each may say, what it may refer to, and what a change of one means.
//
// Every change is one transaction of the store: the object, the record that
// tells the gateways, and the audit entry are written together or not at all.
// Changes are made one after the other. Each takes the next revision, which is
// also the object's version.
package catalog

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"time"

	"penstock.dev/services/internal/rule"
)

// A Catalog changes objects and shows them. It is safe for concurrent use.
type Catalog struct {
	store   Store
	random  io.Reader
	compile Compile
}

// New returns a catalogue on the store that draws secrets from random, which
// must be fit for secrets, and takes for a condition what compile does.
func New(store Store, random io.Reader, compile Compile) *Catalog {
	return &Catalog{store: store, random: random, compile: compile}
}

// A Store keeps objects. Its errors are those of this package, ErrUnavailable
// above all.
type Store interface {
	// Object returns the object, or ErrNotFound.
	Object(ctx context.Context, kind Kind, id string) (*Object, error)

	// List returns at most most objects of the kind, in the order of their ids'
	// bytes, beginning behind the id after.
	List(ctx context.Context, kind Kind, after string, most int) ([]*Object, error)

	// Change runs decide while no other change runs, and writes what it
	// returns, all of it or nothing. Whatever decide returns as an error is
	// returned as it is, and then nothing was changed. near are objects that
	// decide is about to ask for, so that they can be read at once.
	Change(ctx context.Context, kind Kind, id string, near []Ref, decide Decide) error

	// Counting returns what a page of usage is made of, at one moment and in one
	// query: at most most tenants behind the id after, or the one tenant that
	// only names, with the quotas and wallets that may count for them.
	Counting(ctx context.Context, after string, most int, only string) (Counting, error)

	// KeyOf returns the API key whose secret has the digest, or nil.
	KeyOf(ctx context.Context, digest []byte) (*Object, error)

	// Surroundings returns a tenant, and a service with its endpoints.
	Surroundings(ctx context.Context, tenant, service string) (Surroundings, error)

	// Candidates returns the rules whose selectors of tenant, application, user
	// and API key hold for a request, and the one that extra names: at most
	// most, those first whose plan, service and endpoint hold too.
	Candidates(ctx context.Context, q *rule.Request, extra string, most int) ([]*Object, error)
}

// Decide says what one change does to an object, given what is there.
type Decide func(ctx context.Context, tx Tx, at Moment, before *Object) (Change, error)

// A Moment is when a change is made, by the store's clock, which never falls
// back from one revision to the next.
type Moment struct {
	Revision int64
	Now      time.Time
}

// A Tx is what a change may look at.
type Tx interface {
	// Object returns another object, or nil when there is none.
	Object(ctx context.Context, kind Kind, id string) (*Object, error)

	// Referrers returns objects that refer to one, at most most of them, and
	// how many there are.
	Referrers(ctx context.Context, kind Kind, id string, most int) ([]Referrer, int, error)

	// TenantPeriods returns the periods of the rules that may match the tenant
	// and leave their zone or anchor to it, now or in what they had before.
	TenantPeriods(ctx context.Context, tenant string) ([]RulePeriod, error)

	// Rival returns the smallest id of another object than the one with the id
	// whose claim overlaps this one; "" when there is none.
	Rival(ctx context.Context, id string, claim Claim) (string, error)
}

// An Action is what a change did.
type Action string

// The actions.
const (
	Create  Action = "create"
	Replace Action = "replace"
	Delete  Action = "delete"
)

// A Change is what is written.
type Change struct {
	Action    Action
	Before    *Object // nil when created
	After     *Object // nil when deleted
	Caller    Caller
	RequestID string
}

// A Caller is who asks, from the token and never from the client.
type Caller struct {
	Actor string
	Role  string
}

// A Condition is what must be true of an object for a change of it to be made.
type Condition struct {
	Given    bool    // a version was named, or any
	Any      bool    // whatever version there is, and also when there is none
	Versions []int64 // one of these
	Absent   bool    // there must be none
}

// holds returns nil when the change may be made. A replacement needs a
// condition; a deletion does not.
func (c Condition) holds(kind Kind, id string, before *Object, needed bool) error {
	version := int64(0)
	if before != nil {
		version = before.Version
	}
	matched := c.Any
	for _, v := range c.Versions {
		matched = matched || before != nil && v == version
	}
	switch {
	case c.Absent && before != nil:
		return fmt.Errorf("%w: %s %s is there, in version %d", ErrExists, kind, id, version)
	case c.Given && !matched && before == nil:
		return fmt.Errorf("%w: %s %s is not there", ErrStale, kind, id)
	case c.Given && !matched:
		return fmt.Errorf("%w: %s %s is in version %d", ErrStale, kind, id, version)
	case needed && before != nil && !c.Given:
		return &UnconditionalError{Kind: kind, ID: id, Version: version}
	}
	return nil
}

// A Put creates or replaces one object.
type Put struct {
	Kind      Kind
	ID        string
	Text      []byte // JSON
	Condition Condition
	Caller    Caller
	RequestID string
}

// A Result is what a Put came to.
type Result struct {
	Object  *Object
	Created bool
	Secret  string // of an API key that was created; shown once and kept nowhere
}

// Put creates or replaces an object.
func (c *Catalog) Put(ctx context.Context, p Put) (Result, error) {
	var faults rule.Faults
	if faults.ID("id", p.ID); len(faults) > 0 {
		return Result{}, faultError(ErrInvalid, faults)
	}
	body, err := Read(p.Kind, p.ID, p.Text)
	if err = compiles(c.compile, body, err); err != nil {
		return Result{}, err
	}
	var out Result
	err = c.store.Change(ctx, p.Kind, p.ID, body.Refs(), func(ctx context.Context, tx Tx, at Moment, before *Object) (Change, error) {
		if err := p.Condition.holds(p.Kind, p.ID, before, true); err != nil {
			return Change{}, err
		}
		if err := c.place(ctx, tx, p, body, before); err != nil {
			return Change{}, err
		}
		after := &Object{
			Kind: p.Kind, ID: p.ID, Version: at.Revision, ChangedAt: at.Now, ChangedBy: p.Caller.Actor, Body: body,
		}
		out = Result{Object: after, Created: before == nil}
		secret, err := c.keep(ctx, tx, at, before, after)
		if err != nil {
			return Change{}, err
		}
		out.Secret = secret
		change := Change{Action: Replace, Before: before, After: after, Caller: p.Caller, RequestID: p.RequestID}
		if before == nil {
			change.Action = Create
		}
		return change, nil
	})
	if err != nil {
		return Result{}, err
	}
	return out, nil
}

// place checks a body against the objects around it.
func (c *Catalog) place(ctx context.Context, tx Tx, p Put, body Body, before *Object) error {
	near, err := look(ctx, tx, body.Refs())
	if err != nil {
		return err
	}
	if err := faultError(ErrInvalid, near.faults(body)); err != nil {
		return err
	}
	if before != nil {
		for _, field := range moved(before.Body, body) {
			if err := unused(ctx, tx, p.Kind, p.ID, field); err != nil {
				return err
			}
		}
	}
	return unrivalled(ctx, tx, p.ID, body)
}

// Secrets of API keys.
const (
	secretPrefix = "psk_" // lets scanners find a leaked one
	secretBytes  = 24     // 192 random bits
)

// newSecret returns a secret and its digest.
func newSecret(random io.Reader) (secret string, digest []byte, err error) {
	b := make([]byte, secretBytes)
	if _, err := io.ReadFull(random, b); err != nil {
		return "", nil, fmt.Errorf("random bits: %w", err)
	}
	secret = secretPrefix + base64.RawURLEncoding.EncodeToString(b)
	sum := sha256.Sum256([]byte(secret))
	return secret, sum[:], nil
}

// A Removal deletes one object.
type Removal struct {
	Kind      Kind
	ID        string
	Condition Condition
	Caller    Caller
	RequestID string
}

// Delete deletes an object that nobody refers to.
func (c *Catalog) Delete(ctx context.Context, r Removal) error {
	if !isID(r.ID) {
		return fmt.Errorf("%w: %s %q", ErrNotFound, r.Kind, clip(r.ID))
	}
	return c.store.Change(ctx, r.Kind, r.ID, nil, func(ctx context.Context, tx Tx, _ Moment, before *Object) (Change, error) {
		if before == nil {
			return Change{}, fmt.Errorf("%w: %s %s", ErrNotFound, r.Kind, r.ID)
		}
		if err := r.Condition.holds(r.Kind, r.ID, before, false); err != nil {
			return Change{}, err
		}
		if err := unused(ctx, tx, r.Kind, r.ID, ""); err != nil {
			return Change{}, err
		}
		return Change{Action: Delete, Before: before, Caller: r.Caller, RequestID: r.RequestID}, nil
	})
}

// Object returns an object, or ErrNotFound.
func (c *Catalog) Object(ctx context.Context, kind Kind, id string) (*Object, error) {
	if !isID(id) {
		return nil, fmt.Errorf("%w: %s %q", ErrNotFound, kind, clip(id))
	}
	return c.store.Object(ctx, kind, id)
}

// List returns at most most objects of the kind, in the order of their ids'
// bytes, beginning behind the id after; ErrInvalid when that is no id and not
// empty.
func (c *Catalog) List(ctx context.Context, kind Kind, after string, most int) ([]*Object, error) {
	if after != "" && !isID(after) {
		return nil, fmt.Errorf("%w: after %q, which is no id", ErrInvalid, clip(after))
	}
	return c.store.List(ctx, kind, after, most)
}

// isID reports whether an object can have the id.
func isID(id string) bool {
	var f rule.Faults
	f.ID("id", id)
	return len(f) == 0
}

// clip bounds what an error repeats of the input.
func clip(s string) string { return s[:min(len(s), rule.MaxID)] }

// A Record is what tells the gateways of a change, ready for the outbox.
type Record struct {
	Topic   string
	Key     string
	Type    string // e.g. rule.changed
	Payload []byte // nil: a tombstone
}
