//go:build integration

package kafka_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock.dev/services/internal/conf"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// TestIntegrationKafka runs what follows on one Apache Kafka.
func TestIntegrationKafka(t *testing.T) {
	t.Parallel()
	b := kafkatest.StartReal(t)
	t.Run("log", func(t *testing.T) { readsLogs(t, b) })
	t.Run("produce", func(t *testing.T) { produces(t, b) })
	t.Run("group", func(t *testing.T) {
		goesOn(t, b)
		rebalances(t, b)
		fromEnd(t, b)
		kills(t, b)
		restarts(t, b)
	})
	t.Run("transact", func(t *testing.T) {
		transacts(t, b)
		readsPartitions(t, b)
	})
	t.Run("replay", func(t *testing.T) {
		b.CreateTopic("replay", 4)
		stamped(b, "replay", 0, 30)
		b.Abort(kafkatest.Record{Topic: "replay", Partition: 0, Key: "a", Value: []byte("31")})
		replays(t, b, open(t, b), "replay", noon.Add(15*time.Second), 15)
	})
}

// TestIntegrationKafkaSecurity guarantees on Apache Kafka what TestSecurity and
// TestSecurityRefusals guarantee on the development broker: every way in works
// for every connection, and what keeps a client out is said with the knob to
// look at, without a storm of connections.
func TestIntegrationKafkaSecurity(t *testing.T) {
	t.Parallel()
	s := kafkatest.Security{Authority: kafkatest.NewAuthority(t), User: user, Password: password}
	b := kafkatest.StartRealSecure(t, s)
	own := s.Authority.Issue("client", time.Now().Add(time.Hour))
	login := func(mechanism, password string) kafka.Config {
		return kafka.Config{
			Brokers: []string{b.Login}, TLS: &kafka.TLS{CAFile: s.Authority.File},
			SASL: kafka.SASL{Mechanism: mechanism, User: user, Password: conf.NewSecret(password)},
		}
	}
	cert := kafka.Config{Brokers: []string{b.Cert}, TLS: &kafka.TLS{CAFile: s.Authority.File, CertFile: own.Cert, KeyFile: own.Key}}
	for name, cfg := range map[string]kafka.Config{
		"plain": login(kafka.SASLPlain, password), "scram256": login(kafka.SASLScramSHA256, password),
		"scram512": login(kafka.SASLScramSHA512, password), "cert": cert,
	} {
		t.Run(name, func(t *testing.T) { works(t, openConfig(t, cfg, nil), name) })
	}
	change := func(cfg kafka.Config, change func(*kafka.Config)) kafka.Config {
		files := *cfg.TLS
		cfg.TLS = &files
		change(&cfg)
		return cfg
	}
	for _, tt := range []struct {
		name string
		cfg  kafka.Config
		want []string
	}{
		{"a wrong password, PLAIN", login(kafka.SASLPlain, "wrong"), []string{"-kafka-password (PENSTOCK_KAFKA_PASSWORD)", "SASL_AUTHENTICATION_FAILED"}},
		{"a wrong password, SCRAM", login(kafka.SASLScramSHA512, "wrong"), []string{"-kafka-password (PENSTOCK_KAFKA_PASSWORD)", "SASL_AUTHENTICATION_FAILED"}},
		{"an unknown authority", change(cert, func(c *kafka.Config) { c.TLS.CAFile = kafkatest.NewAuthority(t).File }), []string{"-kafka-ca-file (PENSTOCK_KAFKA_CA_FILE)"}},
		{"no client certificate", change(cert, func(c *kafka.Config) { c.TLS.CertFile, c.TLS.KeyFile = "", "" }), []string{"-kafka-cert-file (PENSTOCK_KAFKA_CERT_FILE)"}},
		{"an expired broker", change(cert, func(c *kafka.Config) { c.Brokers = []string{b.Expired} }), []string{"certificate", "valid from", "-kafka-ca-file"}},
		{"TLS to a plain listener", change(cert, func(c *kafka.Config) { c.Brokers = b.Brokers }), []string{"-kafka-tls (PENSTOCK_KAFKA_TLS)"}},
		{"plain to a TLS listener", kafka.Config{Brokers: []string{b.Cert}}, []string{"-kafka-tls (PENSTOCK_KAFKA_TLS)"}},
		{"nobody logs in", change(login(kafka.SASLPlain, password), func(c *kafka.Config) { c.SASL = kafka.SASL{} }), []string{"-kafka-sasl (PENSTOCK_KAFKA_SASL)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			isRefused(t, tt.cfg, tt.want)
		})
	}
}

