package kafka_test

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http/httptest"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"penstock.dev/services/internal/kafka"
)

// TestTLS guarantees that Config.TLS covers every connection: the producer's,
// the administrator's and the reader's; and that a stranger's certificate is
// refused.
func TestTLS(t *testing.T) {
	t.Parallel()
	issuer := httptest.NewUnstartedServer(nil) // has a certificate for 127.0.0.1
	issuer.StartTLS()
	t.Cleanup(issuer.Close)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(&tls.Config{Certificates: issuer.TLS.Certificates, MinVersion: tls.VersionTLS13}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	trusted := x509.NewCertPool()
	trusted.AddCert(issuer.Certificate())
	open := func(roots *x509.CertPool) *kafka.Client {
		c, err := kafka.New(kafka.Config{
			Brokers: cluster.ListenAddrs(), TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13},
		}, slog.New(slog.DiscardHandler), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	c := open(trusted)
	if err := c.EnsureTopics(t.Context(), []kafka.Topic{{Name: "rules", Partitions: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := produce(t, c, kafka.Record{Topic: "rules", Key: []byte("a"), Value: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	read(t, c, "rules").wait(t, "a=1", "caught up")
	if err := open(x509.NewCertPool()).Ping(t.Context()); err == nil {
		t.Error("Ping of a broker with a stranger's certificate = nil, want an error")
	}
}
