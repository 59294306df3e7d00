package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"penstock.dev/services/outbox-relay/outbox"
)

// PostgreSQL's error codes that mean something to a relay.
const (
	codeObjectInUse     = "55006" // another relay reads the slot
	codeDuplicateObject = "42710" // another relay is making it
)

var (
	errPublish       = errors.New("publish")
	errFrozen        = errors.New("this process did not run")
	errRow           = errors.New("unreadable outbox")
	errNoPublication = errors.New("publication is missing: the service that owns the outbox has not made its tables yet")
)

// inUse reports whether err means that another relay is at work.
func inUse(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == codeObjectInUse || pg.Code == codeDuplicateObject)
}

// ensureSlot returns when the slot exists and can be read. A slot that is
// missing (the first start) or lost (its log was removed) is made anew, after
// every row the outbox keeps has been published again: consumers keep the
// higher version, so nothing is missed and repeats change nothing.
func (s *Source) ensureSlot(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.cfg.URL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()

	status, err := slotStatus(ctx, conn, s.cfg.Slot)
	switch {
	case err != nil:
		return err
	case status == "lost":
		s.log.Error("slot lost: its log was removed; publishing the kept outbox again", "slot", s.cfg.Slot)
		s.m.rebuilt.WithLabelValues("lost").Inc()
		if _, err := conn.Exec(ctx, "SELECT pg_drop_replication_slot($1)", s.cfg.Slot); err != nil {
			return fmt.Errorf("drop: %w", err)
		}
	case status != "":
		return nil
	default:
		s.m.rebuilt.WithLabelValues("missing").Inc()
	}
	return s.rebuild(ctx, conn)
}

// slotStatus returns the slot's wal_status, or "" when there is no such slot.
func slotStatus(ctx context.Context, conn *pgx.Conn, slot string) (string, error) {
	var status *string
	err := conn.QueryRow(ctx, "SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1", slot).Scan(&status)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("status: %w", err)
	case status == nil:
		return "unknown", nil
	}
	return *status, nil
}

// rebuild publishes the kept outbox as of the point where a new slot begins,
// and then gives that slot its name. A temporary slot holds the point
// meanwhile; it ends with its connection, so a relay that dies half way leaves
// nothing behind and the next one starts over.
func (s *Source) rebuild(ctx context.Context, conn *pgx.Conn) error {
	tables, err := publishedTables(ctx, conn, s.cfg.Publication)
	if err != nil {
		return err
	}
	repl, err := replicationConn(ctx, s.cfg.URL)
	if err != nil {
		return err
	}
	defer closeConn(ctx, repl)
	held := s.cfg.Slot + "_new"
	made, err := pglogrepl.CreateReplicationSlot(ctx, repl, held, "pgoutput", pglogrepl.CreateReplicationSlotOptions{
		Temporary: true, Mode: pglogrepl.LogicalReplication, SnapshotAction: "EXPORT_SNAPSHOT",
	})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	n, err := s.republish(ctx, conn, made.SnapshotName, tables)
	if err != nil {
		return err
	}
	query := fmt.Sprintf("SELECT pg_copy_logical_replication_slot('%s', '%s', false)", held, s.cfg.Slot)
	if _, err := repl.Exec(ctx, query).ReadAll(); err != nil {
		return fmt.Errorf("name the new slot: %w", err)
	}
	s.log.Info("slot made, the kept outbox is published", "slot", s.cfg.Slot, "at", made.ConsistentPoint, "events", n)
	return nil
}

func publishedTables(ctx context.Context, conn *pgx.Conn, publication string) ([]string, error) {
	rows, err := conn.Query(ctx, `SELECT format('%I.%I', schemaname, tablename) FROM pg_publication_tables WHERE pubname = $1 ORDER BY 1`, publication)
	if err != nil {
		return nil, err
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("publication %s: %w", publication, err)
	}
	if len(tables) == 0 {
		return nil, fmt.Errorf("%s: %w", publication, errNoPublication)
	}
	return tables, nil
}

// republish publishes every row that the snapshot sees, oldest version first,
// and returns their number once all are stored.
func (s *Source) republish(ctx context.Context, conn *pgx.Conn, snapshot string, tables []string) (int, error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, fmt.Sprintf("SET TRANSACTION SNAPSHOT '%s'", snapshot)); err != nil {
		return 0, fmt.Errorf("snapshot: %w", err)
	}
	r := &reader{source: s, ledger: outbox.NewLedger(0), failed: make(chan error, 1)}
	n := 0
	for _, table := range tables {
		rows, err := tx.Query(ctx, `SELECT id::text, aggregatetype, aggregateid, type, o.version::text, payload FROM `+table+` o ORDER BY o.version`)
		if err != nil {
			return 0, err
		}
		var e outbox.Event
		_, err = pgx.ForEachRow(rows, []any{&e.ID, &e.Topic, &e.Key, &e.Type, &e.Version, &e.Payload}, func() error {
			for r.ledger.Pending() >= s.cfg.MaxInFlight && len(r.failed) == 0 && ctx.Err() == nil {
				r.waitSettled(ctx, time.Now().Add(statusEvery))
			}
			n++
			t := r.ledger.Begin()
			r.send(ctx, t, e)
			t.End(0)
			e.Payload = nil
			return ctx.Err()
		})
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", table, err)
		}
	}
	for r.ledger.Pending() > 0 {
		select {
		case err := <-r.failed:
			return 0, err
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-r.ledger.Settled():
		}
	}
	return n, nil
}

// replicationConn opens a connection in logical replication mode.
func replicationConn(ctx context.Context, url string) (*pgconn.PgConn, error) {
	cfg, err := pgconn.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database url: %w", err)
	}
	cfg.RuntimeParams["replication"] = "database"
	cfg.RuntimeParams["application_name"] = "outbox-relay"
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect for replication: %w", err)
	}
	return conn, nil
}

// closeConn says goodbye to the server within a second, so that the slot is
// free for the next relay at once.
func closeConn(ctx context.Context, conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
