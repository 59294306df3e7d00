package h2_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// certificate returns what a server of 127.0.0.1 presents, and what a client
// needs to believe it.
func certificate(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		&tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}
}

// handshake connects with these protocols and waits for the server's first
// frame.
func handshake(t testing.TB, addr net.Addr, roots *tls.Config, protos ...string) error {
	t.Helper()
	cfg := roots.Clone()
	cfg.NextProtos = protos
	c, err := tls.Dial("tcp", addr.String(), cfg)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	f, err := http2.NewFramer(c, c).ReadFrame()
	if err != nil {
		return err
	}
	if _, ok := f.(*http2.SettingsFrame); !ok {
		return errors.New("the first frame is not SETTINGS")
	}
	return nil
}
