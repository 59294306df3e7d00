package codec

import (
	"context"
	"fmt"
	"sync"

	"penstock.dev/schemas/wire"
)

// Values reads the framed values of one topic, whatever version of its schema
// each was written with. It is safe for concurrent use.
type Values struct {
	ids    *wire.IDs
	limit  int
	reader func() (*Reader, error)

	mu       sync.Mutex
	decoders map[uint32]outcome
}

// An outcome is what came of resolving a writer's schema, for good.
type outcome struct {
	decoder *Decoder
	err     error
}

// NewValues returns a reader of values whose bodies are at most limit bytes.
// schema is the reader's, as Avro JSON text, and ids finds the writers'.
func NewValues(schema string, limit int, ids *wire.IDs) *Values {
	return &Values{
		ids:      ids,
		limit:    limit,
		reader:   sync.OnceValues(func() (*Reader, error) { return NewReader(schema) }),
		decoders: map[uint32]outcome{},
	}
}

// Decode reads a value into v, a pointer to the zero value of its type. What is
// no such value is wire.ErrPoison; any other error is the look-up's, to be
// retried.
func (s *Values) Decode(ctx context.Context, value []byte, v any) error {
	if len(value) > s.limit+wire.HeaderSize {
		return fmt.Errorf("%w: body is %d bytes, want at most %d", wire.ErrPoison, len(value)-wire.HeaderSize, s.limit)
	}
	id, body, err := wire.Unframe(value)
	if err != nil {
		return err
	}
	decoder, err := s.decoder(ctx, id)
	if err != nil {
		return err
	}
	if err := decoder.Decode(body, v); err != nil {
		return fmt.Errorf("%w: schema %d: %w", wire.ErrPoison, id, err)
	}
	return nil
}

func (s *Values) decoder(ctx context.Context, id uint32) (*Decoder, error) {
	s.mu.Lock()
	known, ok := s.decoders[id]
	s.mu.Unlock()
	if ok {
		return known.decoder, known.err
	}
	text, err := s.ids.Schema(ctx, id)
	if err != nil {
		return nil, err
	}
	reader, err := s.reader()
	if err != nil {
		return nil, err
	}
	decoder, err := reader.Of(text)
	if err != nil {
		err = fmt.Errorf("%w: schema %d: %w", wire.ErrPoison, id, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decoders[id] = outcome{decoder, err}
	return decoder, err
}
