package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"penstock.dev/deploy/local/proof"
)

// width is how many columns the output keeps to.
const width = 80

// A screen writes for a person at a terminal: plain text within 80 columns,
// coloured only where that is wanted. It is safe for concurrent use.
type screen struct {
	w      io.Writer
	colour bool
	begun  time.Time

	mu sync.Mutex
}

func newScreen(w io.Writer, getenv func(string) string) *screen {
	s := &screen{w: w, begun: time.Now()}
	if f, ok := w.(*os.File); ok && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb" {
		info, err := f.Stat()
		s.colour = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return s
}

// Colours of a terminal.
const (
	bold  = "1"
	dim   = "2"
	red   = "1;31"
	green = "1;32"
)

func (s *screen) paint(colour, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (s *screen) print(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = fmt.Fprintf(s.w, format+"\n", args...) // a reader that has gone needs no answer
}

// heading starts a section.
func (s *screen) heading(text string) {
	s.print("\n%s\n%s", s.paint(bold, text), s.paint(dim, strings.Repeat("─", width)))
}

// progress is one line about what has happened, with the time since the start.
func (s *screen) progress(line string) {
	s.print("%s  %s", s.paint(dim, fmt.Sprintf("%6.1f s", time.Since(s.begun).Seconds())), line)
}

// failure shows an error that ends the command.
func (s *screen) failure(err error) { s.print("\n%s %s", s.paint(red, "FAILED"), err) }

// list prints names and values in two columns.
func (s *screen) list(pairs [][2]string) {
	longest := 0
	for _, p := range pairs {
		longest = max(longest, len(p[0]))
	}
	for _, p := range pairs {
		s.print("  %-*s  %s", longest, p[0], p[1])
	}
}

// wrap breaks text into lines of at most columns, at spaces.
func wrap(text string, columns int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) <= columns:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// labelled prints a label and a text that is wrapped beside it.
func (s *screen) labelled(label, text string) {
	const indent = 12
	for i, line := range wrap(text, width-indent) {
		if i > 0 {
			label = ""
		}
		s.print("  %s%s", s.paint(dim, fmt.Sprintf("%-*s", indent-2, label)), line)
	}
}

// result shows what a proof has found.
func (s *screen) result(r proof.Result) {
	s.labelled("done", r.Done)
	s.labelled("expected", r.Expected)
	s.labelled("measured", r.What())
	if r.Held {
		s.print("  %s", s.paint(green, "held"))
	} else {
		s.print("  %s", s.paint(red, "FAILED"))
	}
}
