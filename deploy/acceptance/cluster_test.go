//go:build acceptance && cluster

package acceptance_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/deploy/local/server"
)

// TestThreeNodesOneKilled guarantees that everything works on a cluster of
// three Kafka nodes, and that the loss of one under load loses no event and no
// rule change.
func TestThreeNodesOneKilled(t *testing.T) {
	dir := t.TempDir()
	cluster, err := server.StartKafkaCluster(t.Context(), filepath.Join(dir, "kafka"), server.KafkaClusterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	reg, err := server.StartBroker(t.Context(), filepath.Join(dir, "registry"), server.BrokerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := reg.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	s := own(t, estate.Options{KafkaBrokers: cluster.Brokers(), SchemaRegistryURL: reg.URL, Kafka: estate.Embedded})
	s.put("tenants", churned, estate.Object{"name": "Churn"})
	const rules = 10
	victim := cluster.Nodes[2]
	c := s.load(churned, 4, 2*time.Millisecond, func(c *caller) {
		for i := range rules {
			id, rule := ruleOf(i, int64(1000+i))
			s.put("rules", id, rule)
			switch i {
			case 3:
				if err := victim.Kill(); err != nil {
					t.Fatal(err)
				}
			case 7:
				if err := victim.Restart(s.Context()); err != nil {
					t.Fatal(err)
				}
			}
			c.more(s, 200)
		}
	})
	s.agree(rules)
	s.equal(c.given, s.recorded(churned, c.given), 0)
}
