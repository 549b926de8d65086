// Package weblocation converts the domain and the path in a DID to the URL of a file, and fetches such files.
//
// The methods did:web and did:webvh share these rules. The package rejects what could lead to another host. Sources: did:web
// method specification, W3C CCG; did:webvh 1.0, The DID to HTTPS Transformation.
package weblocation

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/internal/httpbody"
)

// fetchTimeout limits the time of one request.
const fetchTimeout = 10 * time.Second

// ErrNotFound means that the server has no such file.
var ErrNotFound = errors.New("the file does not exist")

// URL returns the https URL of file for the part of a DID that names a domain, perhaps a port, and perhaps a path:
// "example.com%3A8443:departments:sales". Without a path the file is in /.well-known. It refuses IP addresses, user names, escaped
// characters except the colon before the port, and dot segments.
func URL(location, file string) (string, error) {
	parts := strings.Split(location, ":")
	host, err := hostOf(parts[0])
	if err != nil {
		return "", err
	}
	for _, segment := range parts[1:] {
		if segment == "" || strings.Trim(segment, ".") == "" {
			return "", errors.New("a path segment is empty, \".\" or \"..\"")
		}
		if strings.ContainsFunc(segment, func(r rune) bool { return !isPlain(r) && r != '_' }) {
			return "", fmt.Errorf("the path segment %q is not supported", segment)
		}
	}
	if len(parts) == 1 {
		return "https://" + host + "/.well-known/" + file, nil
	}
	return "https://" + host + "/" + strings.Join(parts[1:], "/") + "/" + file, nil
}

// isPlain reports whether r is a character of supported host names and path segments.
func isPlain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.'
}

// hostOf returns the host of a DID, with its port if it has one.
func hostOf(s string) (string, error) {
	name, port, hasPort := strings.Cut(strings.Replace(s, "%3a", "%3A", 1), "%3A")
	if hasPort {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '0' {
			return "", fmt.Errorf("expected a port, got %q", port)
		}
		port = ":" + port
	}
	labels := strings.Split(name, ".")
	last := labels[len(labels)-1]
	for _, label := range labels {
		if label == "" || strings.ContainsFunc(label, func(r rune) bool { return !isPlain(r) }) {
			return "", fmt.Errorf("expected a host name, got %q", name)
		}
	}
	// URL parsers read a host that ends in a number as an IPv4 address (WHATWG URL §3.5).
	if _, err := netip.ParseAddr(name); err == nil || last[0] >= '0' && last[0] <= '9' {
		return "", fmt.Errorf("expected a host name, got the address %q", name)
	}
	return name + port, nil
}

// Options of a [Client].
type Options struct {
	// Dial opens connections. Nil means [net.Dialer], or the proxy of the environment ([http.ProxyFromEnvironment]): only for locations that the
	// user of this node chose.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS configures the trusted roots; nil means those of the system.
	TLS *tls.Config
}

// A Client fetches files. It follows no redirects and caches nothing. It is safe for concurrent use.
type Client struct{ http *http.Client }

// NewClient returns a client.
func NewClient(o Options) *Client {
	t := &http.Transport{DialContext: o.Dial, TLSClientConfig: o.TLS, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10}
	if o.Dial == nil { // a proxy would hide the address that Dial checks
		t.Proxy = http.ProxyFromEnvironment
	}
	return &Client{&http.Client{
		Transport: t,
		CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			return fmt.Errorf("redirected to %s", r.URL.Redacted())
		},
	}}
}

// Fetch returns the file at url, in at most 10 s. The error wraps [ErrNotFound] if the server has no such file, and
// [httpbody.ErrTooLarge] if the file has more than max bytes.
func (c *Client) Fetch(ctx context.Context, url, accept string, max int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	q.Header.Set("Accept", accept)
	resp, err := c.http.Do(q)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone:
		return nil, fmt.Errorf("%w: %s responded with %s", ErrNotFound, url, resp.Status)
	default:
		return nil, fmt.Errorf("%s responded with %s", url, resp.Status)
	}
	body, err := httpbody.ReadAll(resp.Body, resp.ContentLength, max)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	return body, nil
}
