package limit

import (
	"fmt"
	"time"

	"penstock.dev/services/internal/rule"
)

// micros returns a rate's window in µs. The error wraps ErrBounds.
func (c *Charge) micros() (int64, error) {
	if c.Window < time.Microsecond || c.Window%time.Microsecond != 0 || c.Window > rule.MaxWindow {
		return 0, fmt.Errorf("window of %v, want whole microseconds up to %v: %w", c.Window, rule.MaxWindow, ErrBounds)
	}
	return c.Window.Microseconds(), nil
}

// validateWindow checks the numbers of a rate that counts by windows.
func (c *Charge) validateWindow() error {
	most := int64(rule.MaxCapacity)
	if c.Algorithm == rule.SlidingWindowLog {
		most = rule.MaxLog
	}
	if c.Limit > most && (c.Limit < rule.Unlimited || c.Algorithm == rule.SlidingWindowLog) {
		return fmt.Errorf("limit of %d, want 0 to %d: %w", c.Limit, most, ErrBounds)
	}
	_, err := c.micros()
	return err
}

// A fixedWindow sells limit units in each window [n×window, (n+1)×window) since
// the epoch. So at most limit pass in any window of that grid, and at most
// twice that in any other stretch of the length.
//
// A counter holds the window's first instant (From) and its units (Current), up
// to rule.MaxCapacity. A clock that went back stays in the later window: no
// window is sold twice.
type fixedWindow struct {
	limit  int64
	window int64 // µs
}

// turn is the value in the window that is counted at now.
func (f fixedWindow) turn(v Value, now int64) Value {
	if from := now - now%f.window; from > v.From {
		return Value{From: from}
	}
	return v
}

func (f fixedWindow) ask(v Value, units, now int64) verdict {
	v = f.turn(v, now)
	switch {
	case units == 0, f.limit == rule.Unlimited, v.Current+units <= f.limit:
		return passes
	case units > f.limit:
		return refusedFor(-1)
	default:
		return refusedFor(v.From + f.window - now)
	}
}

func (f fixedWindow) take(v Value, units, now int64) (Value, int64) {
	v = f.turn(v, now)
	units = min(units, rule.MaxCapacity-v.Current)
	v.Current += units
	return v, units
}

// add charges while the window that was charged is the counted one.
func (f fixedWindow) add(v Value, units, at, now int64) (Value, int64) {
	if f.turn(v, now).From != at-at%f.window {
		return v, 0
	}
	return f.take(v, units, now)
}

func (f fixedWindow) show(v Value, now int64, r *Result) {
	v = f.turn(v, now)
	r.Remaining = max(0, f.limit-v.Current)
	r.Reset = time.Duration(v.From+f.window-now) * time.Microsecond
}

// give gives back while the window that was charged is the counted one.
func (f fixedWindow) give(v Value, units, at, now int64) (Value, int64) {
	turned := f.turn(v, now)
	if turned.From != at-at%f.window {
		return v, 0
	}
	given := min(units, turned.Current)
	turned.Current -= given
	return turned, given
}
