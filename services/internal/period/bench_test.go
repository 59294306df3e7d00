package period_test

import (
	"testing"
	"time"

	"penstock.dev/services/internal/period"
)

// BenchmarkAt publishes what a decision pays for its period.
func BenchmarkAt(b *testing.B) {
	quiet := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	change := time.Date(2026, 3, 8, 7, 30, 0, 0, time.UTC)
	newYork := zone(b, "America/New_York")
	month := period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar, Zone: newYork}
	for _, bb := range []struct {
		name string
		at   func(time.Time) (period.Span, error)
		when time.Time
	}{
		{"month", month.At, quiet},
		{"month with a clock change", month.At, change},
		{"month, anniversary", period.Spec{Unit: period.Month, Count: 1, Alignment: period.Anniversary, Zone: newYork, Anchor: quiet}.At, quiet},
		{"day", period.Spec{Unit: period.Day, Count: 1, Alignment: period.Calendar, Zone: newYork}.At, quiet},
		{"hour", period.Spec{Unit: period.Hour, Count: 1, Alignment: period.Calendar, Zone: newYork}.At, quiet},
		{"hour of a clock change", period.Spec{Unit: period.Hour, Count: 1, Alignment: period.Calendar, Zone: newYork}.At, change},
		{"memo", period.NewMemo(period.Timeline{Current: month}).At, change},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := bb.at(bb.when); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
