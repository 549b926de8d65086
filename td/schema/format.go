package schema

import (
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/lmosd/lmosd/internal/lazyregexp"
)

// A format is a value of the keyword "format" (JSON Schema Validation §7.3) that is checked.
type format struct {
	name  string // with an article, and an example where one helps
	valid func(string) bool
}

// formats are cheap to check and have one meaning. Other formats are not checked.
var formats = map[string]format{
	"date-time":     {`a date and time like "2026-01-31T12:00:00Z"`, isDateTime},
	"date":          {`a date like "2026-01-31"`, func(s string) bool { return parses(time.DateOnly, s) }},
	"time":          {`a time like "12:00:00Z"`, func(s string) bool { return isDateTime("2000-01-01T" + s) }},
	"email":         {"a mail address", isEmail},
	"ipv4":          {"an IPv4 address", func(s string) bool { return isAddress(s, netip.Addr.Is4) }},
	"ipv6":          {"an IPv6 address", func(s string) bool { return isAddress(s, netip.Addr.Is6) }},
	"uri":           {"a URI with a scheme", isURI},
	"uri-reference": {"a URI", isReference},
	"uuid":          {"a UUID", func(s string) bool { return uuid().MatchString(s) }},
}

var uuid = lazyregexp.New(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

func parses(layout, s string) bool {
	_, err := time.Parse(layout, s)
	return err == nil
}

// isDateTime follows RFC 3339 §5.6; a leap second is accepted.
func isDateTime(s string) bool {
	s = strings.Replace(strings.ToUpper(s), ":60", ":59", 1)
	return len(s) > 10 && s[10] == 'T' && !strings.Contains(s, ",") && parses(time.RFC3339Nano, s)
}

func isAddress(s string, version func(netip.Addr) bool) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && version(a) && a.Zone() == ""
}

func isReference(s string) bool {
	_, err := url.Parse(s)
	return err == nil && !strings.Contains(s, `\`)
}

// isEmail follows RFC 5321 §4.1.2, without escapes in a quoted name. 254 is the limit of a path without its brackets (§4.5.3.1.3).
func isEmail(s string) bool {
	at := strings.LastIndexByte(s, '@')
	return at >= 0 && at <= 64 && len(s) <= 254 && isMailbox(s[:at]) && isMailDomain(s[at+1:])
}

// isMailbox reports whether s can stand before the @: atoms and dots, or a quoted text.
func isMailbox(s string) bool {
	if len(s) > 1 && s[0] == '"' && s[len(s)-1] == '"' {
		return !strings.ContainsAny(s[1:len(s)-1], `\"`)
	}
	return !strings.HasPrefix(s, ".") && !strings.HasSuffix(s, ".") && !strings.Contains(s, "..") &&
		!strings.ContainsFunc(s, func(r rune) bool { return !isLetterOrDigit(r) && !strings.ContainsRune(".!#$%&'*+-/=?^_`{|}~", r) })
}

// isMailDomain reports whether s can stand after the @: a domain name (RFC 1123 §2.1), or an address in brackets.
func isMailDomain(s string) bool {
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		address, v6 := strings.CutPrefix(s[1:max(1, len(s)-1)], "IPv6:")
		if v6 {
			return isAddress(address, netip.Addr.Is6)
		}
		return isAddress(address, netip.Addr.Is4)
	}
	s = strings.TrimSuffix(s, ".")
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.ContainsFunc(label, func(r rune) bool { return !isLetterOrDigit(r) && r != '-' }) {
			return false
		}
	}
	return len(s) <= 253
}

func isLetterOrDigit(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// isURI follows RFC 3986 §4.3, tolerant of non-ASCII letters, which TDs in the field have.
func isURI(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.IsAbs() && !strings.ContainsAny(s, " <>\"{}|\\^`")
}
