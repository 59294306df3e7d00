package topics

import (
	"context"
	"time"
)

const (
	// maxShare is what part of the time may go into writing snapshots: one in
	// so many.
	maxShare = 20
	// refresh is how old a snapshot may get when nothing changes, so that its
	// age says whether it can be written.
	refresh = time.Hour
)

// touch wakes the saver.
func (r *Rules) touch() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// keepSaved writes a snapshot after changes, and now and then without any,
// until ctx ends.
func (r *Rules) keepSaved(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	idle := time.NewTicker(refresh)
	defer idle.Stop()
	for {
		select { // not before the pause is over
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
		case <-idle.C:
		}
		pause.Reset(max(r.cfg.Every, maxShare*r.save()))
	}
}

// save writes a snapshot of what is in force and returns how long that took.
// What is not complete is not saved.
func (r *Rules) save() time.Duration {
	r.mu.Lock()
	if r.cfg.Dir == "" || !r.caughtUp || len(r.missing()) > 0 {
		r.mu.Unlock()
		return 0
	}
	s := r.state()
	r.mu.Unlock()
	began := r.now()
	if err := saveSnapshot(r.cfg.Dir, s); err != nil {
		r.metrics.failures.WithLabelValues("write").Inc()
		r.log.Error("snapshot not written", "error", err.Error())
		return r.now().Sub(began)
	}
	took := r.now().Sub(began)
	r.metrics.saves.Inc()
	r.metrics.saveSeconds.Observe(took.Seconds())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.saved = s.taken
	return took
}

// state is what is in force now, as a snapshot holds it.
func (r *Rules) state() *snapshot {
	s := &snapshot{
		taken: r.now().UTC().Truncate(time.Microsecond), revision: r.book.Current().Revision(),
		schemas: r.schemas.known(), records: r.stage.records, voids: map[string]mark{},
	}
	for key, a := range r.stage.aside {
		if a.blind && a.void {
			s.voids[key] = a.mark
		}
	}
	return s
}
