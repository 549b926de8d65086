// Package tlstest makes TLS certificates for tests.
package tlstest

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"testing"
	"time"
)

// Write replaces two files by a new self-signed certificate for node.example, localhost and 127.0.0.1, and by its key, and returns the certificate. It
// writes new files and renames them, as ACME clients do. The serial number is that of the file before, plus one.
func Write(t testing.TB, certFile, keyFile string) *x509.Certificate {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: new(big.Int).Add(serial(certFile), big.NewInt(1)), Subject: pkix.Name{CommonName: "node.example"},
		DNSNames: []string{"node.example", "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	Replace(t, certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	Replace(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// serial returns the serial number of the certificate in a file; zero if there is none.
func serial(certFile string) *big.Int {
	raw, _ := os.ReadFile(certFile) // it may not exist
	if block, _ := pem.Decode(raw); block != nil {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			return c.SerialNumber
		}
	}
	return new(big.Int)
}

// Replace replaces a file by a new one with the content, of mode 0600.
func Replace(t testing.TB, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(name+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}
