package portal

import (
	"math"
	"strconv"
)

// scale is the top of an axis for a greatest value and how far apart its lines
// are: the next of 1, 2, 2.5 and 5 times a power of ten above the value, with 3
// to 5 lines above 0. Whole units never get lines between them.
func scale(greatest int64) (top, step int64) {
	if greatest <= 3 {
		return 3, 1
	}
	best := int64(math.MaxInt64)
	for power := int64(1); power <= 1e17 && power <= greatest; power *= 10 {
		for _, quarter := range []int64{4, 8, 10, 20} {
			s := quarter * power / 4
			if quarter*power%4 != 0 {
				continue
			}
			lines := (greatest + s - 1) / s
			if t := lines * s; lines >= 3 && lines <= 5 && t < best {
				best, step = t, s
			}
		}
	}
	if step == 0 { // beyond what is counted: 2^53
		return greatest, max(1, greatest/4)
	}
	return best, step
}

// Geometry of a chart: heights in pixels, widths in per cent of the plot.
const (
	plotTop    = 16
	labelRoom  = 20 // below the axis
	slotFill   = 0.72
	leastHigh  = 1.5
	betweenGap = 1.0
)

// A part is one outcome in a bar.
type part struct {
	class string // of a solid fill
	fill  string // a pattern, instead of a class
	value int64
}

// A slot is one bar's place.
type slot struct {
	label string
	wide  bool // the label drops out on a phone
	now   bool // the label is bold
	title string
	parts []part
	ghost int64 // expected on top
	none  bool  // no data
	ahead bool  // not yet
}

// A bar, a rect and a label are drawn. Numbers are attributes already.
type (
	rect struct {
		Class, Fill, X, Y, W, H string
	}
	bar struct {
		Title, X, W string
		Rects       []rect
	}
	label struct {
		Text, X, Class string
	}
	gridLine struct {
		Y, TextY, Text string
		Axis           bool
	}
)

// A plot is a bar chart, ready to draw.
type plot struct {
	Height, HitY, HitH, LabelY string
	Lines                      []gridLine
	Bars                       []bar
	Labels                     []label
	Gate, GateCap              string // y of the limit line and its cap; empty: none
	Says                       string // the conclusion
}

// draw lays a chart of some height out. A gate above 0 is the limit.
func (l lang) draw(height float64, slots []slot, gate int64, says string) plot {
	greatest := gate
	for _, s := range slots {
		sum := s.ghost
		for _, p := range s.parts {
			sum += p.value
		}
		greatest = max(greatest, sum)
	}
	top, step := scale(greatest)
	base := height - labelRoom
	high := base - plotTop
	y := func(v int64) float64 { return base - float64(v)/float64(top)*high }
	out := plot{
		Height: pixels(height), HitY: pixels(plotTop), HitH: pixels(high), LabelY: pixels(height - 3), Says: says,
	}
	for v := int64(0); v <= top; v += step {
		out.Lines = append(out.Lines, gridLine{
			Y: pixels(math.Round(y(v)) + 0.5), TextY: pixels(y(v) + 4), Text: l.axis(v), Axis: v == 0,
		})
	}
	width := 100 / float64(max(1, len(slots)))
	for i, s := range slots {
		left := float64(i) * width
		if s.label != "" {
			class := "m"
			if s.wide {
				class += " wide"
			}
			if s.now {
				class += " b"
			}
			out.Labels = append(out.Labels, label{s.label, perCent(left + width/2), class})
		}
		if s.ahead {
			continue
		}
		out.Bars = append(out.Bars, s.bar(left, width, base, high, top))
	}
	if gate > 0 {
		out.Gate, out.GateCap = pixels(y(gate)), pixels(y(gate)-4)
	}
	return out
}

