package proof

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

//go:embed look/tokens.css look/ui.css look/page.html
var look embed.FS

// A Page is what the proofs have found, for a browser: one file that needs no
// other and no script, in the look of the portal.
type Page struct {
	Began   time.Time
	Place   string // of the estate, e.g. .run/demo
	Results []Result
	Left    [][2]string // titles of what was not run, and what the estate lacks for it
	Stopped string      // why the rest was not run; empty: all were
}

// Held is how many proofs have held.
func (p Page) Held() int {
	n := 0
	for _, r := range p.Results {
		if r.Held {
			n++
		}
	}
	return n
}

// Failed is how many have not.
func (p Page) Failed() int { return len(p.Results) - p.Held() }

// Answer is the sentence that the page opens with.
func (p Page) Answer() string {
	switch {
	case p.Stopped != "":
		return fmt.Sprintf("%d of %d proofs held, then the run stopped", p.Held(), len(p.Results))
	case len(p.Results) == 0:
		return "No proof was run"
	case p.Failed() == 0:
		return fmt.Sprintf("All %d proofs held", len(p.Results))
	default:
		return fmt.Sprintf("%d of %d proofs failed", p.Failed(), len(p.Results))
	}
}

// Took is the time of all proofs together.
func (p Page) Took() string {
	var all time.Duration
	for _, r := range p.Results {
		all += r.Took
	}
	return span(all)
}

// Day is when the run began, in UTC.
func (p Page) Day() string { return p.Began.UTC().Format("2 Jan 2006, 15:04:05") + " UTC" }

// Bad lists the proofs that have not held.
func (p Page) Bad() []Result {
	var bad []Result
	for _, r := range p.Results {
		if !r.Held {
			bad = append(bad, r)
		}
	}
	return bad
}

// Shown is how long the proof took.
func (r Result) Shown() string { return span(r.Took) }

// A drawnBar is a bar beside others, on one scale with them.
type drawnBar struct {
	Bar
	scale int // what the whole width stands for
}

// Drawn are the bars on one scale, so that their limits can be compared.
func (f Finding) Drawn() []drawnBar {
	scale := 1
	for _, b := range f.Bars {
		scale = max(scale, b.Value, b.Limit)
	}
	drawn := make([]drawnBar, len(f.Bars))
	for i, b := range f.Bars {
		drawn[i] = drawnBar{b, scale}
	}
	return drawn
}

// Over reports more than the limit and what was earned meanwhile.
func (b Bar) Over() bool { return b.Value > b.Limit+b.Earned }

// solid is what may have passed.
func (b Bar) solid() int { return min(b.Value, b.Limit+b.Earned) }

func (b drawnBar) share(n int) string {
	return strconv.FormatFloat(100*float64(n)/float64(b.scale), 'f', 2, 64) + "%"
}

// Solid is the width of what may have passed.
func (b drawnBar) Solid() string { return b.share(b.solid()) }

// Beyond is the width of what must not have.
func (b drawnBar) Beyond() string { return b.share(b.Value - b.solid()) }

// Gate is where the limit stands.
func (b drawnBar) Gate() string { return b.share(b.Limit) }

// What is what was measured, or why nothing could be.
func (r Result) What() string {
	if r.Err != nil {
		return "could not be finished: " + r.Err.Error()
	}
	return cmp.Or(r.Measured, "nothing")
}

// Render returns the page as HTML.
func (p Page) Render() ([]byte, error) {
	var style template.CSS
	for _, name := range []string{"look/tokens.css", "look/ui.css"} {
		b, err := look.ReadFile(name)
		if err != nil {
			return nil, err
		}
		style += template.CSS(b) //nolint:gosec // our own file
	}
	t, err := template.New("page.html").ParseFS(look, "look/page.html")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, struct {
		Page
		Style template.CSS
	}{p, style})
	return b.Bytes(), err
}

// Write replaces the file of the page; a reader sees the old one or the new.
func (p Page) Write(path string) error {
	b, err := p.Render()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", b, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
