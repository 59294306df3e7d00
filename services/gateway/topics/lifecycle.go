package topics

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/admin"
)

// load reads the snapshot. One that cannot be used is ignored, and said so.
func (r *Rules) load() {
	if r.cfg.Dir == "" {
		return
	}
	s, err := loadSnapshot(r.cfg.Dir)
	if err != nil {
		r.log.Error("snapshot ignored", "error", err.Error())
		r.metrics.failures.WithLabelValues("read").Inc()
		return
	}
	if s == nil {
		r.log.Info("no snapshot of the rules yet", "dir", r.cfg.Dir)
		return
	}
	r.schemas.keep(s.schemas)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before, r.saved = s, s.taken
}

// fallBack decides by the snapshot, the log having taken too long.
func (r *Rules) fallBack(ctx context.Context) {
	r.mu.Lock()
	before, late := r.before, !r.caughtUp && !r.served
	r.mu.Unlock()
	if before == nil || !late {
		return
	}
	book, err := before.book(ctx)

	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.caughtUp:
	case err != nil:
		r.coldErr = err
		r.metrics.failures.WithLabelValues("read").Inc()
		r.log.Error("snapshot cannot be served", "error", err.Error())
	default:
		r.book.Replace(book)
		r.cold = true
		r.serve()
		r.log.Warn("serving the snapshot until rules.v1 has been read",
			"taken", before.taken.Format(time.RFC3339), "records", before.records.Len(), "revision", before.revision)
	}
}

// book makes the snapshot's rules a book. A record in it that this version
// cannot serve fails it all: the rules without one of them are other rules.
func (s *snapshot) book(ctx context.Context) (*decide.Book, error) {
	d := s.decoder()
	changes := make([]decide.Change, 0, s.records.Len()+1)
	changes = append(changes, decide.Change{Version: s.revision}) // of no kind: the rules are as new as it, deletions included
	for key, k := range s.records.All() {
		c, err := restore(ctx, d, key, k)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", errSnapshot, key, err)
		}
		changes = append(changes, c)
	}
	book := decide.NewBook()
	book.Apply(changes)
	return book, nil
}

// decoder reads the snapshot's records with the schemas it holds.
func (s *snapshot) decoder() *rulesv1.Decoder {
	return rulesv1.NewDecoder(wire.NewIDs(only(s.schemas), rulesv1.Subject))
}

// restore is the change that a record of a snapshot once was.
func restore(ctx context.Context, d *rulesv1.Decoder, key string, k kept) (decide.Change, error) {
	record, err := d.Decode(ctx, []byte(key), k.value)
	if err != nil {
		return decide.Change{}, err
	}
	v, err := object(&record)
	return decide.Change{Kind: decide.Kind(record.Kind), ID: record.ID, Version: k.version, Object: v}, err
}

// catchUp puts what the log says in the place of what was before.
func (r *Rules) catchUp(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.before == nil:
	case r.stage.read == 0 && r.before.records.Len() > 0:
		r.adoptAll(ctx)
	default:
		r.adoptBlind(ctx)
	}
	r.book.Replace(r.stage.book)
	r.stage.book = r.book
	r.before, r.coldErr, r.cold, r.caughtUp = nil, nil, false, true
	missing := r.missing()
	r.log.Info("caught up with rules.v1", "records", r.stage.read, "revision", r.book.Current().Revision(),
		"set_aside", len(r.stage.aside), "missing", len(missing))
	if len(missing) > 0 {
		r.log.Error("not ready: records cannot be read and no good ones are known", "keys", strings.Join(missing, ", "))
	}
	r.serve()
	r.touch()
}

// adoptBlind keeps what was in force under records that were set aside, where
// the log itself no longer says what that was.
func (r *Rules) adoptBlind(ctx context.Context) {
	edit, d := r.stage.records.Edit(), r.before.decoder()
	for key, a := range r.stage.aside {
		if !a.blind {
			continue
		}
		if m, ok := r.before.voids[key]; ok && m == a.mark {
			a.void = true
			continue
		}
		k, ok := r.before.records.Get(key)
		if !ok {
			continue
		}
		c, err := restore(ctx, d, key, k)
		if err != nil {
			r.log.Error("last good record cannot be restored", "key", key, "error", err.Error())
			continue
		}
		c.Under = true
		if r.stage.book.Apply([]decide.Change{c})[0] {
			a.blind = false
			edit.Set(key, kept{k.version, bytes.Clone(k.value)})
		}
	}
	r.stage.records = edit.Map()
}

// adoptAll keeps everything that was in force, because a log without a single
// record was lost or not filled yet. Whatever is written to it from now on goes
// over what was kept, so that has no version.
func (r *Rules) adoptAll(ctx context.Context) {
	edit := r.stage.records.Edit()
	for key, k := range r.before.records.All() {
		edit.Set(key, kept{0, k.value})
	}
	unversioned := &snapshot{schemas: r.before.schemas, records: edit.Map()}
	book, err := unversioned.book(ctx)
	if err != nil {
		r.log.Error("rules.v1 is empty, and what was in force cannot be restored", "error", err.Error())
		return
	}
	r.stage.book, r.stage.records, r.orphaned = book, unversioned.records, true
	r.log.Error("rules.v1 is empty: what was in force stays", "records", r.stage.records.Len())
}

// beginAgain reads a log that was made anew. What is in force stays so until
// the new one has been read.
func (r *Rules) beginAgain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.caughtUp {
		r.before, r.cold = r.state(), r.served
	}
	r.stage, r.caughtUp, r.orphaned = newStage(), false, false
}

// missing are the keys of which the log says that there is something, and
// nobody knows what.
func (r *Rules) missing() []string {
	var keys []string
	for key, a := range r.stage.aside {
		if a.blind && !a.void {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// serve opens the gate once there is something to decide by.
func (r *Rules) serve() {
	if !r.served && (r.cold || r.caughtUp && len(r.missing()) == 0) {
		r.served = true
		close(r.serving)
	}
}

// maxNamed is how many keys an answer names.
const maxNamed = 5

// Ready returns nil when decisions are made by what the log says, an
// admin.Remark when by something older, and else what is missing.
func (r *Rules) Ready(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	missing := r.missing()
	switch {
	case r.caughtUp && len(missing) > 0:
		named := missing[:min(len(missing), maxNamed)]
		a := r.stage.aside[missing[0]]
		return fmt.Errorf("%d records cannot be read and no good ones are known: %s (partition %d, offset %d: %s)",
			len(missing), strings.Join(named, ", "), a.partition, a.offset, a.cause)
	case r.cold:
		return admin.Remark("serving the snapshot of " + r.before.taken.Format(time.RFC3339) + "; rules.v1 has not been read")
	case !r.caughtUp && r.stalled != nil:
		return fmt.Errorf("reading rules.v1: %d records so far, the next waits: %w", r.stage.read, r.stalled)
	case !r.caughtUp && r.coldErr != nil:
		return fmt.Errorf("reading rules.v1: %d records so far; %w", r.stage.read, r.coldErr)
	case !r.caughtUp:
		return fmt.Errorf("reading rules.v1: %d records so far", r.stage.read)
	case r.orphaned:
		return admin.Remark("rules.v1 was empty when it was read; what was in force before stays where it says nothing else")
	case r.stalled != nil:
		return admin.Remark("a rule change waits for the schema registry: " + r.stalled.Error())
	default:
		return nil
	}
}
