package portal_test

import (
	"io/fs"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/billing/portal"
	"penstock.dev/services/internal/money"
)

// TestForms guarantees how numbers, money and times are written in both languages.
func TestForms(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 23, 14, 32, 5, 0, time.FixedZone("", 3*3600))
	at := func(month time.Month, day, hour, minute int) time.Time {
		return time.Date(2026, month, day, hour, minute, 0, 0, now.Location())
	}
	usd := func(minor int64) money.Amount { return money.Amount{Minor: minor, Currency: "USD"} }
	en, tr := portal.English, portal.Turkish
	tests := map[string][2]string{ // got, want
		"thousands":                         {portal.Num(en, 1234567), "1,234,567"},
		"thousands in Turkish":              {portal.Num(tr, 1234567), "1.234.567"},
		"three digits":                      {portal.Num(en, 999), "999"},
		"minus is U+2212":                   {portal.Num(en, -1000), "−1,000"},
		"the least number":                  {portal.Num(en, math.MinInt64), "−9,223,372,036,854,775,808"},
		"money":                             {portal.Amount(en, usd(33710)), "USD 337.10"},
		"money in Turkish":                  {portal.Amount(tr, usd(-123456)), "−1.234,56 USD"},
		"money without minor units":         {portal.Amount(en, money.Amount{Minor: 1200, Currency: "JPY"}), "JPY 1,200"},
		"per cent is rounded down":          {portal.Percent(en, 999_999, 1_000_000), "99.9%"},
		"100% only when it is":              {portal.Percent(en, 1_000_000, 1_000_000), "100%"},
		"per cent in Turkish":               {portal.Percent(tr, 812, 1000), "%81,2"},
		"per cent above":                    {portal.Percent(en, 11320, 10000), "113.2%"},
		"per cent below":                    {portal.Percent(en, 1, 10000), "0.0%"},
		"per cent of nothing":               {portal.Percent(en, 1, 0), ""},
		"0 per cent":                        {portal.Percent(en, 0, 7), "0%"},
		"per cent of the largest":           {portal.Percent(en, math.MaxInt64-1, math.MaxInt64), "99.9%"},
		"a moment":                          {portal.Moment(en, now, now), "23 Jul, 14:32:05"},
		"a moment in Turkish":               {portal.Moment(tr, now, now), "23 Tem, 14:32:05"},
		"a moment of another year":          {portal.Moment(en, now.AddDate(-1, 0, 0), now), "23 Jul 2025, 14:32:05"},
		"tonight":                           {portal.Soon(en, at(7, 24, 0, 0), now), "tonight, 00:00"},
		"tonight in Turkish":                {portal.Soon(tr, at(7, 24, 0, 0), now), "bu gece, 00:00"},
		"today":                             {portal.Soon(en, at(7, 23, 17, 0), now), "today, 17:00"},
		"within a week":                     {portal.Soon(en, at(7, 27, 0, 0), now), "Mon 27 Jul, 00:00"},
		"within a week in Turkish":          {portal.Soon(tr, at(7, 27, 0, 0), now), "27 Tem Pzt, 00:00"},
		"later":                             {portal.Soon(en, at(8, 1, 0, 0), now), "1 Aug, 00:00"},
		"until, in two units":               {portal.Until(en, at(7, 24, 0, 0), now), "in 9 h 27 min"},
		"until in Turkish":                  {portal.Until(tr, at(7, 24, 0, 0), now), "9 sa 27 dk sonra"},
		"until what is past":                {portal.Until(en, at(7, 1, 0, 0), now), "in 0 µs"},
		"a length below a second":           {portal.Span(en, 1500*time.Microsecond), "1 ms"},
		"a length of days":                  {portal.Span(tr, 50*time.Hour), "2 gün 2 sa"},
		"a length of one unit":              {portal.Span(en, time.Minute), "1 min"},
		"an axis":                           {portal.Axis(en, 40_000), "40k"},
		"an axis in Turkish":                {portal.Axis(tr, 2_500_000), "2,5 Mn"},
		"an axis of little":                 {portal.Axis(en, 500), "500"},
		"a zone":                            {portal.Offset(now), "UTC+3"},
		"a zone to the west, half an hour":  {portal.Offset(now.In(time.FixedZone("", -(3*3600 + 1800)))), "UTC−3:30"},
		"no distance":                       {portal.Offset(now.UTC()), "UTC"},
		"one":                               {portal.Count(en, "cuts.calls", 1), "1 call"},
		"many":                              {portal.Count(en, "cuts.calls", 1000), "1,000 calls"},
		"Turkish has no plural after a sum": {portal.Count(tr, "cuts.calls", 2), "2 çağrı"},
	}
	for name, tt := range tests {
		if tt[0] != tt[1] {
			t.Errorf("%s: got %q, want %q", name, tt[0], tt[1])
		}
	}
}

var (
	verb = regexp.MustCompile(`%(?:\[(\d)\])?[a-z]`)
	key  = regexp.MustCompile(`(?:word|marked|count)\("([a-z0-9.]+)"|fail\([^)]*"([a-z0-9.]+)"\)|\{\{-? ?t "([a-z0-9.]+)"|\(t "([a-z0-9.]+)"`)
)

// values are the numbers of the values that a text says, ascending.
func values(text string) (numbers []int) {
	next := 0
	for _, m := range verb.FindAllStringSubmatch(text, -1) {
		next++
		if n, err := strconv.Atoi(m[1]); err == nil {
			next = n
		}
		numbers = append(numbers, next)
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// TestWords guarantees that every key that is asked for has its words, in both
// languages, and that both say the same values.
func TestWords(t *testing.T) {
	t.Parallel()
	asked := 0
	err := fs.WalkDir(os.DirFS("."), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") || !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".html") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range key.FindAllStringSubmatch(string(text), -1) {
			for _, k := range m[1:] {
				if k == "" || strings.HasSuffix(k, ".") { // the rest is a name
					continue
				}
				asked++
				if _, ok := portal.Words[k]; !ok {
					t.Errorf("%s asks for %q, which has no words", path, k)
				}
			}
		}
		return err
	})
	if err != nil || asked < 100 {
		t.Errorf("%d keys are asked for: %v", asked, err)
	}
	for k, w := range portal.Words {
		for l, text := range w {
			if text == "" || strings.Contains(text, "!") && !strings.Contains(text, "%!") {
				t.Errorf("%s in language %d is %q", k, l, text)
			}
		}
		if a, b := values(w[portal.English]), values(w[portal.Turkish]); !slices.Equal(a, b) {
			t.Errorf("%s says the values %v in English and %v in Turkish", k, a, b)
		}
		if strings.HasSuffix(k, ".one") && k != "cuts.one" && verb.MatchString(w[portal.English]) {
			t.Errorf("%s is said of one thing, and has a verb", k)
		}
	}
}
