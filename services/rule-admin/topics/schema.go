package topics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"penstock.dev/schemas"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"
)

// An IDStore keeps the ids of schemas over restarts.
type IDStore interface {
	SchemaID(ctx context.Context, subject, fingerprint string) (id uint32, ok bool, err error)
	KeepSchemaID(ctx context.Context, subject, fingerprint string, id uint32) error
}

// Schema is the schema of rules.v1 and the id that records are framed with. It
// is safe for concurrent use.
type Schema struct {
	registry wire.Registry
	name     string // of the registry, for people
	log      *slog.Logger

	mu    sync.Mutex
	known uint32
	have  bool
}

// NewSchema returns the schema, without an id: Run finds it. name says where
// the registry is.
func NewSchema(registry wire.Registry, name string, log *slog.Logger) *Schema {
	return &Schema{registry: registry, name: name, log: log}
}

// Run takes the id that was kept, asks the registry until it has given the
// schema one, keeps that, and ends. With an id that was kept the service serves
// meanwhile.
func (s *Schema) Run(ctx context.Context, store IDStore) error {
	w := wire.NewWriter(s.registry, rulesv1.Subject, schemas.RulesV1)
	kept, ok, err := store.SchemaID(ctx, rulesv1.Subject, w.Fingerprint())
	if err != nil {
		s.log.Warn("kept schema id is not readable", "error", err.Error())
	}
	if ok {
		s.set(kept)
	}
	const first, last = 100 * time.Millisecond, 5 * time.Second
	for wait := first; ; wait = min(2*wait, last) {
		id, err := w.ID(ctx)
		if err == nil {
			if ok && id != kept {
				s.log.Warn("registry gives the schema another id than before", "kept", kept, "id", id)
			}
			if err := s.keep(ctx, store, w.Fingerprint(), id); err != nil {
				return err
			}
			s.set(id) // what is used has been kept: the next start finds it
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.log.Warn("schema registry does not answer", "registry", s.name, "error", err.Error(), "retry_in", wait.String())
		if !pause(ctx, wait) {
			return ctx.Err()
		}
	}
}

// keep writes the id until it is written.
func (s *Schema) keep(ctx context.Context, store IDStore, fingerprint string, id uint32) error {
	for {
		err := store.KeepSchemaID(ctx, rulesv1.Subject, fingerprint, id)
		if err == nil {
			s.log.Info("schema has an id", "subject", rulesv1.Subject, "id", id)
			return nil
		}
		s.log.Warn("schema id is not kept", "error", err.Error())
		if !pause(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

var errNoID = errors.New("no schema id yet")

// Ready returns nil when records can be written.
func (s *Schema) Ready(context.Context) error {
	if _, ok := s.id(); !ok {
		return fmt.Errorf("schema registry %s: %w", s.name, errNoID)
	}
	return nil
}

func (s *Schema) set(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.have = id, true
}

func (s *Schema) id() (uint32, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known, s.have
}