// readsLogs guarantees on Apache Kafka what the other tests guarantee on the
// development broker: the end is found whatever the tail looks like, compaction
// included, a restart repeats nothing, and a topic made anew is read from its
// start.
func readsLogs(t *testing.T, b *kafkatest.Broker) {
	t.Helper()
	for i, tt := range tails {
		t.Run(tt.name, func(t *testing.T) { tt.catchesUp(t, b, "log-"+strconv.Itoa(i), kafkatest.Compacting()...) })
	}
	t.Run("compaction left gaps", func(t *testing.T) {
		b.CreateTopic("compacted", 1, kafkatest.Compacting()...)
		put(b, "compacted", "a", "1", "b", "2", "b", "nil")
		beat := 0
		kafkatest.Eventually(t, func() bool { // only what is behind the newest segment is compacted
			beat++
			put(b, "compacted", "a", strconv.Itoa(beat))
			return !slices.ContainsFunc(b.Consume("compacted"), func(r kafkatest.Record) bool { return r.Key == "b" })
		}, "compaction to remove the record and its tombstone")
		j := read(t, open(t, b), "compacted")
		kafkatest.Eventually(t, func() bool { return slices.Contains(j.all(), "caught up") }, "the end")
		if got := j.all(); got[len(got)-2] != "a="+strconv.Itoa(beat) || slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "b") }) {
			t.Errorf("journal %v, want it to end in a=%d, without b", got, beat)
		}
	})
	t.Run("a restart", func(t *testing.T) {
		b.CreateTopic("restarted", 2)
		put(b, "restarted", "a", "1")
		j := read(t, open(t, b), "restarted")
		j.wait(t, "a=1", "caught up")
		b.Stop()
		b.Start()
		put(b, "restarted", "a", "2")
		j.wait(t, "a=1", "caught up", "a=2")
	})
	t.Run("a topic made anew", func(t *testing.T) {
		b.CreateTopic("anew", 1)
		put(b, "anew", "a", "1")
		j := read(t, open(t, b), "anew")
		j.wait(t, "a=1", "caught up")
		b.DeleteTopic("anew")
		kafkatest.Eventually(t, func() bool { return b.Consume("anew") == nil }, "the deletion")
		b.CreateTopic("anew", 1)
		put(b, "anew", "b", "2")
		// The new topic may be found, and found empty, before the record is there.
		kafkatest.Eventually(t, func() bool {
			got := j.all()
			return len(got) == 5 && slices.Equal(got[:3], []string{"a=1", "caught up", "recreated"}) &&
				slices.Contains(got[3:], "b=2") && slices.Contains(got[3:], "caught up")
		}, "recreated, then the record and the end")
	})
}

// produces guarantees on Apache Kafka that a restart under load loses nothing,
// doubles nothing and keeps the order, that topics are made as asked, and that
// keys go where Java's client puts them.
func produces(t *testing.T, b *kafkatest.Broker) {
	t.Helper()
	const total = 3000
	c := open(t, b)
	rules := kafka.Topic{Name: "rules.v1", Partitions: 1, Config: map[string]string{"cleanup.policy": "compact"}}
	for range 2 {
		if err := c.EnsureTopics(t.Context(), []kafka.Topic{rules, {Name: "usage.v1", Partitions: 6}}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := c.Partitions(t.Context(), "usage.v1"); n != 6 || err != nil {
		t.Errorf("Partitions = %d, %v, want 6", n, err)
	}
	err := c.EnsureTopics(t.Context(), []kafka.Topic{{Name: "too.many", Partitions: 1, Replication: 3}})
	if err == nil || !strings.Contains(err.Error(), "INVALID_REPLICATION_FACTOR") {
		t.Errorf("three replicas on one broker = %v, want INVALID_REPLICATION_FACTOR", err)
	}
	var stored, failed atomic.Int64
	for i := range total {
		if i == total/2 {
			b.Stop()
			go b.Start()
		}
		r := kafka.Record{Topic: "usage.v1", Key: []byte("acme"), Value: []byte(strconv.Itoa(i))}
		c.Produce(t.Context(), r, func(err error) {
			if err != nil {
				failed.Add(1)
			} else {
				stored.Add(1)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*kafkatest.Patience)
	defer cancel()
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if stored.Load() != total || failed.Load() != 0 {
		t.Errorf("%d stored, %d failed, want %d stored", stored.Load(), failed.Load(), total)
	}
	got := b.Consume("usage.v1")
	if len(got) != total || got[0].Partition != kafka.PartitionOf([]byte("acme"), 6) {
		t.Fatalf("%d records from partition %d on, want %d in %d", len(got), got[0].Partition, total, kafka.PartitionOf([]byte("acme"), 6))
	}
	for i, r := range got {
		if string(r.Value) != strconv.Itoa(i) {
			t.Fatalf("record %d is %s: lost, doubled or out of order", i, r.Value)
		}
	}
}