// bar stacks the parts from the axis up.
func (s slot) bar(left, width, base, high float64, top int64) bar {
	b := bar{Title: s.title, X: perCent(left), W: perCent(width)}
	inset := width * (1 - slotFill) / 2
	x, w := perCent(left+inset), perCent(width*slotFill)
	if s.none {
		b.Rects = []rect{{Class: "f-well", X: b.X, Y: pixels(base - high), W: b.W, H: pixels(high)}}
		return b
	}
	at := base
	for _, p := range s.parts {
		if p.value <= 0 {
			continue
		}
		if len(b.Rects) > 0 {
			at -= betweenGap
		}
		h := max(leastHigh, float64(p.value)/float64(top)*high)
		at -= h
		b.Rects = append(b.Rects, rect{Class: p.class, Fill: p.fill, X: x, Y: pixels(at), W: w, H: pixels(h)})
	}
	if h := float64(s.ghost) / float64(top) * high; h > 4 {
		b.Rects = append(b.Rects, rect{Class: "ghost", X: x, Y: pixels(at - h), W: w, H: pixels(h - 2)})
	}
	return b
}

func pixels(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }

func perCent(v float64) string { return pixels(v) + "%" }

// A meterBar is a quota's bar: how full it is up to the gate, and what lies
// beyond it.
type meterBar struct {
	Class   string // ok, near, over, soft
	Fill    string // width
	Gate    string // x
	Beyond  string // width of soft use; empty: none
	Notches []string
	Unread  bool // nothing to show: an outline, never 0
	Says    string
}

// quotaBar draws used of limit. Full width is the limit; soft use beyond it
// rescales and the gate moves left.
func quotaBar(used, limit int64, soft bool, thresholds []int, says string) meterBar {
	b := meterBar{Class: "ok", Gate: "100%", Says: says}
	if limit <= 0 {
		b.Class, b.Fill = "over", "100%"
		return b
	}
	share := 100 * float64(max(0, used)) / float64(limit)
	near := 80.0
	if len(thresholds) > 0 {
		near = float64(thresholds[0])
	}
	switch {
	case used > limit && soft:
		gate := 100 * float64(limit) / float64(used)
		b.Class, b.Fill, b.Gate, b.Beyond = "soft", perCent(gate), perCent(gate), perCent(100-gate)
		return b
	case used >= limit && soft:
		b.Class = "near"
	case used >= limit:
		b.Class = "over"
	case share >= near:
		b.Class = "near"
	}
	b.Fill = perCent(math.Floor(min(100, share)*100) / 100)
	for _, t := range thresholds {
		if t > 0 && t < 100 {
			b.Notches = append(b.Notches, strconv.Itoa(t)+"%")
		}
	}
	return b
}

// A walletBar has 0 as its gate: what is left lies to the right, debt to the
// left.
type walletBar struct {
	Left   string // width of what is left
	DebtX  string // of the debt
	Debt   string
	Gate   string
	Low    int64 // the numbers below: 0 is the gate's
	High   int64
	Says   string
	Class  string
	Labels []label
}

// drawWallet draws a balance between the debt and what was granted.
func (l lang) drawWallet(balance, granted int64, says string) walletBar {
	high := max(granted, balance, 1)
	b := walletBar{High: high, Says: says, Gate: "0%", Class: "ok"}
	if balance > 0 {
		b.Left = perCent(100 * float64(balance) / float64(high))
	}
	if balance < 0 {
		b.Low = -2 * balance
		whole := float64(b.Low + high)
		gate := 100 * float64(b.Low) / whole
		if gate > 80 { // a debt beyond what was granted: the gate stays on the page
			gate = 80
		}
		b.Class, b.Gate = "overdrawn", perCent(gate)
		b.DebtX, b.Debt = perCent(gate/2), perCent(gate/2)
		b.Labels = append(b.Labels, label{l.num(-b.Low), "0%", ""})
		b.Labels = append(b.Labels, label{"0", b.Gate, "m b"})
	} else {
		b.Labels = append(b.Labels, label{"0", "0%", "b"})
	}
	b.Labels = append(b.Labels, label{l.num(high), "100%", "e"})
	return b
}
