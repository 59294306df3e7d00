package kafkatest

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"penstock.dev/deploy/local/server"
)

var loopback = []net.IP{net.IPv4(127, 0, 0, 1)}

// Security is what a broker asks of those who connect.
type Security struct {
	// Mechanism, User and Password let one user in: PLAIN, SCRAM-SHA-256 or
	// SCRAM-SHA-512. An empty mechanism asks nobody.
	Mechanism, User, Password string
	// Authority signs the broker's certificate, which ends at CertEnd, zero for
	// a day from now, and is for CertHost, empty for the broker's own address.
	// A nil authority means no TLS.
	Authority *Authority
	CertEnd   time.Time
	CertHost  string
	// ClientCerts has the broker refuse clients without a certificate that the
	// authority signed.
	ClientCerts bool
}

func (s Security) issue() Files {
	end := s.CertEnd
	if end.IsZero() {
		end = time.Now().Add(24 * time.Hour)
	}
	if s.CertHost != "" {
		return s.Authority.IssueFor(s.CertHost)
	}
	return s.Authority.Issue("broker", end)
}

func (s Security) mechanism() sasl.Mechanism {
	auth := scram.Auth{User: s.User, Pass: s.Password}
	switch s.Mechanism {
	case "PLAIN":
		return plain.Auth{User: s.User, Pass: s.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return auth.AsSha256Mechanism()
	}
	return auth.AsSha512Mechanism()
}

// StartSecure runs an empty broker that lets in only whom s describes, until
// the test ends. It has no schema registry.
func StartSecure(t testing.TB, s Security) *Broker {
	t.Helper()
	port, err := server.FreePort(t.Context())
	if err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	b := &Broker{t: t, secure: &s, port: port, dir: t.TempDir()}
	t.Cleanup(b.stop)
	b.Start()
	return b
}

// startSecure starts or restarts a broker of StartSecure.
func (b *Broker) startSecure() {
	b.t.Helper()
	b.options = nil
	opts := []kfake.Opt{
		kfake.NumBrokers(1), kfake.Ports(b.port), kfake.DataDir(b.dir),
	}
	if s := b.secure; s.Mechanism != "" {
		opts = append(opts, kfake.EnableSASL(), kfake.Superuser(s.Mechanism, s.User, s.Password))
		b.options = append(b.options, kgo.SASL(s.mechanism()))
	}
	if s := b.secure; s.Authority != nil {
		opts = append(opts, kfake.TLS(b.serverTLS()))
		b.options = append(b.options, kgo.DialTLSConfig(b.clientTLS()))
	}
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		b.t.Fatalf("kafkatest: %v", err)
	}
	b.cluster, b.Brokers = cluster, cluster.ListenAddrs()
}

func (b *Broker) serverTLS() *tls.Config {
	b.t.Helper()
	files := b.secure.issue()
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		b.t.Fatalf("kafkatest: %v", err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	if b.secure.ClientCerts {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, b.secure.Authority.pool()
	}
	return c
}

// clientTLS is that of the kit's own clients.
func (b *Broker) clientTLS() *tls.Config {
	b.t.Helper()
	files := b.secure.Authority.Issue("kafkatest", time.Now().Add(time.Hour))
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		b.t.Fatalf("kafkatest: %v", err)
	}
	return &tls.Config{
		RootCAs: b.secure.Authority.pool(), Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12,
	}
}

// ServerTLS is the configuration of a server on this machine that takes any
// client certificate of the authority, and none.
func (a *Authority) ServerTLS() *tls.Config {
	a.t.Helper()
	files := a.Issue("server", time.Now().Add(24*time.Hour))
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		a.t.Fatalf("kafkatest: %v", err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{cert}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: a.pool(), MinVersion: tls.VersionTLS12,
	}
}

func (a *Authority) pool() *x509.CertPool {
	a.t.Helper()
	pem, err := os.ReadFile(a.File)
	if err != nil {
		a.t.Fatalf("kafkatest: %v", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return pool
}

// A SecureReal is a node of Apache Kafka with listeners that ask who connects.
// The Broker's own methods use a plain one.
type SecureReal struct {
	*Broker
	Login   string // TLS and a login by any of the three mechanisms
	Cert    string // TLS with a client certificate
	Expired string // TLS with a broker certificate that has expired
}

// StartRealSecure runs one node of Apache Kafka until the test ends. Its
// authority, user and password are those of s; the rest of s is not used.
func StartRealSecure(t testing.TB, s Security) *SecureReal {
	t.Helper()
	var ports [5]int
	for i := range ports {
		port, err := server.FreePort(t.Context())
		if err != nil {
			t.Fatalf("kafkatest: %v", err)
		}
		ports[i] = port
	}
	at := func(i int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[i])) }
	outside := "PLAINTEXT://" + at(0) + ",LOGIN://" + at(2) + ",CERT://" + at(3) + ",EXPIRED://" + at(4)
	p, err := server.StartKafka(t.Context(), t.TempDir(), server.KafkaOptions{
		Port: ports[0], ControllerPort: ports[1],
		Properties: []string{
			"listeners=CONTROLLER://" + at(1) + "," + outside,
			"advertised.listeners=" + outside,
			"listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,LOGIN:SASL_SSL,CERT:SSL,EXPIRED:SSL",
			"ssl.keystore.type=PEM",
			"ssl.keystore.location=" + s.issue().Both,
			"ssl.truststore.type=PEM",
			"ssl.truststore.location=" + s.Authority.File,
			"listener.name.expired.ssl.keystore.location=" + s.Authority.Issue("broker", time.Now().Add(-time.Hour)).Both,
			"listener.name.cert.ssl.client.auth=required",
			"listener.name.login.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
			"listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required " +
				"user_" + s.User + "=\"" + s.Password + "\";",
			"listener.name.login.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
			"listener.name.login.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
		},
	})
	if err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	b := &Broker{t: t, real: p, Brokers: []string{p.Addr}}
	t.Cleanup(b.stop)
	b.addUser(s)
	return &SecureReal{Broker: b, Login: at(2), Cert: at(3), Expired: at(4)}
}

// addUser makes the user known to both kinds of SCRAM.
func (b *Broker) addUser(s Security) {
	b.t.Helper()
	cl, ctx, done := b.client()
	defer done()
	for _, m := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} {
		altered, err := kadm.NewClient(cl).AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{
			{User: s.User, Mechanism: m, Iterations: 4096, Password: s.Password},
		})
		if err == nil {
			err = altered.Error()
		}
		b.must(err)
	}
}
