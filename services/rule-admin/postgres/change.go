package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"penstock.dev/services/rule-admin/catalog"
)

// Change runs decide while no other change runs, and writes what it returns:
// object, references, outbox row and audit row, all of it or nothing. Whatever
// decide returns as an error is returned as it is.
//
// It takes two round trips: one to begin, to take the lock and to read the
// object and those that near names, and one to write and to commit. What decide
// asks for besides is one more each.
func (s *Store) Change(ctx context.Context, kind catalog.Kind, id string, near []catalog.Ref, decide catalog.Decide) error {
	if err := s.usable(); err != nil {
		return err
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return fail("wait for a turn", ctx.Err())
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return fail("change "+string(kind), err)
	}
	defer conn.Release()
	t, err := begin(ctx, conn, kind, id, near)
	// A rollback that fails leaves a broken connection, which the pool drops.
	abandon := func() { _ = t.begun.Rollback(context.WithoutCancel(ctx)) }
	if err != nil {
		abandon()
		return fail("begin a change", err)
	}
	change, err := decide(ctx, t, t.at, t.known[object{kind, id}])
	if err != nil {
		abandon()
		return err
	}
	b, err := s.writes(kind, id, change, t.at)
	if err != nil {
		abandon()
		return err
	}
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		abandon()
		return fail("change "+string(kind), err)
	}
	return nil
}

// nextRevision takes the lock under which changes are made one after the other.
const nextRevision = `
	UPDATE revision SET value = value + 1, changed_at = greatest(clock_timestamp(), changed_at) RETURNING value, changed_at`

func scanMoment(row pgx.Row, at *catalog.Moment) error {
	err := row.Scan(&at.Revision, &at.Now)
	at.Now = at.Now.UTC()
	return err
}

// begin begins a transaction, takes the lock under which changes are made one
// after the other, and with it the next revision; and then, so that nothing can
// change any more, reads the object and those near it.
func begin(ctx context.Context, conn *pgxpool.Conn, kind catalog.Kind, id string, near []catalog.Ref) (*tx, error) {
	t := &tx{querier: conn, known: map[object]*catalog.Object{}}
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted}) // each statement sees what was committed before it
	b.Queue(nextRevision).QueryRow(func(row pgx.Row) error { return scanMoment(row, &t.at) })
	read := func(o object) {
		if _, twice := t.known[o]; twice {
			return
		}
		t.known[o] = nil
		b.Queue(selectObject, string(o.kind), o.id).Query(func(rows pgx.Rows) (err error) {
			t.known[o], err = collectObject(rows, o.kind)
			return err
		})
	}
	read(object{kind, id})
	for _, r := range near {
		read(object{r.Kind, r.ID})
	}
	results := conn.SendBatch(ctx, &b)
	t.begun = results.Tx()
	return t, results.Close()
}

// writes returns the statements of a change, the commit the last of them.
func (s *Store) writes(kind catalog.Kind, id string, change catalog.Change, at catalog.Moment) (*pgx.Batch, error) {
	record, err := s.encode(change, at)
	if err != nil {
		return nil, err
	}
	event, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("event id: %w", err)
	}
	before, err := shown(change.Before)
	if err != nil {
		return nil, err
	}
	after, err := shown(change.After)
	if err != nil {
		return nil, err
	}
	args := []any{
		string(kind), id, at.Revision, at.Now, event, record.Topic, record.Key, record.Type, record.Payload,
		change.Caller.Actor, change.Caller.Role, string(change.Action), before, after, change.RequestID,
	}
	b := &pgx.Batch{}
	if change.After == nil {
		b.Queue(deleteObject+toldAndAudited, args...)
	} else if err := queueObject(b, change, args); err != nil {
		return nil, err
	}
	b.Queue(`commit`)
	return b, nil
}

// One statement writes the object, the outbox row and the audit row of a change.
// Its first fifteen arguments are alike for all three.
const (
	createObject = `
		WITH object AS (
			INSERT INTO objects (kind, id, version, changed_at, body, kept, changed_by) VALUES ($1, $2, $3, $4, $16, $17, $18)
		),`
	replaceObject = `
		WITH object AS (
			UPDATE objects SET version = $3, changed_at = $4, body = $16, kept = $17, changed_by = $18 WHERE kind = $1 AND id = $2
		),`
	deleteObject = `
		WITH object AS (
			DELETE FROM objects WHERE kind = $1 AND id = $2
		),`
	toldAndAudited = `
		told AS (
			INSERT INTO outbox (version, created_at, id, aggregatetype, aggregateid, type, payload) VALUES ($3, $4, $5, $6, $7, $8, $9)
		)
		INSERT INTO audit (kind, object_id, revision, at, id, actor, role, action, before, after, request_id)
		VALUES ($1, $2, $3, $4, $5, $10, $11, $12, $13, $14, $15)`
)

// queueObject queues what is written of an object that is there afterwards.
func queueObject(b *pgx.Batch, change catalog.Change, args []any) error {
	o := change.After
	body, err := json.Marshal(o.Body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", o.Kind, o.ID, err)
	}
	kept, err := json.Marshal(o.Kept)
	if err != nil {
		return fmt.Errorf("%s %s: %w", o.Kind, o.ID, err)
	}
	args = append(args, body, kept, o.ChangedBy)
	refs := o.Body.Refs()
	if change.Before == nil {
		b.Queue(createObject+toldAndAudited, args...)
	} else {
		b.Queue(replaceObject+toldAndAudited, args...)
		if slices.Equal(change.Before.Body.Refs(), refs) {
			return nil
		}
		b.Queue(`DELETE FROM object_refs WHERE kind = $1 AND id = $2`, string(o.Kind), o.ID)
	}
	for _, r := range refs {
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
	text, err := o.MarshalJSON() // json.Marshal would read it again
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", o.Kind, o.ID, err)
	}
	return text, nil
}
