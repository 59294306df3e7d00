package archtest

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const adrDir = "docs/adr/"

// maxADRLines is the length of a page.
const maxADRLines = 80

var (
	adrName     = regexp.MustCompile(`^(\d{4})-[a-z0-9]+(-[a-z0-9]+)*\.md$`)
	adrTitle    = regexp.MustCompile(`^# ([1-9]\d*)\. (\S.*)$`)
	adrDate     = regexp.MustCompile(`^Date: \d{4}-\d{2}-\d{2}$`)
	adrStatus   = regexp.MustCompile(`^Status: (proposed|accepted|withdrawn|superseded by (\d{4}))$`)
	adrTouches  = regexp.MustCompile(`^Touches: \S`)
	adrOlder    = regexp.MustCompile(`(?m)^Supersedes: (\d{4})$`)
	adrMention  = regexp.MustCompile(`(?:docs/adr/|\bADR[ -]?)(\d{4})\b`)
	adrSections = []string{"## Context", "## Decision", "## Consequences", "## Refused", "## Look again when"}
)

// An adr is one page.
type adr struct {
	file, text string
	number     string // four digits, of the file's name
}

func (a adr) lines() []string { return strings.Split(strings.TrimSuffix(a.text, "\n"), "\n") }

// title is the first line without the number, or "" when it is not in form.
func (a adr) title() string {
	if m := adrTitle.FindStringSubmatch(a.lines()[0]); m != nil {
		return m[2]
	}
	return ""
}

// replacedBy is the number of the page that supersedes this one, or "".
func (a adr) replacedBy() string {
	for _, l := range a.lines() {
		if m := adrStatus.FindStringSubmatch(l); m != nil {
			return m[2]
		}
	}
	return ""
}

// faults lists what is wrong with the page, given that it should have this
// position among all pages and that these exist.
func (a adr) faults(position int, all []adr) []string {
	var out []string
	fault := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }

	lines := a.lines()
	if want := fmt.Sprintf("%04d", position); a.number != want {
		fault("number is not its position: want %s", want)
	}
	if m := adrTitle.FindStringSubmatch(lines[0]); m == nil || m[1] != fmt.Sprint(position) {
		fault("first line is %q, want %q and a title", lines[0], fmt.Sprintf("# %d. ", position))
	}
	if len(lines) > maxADRLines {
		fault("%d lines, want at most %d", len(lines), maxADRLines)
	}
	for i, form := range []*regexp.Regexp{adrDate, adrStatus, adrTouches} {
		if len(lines) < 5 || !form.MatchString(lines[2+i]) {
			fault("line %d does not match %s", 3+i, form)
		}
	}
	if got := headings(lines); !slices.Equal(got, adrSections) {
		fault("sections %q, want %q", got, adrSections)
	}
	for _, l := range links(a, all) {
		fault("%s", l)
	}
	return out
}

// links checks that a superseded page and the one that supersedes it name each
// other.
func links(a adr, all []adr) []string {
	var out []string
	page := func(number string) (adr, bool) {
		i := slices.IndexFunc(all, func(b adr) bool { return b.number == number })
		if i < 0 {
			return adr{}, false
		}
		return all[i], true
	}
	if n := a.replacedBy(); n != "" {
		if newer, ok := page(n); !ok || !strings.Contains(newer.text, "\nSupersedes: "+a.number+"\n") {
			out = append(out, fmt.Sprintf("is superseded by %s, which does not say so", n))
		}
	}
	for _, m := range adrOlder.FindAllStringSubmatch(a.text, -1) {
		if older, ok := page(m[1]); !ok || older.replacedBy() != a.number {
			out = append(out, fmt.Sprintf("supersedes %s, which does not say so", m[1]))
		}
	}
	return out
}

func headings(lines []string) []string {
	var out []string
	for _, l := range lines {
		if strings.HasPrefix(l, "## ") {
			out = append(out, l)
		}
	}
	return out
}

// adrs returns every page in the order of their names. Other files of the
// folder than the index and the template are a fault.
func adrs(t *testing.T) []adr {
	t.Helper()
	var out []adr
	files(t, func(name string) {
		base, ok := strings.CutPrefix(name, adrDir)
		switch {
		case !ok || base == "README.md" || base == "template.md":
		case !adrName.MatchString(base):
			t.Errorf("%s is not named like 0001-short-noun-phrase.md", name)
		default:
			out = append(out, adr{file: base, text: read(t, name), number: base[:4]})
		}
	})
	slices.SortFunc(out, func(a, b adr) int { return strings.Compare(a.file, b.file) })
	return out
}

