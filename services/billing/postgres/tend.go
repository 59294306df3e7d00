package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/billing/account"
)

// A State is what an operator should know of the books.
type State struct {
	Missing  int64 // events that are missing by their numbers
	Lost     int64 // of them, for so long that they will not come
	Flagged  int64 // entries of the ledger that a person should look at
	Overdue  int64 // periods that should be final and are not
	Accounts int64
}

// How long a stream stays known after its last event, a token after its end, and a denial
// in the audit. A gateway's partition may be quiet for months, and usage.v1 be made to keep records for
// longer: of a stream that is not known any more, numbers are missing, and repeats count.
const (
	forgetStream = 400 * 24 * time.Hour
	forgetToken  = 14 * 24 * time.Hour
	forgetDenial = 90 * 24 * time.Hour
)

// maxDenials is how many denials are kept at most, the newest: whoever has a token can ask
// for what is not there as often as it likes.
const maxDenials = 1_000_000

// Tend makes due periods final, and forgets what nobody can ask for any more, at every
// tick until ctx ends. No period becomes final that ended after counted, the instant before
// which everything is counted: a service that was away counts first. It reports what it
// did; a fault of one tenant is reported and tried again.
func (s *Store) Tend(ctx context.Context, every time.Duration, now, counted func() time.Time, report func(made int, state State, err error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		as := now()
		if to := counted(); to.Before(as) {
			as = to
		}
		made, err := s.Finalize(ctx, as)
		state, surveyed := s.survey(ctx, now())
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err = errors.Join(err, surveyed, s.forget(ctx, now())); errors.Is(err, account.ErrUnavailable) {
			s.log.Warn("the books cannot be tended now", "error", err.Error())
		} else if err != nil {
			s.log.Error("an invoice cannot be made; it is tried again", "error", err.Error())
		}
		report(made, state, err)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Store) survey(ctx context.Context, now time.Time) (State, error) {
	var st State
	err := s.inTx(ctx, "survey", func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT
			(SELECT coalesce(sum(to_seq - from_seq), 0)::bigint FROM gaps WHERE noticed_at IS NOT NULL),
			(SELECT coalesce(sum(to_seq - from_seq), 0)::bigint FROM gaps WHERE noticed_at <= $1),
			(SELECT count(*) FROM wallet_entries WHERE flag <> ''),
			(SELECT count(*) FROM periods WHERE NOT final AND end_at <= $2),
			(SELECT count(*) FROM accounts)`, now.Add(-Lasting), now.Add(-s.cfg.Grace)).Scan(&st.Missing, &st.Lost, &st.Flagged, &st.Overdue, &st.Accounts)
	})
	return st, err
}

func (s *Store) forget(ctx context.Context, now time.Time) error {
	return s.inTx(ctx, "forget", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM streams WHERE seen_at < $1`, now.Add(-forgetStream)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM portal_grants WHERE expires_at < $1`, now.Add(-forgetToken)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `DELETE FROM portal_denials WHERE at < $1 OR id <= (SELECT max(id) FROM portal_denials) - $2`,
			now.Add(-forgetDenial), maxDenials)
		return err
	})
}
