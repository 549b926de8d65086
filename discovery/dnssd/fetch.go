package dnssd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/internal/httpbody"
)

const (
	redirectsMax    = 3
	responseTimeout = 5 * time.Second // to connect; until the first byte of a response
	accept          = "application/td+json, application/ld+json;q=0.9, application/json;q=0.8"
)

// newClient returns a client that connects only to the hosts of the introduction.
func (v *visit) newClient() *http.Client {
	conf := &tls.Config{}
	if v.x.o.TLS != nil {
		conf = v.x.o.TLS.Clone()
	}
	conf.ServerName = cmp.Or(conf.ServerName, v.in.Host) // the URL has an IP address, certificates have names
	return &http.Client{
		Transport: &http.Transport{
			DialContext: v.dial, TLSClientConfig: conf, MaxConnsPerHost: 1,
			TLSHandshakeTimeout: responseTimeout, ResponseHeaderTimeout: responseTimeout, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			first := via[0].URL
			if len(via) > redirectsMax || r.URL.Scheme != first.Scheme || r.URL.Host != first.Host {
				return fmt.Errorf("redirected to %s", r.URL.Redacted())
			}
			return nil
		},
	}
}

// get fetches u: JSON of at most limit bytes, and its Link headers.
func (v *visit) get(u *url.URL, limit int64) (body []byte, links []string, err error) {
	if u.Scheme != "https" && (u.Scheme != "http" || v.x.o.Secure) {
		return nil, nil, fmt.Errorf("%s: %w", u, ErrScheme)
	}
	r, err := http.NewRequestWithContext(v.ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	r.Header.Set("Accept", accept)
	r.Header.Set("User-Agent", "lmosd")
	resp, err := v.client.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, nil, fmt.Errorf("%s responded with %s", u, resp.Status)
	case media != "application/json" && !(strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")):
		return nil, nil, fmt.Errorf("%s: expected JSON, got the content type %q", u, media)
	}
	body, err = httpbody.ReadAll(resp.Body, resp.ContentLength, limit)
	switch {
	case errors.Is(err, httpbody.ErrTooLarge):
		return nil, nil, fmt.Errorf("%s exceeds %d bytes", u, limit)
	case err != nil:
		return nil, nil, fmt.Errorf("%s: %w", u, err)
	}
	return body, resp.Header.Values("Link"), nil
}

// dial connects to the allowed addresses of hostport, one after the other.
func (v *visit) dial(ctx context.Context, network, hostport string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, err
	}
	addrs, err := v.allowed(host)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: responseTimeout}
	var failed []error
	for _, addr := range addrs {
		c, err := d.DialContext(ctx, network, net.JoinHostPort(addr.String(), port))
		if err == nil {
			return c, nil
		}
		failed = append(failed, err)
	}
	return nil, errors.Join(failed...)
}

// allowed returns the allowed addresses of host, at least one. The host must be the name or an address of the introduction, or its sender.
// No name is resolved, because it could have the address of another host.
func (v *visit) allowed(host string) ([]netip.Addr, error) {
	named := append(slices.Clone(v.in.Addrs), v.in.From)
	addrs := v.in.Addrs
	if !strings.EqualFold(strings.TrimSuffix(host, "."), v.in.Host) {
		addr, err := netip.ParseAddr(host)
		if err != nil || !slices.Contains(named, addr.Unmap()) {
			return nil, fmt.Errorf("the introduction does not name the host %q", host)
		}
		addrs = []netip.Addr{addr.Unmap()}
	}
	var allowed []netip.Addr
	var rejected []error
	for _, addr := range addrs {
		if err := v.x.o.Allow(v.in, addr); err != nil {
			rejected = append(rejected, err)
			continue
		}
		allowed = append(allowed, addr)
	}
	if len(allowed) == 0 {
		return nil, errors.Join(rejected...)
	}
	return allowed, nil
}

// metadataServices are the metadata services of cloud providers.
var metadataServices = []netip.Addr{
	netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("100.100.100.200"),
	netip.MustParseAddr("fd00:ec2::254"),
}

// Local allows addr if it is on the same network of this machine as the sender of the introduction, and neither a multicast address nor a
// cloud metadata service: a host on one network must not cause connections to another. An address of this machine is allowed only for
// introductions of this machine, because other hosts could otherwise reach its local services. These introductions may have an address on
// any network of this machine.
func Local(in Introduction, addr netip.Addr) error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	var all []link
	for _, i := range interfaces {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagPointToPoint == 0 {
			all = append(all, link{index: i.Index, name: i.Name, nets: prefixes(i)})
		}
	}
	if reason := checkLocal(all, in.From, addr); reason != "" {
		return fmt.Errorf("connection to %s not allowed: %s", addr, reason)
	}
	return nil
}

// checkLocal returns the reason why Local does not allow addr, or "".
func checkLocal(links []link, from, addr netip.Addr) string {
	own := func(a netip.Addr) bool {
		return a.IsLoopback() || slices.ContainsFunc(links, func(l link) bool {
			return slices.ContainsFunc(l.nets, func(p netip.Prefix) bool { return p.Addr() == a.WithZone("") })
		})
	}
	switch {
	case !addr.IsValid() || addr.IsMulticast() || addr.IsUnspecified() || addr.Is4In6():
		return "not a host address"
	case slices.Contains(metadataServices, addr.WithZone("")):
		return "a cloud metadata service"
	case own(addr) && !own(from):
		return "this machine, and the introduction is from " + from.String()
	case own(addr):
		return ""
	}
	on := func(l link, a netip.Addr) bool { return (a.Zone() == "" || a.Zone() == l.name) && l.contains(a) }
	known := false
	for _, l := range links {
		if on(l, addr) && (own(from) || on(l, from)) {
			return ""
		}
		known = known || on(l, addr)
	}
	if known {
		return "not on the network of " + from.String()
	}
	return "not on a network of this machine"
}
