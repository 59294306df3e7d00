package esindex

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// A state is how the store takes documents.
type state string

// The states.
const (
	stateOK       state = "ok"
	stateRetrying state = "retrying" // it asks for patience, or does not answer
	statePaused   state = "paused"   // it waits for an operator
)

var states = []state{stateOK, stateRetrying, statePaused}

// patience is how long trouble may last before the service is not ready.
const patience = 10 * time.Second

// health is what the writers have met. It is safe for concurrent use.
type health struct {
	now  func() time.Time
	mu   sync.Mutex
	ills map[*writing]illness
}

// An illness is a trouble that lasts.
type illness struct {
	class class
	text  string
	since time.Time
}

// ill notes a trouble, and returns for how long it has lasted and whether nobody
// had met one of its class before.
func (h *health) ill(w *writing, t *trouble) (time.Duration, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ills == nil {
		h.ills = map[*writing]illness{}
	}
	first := true
	for _, other := range h.ills {
		first = first && other.class != t.class
	}
	since := h.now()
	if before, ok := h.ills[w]; ok {
		since = before.since
	}
	h.ills[w] = illness{t.class, t.text, since}
	return h.now().Sub(since), first
}

func (h *health) well(w *writing) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ills, w)
}

// worst returns the state and, unless it is ok, the longest illness of it.
func (h *health) worst() (state, illness) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, worst := stateOK, illness{}
	for _, i := range h.ills {
		s := stateRetrying
		if i.class == paused {
			s = statePaused
		}
		if at == stateOK || s == statePaused && at == stateRetrying || s == at && i.since.Before(worst.since) {
			at, worst = s, i
		}
	}
	return at, worst
}

// Ready returns nil when the store takes documents, as far as is known, and
// answers. An indexer without its store does nothing.
func (s *Store) Ready(ctx context.Context) error {
	at, ill := s.health.worst()
	switch lasts := s.now().Sub(ill.since); {
	case at == statePaused:
		return fmt.Errorf("waits for an operator: %s", ill.text)
	case at == stateRetrying && lasts > patience:
		return fmt.Errorf("takes no documents for %v: %s", lasts.Round(time.Second), ill.text)
	}
	status, answer, err := s.send(ctx, esapi.ClusterHealthRequest{FilterPath: []string{"status"}})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("does not answer")
	case err != nil:
		return err
	case status >= 300:
		return fmt.Errorf("answer %d: %s", status, faultOf(answer))
	}
	return nil
}
