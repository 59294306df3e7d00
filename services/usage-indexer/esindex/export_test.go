package esindex

import (
	"context"
	"time"
)

// Clock has the store tell the time by now.
func (s *Store) Clock(now func() time.Time) { s.now, s.health.now = now, now }

// MaintainOnce does the housekeeping once and reports whether all was done.
func (s *Store) MaintainOnce(ctx context.Context) bool { return s.maintain(ctx) }

// State is how the store takes documents.
func (s *Store) State() string {
	at, _ := s.health.worst()
	return string(at)
}

// Classify is classifyItem, by names.
func Classify(status int, kind, reason string) string {
	return map[class]string{
		created: "created", duplicate: "duplicate", again: "again", paused: "paused", poison: "poison", doubtful: "doubtful",
	}[classifyItem(status, fault{kind, reason})]
}
