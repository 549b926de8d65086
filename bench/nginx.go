package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// nginxConf is a reverse proxy: %[1]s is its directory, %[2]s its address, %[3]s the scheme of the next and %[4]s its address, %[5]s
// further settings. Nothing is logged, and connections are kept on both sides.
const nginxConf = `daemon off;
pid %[1]s/pid;
error_log stderr crit;
worker_processes auto;
events { worker_connections 1024; }
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  keepalive_requests 100000000;
  upstream next { server %[4]s; keepalive 64; keepalive_requests 100000000; }
  server {
    listen %[2]s;
    location / {
      proxy_pass %[3]s://next;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }
    %[5]s
  }
}
`

// startNginx runs the agent and two nginx with TLS between them, like two nodes.
func startNginx(ctx context.Context) (_ dialer, _ func(), err error) {
	if _, err := exec.LookPath("nginx"); err != nil {
		return nil, nil, skip("nginx is not installed (apt-get install nginx-light)")
	}
	var ends stops
	defer func() {
		if err != nil {
			ends.stop()
		}
	}()
	dir, err := os.MkdirTemp("", "bench-nginx")
	if err != nil {
		return nil, nil, err
	}
	ends.add(func() { os.RemoveAll(dir) })
	agent, stopAgent, err := child(ctx, "agent")
	if err != nil {
		return nil, nil, err
	}
	ends.add(stopAgent)
	if err := writeCertificate(dir); err != nil {
		return nil, nil, err
	}
	front, err1 := freePort()
	back, err2 := freePort()
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, err
	}
	tls := fmt.Sprintf("ssl_certificate %s/cert.pem; ssl_certificate_key %[1]s/key.pem; ssl_protocols TLSv1.3;", dir)
	verify := fmt.Sprintf("proxy_ssl_protocols TLSv1.3; proxy_ssl_name localhost; proxy_ssl_verify on; proxy_ssl_trusted_certificate %s/cert.pem;", dir)
	for _, n := range []struct{ name, listen, scheme, next, more string }{
		{"back", back + " ssl", "http", strings.TrimPrefix(agent, "http://"), tls},
		{"front", front, "https", back, verify},
	} {
		end, err := nginx(ctx, filepath.Join(dir, n.name), n.listen, n.scheme, n.next, n.more)
		if err != nil {
			return nil, nil, err
		}
		ends.add(end)
	}
	return webCaller("http://" + front + "/echo"), ends.stop, answering(ctx, "http://"+front+"/echo")
}

// nginx runs one nginx until stop.
func nginx(ctx context.Context, dir, listen, scheme, next, more string) (stop func(), err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, dir, listen, scheme, next, more), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "nginx", "-p", dir, "-c", conf)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // its workers end with it
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() { _ = cmd.Process.Signal(os.Interrupt); _ = cmd.Wait() }, nil
}

// answering waits until a server answers at the address.
func answering(ctx context.Context, addr string) error {
	return until(ctx, 10*time.Second, func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, addr, nil)
		if err != nil {
			return err
		}
		_, err = exchange(http.DefaultClient, r, http.StatusOK)
		return err
	})
}

// writeCertificate creates a key and a self-signed certificate for localhost.
func writeCertificate(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	t := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true}
	cert, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "cert.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o644),
		os.WriteFile(filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
}
