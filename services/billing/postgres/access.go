package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/billing/access"
)

var _ access.Book = (*Store)(nil)

// Issue keeps a grant and the digest of a code for it.
func (s *Store) Issue(ctx context.Context, g access.Grant, code access.Code, codeExpires time.Time) error {
	return s.inTx(ctx, "issue", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO portal_grants (jti, tenant, username, issued_at, expires_at) VALUES ($1, $2, $3, $4, $5)`,
			g.JTI, g.Tenant, g.User, g.IssuedAt, g.ExpiresAt); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO portal_codes (digest, jti, expires_at) VALUES ($1, $2, $3)`, code[:], g.JTI, codeExpires)
		return err
	})
}

// Good reports whether a grant was issued and not revoked.
func (s *Store) Good(ctx context.Context, jti string) (good bool, err error) {
	err = s.inTx(ctx, "good", func(tx pgx.Tx) error {
		// A session that was opened while its grant was revoked is not marked itself.
		return tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM portal_grants g LEFT JOIN portal_grants o ON o.jti = g.origin
			WHERE g.jti = $1 AND g.revoked_at IS NULL AND o.revoked_at IS NULL)`, jti).Scan(&good)
	})
	return good, err
}

// Revoke ends a grant and the sessions that grew from it.
func (s *Store) Revoke(ctx context.Context, jti string, now time.Time) error {
	return s.inTx(ctx, "revoke", func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `WITH RECURSIVE of AS (
				SELECT jti FROM portal_grants WHERE jti = $1
				UNION SELECT g.jti FROM portal_grants g JOIN of ON g.origin = of.jti)
			UPDATE portal_grants SET revoked_at = coalesce(revoked_at, $2) WHERE jti IN (SELECT jti FROM of)`, clean(jti), now)
		if err == nil && tag.RowsAffected() == 0 {
			return fmt.Errorf("%w: token %.64q", access.ErrNotFound, jti)
		}
		return err
	})
}

// Redeem takes a code for a session's grant. The code is gone with it, whoever else
// comes at the same time.
func (s *Store) Redeem(ctx context.Context, code access.Code, session string, now time.Time) (access.Grant, error) {
	g := access.Grant{JTI: session, IssuedAt: now.UTC().Truncate(time.Second)}
	err := s.inTx(ctx, "redeem", func(tx pgx.Tx) error {
		var origin string
		err := tx.QueryRow(ctx, `WITH taken AS (DELETE FROM portal_codes WHERE digest = $1 AND expires_at > $2 RETURNING jti)
			SELECT jti, tenant, username, expires_at FROM portal_grants
			WHERE jti = (SELECT jti FROM taken) AND revoked_at IS NULL AND expires_at > $2 FOR UPDATE`, code[:], now).Scan(&origin, &g.Tenant, &g.User, &g.ExpiresAt)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("%w: the code is not known, used, or over", access.ErrRefused)
		}
		if err != nil {
			return err
		}
		g.ExpiresAt = g.ExpiresAt.UTC()
		_, err = tx.Exec(ctx, `INSERT INTO portal_grants (jti, tenant, username, issued_at, expires_at, origin) VALUES ($1, $2, $3, $4, $5, $6)`,
			g.JTI, g.Tenant, g.User, g.IssuedAt, g.ExpiresAt, origin)
		return err
	})
	return g, err
}

// Denied keeps an access that was answered with "not found", and whose the object is.
func (s *Store) Denied(ctx context.Context, d access.Denial) error {
	return s.inTx(ctx, "denied", func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO portal_denials (at, tenant, username, jti, kind, ref, path, owner)
			VALUES ($1, $2, $3, $4, $5, left($6, 256), left($7, 1024), CASE $5
				WHEN 'invoice' THEN (SELECT tenant FROM invoices WHERE number = $6)
				WHEN 'api_key' THEN (SELECT min(tenant) FROM api_keys WHERE id = $6) END)`,
			d.At, d.Tenant, d.User, d.JTI, d.Kind, clean(d.Ref), clean(d.Path))
		return err
	})
}

// HasKey reports whether an API key is, or ever was, the tenant's.
func (s *Store) HasKey(ctx context.Context, tenant, key string) (has bool, err error) {
	err = s.inTx(ctx, "has key", func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM api_keys WHERE id = $1 AND tenant = $2)
			OR EXISTS (SELECT FROM cuts WHERE tenant = $2 AND api_key = $1)`, clean(key), tenant).Scan(&has)
	})
	return has, err
}
