package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.dev/services/internal/conf"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

const (
	user     = "usage-indexer"
	password = "correct horse"
)

// enter is the configuration of a client that a secure broker lets in.
func enter(b *kafkatest.Broker, s kafkatest.Security) kafka.Config {
	c := kafka.Config{Brokers: b.Brokers}
	if s.Mechanism != "" {
		c.SASL = kafka.SASL{Mechanism: s.Mechanism, User: s.User, Password: conf.NewSecret(s.Password)}
	}
	if s.Authority != nil {
		c.TLS = &kafka.TLS{CAFile: s.Authority.File}
		if s.ClientCerts {
			own := s.Authority.Issue("client", time.Now().Add(time.Hour))
			c.TLS.CertFile, c.TLS.KeyFile = own.Cert, own.Key
		}
	}
	return c
}

// openConfig returns a client that logs to the given buffer, nil for nowhere.
func openConfig(t *testing.T, cfg kafka.Config, out *logBuffer) *kafka.Client {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if out != nil {
		log = slog.New(slog.NewTextHandler(out, nil))
	}
	c, err := kafka.New(cfg, log, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A logBuffer keeps a log for a test.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// securities are the ways in that the brokers of this package's tests offer.
func securities(t *testing.T) map[string]kafkatest.Security {
	t.Helper()
	ca := kafkatest.NewAuthority(t)
	return map[string]kafkatest.Security{
		"TLS":                          {Authority: ca},
		"TLS with client certificates": {Authority: ca, ClientCerts: true},
		"PLAIN over TLS":               {Authority: ca, Mechanism: kafka.SASLPlain, User: user, Password: password},
		"SCRAM-SHA-256 over TLS":       {Authority: ca, Mechanism: kafka.SASLScramSHA256, User: user, Password: password},
		"SCRAM-SHA-512 over TLS":       {Authority: ca, Mechanism: kafka.SASLScramSHA512, User: user, Password: password},
		"SCRAM-SHA-512 without TLS":    {Mechanism: kafka.SASLScramSHA512, User: user, Password: password},
	}
}

// TestSecurity guarantees that credentials and certificates cover every
// connection: the producer's, the administrator's, the log reader's and the
// group's.
func TestSecurity(t *testing.T) {
	t.Parallel()
	for name, s := range securities(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := kafkatest.StartSecure(t, s)
			works(t, openConfig(t, enter(b, s), nil), "usage")
		})
	}
}

