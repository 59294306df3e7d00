package kafka_test

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// TestMetricsHaveClosedLabels guarantees that neither topics found in data nor
// brokers become label values, that two clients may share a registry, and that
// a closed client takes its numbers away.
func TestMetricsHaveClosedLabels(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("rules.v1", 1)
	reg := prometheus.NewRegistry()
	var clients []*kafka.Client
	for range 2 {
		c, err := kafka.New(kafka.Config{Brokers: b.Brokers}, slog.New(slog.DiscardHandler), reg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	c := clients[0]
	if err := produce(t, c, kafka.Record{Topic: "rules.v1", Key: []byte("a"), Value: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	if err := produce(t, c, kafka.Record{Topic: "chosen by a stranger"}); !errors.Is(err, kafka.ErrNoTopic) {
		t.Fatal(err)
	}
	read(t, c, "rules.v1").wait(t, "a=1", "caught up")

	allowed := map[string][]string{
		"role":   {"producer", "log rules.v1"},
		"topic":  {"rules.v1"},
		"reason": {"no_topic"},
	}
	values := make(map[string]float64)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "penstock_kafka_") {
			t.Errorf("metric %s, want the prefix penstock_kafka_", f.GetName())
		}
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				if !slices.Contains(allowed[l.GetName()], l.GetValue()) {
					t.Errorf("%s has the label %s=%q", f.GetName(), l.GetName(), l.GetValue())
				}
				name += " " + l.GetValue()
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"penstock_kafka_produce_failures_total no_topic":  1,
		"penstock_kafka_log_caught_up rules.v1":           1,
		"penstock_kafka_produce_records_total producer":   1,
		"penstock_kafka_fetch_records_total log rules.v1": 1,
		"penstock_kafka_log_recreations_total rules.v1":   0,
	} {
		if got := values[name]; got != want {
			t.Errorf("%s = %v, want %v (of %v)", name, got, want, values)
		}
	}
	for _, c := range clients {
		_ = c.Close()
	}
	if n, err := testutil.GatherAndCount(reg, "penstock_kafka_produce_records_total"); n != 0 || err != nil {
		t.Errorf("%d series of a closed client, %v, want none", n, err)
	}
}
