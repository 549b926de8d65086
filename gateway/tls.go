package gateway

import (
	"crypto/tls"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// recheck is how often the files of the certificate are inspected, if there are connections.
const recheck = time.Second

// A certificate is the certificate of the API, in two PEM files. It is read again when a file changes; while the files are invalid, for
// example because only one of them was replaced, the last valid certificate stays in use.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu       sync.Mutex
	current  *tls.Certificate
	files    [2]fs.FileInfo // of current
	checked  time.Time
	reported string // the last error that was logged
}

// openCertificate reads the certificate from two files. The error is ConfigInvalid.
func openCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.load(); err != nil {
		return nil, err
	}
	c.checked = time.Now()
	return c, nil
}

// load reads the files. It keeps the current certificate if they are invalid.
func (c *certificate) load() error {
	files, err := c.stat()
	if err != nil {
		return c.invalid(err)
	}
	if files[1].Mode().Perm()&0o007 != 0 {
		return interact.Errorf(interact.ConfigInvalid, "chmod o= "+c.keyFile, "every user of this host can use the private key in http.tls.key, %s",
			c.keyFile)
	}
	loaded, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return c.invalid(err) // read again at the next inspection: a repaired mode does not change the time of a file
	}
	c.current, c.files = &loaded, files
	if end := loaded.Leaf.NotAfter; time.Now().After(end) {
		c.log.Warn("certificate expired", "file", c.certFile, "expired", end)
	} else {
		c.log.Info("certificate read", "file", c.certFile, "names", loaded.Leaf.DNSNames, "expires", end)
	}
	return nil
}

func (c *certificate) stat() (files [2]fs.FileInfo, err error) {
	for i, name := range [...]string{c.certFile, c.keyFile} {
		if files[i], err = os.Stat(name); err != nil {
			return files, err
		}
	}
	return files, nil
}

func (c *certificate) invalid(err error) error {
	return &interact.Error{Code: interact.ConfigInvalid, Title: fmt.Sprintf("no certificate can be read from http.tls.cert, %s, and "+
		"http.tls.key, %s", c.certFile, c.keyFile), Hint: "expected a certificate with its chain and its private key, both in PEM", Err: err}
}

// TLS returns the configuration of a server with a certificate in two PEM files, which are read again when they change. The error is
// ConfigInvalid.
func TLS(certFile, keyFile string, log *slog.Logger) (*tls.Config, error) {
	c, err := openCertificate(certFile, keyFile, log)
	if err != nil {
		return nil, err
	}
	return c.config(), nil
}

// get returns the certificate for a handshake ([tls.Config].GetCertificate).
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.checked) >= recheck {
		c.checked = now
		c.reload()
	}
	return c.current, nil
}

// reload reads the files if one has changed. It logs each error once.
func (c *certificate) reload() {
	files, err := c.stat()
	if err == nil && isUnchanged(files[0], c.files[0]) && isUnchanged(files[1], c.files[1]) {
		c.reported = ""
		return
	}
	if err == nil {
		err = c.load()
	}
	switch {
	case err == nil:
		c.reported = ""
	case err.Error() != c.reported:
		c.reported = err.Error()
		c.log.Warn("certificate not replaced", "err", err)
	}
}

func isUnchanged(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// config returns the configuration of the listener. HTTP/2 is not offered: WebSockets and the time limits of connections need HTTP/1.1.
func (c *certificate) config() *tls.Config {
	return &tls.Config{GetCertificate: c.get, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
}
