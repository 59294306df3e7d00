package topics_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/services/internal/kafka"
)

// BenchmarkReplay measures reading a log of 100,000 rules of as many tenants
// until they are in force and on disk, and what one costs in memory: the rule,
// its places in the index, and its record.
func BenchmarkReplay(b *testing.B) {
	const n = 100_000
	reg, l := &registry{}, newLog()
	a := newAuthor(b, reg)
	records := make([]kafka.Record, n)
	for i := range records {
		id := fmt.Sprintf("override-%d", i)
		records[i] = a.rule(id, 10, func(r *rulesv1.Rule) {
			r.Meter, r.Match = "api-calls", &rulesv1.Match{Tenant: fmt.Sprintf("tenant-%d", i)}
		})
	}
	l.append(records...)
	b.ResetTimer()
	for range b.N {
		dir := b.TempDir()
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		r := start(b, setup{dir: dir, log: l, registry: reg})
		r.ready()
		runtime.GC()
		runtime.ReadMemStats(&after)
		r.stop()
		info, err := os.Stat(filepath.Join(dir, "rules.snapshot"))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/rule")
		b.ReportMetric(float64(info.Size())/n, "disk-B/rule")
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/n, "µs/rule")
}
