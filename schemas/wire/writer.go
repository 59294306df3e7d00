package wire

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
)

// A Writer frames bodies of one schema. It registers the schema the first time
// and remembers the id for good. It is safe for concurrent use.
type Writer struct {
	registry        Registry
	subject, schema string

	turn chan struct{} // held by the one caller that registers
	mu   sync.Mutex
	id   uint32
	have bool
}

// NewWriter returns a writer of schema, as Avro JSON text, under subject. It
// asks registry only when an id is asked for.
func NewWriter(registry Registry, subject, schema string) *Writer {
	return &Writer{registry: registry, subject: subject, schema: schema, turn: make(chan struct{}, 1)}
}

// ID returns the id of the schema, and registers it when it must. Every error
// is worth a retry: what a registry refuses today it may be told to accept.
func (w *Writer) ID(ctx context.Context) (uint32, error) {
	if id, ok := w.known(); ok {
		return id, nil
	}
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if id, ok := w.known(); ok { // whoever had the turn before
		return id, nil
	}
	id, err := w.registry.Register(ctx, w.subject, w.schema)
	if err != nil {
		return 0, fmt.Errorf("register %s: %w", w.subject, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.id, w.have = id, true
	return id, nil
}

// Frame returns a new value that holds body. Its errors are ID's.
func (w *Writer) Frame(ctx context.Context, body []byte) ([]byte, error) {
	id, err := w.ID(ctx)
	if err != nil {
		return nil, err
	}
	return Frame(make([]byte, 0, HeaderSize+len(body)), id, body), nil
}

// Fingerprint identifies the schema's text: 64 hexadecimal characters. Keep it
// with the id, for Seed.
func (w *Writer) Fingerprint() string {
	sum := sha256.Sum256([]byte(w.schema))
	return hex.EncodeToString(sum[:])
}

// Seed makes ID answer without the registry. It takes an id that ID returned in
// an earlier life, with the fingerprint of then; it is ignored, and Seed returns
// false, when the schema has changed since.
func (w *Writer) Seed(fingerprint string, id uint32) bool {
	if fingerprint != w.Fingerprint() {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.id, w.have = id, true
	return true
}

func (w *Writer) known() (uint32, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.id, w.have
}
