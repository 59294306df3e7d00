package topics_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"penstock.dev/schemas"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/topics"
)

func keptAs(id uint32) ids {
	w := wire.NewWriter(nil, rulesv1.Subject, schemas.RulesV1)
	return ids{rulesv1.Subject + " " + w.Fingerprint(): id}
}

// frame is the schema id that the next record has; 0: none.
func frame(t *testing.T, s *topics.Schema) uint32 {
	t.Helper()
	record, err := s.Record(change(t, catalog.KindTenant, `{}`, catalog.Kept{}), moment)
	if errors.Is(err, catalog.ErrNoSchema) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	id, _, err := wire.Unframe(record.Payload)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestSchemaWaitsForTheRegistry guarantees that the service asks until the
// registry answers, serves from then on, and keeps what it was told.
func TestSchemaWaitsForTheRegistry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := ids{}
		reg := &registry{id: 7, failures: 10}
		s := topics.NewSchema(reg, "test", slog.New(slog.DiscardHandler))
		done := make(chan error, 1)
		go func() { done <- s.Run(t.Context(), store) }()
		synctest.Wait()
		if id := frame(t, s); id != 0 || s.Ready(t.Context()) == nil {
			t.Errorf("before the registry answered: id %d, ready", id)
		}
		start := time.Now()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 10*time.Second || took > time.Minute || reg.asked != 11 {
			t.Errorf("asked %d times in %v, want 11 times with growing pauses of at most 5 s", reg.asked, took)
		}
		if id := frame(t, s); id != 7 || s.Ready(t.Context()) != nil || len(store) != 1 {
			t.Errorf("id %d, kept %v, want 7 and kept", id, store)
		}
	})
}

// TestSchemaStartsWithoutTheRegistry guarantees that an id which was kept serves
// while the registry is away.
func TestSchemaStartsWithoutTheRegistry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := topics.NewSchema(&registry{failures: -1}, "test", slog.New(slog.DiscardHandler))
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx, keptAs(5)) }()
		synctest.Wait()
		if id := frame(t, s); id != 5 || s.Ready(ctx) != nil {
			t.Errorf("id %d, want the kept 5, ready", id)
		}
		time.Sleep(time.Hour)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v, want the end of its context", err)
		}
	})
}

// TestSchemaBelievesTheRegistry guarantees that what the registry says now wins
// over what was kept, and is kept in its place.
func TestSchemaBelievesTheRegistry(t *testing.T) {
	t.Parallel()
	store := keptAs(5)
	s := topics.NewSchema(&registry{id: 9}, "test", slog.New(slog.DiscardHandler))
	if err := s.Run(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	if id := frame(t, s); id != 9 || len(store) != 1 {
		t.Errorf("id %d, kept %v, want 9 in place of 5", id, store)
	}
	for _, id := range store {
		if id != 9 {
			t.Errorf("kept %d, want 9", id)
		}
	}
}
