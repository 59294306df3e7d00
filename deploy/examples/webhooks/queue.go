package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A queue is what is to be sent to one endpoint: a file for each delivery, named by
// the event's id. A file moves from pending to done or failed and stays there, which
// is how an event that comes again is known.
//
// One goroutine adds, one sends; they meet in the file system alone.
type queue struct{ dir string }

// kept is how long files in done and failed are kept: as long as an event may come
// again, which is as long as the topic could be read again from before.
const kept = 30 * 24 * time.Hour

// A delivery is one webhook.
type delivery struct {
	ID       string          `json:"id"` // the event's
	Body     json.RawMessage `json:"body"`
	Attempts int             `json:"attempts"` // made so far
	Next     time.Time       `json:"next"`     // when to try
	Last     string          `json:"last,omitempty"`
}

const (
	pending = "pending"
	done    = "done"
	failed  = "failed"
)

func openQueue(dir, endpoint string) (*queue, error) {
	q := &queue{filepath.Join(dir, endpoint)}
	for _, sub := range []string{pending, done, failed} {
		if err := os.MkdirAll(filepath.Join(q.dir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	return q, nil
}

func (q *queue) path(state, id string) string { return filepath.Join(q.dir, state, id+".json") }

// add keeps a delivery unless the event is known. When it returns nil, the delivery
// survives a crash of the machine.
func (q *queue) add(id string, body []byte, now time.Time) error {
	for _, state := range []string{pending, done, failed} {
		if _, err := os.Stat(q.path(state, id)); err == nil {
			return nil
		}
	}
	return q.store(&delivery{ID: id, Body: body, Next: now})
}

// store writes a pending delivery: under another name first, so that a crash leaves
// the old one or the new one.
func (q *queue) store(d *delivery) error {
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	path := q.path(pending, d.ID)
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// finish moves a delivery out of pending.
func (q *queue) finish(d *delivery, state string) error {
	return os.Rename(q.path(pending, d.ID), q.path(state, d.ID))
}

// due returns the pending deliveries whose time has come, the longest waiting first.
func (q *queue) due(now time.Time) ([]*delivery, error) {
	entries, err := os.ReadDir(filepath.Join(q.dir, pending))
	if err != nil {
		return nil, err
	}
	var out []*delivery
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue // of a write that a crash cut off, or that is under way
		}
		text, err := os.ReadFile(filepath.Join(q.dir, pending, e.Name()))
		if err != nil {
			return nil, err
		}
		var d delivery
		if err := json.Unmarshal(text, &d); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		if !d.Next.After(now) {
			out = append(out, &d)
		}
	}
	slices.SortFunc(out, func(a, b *delivery) int { return a.Next.Compare(b.Next) })
	return out, nil
}

// disabled reports whether the endpoint said that it is gone. An operator who knows
// better removes the file.
func (q *queue) disabled() bool {
	_, err := os.Stat(filepath.Join(q.dir, "disabled"))
	return err == nil
}

func (q *queue) disable(why string) error {
	return os.WriteFile(filepath.Join(q.dir, "disabled"), []byte(why+"\n"), 0o600)
}

// forget removes what was finished long ago.
func (q *queue) forget(now time.Time) error {
	for _, state := range []string{done, failed} {
		err := filepath.WalkDir(filepath.Join(q.dir, state), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			info, err := e.Info()
			if err == nil && now.Sub(info.ModTime()) > kept {
				err = os.Remove(path)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
