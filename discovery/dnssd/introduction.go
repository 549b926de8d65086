package dnssd

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/lmosd/lmosd/td/scheme"
)

// An Introduction is the location of a TD on the local network. It is not authenticated.
type Introduction struct {
	Name     string       // the full DNS name of the instance, which identifies the introduction
	Instance string       // the display name
	URL      string       // of the TD, with a scheme of HTTP or CoAP (td/scheme); the host is the first of Addrs
	Type     string       // "Thing" or "Directory", as announced
	Network  string       // the mesh of an lmosd node; empty for other hosts
	Host     string       // the name in .local, without the last dot
	Addrs    []netip.Addr // of Host, 1 to 8: IPv4 first, link-local IPv6 last and with its zone
	From     netip.Addr   // the first sender
	Expires  time.Time    // introductions are renewed long before
}

// isSame reports whether two introductions with one name have the same location.
func (in Introduction) isSame(other Introduction) bool {
	return in.URL == other.URL && in.Type == other.Type && in.Network == other.Network && in.Host == other.Host &&
		in.From == other.From && slices.Equal(in.Addrs, other.Addrs)
}

// networkKey is the only TXT key that WoT Discovery does not define. Readers ignore unknown keys (RFC 6763 §6.4).
const networkKey = "lmos"

// A text has the values of a TXT record, or their defaults (WoT Discovery §6.3).
type text struct{ td, kind, scheme, network string }

// parseText decodes the strings of a TXT record (RFC 6763 §6): in any order, keys in any case, the first of duplicates, unknown keys
// ignored. A td without a leading slash is below the root; the default is /.well-known/wot. A scheme that does not match the transport,
// and a td that is not a path, are errors.
func parseText(strs []string, udp bool) (text, error) {
	t, network := text{td: wellKnown, kind: "Thing", scheme: "http"}, "tcp"
	if udp {
		t.scheme, network = "coap", "udp"
	}
	seen := map[string]bool{}
	for _, s := range strs {
		key, value, _ := strings.Cut(string(unescape(s)), "=")
		key = strings.ToLower(key)
		if seen[key] || value == "" {
			continue
		}
		seen[key] = true
		switch key {
		case "td":
			t.td = "/" + strings.TrimPrefix(value, "/")
		case "type":
			if strings.EqualFold(value, "Directory") {
				t.kind = "Directory"
			}
		case "scheme":
			t.scheme = strings.ToLower(value)
		case networkKey:
			t.network = value
		}
	}
	if s := scheme.Lookup(t.scheme); s.Network != network || s.Protocol != "http" && s.Protocol != "coap" { // WoT Discovery §6.3.1
		return t, fmt.Errorf("expected an HTTP or CoAP scheme over %s, got %q", network, t.scheme)
	}
	// td must stay a path: "//evil" must not become a host.
	if u, err := url.Parse("x://h" + t.td); err != nil || u.Host != "h" || u.User != nil {
		return t, fmt.Errorf("td=%q is not a path", t.td)
	}
	return t, nil
}

// address returns the URL of the TD at a host and port.
func (t text) address(host netip.Addr, port uint16) string {
	authority := net.JoinHostPort(host.String(), strconv.Itoa(int(port)))
	return t.scheme + "://" + strings.ReplaceAll(authority, "%", "%25") + t.td // a zone, RFC 6874
}

// readable makes a name displayable: valid UTF-8 on one line.
func readable(b []byte) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(b), "\ufffd"))
}

// escape encodes s like labels and strings in package dns. unescape decodes it.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case strings.IndexByte(`. '@;()"\`, c) >= 0:
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\%03d`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

func unescape(s string) []byte {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			if i+4 <= len(s) {
				if n, err := strconv.ParseUint(s[i+1:i+4], 10, 8); err == nil {
					b = append(b, byte(n))
					i += 3
					continue
				}
			}
			i++
		}
		b = append(b, s[i])
	}
	return b
}
