package coap

import (
	"cmp"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/plgd-dev/go-coap/v3/message"

	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// Supports reports whether this binding can use the form f: its scheme is one of CoAP (td/scheme). It supports neither WebSockets nor
// subprotocols.
func Supports(f *td.Form) bool {
	return scheme.Lookup(f.Scheme()).Protocol == "coap" && f.Subprotocol == ""
}

// An address is the destination of a request: host and port, and the options of the resource.
type address struct {
	scheme string
	host   string // a name or an IP address, without brackets
	port   string
	path   []string // segments without escapes
	query  []string
}

// expand fills vars into href and parses the URI (RFC 7252 §6.4).
func expand(href string, vars map[string][]string) (address, error) {
	u, err := form.Expand(href, vars)
	if err != nil {
		return address{}, err
	}
	s := scheme.Lookup(u.Scheme)
	a := address{scheme: s.Name, host: strings.ToLower(u.Hostname()), port: cmp.Or(u.Port(), s.Port)}
	if u.User != nil || u.Fragment != "" || a.host == "" || len(a.host) > 255 || s.Protocol != "coap" {
		return address{}, form.Bad(href, "is not an absolute address of a CoAP resource")
	}
	if path := u.EscapedPath(); path != "" && path != "/" {
		a.path = strings.Split(strings.TrimPrefix(path, "/"), "/")
	}
	if u.RawQuery != "" {
		a.query = strings.Split(u.RawQuery, "&")
	}
	for _, list := range [][]string{a.path, a.query} {
		for i, text := range list {
			if list[i], err = url.PathUnescape(text); err != nil || len(list[i]) > 255 {
				return address{}, form.Bad(href, "has a part that is too long for a CoAP option, or has an invalid escape")
			}
		}
	}
	return a, nil
}

// options adds the options of the resource. Uri-Host is sent only for a name; Uri-Port is never needed (RFC 7252 §6.4).
func (a address) options(p *messaging.Packet) {
	if _, err := netip.ParseAddr(a.host); err != nil {
		p.Add(message.URIHost, []byte(a.host))
	}
	for _, s := range a.path {
		p.Add(message.URIPath, []byte(s))
	}
	for _, q := range a.query {
		p.Add(message.URIQuery, []byte(q))
	}
}

// hostport returns the address to dial.
func (a address) hostport() string { return net.JoinHostPort(a.host, a.port) }
