package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// pinned are the metrics whose names are part of the product's face.
var pinned = []string{"ratelimit_decisions_total", "ratelimit_decision_latency_seconds", "ratelimit_redis_fallback_total"}

// refusedLabels have no bound: their values are chosen by customers.
var refusedLabels = []string{
	"tenant", "tenant_id", "application", "application_id", "user", "user_id", "api_key", "key", "path", "url", "uri", "endpoint",
	"service_id", "rule", "rule_id", "ip", "client_ip", "address", "host", "method", "meter", "id",
}

var (
	metricName = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	scaledUnit = regexp.MustCompile(`_(ms|millis|milliseconds|us|micros|microseconds|ns|nanoseconds|minutes|hours|kb|mb|kilobytes|megabytes|percent)(_|$)`)
)

// A metric is one construction of a Prometheus metric in the source.
type metric struct {
	where  string // file:line
	kind   string // Counter, Gauge, Histogram, Summary, or "" when unknown
	name   string // empty when it is not written out
	help   string
	labels []string
}

// faults lists what is wrong with a metric of the package.
func (m metric) faults(pkg string) []string {
	var out []string
	fault := func(format string, args ...any) {
		out = append(out, m.where+": "+fmt.Sprintf(format, args...))
	}
	if m.name == "" {
		fault("the metric's name is not one literal: nobody can find it by searching")
		return out
	}
	if want := prefix(pkg); !slices.Contains(pinned, m.name) && !strings.HasPrefix(m.name, want) {
		fault("%s does not begin with %s", m.name, want)
	}
	if !metricName.MatchString(m.name) {
		fault("%s is not snake_case", m.name)
	}
	if scaledUnit.MatchString(m.name) {
		fault("%s is not in base units (seconds, bytes, ratio)", m.name)
	}
	if total := strings.HasSuffix(m.name, "_total"); m.kind != "" && total != (m.kind == "Counter") {
		fault("%s is a %s: counters and nothing else end in _total", m.name, m.kind)
	}
	if m.help == "" {
		fault("%s has no help", m.name)
	}
	for _, l := range m.labels {
		if slices.Contains(refusedLabels, l) {
			fault("%s has the label %s, whose values have no bound (docs/adr/0019)", m.name, l)
		}
	}
	return out
}

// prefix is how the metrics of a package begin: by service, or by the shared
// package that has them.
func prefix(pkg string) string {
	if s := service(pkg); s != "" {
		return "penstock_" + strings.ReplaceAll(s, "-", "_") + "_"
	}
	shared := strings.TrimPrefix(pkg, "services/internal/")
	return "penstock_" + strings.ReplaceAll(strings.SplitN(shared, "/", 2)[0], "-", "_") + "_"
}

// TestMetrics guarantees that every metric in the source tells its owner, its
// unit and its meaning in its name and help, and has no label without a bound;
// and that every metric that a page tells an operator to watch is one of them.
func TestMetrics(t *testing.T) {
	t.Parallel()

	named := map[string]bool{}
	for _, p := range packages(t) {
		if !within(p.rel(), "services") || kit(p.rel()) {
			continue
		}
		for _, name := range p.GoFiles {
			for _, m := range metrics(t, filepath.Join(p.Dir, name), nil) {
				named[m.name] = true
				for _, f := range m.faults(p.rel()) {
					t.Errorf("%s", f)
				}
			}
		}
	}
	if len(named) == 0 {
		t.Error("no metric was found: the search no longer finds what it looks for")
	}
	mention := regexp.MustCompile(`\b(?:penstock|ratelimit)_[a-z0-9_]+[a-z0-9]\b`)
	series := regexp.MustCompile(`_(bucket|sum|count)$`)
	files(t, func(name string) {
		if !within(name, "services") || path.Base(name) != "README.md" {
			return
		}
		for _, m := range mention.FindAllString(read(t, name), -1) {
			if !named[m] && !named[series.ReplaceAllString(m, "")] && !slices.Contains(notMetrics, m) {
				t.Errorf("%s tells of the metric %s, which nobody exposes", name, m)
			}
		}
	})
}

