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
)

// An Introduction says where on the local network a TD is to be had. Nothing of it is proved.
type Introduction struct {
	Name     string       // the entry's full name as DNS writes it; what tells introductions apart
	Instance string       // what it is called for people
	URL      string       // of the TD: http, https, coap+tcp, coaps+tcp, coap or coaps; the host is the first of Addrs
	Type     string       // "Thing" or "Directory", as announced
	Network  string       // the mesh that the other side, a node of lmosd, says it belongs to; empty for others
	Host     string       // the name in .local, without the last dot
	Addrs    []netip.Addr // of Host, 1 to 8: IPv4 first, link-local ones last, those of IPv6 with their zone
	From     netip.Addr   // who said so, first
	Expires  time.Time    // when it ends if it is not renewed; it is renewed long before
}

// same reports whether two introductions of one name lead to the same place.
func (in Introduction) same(other Introduction) bool {
	return in.URL == other.URL && in.Type == other.Type && in.Network == other.Network && in.Host == other.Host &&
		in.From == other.From && slices.Equal(in.Addrs, other.Addrs)
}

// networkKey is the one key of the TXT record that is not of WoT Discovery. Readers ignore keys they do not know (RFC 6763 §6.4).
const networkKey = "lmos"

// A text is a TXT record as WoT Discovery §6.3 has it, defaults applied.
type text struct{ td, kind, scheme, network string }

// parseText reads the strings of a TXT record (RFC 6763 §6): any order, keys in any case, the first of two counts, what is not
// known is ignored. A td without a slash is below the root; without td it is /.well-known/wot. A scheme that cannot be over the
// transport, or a td that is no path, is an error.
func parseText(strs []string, udp bool) (text, error) {
	t := text{td: wellKnown, kind: "Thing", scheme: "http"}
	schemes := []string{"http", "https", "coap+tcp", "coaps+tcp"}
	if udp {
		t.scheme, schemes = "coap", []string{"coap", "coaps"}
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
	if !slices.Contains(schemes, t.scheme) {
		return t, fmt.Errorf("the scheme %q is not one of %v", t.scheme, schemes)
	}
	// Below an empty authority a path cannot be taken for a host: "//evil" stays a path.
	if u, err := url.Parse("x://h" + t.td); err != nil || u.Host != "h" || u.User != nil {
		return t, fmt.Errorf("td=%q is no path", t.td)
	}
	return t, nil
}

// address is the URL of a TD that t describes, at a host and port.
func (t text) address(host netip.Addr, port uint16) string {
	authority := net.JoinHostPort(host.String(), strconv.Itoa(int(port)))
	return t.scheme + "://" + strings.ReplaceAll(authority, "%", "%25") + t.td // a zone, RFC 6874
}

// readable makes of a name what can be shown: valid UTF-8 on one line.
func readable(b []byte) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(b), "\ufffd"))
}

// escape writes s as package dns writes labels and strings; unescape is the way back.
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
