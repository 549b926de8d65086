package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// startGoProxies runs the agent and two reverse proxies of net/http with TLS between them, like two nodes.
func startGoProxies(ctx context.Context) (_ dialer, _ func(), err error) {
	var ends stops
	defer func() {
		if err != nil {
			ends.stop()
		}
	}()
	dir, err := os.MkdirTemp("", "bench-goproxy")
	if err != nil {
		return nil, nil, err
	}
	ends.add(func() { os.RemoveAll(dir) })
	if err := writeCertificate(dir); err != nil {
		return nil, nil, err
	}
	addr := "" // of the last process
	for _, role := range []string{"agent", "proxy=back," + dir, "proxy=front," + dir} {
		if addr != "" {
			role += "," + addr
		}
		var end func()
		if addr, end, err = child(ctx, role); err != nil {
			return nil, nil, err
		}
		ends.add(end)
	}
	return webCaller(addr + "/echo"), ends.stop, answering(ctx, addr+"/echo")
}

// serveProxy runs a reverse proxy. arg is its place, the directory of the certificate, and the next address. The back has HTTPS; the front
// is its client. Both keep their connections and have the limits of a public server.
func serveProxy(ctx context.Context, arg string) error {
	part := strings.SplitN(arg, ",", 3)
	dir, isBack := part[1], part[0] == "back"
	next, err := url.Parse(part[2])
	if err != nil {
		return err
	}
	pem, err := os.ReadFile(filepath.Join(dir, "cert.pem"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(next) },
		Transport: &http.Transport{MaxIdleConns: 256, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute, DisableCompression: true,
			TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS13}},
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &http.Server{Handler: proxy, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13}}
	go func() { <-ctx.Done(); _ = s.Close() }()
	if isBack {
		fmt.Printf("https://%s\n", l.Addr())
		_ = s.ServeTLS(l, filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
		return nil
	}
	fmt.Printf("http://%s\n", l.Addr())
	_ = s.Serve(l)
	return nil
}
