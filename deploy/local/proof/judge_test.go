package proof

import (
	"slices"
	"testing"
	"time"

	"penstock.dev/deploy/local/estate"
)

// TestTally guarantees how answers are counted.
func TestTally(t *testing.T) {
	t.Parallel()

	if got := tally([]answered{{status: 429}, {status: 200}, {status: 429}}); got != "1 × 200, 2 × 429" {
		t.Errorf("tally = %q", got)
	}
	if got := tally(nil); got != "none" {
		t.Errorf("tally of nothing = %q", got)
	}
}

// TestTrapCanFail guarantees that the proof of the boundary trap holds what each
// algorithm promises, and no more, and turns red for each of them.
func TestTrapCanFail(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name            string
		before, after   []int
		stretch, behind time.Duration
		held            bool
	}{
		{"what is promised", []int{30, 30, 30}, []int{30, 0, 3}, 300 * time.Millisecond, 50 * time.Millisecond, true},
		{"a slow machine frees and earns more", []int{30, 30, 40}, []int{30, 9, 8}, 2500 * time.Millisecond, time.Second, true},
		{"a fixed window without the trap", []int{30, 30, 30}, []int{0, 0, 3}, 300 * time.Millisecond, 50 * time.Millisecond, false},
		{"a sliding counter with the trap", []int{30, 30, 30}, []int{30, 30, 3}, 300 * time.Millisecond, 50 * time.Millisecond, false},
		{"a sliding counter that lets nothing through", []int{30, 0, 30}, []int{30, 0, 3}, 300 * time.Millisecond, 50 * time.Millisecond, false},
		{"a bucket with the trap", []int{30, 30, 30}, []int{30, 0, 30}, 300 * time.Millisecond, 50 * time.Millisecond, false},
		{"longer than a window", []int{30, 30, 30}, []int{30, 0, 3}, trapWindow, 50 * time.Millisecond, false},
	}
	for _, tt := range tests {
		if f := judgeTrap(tt.before, tt.after, tt.stretch, tt.behind); f.Held != tt.held {
			t.Errorf("%s: held %v, want %v; %s; %s", tt.name, f.Held, tt.held, f.Expected, f.Measured)
		}
	}
}

// TestEdgeCanFail guarantees that the proof of the renewed quota turns red when
// it comes back early, late or never, or is refused in another way.
func TestEdgeCanFail(t *testing.T) {
	t.Parallel()

	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	around := func(before, after bool) []asked {
		return []asked{
			{at.Add(-20 * time.Millisecond), at.Add(-10 * time.Millisecond), before},
			{at.Add(-time.Millisecond), at.Add(time.Millisecond), true}, // may be either
			{at.Add(10 * time.Millisecond), at.Add(20 * time.Millisecond), after},
		}
	}
	refused := estate.Decision{Status: 429, Code: "quota-exceeded", RetryAfter: 4}
	tests := []struct {
		name string
		edge edge
		held bool
	}{
		{"what is promised", edge{before: edgeLimit, refused: refused, asked: around(false, true)}, true},
		{"early", edge{before: edgeLimit, refused: refused, asked: around(true, true)}, false},
		{"late", edge{before: edgeLimit, refused: refused, asked: around(false, false)}, false},
		{"never asked", edge{before: edgeLimit, refused: refused}, false},
		{"one unit too little", edge{before: edgeLimit - 1, refused: refused, asked: around(false, true)}, false},
		{"not refused", edge{before: edgeLimit, refused: estate.Decision{Status: 200}, asked: around(false, true)}, false},
		{"the wait of an hour", edge{
			before: edgeLimit, refused: estate.Decision{Status: 429, Code: "quota-exceeded", RetryAfter: 3600}, asked: around(false, true),
		}, false},
	}
	for _, tt := range tests {
		tt.edge.at, tt.edge.clock.slack = at, 2*time.Millisecond
		tt.edge.wait = [2]time.Duration{3500 * time.Millisecond, 3400 * time.Millisecond}
		if f := tt.edge.judge(); f.Held != tt.held {
			t.Errorf("%s: held %v, want %v; %s; %s", tt.name, f.Held, tt.held, f.Expected, f.Measured)
		}
	}
}

