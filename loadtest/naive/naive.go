// Package naive is the limits of the naive design that a gateway is measured
// beside: a script of GCRA, run once for each request.
package naive

import (
	_ "embed"
	"time"
)

// Script charges a unit of each of its keys or none; gcra.lua says how it is
// called.
//
//go:embed gcra.lua
var Script string

// A Limit is how many units come back in a window, and how many may be taken at
// once.
type Limit struct {
	Units, Burst int64
	Window       time.Duration
}

// Price is how long a unit takes to come back, µs.
func (l Limit) Price() int64 { return l.Window.Microseconds() / l.Units }

// LimitOf is the limit of every key of a service.
func LimitOf(service string) Limit {
	if service == "bench-denied" {
		return Limit{1, 1, 24 * time.Hour}
	}
	return Limit{100, 1000, time.Hour}
}
