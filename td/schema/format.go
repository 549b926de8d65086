package schema

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
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
	"uuid":          {"a UUID", uuid.MatchString},
}

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

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

// mailbox checks a mail address by the rules of the JSON Schema library: RFC 5321 §4.1.2.
var mailbox = sync.OnceValue(func() *jsonschema.Schema {
	const id = "urn:lmosd:schema:email"
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(id, map[string]any{"format": "email"}); err != nil {
		panic(fmt.Sprintf("schema of a mail address: %v", err))
	}
	return c.MustCompile(id)
})

func isEmail(s string) bool { return mailbox().Validate(s) == nil }

// isURI follows RFC 3986 §4.3, tolerant of non-ASCII letters, which TDs in the field have.
func isURI(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.IsAbs() && !strings.ContainsAny(s, " <>\"{}|\\^`")
}
