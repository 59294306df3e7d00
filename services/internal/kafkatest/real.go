package kafkatest

import (
	"testing"

	"penstock.dev/deploy/local/server"
)

// StartReal runs one node of Apache Kafka until the test ends. It has no schema
// registry, takes seconds to start, compacts when it likes, and fails only by
// Stop. Topics can be given what makes it compact soon: Compacting.
func StartReal(t testing.TB) *Broker {
	t.Helper()
	p, err := server.StartKafka(t.Context(), t.TempDir(), server.KafkaOptions{})
	if err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	b := &Broker{t: t, real: p, Brokers: []string{p.Addr}}
	t.Cleanup(b.stop)
	return b
}

// Compacting is the configuration of a topic that Apache Kafka compacts within
// seconds, as long as it is written to, and whose tombstones vanish as soon.
// The policy includes delete, without which DeleteRecords is refused.
func Compacting() []string {
	return []string{
		"cleanup.policy", "compact,delete", "retention.ms", "-1", "segment.ms", "1000", "delete.retention.ms", "1000",
		"max.compaction.lag.ms", "2000", "min.cleanable.dirty.ratio", "0.01",
	}
}