// TestADRs guarantees the form of every decision (docs/adr/0001): number equals
// position, one of four statuses, five sections, at most 80 lines, superseded
// pages linked both ways, and one line each in the index, in order.
func TestADRs(t *testing.T) {
	t.Parallel()

	all := adrs(t)
	if len(all) == 0 {
		t.Fatal("there are no decisions")
	}
	var index strings.Builder
	for i, a := range all {
		for _, f := range a.faults(i+1, all) {
			t.Errorf("%s%s: %s", adrDir, a.file, f)
		}
		fmt.Fprintf(&index, "- [%s](%s) %s\n", a.number, a.file, a.title())
	}
	if got := read(t, adrDir+"README.md"); !strings.HasSuffix(got, "\n\n"+index.String()) {
		t.Errorf("%sREADME.md must end in these lines:\n%s", adrDir, index.String())
	}
}

// TestADRMentions guarantees that every decision that a comment or a page
// appeals to exists.
func TestADRMentions(t *testing.T) {
	t.Parallel()

	exists := map[string]bool{}
	for _, a := range adrs(t) {
		exists[a.number] = true
	}
	seen := 0
	files(t, func(name string) {
		if !isText(name) || name == adrDir+"template.md" || strings.HasPrefix(name, "services/internal/archtest/") {
			return
		}
		for _, m := range adrMention.FindAllStringSubmatch(read(t, name), -1) {
			seen++
			if !exists[m[1]] {
				t.Errorf("%s appeals to docs/adr/%s, which does not exist", name, m[1])
			}
		}
	})
	if seen == 0 {
		t.Error("no decision is mentioned anywhere: the pattern no longer finds what it looks for")
	}
	if !adrMention.MatchString("see docs/adr/0007-x.md") || !adrMention.MatchString("by ADR 0012,") {
		t.Error("the pattern misses the two ways in which a decision is named")
	}
}

// TestADRFormCanFail guarantees that each rule of the form refuses a page that
// breaks it, and nothing else.
func TestADRFormCanFail(t *testing.T) {
	t.Parallel()

	good := "# 1. A thing\n\nDate: 2026-01-02\nStatus: accepted\nTouches: services\n\n" + strings.Join(adrSections, "\nx\n\n") + "\nx\n"
	older := adr{file: "0002-b.md", number: "0002", text: "# 2. B\n\nDate: 2026-01-02\nStatus: superseded by 0001\n"}
	tests := []struct {
		name   string
		page   adr
		faults int
	}{
		{"a page in form passes", adr{"0001-a.md", good, "0001"}, 0},
		{"a number out of place fails", adr{"0003-a.md", good, "0003"}, 1},
		{"a title with another number fails", adr{"0001-a.md", strings.Replace(good, "# 1.", "# 2.", 1), "0001"}, 1},
		{"a fifth status fails", adr{"0001-a.md", strings.Replace(good, "accepted", "agreed", 1), "0001"}, 1},
		{"a missing date fails", adr{"0001-a.md", strings.Replace(good, "2026-01-02", "today", 1), "0001"}, 1},
		{"a page that touches nothing fails", adr{"0001-a.md", strings.Replace(good, "Touches: services", "Touches:", 1), "0001"}, 1},
		{"a missing section fails", adr{"0001-a.md", strings.Replace(good, "## Refused", "Refused", 1), "0001"}, 1},
		{"81 lines fail", adr{"0001-a.md", good + strings.Repeat("x\n", maxADRLines+1-strings.Count(good, "\n")), "0001"}, 1},
		{"80 lines pass", adr{"0001-a.md", good + strings.Repeat("x\n", maxADRLines-strings.Count(good, "\n")), "0001"}, 0},
		{"superseded by a page that does not say so fails", adr{"0001-a.md", strings.Replace(good, "accepted", "superseded by 0002", 1), "0001"}, 1},
		{"superseding a page that says so passes", adr{"0001-a.md", strings.Replace(good, "services\n", "services\nSupersedes: 0002\n", 1), "0001"}, 0},
		{"superseding a page that is not there fails", adr{"0001-a.md", strings.Replace(good, "services\n", "services\nSupersedes: 0009\n", 1), "0001"}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			if got := tt.page.faults(1, []adr{tt.page, older}); len(got) != tt.faults {
				t.Errorf("faults %q, want %d", got, tt.faults)
			}
		})
	}
}

// TestLinks guarantees that relative links between the repository's pages lead
// to files that exist.
func TestLinks(t *testing.T) {
	t.Parallel()

	link := regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)]*)?\)`)
	exists := map[string]bool{}
	files(t, func(name string) {
		exists[name] = true
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			exists[dir] = true
		}
	})
	for name := range exists {
		if path.Ext(name) != ".md" {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(read(t, name), -1) {
			if to := path.Join(path.Dir(name), m[1]); !exists[to] {
				t.Errorf("%s links to %s, which does not exist", name, m[1])
			}
		}
	}
}
