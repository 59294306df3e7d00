package wire

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// A Registry is the part of a schema registry that writers and readers need.
// An error means that it could not be asked now, and may be later.
type Registry interface {
	// Register makes sure that subject has schema, as Avro JSON text, and
	// returns its id. Registering the same text again returns the same id.
	Register(ctx context.Context, subject, schema string) (id uint32, err error)

	// Schema returns the text of schema id and the subjects that it is
	// registered under. An id that the registry does not have is an empty text,
	// or an error with a method NotFound() bool that returns true.
	Schema(ctx context.Context, id uint32) (text string, subjects []string, err error)
}

// How long and how many ids are remembered as unknown. The time bounds how long
// a schema that was registered late stays unreadable; the number bounds memory.
const (
	unknownFor = time.Minute
	unknownMax = 1024
)

// IDs looks up the schemas of one subject by id. An id is asked for once,
// however many callers wait for it, and remembered: for good when it is the
// subject's, for a minute when it is not. It is safe for concurrent use.
type IDs struct {
	registry Registry
	subject  string

	mu      sync.Mutex
	known   map[uint32]string
	unknown map[uint32]time.Time // until when
	asking  map[uint32]*question
}

// A question is one look-up under way.
type question struct {
	done chan struct{} // closed when the rest is set
	err  error
	gone bool // who asked gave up, which is no answer for the others
}

// NewIDs returns the ids of subject. It asks registry only when a schema is
// asked for.
func NewIDs(registry Registry, subject string) *IDs {
	return &IDs{
		registry: registry,
		subject:  subject,
		known:    map[uint32]string{},
		unknown:  map[uint32]time.Time{},
		asking:   map[uint32]*question{},
	}
}

// Schema returns the text of schema id. The error is ErrUnknownID when the id is
// not the subject's, else the registry's or ctx's own, and then worth a retry.
func (s *IDs) Schema(ctx context.Context, id uint32) (string, error) {
	for {
		text, q, mine, err := s.find(id)
		switch {
		case q == nil:
			return text, err
		case mine:
			s.ask(ctx, id, q)
		default:
			select {
			case <-q.done:
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}
		if q.err != nil && (mine || !q.gone) {
			return "", q.err
		}
	}
}

// find returns what is remembered of id, or the question whose answer to wait
// for: the caller's own to ask where mine is true.
func (s *IDs) find(id uint32) (text string, q *question, mine bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text, ok := s.known[id]; ok {
		return text, nil, false, nil
	}
	if until, ok := s.unknown[id]; ok && time.Now().Before(until) {
		return "", nil, false, fmt.Errorf("%w: %d is not of subject %s", ErrUnknownID, id, s.subject)
	}
	if q, ok := s.asking[id]; ok {
		return "", q, false, nil
	}
	q = &question{done: make(chan struct{})}
	s.asking[id] = q
	return "", q, true, nil
}

// ask puts the question to the registry and keeps the answer.
func (s *IDs) ask(ctx context.Context, id uint32, q *question) {
	text, subjects, err := s.registry.Schema(ctx, id)
	var missing interface{ NotFound() bool }
	if errors.As(err, &missing) && missing.NotFound() {
		text, err = "", nil
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		q.err, q.gone = fmt.Errorf("schema %d: %w", id, err), ctx.Err() != nil
	case text != "" && slices.Contains(subjects, s.subject):
		s.known[id] = text
		delete(s.unknown, id)
	default:
		s.forget()
		s.unknown[id] = time.Now().Add(unknownFor)
	}
	delete(s.asking, id)
	close(q.done)
}

// forget makes room for one more unknown id: what has expired goes, else what
// would expire first.
func (s *IDs) forget() {
	if len(s.unknown) < unknownMax {
		return
	}
	now := time.Now()
	var oldest uint32
	var first time.Time
	for id, until := range s.unknown {
		if !now.Before(until) {
			delete(s.unknown, id)
		}
		if first.IsZero() || until.Before(first) {
			oldest, first = id, until
		}
	}
	if len(s.unknown) >= unknownMax {
		delete(s.unknown, oldest)
	}
}

// Known returns the schemas found so far, by id, for a snapshot.
func (s *IDs) Known() map[uint32]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.known)
}

// Seed adds schemas that Known returned in an earlier life, so that they are
// found while the registry is away.
func (s *IDs) Seed(known map[uint32]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.known, known)
	for id := range known {
		delete(s.unknown, id)
	}
}
