package topics

import (
	"context"
	"errors"
	"maps"
	"sync"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"
)

// errAway reports a schema that is not in the snapshot.
var errAway = errors.New("schema is not in the snapshot")

// schemas finds schemas in the registry, and where that cannot be asked in the
// last snapshot. The registry goes first: it may have been made anew, with
// other ids.
type schemas struct {
	ids      *wire.IDs
	registry wire.Registry

	mu    sync.Mutex
	saved map[uint32]string
}

func newSchemas(registry wire.Registry) *schemas {
	s := &schemas{registry: registry, saved: map[uint32]string{}}
	s.ids = wire.NewIDs(s, rulesv1.Subject)
	return s
}

// Register is not asked of a reader.
func (s *schemas) Register(ctx context.Context, subject, schema string) (uint32, error) {
	return s.registry.Register(ctx, subject, schema)
}

// Schema returns a schema by its id.
func (s *schemas) Schema(ctx context.Context, id uint32) (string, []string, error) {
	text, subjects, err := s.registry.Schema(ctx, id)
	var missing interface{ NotFound() bool }
	if err == nil || errors.As(err, &missing) && missing.NotFound() || ctx.Err() != nil {
		return text, subjects, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if text, ok := s.saved[id]; ok {
		return text, []string{rulesv1.Subject}, nil
	}
	return "", nil, err
}

// keep adds the schemas of a snapshot.
func (s *schemas) keep(saved map[uint32]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.saved, saved)
}

// known are all schemas that a record in force may have been written with.
func (s *schemas) known() map[uint32]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.saved)
	maps.Copy(all, s.ids.Known())
	return all
}

// only is a registry that has what it holds.
type only map[uint32]string

// Register is not asked of a reader.
func (only) Register(context.Context, string, string) (uint32, error) { return 0, errAway }

// Schema returns a schema by its id.
func (o only) Schema(_ context.Context, id uint32) (string, []string, error) {
	if text, ok := o[id]; ok {
		return text, []string{rulesv1.Subject}, nil
	}
	return "", nil, errAway
}
