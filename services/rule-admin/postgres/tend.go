package postgres

import (
	"context"
	"time"
)

// How often the outbox is pruned and counted.
const tendEvery = time.Minute

// Tend prunes the outbox and reports what it holds, until ctx ends. Several
// instances may tend at once.
func (s *Store) Tend(ctx context.Context, report func(rows, pending, pruned, revision int64)) error {
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for {
		if err := s.tendOnce(ctx, report); err != nil && ctx.Err() == nil {
			s.log.Warn("outbox not tended", "error", err.Error())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Store) tendOnce(ctx context.Context, report func(rows, pending, pruned, revision int64)) error {
	pruned, err := s.Prune(ctx)
	if pruned > 0 {
		s.log.Info("outbox pruned", "rows", pruned)
	}
	if err != nil {
		report(0, 0, pruned, 0)
		return err
	}
	rows, pending, err := s.OutboxRows(ctx)
	if err != nil {
		return err
	}
	revision, err := s.Revision(ctx)
	if err != nil {
		return err
	}
	report(rows, pending, pruned, revision)
	return nil
}
