// Package verdict says whether a run held what is promised.
package verdict

import (
	"fmt"
	"io"
	"time"

	"penstock.dev/loadtest/stats"
)

// A Check is one promise and what was measured.
type Check struct {
	What     string `json:"what"`
	Promised string `json:"promised"`
	Measured string `json:"measured"`
	Held     bool   `json:"held"`
}

// AtMost checks a duration.
func AtMost(what string, measured stats.Millis, promised time.Duration) Check {
	return Check{what, "at most " + stats.Millis(promised).String(), measured.String(), time.Duration(measured) <= promised}
}

// Exactly checks a number.
func Exactly(what string, measured, promised int64) Check {
	return Check{what, fmt.Sprint(promised), fmt.Sprint(measured), measured == promised}
}

// A Verdict is the outcome of a run. A run whose generator was in its own way
// has none.
type Verdict struct {
	Checks []Check `json:"checks"`
	// None says why there is no verdict; empty when there is one.
	None string `json:"none,omitempty"`
}

// Exit codes of a run that is asked for a verdict.
const (
	codeHeld    = 0
	codeNotHeld = 1
	codeNone    = 3
)

// Code is the exit code of the verdict.
func (v Verdict) Code() int {
	if v.None != "" {
		return codeNone
	}
	for _, c := range v.Checks {
		if !c.Held {
			return codeNotHeld
		}
	}
	return codeHeld
}

// Print writes one line for each check, and why there is no verdict. Without one, no check
// is called held or not.
func (v Verdict) Print(w io.Writer) error {
	for _, c := range v.Checks {
		word := "held    "
		switch {
		case v.None != "":
			word = "measured"
		case !c.Held:
			word = "NOT HELD"
		}
		if _, err := fmt.Fprintf(w, "%s  %s: %s, promised %s\n", word, c.What, c.Measured, c.Promised); err != nil {
			return err
		}
	}
	if v.None != "" {
		_, err := fmt.Fprintf(w, "no verdict: %s\n", v.None)
		return err
	}
	return nil
}
