package postgres

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"penstock.dev/services/internal/postgres"
	"penstock.dev/services/rule-admin/catalog"
)

// Change runs decide while no other change runs, and writes what it returns:
// object, references, outbox row and audit row, all of it or nothing. Whatever
// decide returns as an error is returned as it is.
func (s *Store) Change(ctx context.Context, kind catalog.Kind, id string, decide catalog.Decide) error {
	if err := s.usable(); err != nil {
		return err
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return fail("wait for a turn", ctx.Err())
	}
	var refused error // by decide, which says best why
	err := postgres.InTx(ctx, s.pool, func(t pgx.Tx) error {
		at, err := next(ctx, t)
		if err != nil {
			return err
		}
		before, err := object(ctx, t, kind, id)
		if err != nil {
			return err
		}
		change, err := decide(ctx, tx{t}, at, before)
		if err != nil {
			refused = err
			return err
		}
		return s.write(ctx, t, kind, id, change, at)
	})
	if refused != nil {
		return refused
	}
	return fail("change "+string(kind), err)
}

// next takes the lock under which changes are made one after the other, and
// with it the next revision.
func next(ctx context.Context, t pgx.Tx) (at catalog.Moment, err error) {
	err = t.QueryRow(ctx, `
		UPDATE revision SET value = value + 1, changed_at = greatest(clock_timestamp(), changed_at)
		RETURNING value, changed_at`).Scan(&at.Revision, &at.Now)
	at.Now = at.Now.UTC()
	return at, fail("take the next revision", err)
}

func (s *Store) write(ctx context.Context, t pgx.Tx, kind catalog.Kind, id string, change catalog.Change, at catalog.Moment) error {
	record, err := s.encode(change, at)
	if err != nil {
		return err
	}
	event, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("event id: %w", err)
	}
	var b pgx.Batch
	if change.After == nil {
		b.Queue(`DELETE FROM objects WHERE kind = $1 AND id = $2`, string(kind), id)
	} else if err := queueObject(&b, change.After); err != nil {
		return err
	}
	b.Queue(`INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, version, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		event, record.Topic, record.Key, record.Type, record.Payload, at.Revision, at.Now)
	before, err := shown(change.Before)
	if err != nil {
		return err
	}
	after, err := shown(change.After)
	if err != nil {
		return err
	}
	b.Queue(`INSERT INTO audit (revision, id, at, actor, role, action, kind, object_id, before, after, request_id)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		at.Revision, event, at.Now, change.Caller.Actor, change.Caller.Role, string(change.Action),
		string(kind), id, before, after, change.RequestID)
	return fail("write", t.SendBatch(ctx, &b).Close())
}

// queueObject queues the object and its references.
func queueObject(b *pgx.Batch, o *catalog.Object) error {
	body, err := json.Marshal(o.Body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", o.Kind, o.ID, err)
	}
	kept, err := json.Marshal(o.Kept)
	if err != nil {
		return fmt.Errorf("%s %s: %w", o.Kind, o.ID, err)
	}
	b.Queue(`
		INSERT INTO objects (kind, id, version, body, kept, changed_at, changed_by) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (kind, id) DO UPDATE SET version = excluded.version, body = excluded.body, kept = excluded.kept,
			changed_at = excluded.changed_at, changed_by = excluded.changed_by`,
		string(o.Kind), o.ID, o.Version, body, kept, o.ChangedAt, o.ChangedBy)
	b.Queue(`DELETE FROM object_refs WHERE kind = $1 AND id = $2`, string(o.Kind), o.ID)
	for _, r := range o.Body.Refs() {
		b.Queue(`INSERT INTO object_refs (kind, id, field, ref_kind, ref_id) VALUES ($1, $2, $3, $4, $5)`,
			string(o.Kind), o.ID, r.Field, string(r.Kind), r.ID)
	}
	return nil
}

// shown is what the audit keeps of an object: what an operator is shown, or
// nothing.
func shown(o *catalog.Object) ([]byte, error) {
	if o == nil {
		return nil, nil
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", o.Kind, o.ID, err)
	}
	return text, nil
}
