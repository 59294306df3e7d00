package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	watchEvery = time.Second

	// nudgeAbove is how much log a slot may retain though everything is
	// confirmed, before the database is asked to let it move on.
	nudgeAbove = 8 << 20
)

// Watch measures the slot once a second until ctx ends, and keeps a quiet
// outbox from filling the database's disk. It never fails: what it cannot
// measure is the database being away, which the session reports.
func (s *Source) Watch(ctx context.Context) error {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		var err error
		if conn == nil {
			conn, err = pgx.Connect(ctx, s.cfg.URL)
		}
		if err == nil {
			err = s.look(ctx, conn)
		}
		if err != nil && conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
			conn = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look reads the slot's position and nudges it when needed.
func (s *Source) look(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var unconfirmed, retained, safe int64
	var lost bool
	err := conn.QueryRow(ctx, `
		SELECT coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint,
		       coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint,
		       coalesce(safe_wal_size, -1), coalesce(wal_status = 'lost', false)
		FROM pg_replication_slots WHERE slot_name = $1`, s.cfg.Slot).Scan(&unconfirmed, &retained, &safe, &lost)
	if errors.Is(err, pgx.ErrNoRows) {
		s.m.lost.Set(1)
		return nil
	}
	if err != nil {
		return fmt.Errorf("slot status: %w", err)
	}
	s.m.confirmed.Set(float64(unconfirmed))
	s.m.retained.Set(float64(retained))
	s.m.safe.Set(float64(safe))
	s.m.lost.Set(boolFloat(lost))
	if unconfirmed < nudgeAbove && retained > nudgeAbove {
		return nudge(ctx, conn, s.cfg.Slot)
	}
	return nil
}

// nudge makes the database write a record of its running transactions, the
// only place where a slot's restart position can move to; by itself it does so
// every 15 s. Making a logical slot writes one; this one ends at once.
func nudge(ctx context.Context, conn *pgx.Conn, slot string) error {
	if _, err := conn.Exec(ctx, "SET statement_timeout = '500ms'"); err != nil {
		return fmt.Errorf("nudge: %w", err)
	}
	name := slot + "_nudge"
	if _, err := conn.Exec(ctx, "SELECT pg_create_logical_replication_slot($1, 'pgoutput', true)", name); err != nil {
		return fmt.Errorf("nudge: %w", err)
	}
	if _, err := conn.Exec(ctx, "SELECT pg_drop_replication_slot($1)", name); err != nil {
		return fmt.Errorf("nudge: %w", err)
	}
	return nil
}

func boolFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
