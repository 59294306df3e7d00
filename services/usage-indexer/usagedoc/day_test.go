package usagedoc_test

import (
	"testing"
	"time"

	"penstock.dev/services/usage-indexer/usagedoc"
)

func micros(t *testing.T, rfc3339 string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, rfc3339)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMicro()
}

// TestFC22TimesAreWrittenInFull guarantees case FC-22's first half: whatever
// fraction a time has, its text has six digits of it, so that no store refuses it
// or reads another year.
func TestFC22TimesAreWrittenInFull(t *testing.T) {
	t.Parallel()

	for in, want := range map[string]string{
		"2019-04-26T07:43:02Z":           "2019-04-26T07:43:02.000000Z",
		"2019-04-26T07:43:02.123456789Z": "2019-04-26T07:43:02.123456Z",
		"2019-04-26T07:43:02.6Z":         "2019-04-26T07:43:02.600000Z",
		"0001-01-01T00:00:00Z":           "0001-01-01T00:00:00.000000Z",
		"1969-12-31T23:59:59.999999Z":    "1969-12-31T23:59:59.999999Z",
		"2000-02-29T12:00:00Z":           "2000-02-29T12:00:00.000000Z",
		"2100-02-28T23:59:59Z":           "2100-02-28T23:59:59.000000Z",
		"9999-12-31T23:59:59.999999Z":    "9999-12-31T23:59:59.999999Z",
	} {
		if got := string(usagedoc.AppendTime(nil, micros(t, in))); got != want {
			t.Errorf("%s is written %s, want %s", in, got, want)
		}
	}
}

// TestFC22BareNumberIsRefused guarantees case FC-22's second half: a time that
// somebody counted in another unit is outside the window, also where documents are
// kept for ever.
func TestFC22BareNumberIsRefused(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	for _, retention := range []int{0, 30, 100_000} {
		for _, us := range []int64{292278995, now.Unix(), now.UnixMilli(), 0, -1} {
			if got := usagedoc.WindowAt(now, retention).Check(us); got != usagedoc.TooOld {
				t.Errorf("retention %d takes %d µs: %q, want %q", retention, us, got, usagedoc.TooOld)
			}
		}
		if got := usagedoc.WindowAt(now, retention).Check(now.UnixNano()); got != usagedoc.TooNew {
			t.Errorf("retention %d takes nanoseconds: %q", retention, got)
		}
	}
}

// FuzzTime guarantees that a time is written as the standard library writes it,
// and lies in the day that its index is named for.
func FuzzTime(f *testing.F) {
	f.Add(int64(0))
	f.Add(int64(-1))
	f.Add(int64(951782400_000000)) // 29 February 2000
	f.Fuzz(func(t *testing.T, us int64) {
		if us < -62135596800_000000 || us > 253402300799_999999 {
			return // not of the years 1 to 9999
		}
		at := time.UnixMicro(us).UTC()
		if got, want := string(usagedoc.AppendTime(nil, us)), at.Format(layout); got != want {
			t.Fatalf("%d is written %s, want %s", us, got, want)
		}
		d := usagedoc.DayOf(us)
		if got, want := usagedoc.IndexName("p", d), "p-"+at.Format("2006.01.02"); got != want {
			t.Fatalf("%d goes to %s, want %s", us, got, want)
		}
		if back, ok := usagedoc.ParseIndexName("p", usagedoc.IndexName("p", d)); !ok || back != d {
			t.Fatalf("the name of day %d reads as %d, %v", d, back, ok)
		}
	})
}

// TestParseIndexName guarantees that only an index which this service would make
// is taken for one: retention deletes by these names.
func TestParseIndexName(t *testing.T) {
	t.Parallel()

	const prefix = "ratelimit-usage"
	for name, ok := range map[string]bool{
		"ratelimit-usage-2026.11.30":       true,
		"ratelimit-usage-2024.02.29":       true,
		"ratelimit-usage-2026.02.29":       false,
		"ratelimit-usage-2026.11.31":       false,
		"ratelimit-usage-2026.1.3":         false,
		"ratelimit-usage-2026.11.30-old":   false,
		"ratelimit-usage-2026-11-30":       false,
		"ratelimit-usage-x-2026.11.30":     false,
		"my-ratelimit-usage-2026.11.30":    false,
		"ratelimit-usage":                  false,
		"ratelimit-usage-":                 false,
		"ratelimit-usage-2026.11.30 ":      false,
		".ds-ratelimit-usage-2026.11.30":   false,
		"ratelimit-usage-2026.11.30-00001": false,
		"other-2026.11.30":                 false,
	} {
		if _, got := usagedoc.ParseIndexName(prefix, name); got != ok {
			t.Errorf("ParseIndexName(%q) = %v, want %v", name, got, ok)
		}
	}
}

// TestWindow guarantees what retention means: the day of now less the retention
// is kept to its first microsecond, the day before is not, and what is taken is
// never deleted at once.
func TestWindow(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	tests := []struct {
		name      string
		at        string
		retention int
		want      usagedoc.Reason
	}{
		{"now", "2026-11-30T09:00:00Z", 30, ""},
		{"the first instant of the oldest day kept", "2026-10-31T00:00:00Z", 30, ""},
		{"a microsecond before it", "2026-10-30T23:59:59.999999Z", 30, usagedoc.TooOld},
		{"one day: yesterday is kept", "2026-11-29T00:00:00Z", 1, ""},
		{"one day: the day before is not", "2026-11-28T23:59:59.999999Z", 1, usagedoc.TooOld},
		{"for ever", "2000-01-01T00:00:00Z", 0, ""},
		{"for ever, and before there were events", "1999-12-31T23:59:59.999999Z", 0, usagedoc.TooOld},
		{"a day ahead, less a microsecond", "2026-12-01T08:59:59.999999Z", 30, ""},
		{"a day ahead", "2026-12-01T09:00:00Z", 30, usagedoc.TooNew},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			w := usagedoc.WindowAt(now, tt.retention)
			us := micros(t, tt.at)
			if got := w.Check(us); got != tt.want {
				t.Errorf("Check(%s) = %q, want %q", tt.at, got, tt.want)
			}
			if expired := w.Expired(usagedoc.DayOf(us)); expired != (tt.want == usagedoc.TooOld) {
				t.Errorf("the index of %s is expired: %v", tt.at, expired)
			}
		})
	}
}
