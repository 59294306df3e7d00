//go:build integration

package postgres_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock.dev/services/billing/access"
	"penstock.dev/services/billing/catalog"
	"penstock.dev/services/billing/postgres"
)

// TestIntegrationPortalGrants guarantees the life of a portal token in the database: it is
// good until it is revoked, its code opens one session however many ask at once, and a
// session ends with what it grew from.
func TestIntegrationPortalGrants(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, now := t.Context(), at(t, "2026-06-02T10:00:00Z")
	code := sha256.Sum256([]byte("code"))
	g := access.Grant{JTI: "j1", Tenant: "acme", User: "u1", IssuedAt: now, ExpiresAt: now.Add(time.Hour)}
	if err := r.Issue(ctx, g, code, now.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	good := func(jti string) bool {
		t.Helper()
		ok, err := r.Good(ctx, jti)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if !good("j1") || good("other") {
		t.Error("what was issued is not good, or what was not is")
	}
	if _, err := r.Redeem(ctx, code, "late", now.Add(time.Minute)); !errors.Is(err, access.ErrRefused) {
		t.Errorf("a code that is over opens a session: %v", err)
	}
	errs := make([]error, 10)
	grants := make([]access.Grant, 10)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { grants[i], errs[i] = r.Redeem(ctx, code, string(rune('a'+i)), now) })
	}
	wg.Wait()
	var session access.Grant
	opened := 0
	for i, err := range errs {
		switch {
		case err == nil:
			opened++
			session = grants[i]
		case !errors.Is(err, access.ErrRefused):
			t.Errorf("redeem: %v", err)
		}
	}
	if opened != 1 || session.Tenant != "acme" || session.User != "u1" || session.ExpiresAt != g.ExpiresAt || !good(session.JTI) {
		t.Fatalf("%d sessions, the last %+v, want one of the grant's", opened, session)
	}
	if err := r.Revoke(ctx, "j1", now); err != nil {
		t.Fatal(err)
	}
	if good("j1") || good(session.JTI) {
		t.Error("what is revoked is good")
	}
	for _, never := range []string{"nobody", "\x00", "\xff\xfe"} {
		if err := r.Revoke(ctx, never, now); !errors.Is(err, access.ErrNotFound) {
			t.Errorf("revoking %q, which was never issued: %v", never, err)
		}
	}
	second := sha256.Sum256([]byte("second"))
	if err := r.Issue(ctx, access.Grant{JTI: "j2", Tenant: "acme", IssuedAt: now, ExpiresAt: now.Add(time.Hour)}, second, now.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := r.Revoke(ctx, "j2", now); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Redeem(ctx, second, "s2", now); !errors.Is(err, access.ErrRefused) {
		t.Errorf("the code of a revoked token opens a session: %v", err)
	}
}

// TestIntegrationDenialsAreForgotten guarantees that the audit keeps denials for 90 days,
// and the newest million, however many are asked for.
func TestIntegrationDenialsAreForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-10T00:00:00Z")
	for kind, when := range map[string]time.Time{"old": now.AddDate(0, 0, -91), "kept": now.AddDate(0, 0, -89)} {
		if err := r.Denied(t.Context(), access.Denial{At: when, Tenant: "a", User: "u", JTI: "j", Kind: kind, Ref: "r", Path: "/"}); err != nil {
			t.Fatal(err)
		}
	}
	clock := func() time.Time { return now }
	left := func() []string {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		if err := r.Tend(ctx, time.Hour, clock, clock, func(_ int, _ postgres.State, err error) {
			if err != nil {
				t.Error(err)
			}
			stop()
		}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		return query[string](r, `SELECT kind FROM portal_denials ORDER BY id`)
	}
	if got := left(); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("after 90 days there are %v, want what is younger", got)
	}
	r.exec(`INSERT INTO portal_denials (id, at, tenant, username, jti, kind, ref, path) OVERRIDING SYSTEM VALUE
		SELECT n, $1, 'a', 'u', 'j', n::text, '', '' FROM unnest(ARRAY[10, 11, 1000010]) AS n`, now)
	if got := left(); !slices.Equal(got, []string{"11", "1000010"}) {
		t.Errorf("of more than a million there are %v, want the newest", got)
	}
}

// TestIntegrationDenials guarantees that the audit tells whose object was asked for, and
// that a key stays its tenant's when it is revoked.
func TestIntegrationDenials(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-01-10T00:00:00Z")
	key := catalog.Change{Kind: catalog.KindAPIKey, ID: "b-1", APIKey: &catalog.APIKey{Tenant: "b"}}
	r.learn(now, gold(t), tenant("b", "gold", "UTC"), key)
	r.finalize(at(t, "2026-02-01T00:00:00Z"))
	for kind, ref := range map[string]string{access.KindInvoice: "INV-0000001", access.KindAPIKey: "b-1"} {
		for _, ask := range []string{ref, "nothing\x00"} {
			if err := r.Denied(t.Context(), access.Denial{At: now, Tenant: "a", User: "u", JTI: "j", Kind: kind, Ref: ask, Path: "/v1/" + ask}); err != nil {
				t.Fatal(err)
			}
		}
	}
	owners := query[string](r, `SELECT kind || ' ' || coalesce(owner, '-') FROM portal_denials ORDER BY kind, owner`)
	want := []string{"api_key b", "api_key -", "invoice b", "invoice -"}
	for i := range want {
		if len(owners) != len(want) || owners[i] != want[i] {
			t.Fatalf("the audit has %v, want %v", owners, want)
		}
	}
	for tenant, want := range map[string]bool{"b": true, "a": false} {
		if has, err := r.HasKey(t.Context(), tenant, "b-1"); err != nil || has != want {
			t.Errorf("%s has b's key: %v %v, want %v", tenant, has, err, want)
		}
	}
}