// TestOutageCanFail guarantees that the proof of the stopped Redis turns red for
// every mode that fails otherwise than it says, and when counts are lost.
func TestOutageCanFail(t *testing.T) {
	t.Parallel()

	decision := func(status int, degraded bool, left int64) estate.Decision {
		d := estate.Decision{Status: status, Degraded: degraded}
		if !degraded {
			d.Limits = []estate.Limit{{Remaining: left}}
		}
		return d
	}
	times := func(n int, d estate.Decision) []estate.Decision { return slices.Repeat([]estate.Decision{d}, n) }
	type answers = map[string][]estate.Decision
	during := func(change func(answers)) answers {
		a := answers{
			"open":   times(outageAsked, decision(200, true, 0)),
			"closed": times(outageAsked, decision(503, true, 0)),
			"local":  append(times(outageLimit, decision(200, true, 0)), times(outageAsked-outageLimit, decision(429, true, 0))...),
		}
		change(a)
		return a
	}
	each := func(d estate.Decision) answers {
		return answers{"open": {d}, "closed": {d}, "local": {d}}
	}
	before, after := each(decision(200, false, 0)), each(decision(200, false, outageLimit-outageBefore-1))
	tests := []struct {
		name          string
		during, after answers
		gateways      int
		held          bool
	}{
		{"what is promised", during(func(answers) {}), after, 1, true},
		{"two gateways with half each", during(func(answers) {}), after, 2, true},
		{"open refuses", during(func(a answers) { a["open"][3] = decision(503, true, 0) }), after, 1, false},
		{"closed lets one through", during(func(a answers) { a["closed"][3] = decision(200, true, 0) }), after, 1, false},
		{"local does not count", during(func(a answers) { a["local"] = a["open"] }), after, 1, false},
		{"not degraded", during(func(a answers) { a["open"][0] = decision(200, false, 0) }), after, 1, false},
		{"the counters began anew", during(func(answers) {}), each(decision(200, false, outageLimit-1)), 1, false},
		{"still without a store", during(func(answers) {}), each(decision(200, true, 0)), 1, false},
	}
	for _, tt := range tests {
		if f := judgeOutage(before, tt.during, tt.after, tt.gateways, outage{}); f.Held != tt.held {
			t.Errorf("%s: held %v, want %v; %s; %s", tt.name, f.Held, tt.held, f.Expected, f.Measured)
		}
	}
}

// TestThresholdsCanFail guarantees that the proof of the thresholds turns red when
// one is missing, told twice or told of another level.
func TestThresholdsCanFail(t *testing.T) {
	t.Parallel()

	const eighty, all = "THRESHOLD_REACHED 80 % at 8", "EXHAUSTED 100 % at 10"
	statuses := append(slices.Repeat([]int{200}, 10), 429, 429)
	for _, tt := range []struct {
		name     string
		statuses []int
		told     []string
		ids      int
		held     bool
	}{
		{"what is promised", statuses, []string{eighty, all}, 2, true},
		{"one is missing", statuses, []string{all}, 1, false},
		{"one is told twice", statuses, []string{eighty, eighty, all}, 2, false},
		{"two have one id", statuses, []string{eighty, all}, 1, false},
		{"told late", statuses, []string{"THRESHOLD_REACHED 80 % at 9", all}, 2, false},
		{"the limit did not hold", slices.Repeat([]int{200}, 12), []string{eighty, all}, 2, false},
	} {
		if f := judgeThresholds(10, tt.statuses, tt.told, tt.ids, time.Second); f.Held != tt.held {
			t.Errorf("%s: held %v, want %v; %s; %s", tt.name, f.Held, tt.held, f.Expected, f.Measured)
		}
	}
}

// TestWipeCanFail guarantees that the proof of the emptied Redis turns red when
// anything is given away, restored as less or more, or changed by who restores later.
func TestWipeCanFail(t *testing.T) {
	t.Parallel()

	full := []string{"wallet 850 − 50", "quota 850 − 50"}
	right := wipe{before: full, restored: full, later: full, away: 9, last: "200, 429 quota-exceeded"}
	tests := map[string]func(*wipe){
		"passed without the store": func(w *wipe) { w.passed = 1 },
		"not restored":             func(w *wipe) { w.restored = []string{"quota 0 − 0", "wallet 0 − 0"} },
		"the refund is lost":       func(w *wipe) { w.restored = []string{"quota 850 − 0", "wallet 850 − 0"} },
		"restored twice":           func(w *wipe) { w.later = []string{"quota 1700 − 100", "wallet 1700 − 100"} },
		"sold beyond the limit":    func(w *wipe) { w.last = "200, 200" },
	}
	if f := right.judge(); !f.Held {
		t.Errorf("what is promised has not held: %s; %s", f.Expected, f.Measured)
	}
	for name, change := range tests {
		w := right
		change(&w)
		if f := w.judge(); f.Held {
			t.Errorf("%s: held; %s; %s", name, f.Expected, f.Measured)
		}
	}
}
