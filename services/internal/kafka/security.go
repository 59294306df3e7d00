package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"penstock.dev/services/internal/conf"
)

// dialTimeout bounds opening a connection, handshakeTimeout the part of TLS: a
// server that does not speak it may wait for more instead of saying so.
const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 3 * time.Second
)

// TLS says how connections are secured. The files are read again for every new
// connection, so a renewed certificate is taken up without a restart.
type TLS struct {
	// CAFile holds, as PEM, the certificates of those who may sign a server's.
	// Empty means whom the system trusts.
	CAFile string
	// CertFile and KeyFile hold, as PEM, this client's certificate with the
	// chain that leads to its issuer, and its key. Both or neither.
	CertFile string
	KeyFile  string
}

// Validate reads the files and returns every fault at once, or nil.
func (t TLS) Validate() error {
	_, err1 := t.roots()
	_, err2 := t.certificate(time.Now())
	return errors.Join(err1, err2)
}

// roots returns who is trusted; nil is whom the system trusts.
func (t TLS) roots() (*x509.CertPool, error) {
	if t.CAFile == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", knobCAFile, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: %s holds no certificate in PEM", knobCAFile, t.CAFile)
	}
	return pool, nil
}

// certificate returns the client's own, none when there is no file.
func (t TLS) certificate(now time.Time) ([]tls.Certificate, error) {
	switch {
	case t.CertFile == "" && t.KeyFile == "":
		return nil, nil
	case t.KeyFile == "":
		return nil, fmt.Errorf("%s: empty, and %s is not", knobKeyFile, knobCertFile)
	case t.CertFile == "":
		return nil, fmt.Errorf("%s: empty, and %s is not", knobCertFile, knobKeyFile)
	}
	cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", knobCertFile, knobKeyFile, err)
	}
	if end := cert.Leaf.NotAfter; now.After(end) {
		return nil, fmt.Errorf("%s: the certificate expired at %s", knobCertFile, end.UTC().Format(time.RFC3339))
	}
	return []tls.Certificate{cert}, nil
}

// dial opens a secured connection to addr, host:port.
func (t TLS) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	roots, err := t.roots()
	if err != nil {
		return nil, err
	}
	own, err := t.certificate(time.Now())
	if err != nil {
		return nil, err
	}
	bare, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(bare, &tls.Config{RootCAs: roots, Certificates: own, ServerName: host, MinVersion: tls.VersionTLS12})
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = bare.Close()
		return nil, t.explain(err)
	}
	return conn, nil
}

// explain says which setting a failed handshake is about.
func (t TLS) explain(err error) error {
	var (
		stranger x509.UnknownAuthorityError
		invalid  x509.CertificateInvalidError
		host     x509.HostnameError
		header   tls.RecordHeaderError
	)
	hint := ""
	switch {
	case errors.As(err, &stranger) && t.CAFile == "":
		hint = "the server's certificate is signed by nobody the system trusts; name its issuer with " + knobCAFile.String()
	case errors.As(err, &stranger):
		hint = "the server's certificate is signed by nobody in " + t.CAFile + "; see " + knobCAFile.String()
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		hint = "the server's certificate, or its issuer's, is not valid now"
		if invalid.Cert != nil {
			hint = fmt.Sprintf("the certificate of the server, or of its issuer in %s, is valid from %s to %s only", knobCAFile,
				invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
		}
	case errors.As(err, &host):
		hint = fmt.Sprintf("the server's certificate is for %v and not for the host in %s or %s", hosts(host.Certificate), knobBrokers, knobRegistry)
	case errors.As(err, &header), errors.Is(err, io.EOF), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the server does not speak TLS there, see %s (%s)", knobTLS, err.Error()) // not wrapped: see visit.explain
	case remote(err):
		hint = "the server refuses this client's certificate, or wants one; see " + knobCertFile.String()
	default:
		return err
	}
	return fmt.Errorf("%s: %w", hint, err)
}

// hosts are the names and addresses that a certificate is for.
func hosts(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

// remote reports whether the other side refused to go on. With TLS 1.3 that is
// learned from the first read.
func remote(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// SASL says who the client is to the brokers. The zero SASL is nobody.
type SASL struct {
	Mechanism string // PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty for none
	User      string
	Password  conf.Secret
}

// Mechanisms of SASL.
const (
	SASLPlain       = "PLAIN"
	SASLScramSHA256 = "SCRAM-SHA-256"
	SASLScramSHA512 = "SCRAM-SHA-512"
)

// Validate returns every fault at once, or nil.
func (s SASL) Validate() error {
	var faults []error
	refuse := func(ok bool, k knob, problem string) {
		if !ok {
			faults = append(faults, fmt.Errorf("%s: %s", k, problem))
		}
	}
	switch s.Mechanism {
	case "":
		refuse(s.User == "", knobUser, "has no effect without "+knobSASL.String())
		refuse(s.Password.Reveal() == "", knobPassword, "has no effect without "+knobSASL.String())
	case SASLPlain, SASLScramSHA256, SASLScramSHA512:
		refuse(s.User != "", knobUser, "empty")
		refuse(s.Password.Reveal() != "", knobPassword, "empty")
	default:
		refuse(false, knobSASL, fmt.Sprintf("%q is not one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512", s.Mechanism))
	}
	return errors.Join(faults...)
}

// mechanism returns the library's, nil for none.
func (s SASL) mechanism() sasl.Mechanism {
	switch s.Mechanism {
	case SASLPlain:
		return plain.Auth{User: s.User, Pass: s.Password.Reveal()}.AsMechanism()
	case SASLScramSHA256:
		return scram.Auth{User: s.User, Pass: s.Password.Reveal()}.AsSha256Mechanism()
	case SASLScramSHA512:
		return scram.Auth{User: s.User, Pass: s.Password.Reveal()}.AsSha512Mechanism()
	}
	return nil
}
