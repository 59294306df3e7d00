//go:build integration

package server_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"penstock.dev/deploy/local/server"
)

// kafkaClient returns a client of brokers that are listed with commas.
func kafkaClient(t *testing.T, brokers string, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	options = append(options, kgo.SeedBrokers(strings.Split(brokers, ",")...), kgo.RecordRetries(100))
	client, err := kgo.NewClient(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// send wants a record to be acknowledged by every replica that is in sync.
func send(t *testing.T, client *kgo.Client, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	record := &kgo.Record{Topic: "numbers", Value: []byte(value)}
	if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
		t.Fatalf("sending %q: %v", value, err)
	}
}

// TestIntegrationKafkaClusterBearsTheLossOfANode guarantees that three nodes
// take writes, go on when any one is killed, take it back when it is restarted,
// and stop together.
func TestIntegrationKafkaClusterBearsTheLossOfANode(t *testing.T) {
	t.Parallel()

	cluster, err := server.StartKafkaCluster(t.Context(), t.TempDir(), server.KafkaClusterOptions{
		Properties: []string{"auto.create.topics.enable=true"}, Run: logged(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	client := kafkaClient(t, cluster.Brokers(), kgo.AllowAutoTopicCreation())
	send(t, client, "all three")
	for _, node := range cluster.Nodes {
		if err := node.Kill(); err != nil {
			t.Fatal(err)
		}
		send(t, client, "without "+node.Name)
		if err := node.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := cluster.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, node := range cluster.Nodes {
		if node.Running() {
			t.Errorf("%s runs after Stop", node.Name)
		}
	}
}

// authority makes certificates of 127.0.0.1 for one test.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  string
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var der []byte
	a.key, der = a.sign(template)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pem = encode("CERTIFICATE", der)
	return a
}

// sign makes a key and a certificate for it, which signs itself when there is
// no authority yet.
func (a *authority) sign(template *x509.Certificate) (*ecdsa.PrivateKey, []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, der
}

// leaf returns a certificate and its key as PEM.
func (a *authority) leaf() (cert, key string) {
	private, der := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "127.0.0.1"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", pkcs8)
}

func encode(kind string, der []byte) string {
	var b bytes.Buffer
	_ = pem.Encode(&b, &pem.Block{Type: kind, Bytes: der}) // a buffer takes everything
	return b.String()
}

// TestIntegrationKafkaKnowsItsClients guarantees that the secure listener lets in
// whoever has the password, by each mechanism, and a certificate where one is
// asked for, and nobody else.
func TestIntegrationKafkaKnowsItsClients(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t)
	cert, key := ca.leaf()
	kafka, err := server.StartKafka(t.Context(), t.TempDir(), server.KafkaOptions{
		Properties: []string{"auto.create.topics.enable=true"},
		Secure:     &server.KafkaSecurity{Certificate: cert, Key: key, ClientCA: ca.pem, User: "ada", Password: "s3cret.-_~"},
		Run:        logged(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	stopLater(t, kafka)

	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	mine, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	known := kgo.DialTLSConfig(&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{mine}, MinVersion: tls.VersionTLS12})
	user := scram.Auth{User: "ada", Pass: "s3cret.-_~"}
	for name, mechanism := range map[string]sasl.Mechanism{
		"PLAIN": plain.Auth{User: user.User, Pass: user.Pass}.AsMechanism(), "SCRAM-SHA-256": user.AsSha256Mechanism(), "SCRAM-SHA-512": user.AsSha512Mechanism(),
	} {
		send(t, kafkaClient(t, kafka.SecureAddr, known, kgo.SASL(mechanism), kgo.AllowAutoTopicCreation()), name)
	}

	for name, options := range map[string][]kgo.Opt{
		"a wrong password": {known, kgo.SASL(plain.Auth{User: "ada", Pass: "secret"}.AsMechanism())},
		"no password":      {known},
		"no certificate":   {kgo.DialTLSConfig(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}), kgo.SASL(user.AsSha256Mechanism())},
		"no TLS":           {kgo.SASL(user.AsSha256Mechanism())},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if err := kafkaClient(t, kafka.SecureAddr, options...).Ping(ctx); err == nil {
			t.Errorf("a client with %s is let in", name)
		}
		cancel()
	}
}
