package kafkatest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// An Authority signs certificates for one test.
type Authority struct {
	File string // its own certificate, PEM

	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Files are a certificate and its key, PEM.
type Files struct {
	Cert, Key string
	Both      string // one file with the key and then the chain, as Java reads it
}

// NewAuthority makes an authority whose certificate lasts a day.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t}
	a.cert = &x509.Certificate{
		Subject: pkix.Name{CommonName: "kafkatest authority"}, BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	var der []byte
	der, a.key = a.sign(a.cert)
	a.File = a.write("ca.pem", block("CERTIFICATE", der))
	return a
}

// Issue signs a certificate for 127.0.0.1 and localhost, as a server's or a
// client's, that ends at the given time.
func (a *Authority) Issue(name string, end time.Time) Files {
	a.t.Helper()
	return a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"}, IPAddresses: loopback,
		NotBefore: end.Add(-24 * time.Hour), NotAfter: end,
	})
}

// IssueFor signs a certificate for another host, which nobody here is.
func (a *Authority) IssueFor(host string) Files {
	a.t.Helper()
	return a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
}

func (a *Authority) issue(template *x509.Certificate) Files {
	a.t.Helper()
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, key := a.sign(template)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatalf("kafkatest: %v", err)
	}
	chain := append(block("CERTIFICATE", der), block("CERTIFICATE", a.cert.Raw)...)
	return Files{
		Cert: a.write("cert.pem", chain),
		Key:  a.write("key.pem", block("PRIVATE KEY", private)),
		Both: a.write("both.pem", append(block("PRIVATE KEY", private), chain...)),
	}
}

// sign makes a key, and a certificate of it, signed by itself if the authority
// has none yet.
func (a *Authority) sign(template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatalf("kafkatest: %v", err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		a.t.Fatalf("kafkatest: %v", err)
	}
	signer := a.key
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), signer)
	if err != nil {
		a.t.Fatalf("kafkatest: %v", err)
	}
	if a.key == nil {
		template.Raw = der
	}
	return der, key
}

func (a *Authority) write(name string, data []byte) string {
	a.t.Helper()
	path := filepath.Join(a.t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		a.t.Fatalf("kafkatest: %v", err)
	}
	return path
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