// works uses everything a client can do.
func works(t *testing.T, c *kafka.Client, topic string) {
	t.Helper()
	if err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.EnsureTopics(t.Context(), []kafka.Topic{{Name: topic, Partitions: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := produce(t, c, kafka.Record{Topic: topic, Key: []byte("a"), Value: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	read(t, c, topic).wait(t, "a=1", "caught up")
	var l ledger
	join(t, c, kafka.Group{ID: "indexer", Topics: []string{topic}}, &worker{ledger: &l})
	kafkatest.Eventually(t, func() bool { return l.count() == 1 }, "the record in the group")
	committed(t, c, "indexer", topic)
}

// TestSecurityRefusals guarantees that what keeps a client out is said, in the
// log and to /ready, with the knob to look at and without the password; that
// nothing ends because of it; that the client does not knock more than a few
// times a second; and that it goes on by itself once it is let in.
func TestSecurityRefusals(t *testing.T) {
	t.Parallel()
	ca, stranger := kafkatest.NewAuthority(t), kafkatest.NewAuthority(t)
	expired := time.Now().Add(-time.Hour)
	login := kafkatest.Security{Authority: ca, Mechanism: kafka.SASLScramSHA256, User: user, Password: password}
	for _, tt := range []struct {
		name   string
		broker kafkatest.Security
		change func(*kafka.Config)
		want   []string
	}{
		{
			"a wrong password", login, func(c *kafka.Config) { c.SASL.Password = conf.NewSecret("wrong") },
			[]string{"-kafka-password (PENSTOCK_KAFKA_PASSWORD)", "refuse the login"},
		},
		{
			"a wrong mechanism", login, func(c *kafka.Config) { c.SASL.Mechanism = kafka.SASLPlain },
			[]string{"-kafka-sasl (PENSTOCK_KAFKA_SASL)"},
		},
		{
			"an unknown authority", login, func(c *kafka.Config) { c.TLS.CAFile = stranger.File },
			[]string{"-kafka-ca-file (PENSTOCK_KAFKA_CA_FILE)", "signed by nobody"},
		},
		{
			"an authority that only the file names", login, func(c *kafka.Config) { c.TLS.CAFile = "" },
			[]string{"-kafka-ca-file (PENSTOCK_KAFKA_CA_FILE)", "the system trusts"},
		},
		{
			"an expired broker",
			kafkatest.Security{Authority: ca, CertEnd: expired},
			nil,
			[]string{"certificate", expired.UTC().Format(time.RFC3339), "-kafka-ca-file"},
		},
		{
			"a broker with another's name",
			kafkatest.Security{Authority: ca, CertHost: "kafka.example"},
			nil,
			[]string{"not for the host", "kafka.example", "-kafka-brokers (PENSTOCK_KAFKA_BROKERS)"},
		},
		{
			"no client certificate",
			kafkatest.Security{Authority: ca, ClientCerts: true},
			func(c *kafka.Config) { c.TLS.CertFile, c.TLS.KeyFile = "", "" },
			[]string{"-kafka-cert-file (PENSTOCK_KAFKA_CERT_FILE)"},
		},
		{
			"no TLS at the broker",
			kafkatest.Security{},
			func(c *kafka.Config) { c.TLS = &kafka.TLS{CAFile: ca.File} },
			[]string{"-kafka-tls (PENSTOCK_KAFKA_TLS)"},
		},
		{
			"no TLS here",
			kafkatest.Security{Authority: ca},
			func(c *kafka.Config) { c.TLS = nil },
			[]string{"-kafka-tls (PENSTOCK_KAFKA_TLS)"},
		},
		{
			"nobody logged in", login, func(c *kafka.Config) { c.SASL = kafka.SASL{} },
			[]string{"-kafka-sasl (PENSTOCK_KAFKA_SASL)"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := kafkatest.StartSecure(t, tt.broker)
			cfg := enter(b, tt.broker)
			if tt.change != nil {
				tt.change(&cfg)
			}
			isRefused(t, cfg, tt.want)
		})
	}
}

func isRefused(t *testing.T, cfg kafka.Config, want []string) {
	t.Helper()
	gate := kafkatest.NewGate(t, cfg.Brokers[0])
	cfg.Brokers = []string{gate.Addr}
	var out logBuffer
	c := openConfig(t, cfg, &out)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ends sync.WaitGroup
	begin := time.Now()
	for _, run := range []func() error{
		func() error { return c.ReadLog(ctx, "rules", kafka.LogHandler{}) },
		func() error {
			return c.Consume(ctx, kafka.Group{ID: "g", Topics: []string{"usage"}}, &worker{})
		},
		func() error { return c.EnsureTopics(ctx, []kafka.Topic{{Name: "usage"}}) },
	} {
		ends.Go(func() {
			if err := run(); !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v, want it to wait", err)
			}
		})
	}
	said := func(s string) bool {
		for _, w := range want {
			if !strings.Contains(s, w) {
				return false
			}
		}
		return true
	}
	defer func() {
		if t.Failed() {
			t.Log(out.String())
		}
	}()
	kafkatest.Eventually(t, func() bool { return said(out.String()) }, "a log that says %q", want)
	var err error
	for range 20 { // /ready, asked often
		pctx, stop := context.WithTimeout(t.Context(), 800*time.Millisecond)
		err = c.Ping(pctx)
		stop()
	}
	if err == nil || !said(err.Error()) {
		t.Errorf("Ping = %v, want %q", err, want)
	}
	kafkatest.Eventually(t, func() bool { return time.Since(begin) > 3*time.Second }, "three seconds")
	took := time.Since(begin)
	n := gate.Connections()
	t.Logf("%d connections in %v", n, took)
	if float64(n) > 10+4*took.Seconds() {
		t.Errorf("%d connections in %v: a storm", n, took)
	}
	cancel()
	ends.Wait()
	if s := out.String(); strings.Contains(s, password) || strings.Contains(s, "wrong\"") {
		t.Errorf("the log shows a password:\n%s", s)
	}
}

// TestSecurityIsMended guarantees that files are read at every connection: once
// the right ones are in place, a client that was kept out enters without a
// restart.
func TestSecurityIsMended(t *testing.T) {
	t.Parallel()
	ca, stranger := kafkatest.NewAuthority(t), kafkatest.NewAuthority(t)
	s := kafkatest.Security{Authority: ca}
	b := kafkatest.StartSecure(t, s)
	file := t.TempDir() + "/ca.pem"
	copyFile(t, stranger.File, file)
	c := openConfig(t, kafka.Config{Brokers: b.Brokers, TLS: &kafka.TLS{CAFile: file}}, nil)
	if err := c.Ping(t.Context()); err == nil {
		t.Fatal("Ping of a stranger = nil, want an error")
	}
	copyFile(t, ca.File, file)
	kafkatest.Eventually(t, func() bool { return c.Ping(t.Context()) == nil }, "to be let in")
	works(t, c, "usage")
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
