package portal

import (
	"sync"
	"time"
)

// maxReadings bounds what is remembered: parts of pages by tenant.
const maxReadings = 10_000

// readings remember when each part of a tenant's account was last read, for the
// page to say so when it cannot be read. They are this process's.
type readings struct {
	mu   sync.Mutex
	last map[[2]string]time.Time
}

func newReadings() *readings { return &readings{last: map[[2]string]time.Time{}} }

func (r *readings) good(tenant, part string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.last) >= maxReadings {
		clear(r.last)
	}
	r.last[[2]string{tenant, part}] = now
}

func (r *readings) lastGood(tenant, part string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[[2]string{tenant, part}]
}

// A missing part of a page says since when it is missing.
type missing struct {
	Title, How string
}

// partOf reads one part of a page. When it cannot be read the rest of the page is
// shown all the same, and missing says what to put in its place.
func partOf[T any](v *visit, name string, read func() (T, error)) (T, *missing) {
	got, err := read()
	if err == nil {
		v.read.good(v.grant.Tenant, name, v.now)
		return got, nil
	}
	if !gone(v.r) {
		v.Log.Warn("part of an account could not be read for the portal", "part", name, "error", err.Error())
	}
	m := &missing{Title: v.lang.word("failed"), How: v.lang.word("failed.never")}
	if at := v.read.lastGood(v.grant.Tenant, name); !at.IsZero() {
		m.How = v.lang.word("failed.last", v.lang.moment(at.In(v.who.Zone), v.now))
	}
	var zero T
	return zero, m
}