// notMetrics are other things with such names: the replication slot and the
// publication.
var notMetrics = []string{"penstock_relay", "penstock_outbox"}

// TestMetricFaultsAreFound guarantees that each rule about metrics can fail.
func TestMetricFaultsAreFound(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name, src string
		faults    int
	}{
		{"a counter in form passes", `prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_gateway_x_total", Help: "X."})`, 0},
		{"another's name fails", `prometheus.NewCounter(prometheus.CounterOpts{Name: "x_total", Help: "X."})`, 1},
		{"a pinned name passes", `prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ratelimit_decisions_total", Help: "X."}, []string{"outcome"})`, 0},
		{"a counter without _total fails", `prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_gateway_x", Help: "X."})`, 1},
		{"a gauge with _total fails", `prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_gateway_x_total", Help: "X."})`, 1},
		{"milliseconds fail", `prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_gateway_lag_ms", Help: "X."})`, 1},
		{"no help fails", `prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_gateway_lag_seconds"})`, 1},
		{"a name that is put together fails", `prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "lag_seconds", Help: "X."})`, 1},
		{"a tenant as label fails", `prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "penstock_gateway_lag_seconds", Help: "X."}, []string{"tenant"})`, 1},
		{"a metric that goes through a helper is found too", `counter(reg, prometheus.CounterOpts{Name: "x_total", Help: "X."})`, 1},
		{"a described metric is found too", `prometheus.NewDesc("lag_seconds", "X.", []string{"key"}, nil)`, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			found := metrics(t, "x.go", "package x\nvar _ = "+tt.src)
			if len(found) != 1 {
				t.Fatalf("found %d metrics, want 1", len(found))
			}
			if got := found[0].faults("services/gateway/observe"); len(got) != tt.faults {
				t.Errorf("faults %q, want %d", got, tt.faults)
			}
		})
	}
}

// metrics finds the metrics that a file constructs; src, when not nil, is its
// text.
func metrics(t *testing.T, name string, src any) []metric {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return nil
	}
	var out []metric
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		m := metric{where: fset.Position(call.Pos()).String()}
		if called := selector(call.Fun); strings.HasSuffix(called, ".NewDesc") && len(call.Args) >= 3 {
			m.name, m.help, m.labels = literal(call.Args[0]), literal(call.Args[1]), literals(call.Args[2])
			if strings.HasSuffix(m.name, "_total") {
				m.kind = "Counter"
			}
			out = append(out, m)
		}
		for i, arg := range call.Args {
			if !options(arg, &m) {
				continue
			}
			if i+1 < len(call.Args) {
				m.labels = literals(call.Args[i+1])
			}
			out = append(out, m)
		}
		return true
	})
	return out
}

// options reads a literal of prometheus.XOpts into m, and reports whether e is
// one.
func options(e ast.Expr, m *metric) bool {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return false
	}
	kind, ok := strings.CutPrefix(selector(lit.Type), "prometheus.")
	if !ok || !strings.HasSuffix(kind, "Opts") || kind == "HandlerOpts" || strings.Contains(kind, "Collector") {
		return false
	}
	m.kind = strings.TrimSuffix(strings.TrimSuffix(kind, "Opts"), "Vec")
	for _, el := range lit.Elts {
		kv, ok := el.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		switch key, _ := kv.Key.(*ast.Ident); key.Name {
		case "Name":
			m.name = literal(kv.Value)
		case "Help":
			m.help = literal(kv.Value)
		}
	}
	return true
}

func literal(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return s
}

func literals(e ast.Expr) []string {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return nil
	}
	var out []string
	for _, el := range lit.Elts {
		out = append(out, literal(el))
	}
	return out
}
