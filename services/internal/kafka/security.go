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
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"penstock.dev/services/internal/conf"
)

// dialTimeout bounds opening a connection, its TLS handshake included.
const dialTimeout = 10 * time.Second

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
	dialer := tls.Dialer{
		NetDialer: &net.Dialer{},
		Config:    &tls.Config{RootCAs: roots, Certificates: own, ServerName: host, MinVersion: tls.VersionTLS12},
	}
	conn, err := dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, t.explain(err)
	}
	return &explained{Conn: conn, explain: t.explain}, nil
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
		hint = "the server's certificate is not for the host that " + knobBrokers.String() + " or " + knobRegistry.String() + " names"
	case errors.As(err, &header), errors.Is(err, io.EOF):
		hint = "the server does not speak TLS there; see " + knobTLS.String()
	case remote(err):
		hint = "the server refuses this client's certificate, or wants one; see " + knobCertFile.String()
	default:
		return err
	}
	return fmt.Errorf("%s: %w", hint, err)
}

// remote reports whether the other side ended the handshake. With TLS 1.3 that
// is learned from the first read.
func remote(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// explained is a connection whose alerts are explained.
type explained struct {
	net.Conn
	explain func(error) error
}

// Read reads from the connection.
func (c *explained) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && remote(err) {
		err = c.explain(err)
	}
	return n, err
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

// How long a door stays shut after a refusal, doubling up to the maximum. After
// doorForget without one it begins again.
const (
	shutMin    = 500 * time.Millisecond
	shutMax    = 5 * time.Second
	doorForget = time.Minute
)

// A door keeps a client whose credentials or certificates are refused from
// knocking without pause: while it is shut, dialling fails at once with what
// was said last.
type door struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	now  func() time.Time

	mu   sync.Mutex
	shut map[string]*refusal // by address, and "" for all of them: a closed set
}

// A refusal is what was said last, how often running, and until when it holds.
type refusal struct {
	err   error
	times int
	at    time.Time
	until time.Time
}

func newDoor(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *door {
	return &door{dial: dial, now: time.Now, shut: make(map[string]*refusal)}
}

// open dials addr unless the door is shut. Every failure is one to dial, for
// which the library tries other brokers and keeps what it buffers.
func (d *door) open(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := d.refused(addr); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := d.dial(ctx, network, addr)
	var op *net.OpError
	switch {
	case err == nil:
		d.forget(addr)
		return conn, nil
	case errors.As(err, &op) && op.Op == "dial" || ctx.Err() != nil:
		return nil, err // nobody there, which is no refusal
	}
	d.refuse(addr, err)
	return nil, &net.OpError{Op: "dial", Net: network, Err: err}
}

// refused returns why addr is not dialled now, or nil.
func (d *door) refused(addr string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, of := range []string{addr, ""} {
		if r := d.shut[of]; r != nil && d.now().Before(r.until) {
			return r.err
		}
	}
	return nil
}

// refuse shuts the door to addr, or with "" to all, for a while.
func (d *door) refuse(addr string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	r := d.shut[addr]
	if r == nil || now.Sub(r.at) > doorForget {
		r = &refusal{}
		d.shut[addr] = r
	}
	if now.Before(r.until) {
		return // several connections were refused at once
	}
	wait := min(shutMin<<min(r.times, 10), shutMax)
	r.err, r.at, r.until = err, now, now.Add(wait)
	r.times++
}

func (d *door) forget(addr string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.shut, addr)
}
