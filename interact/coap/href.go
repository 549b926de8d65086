package coap

import (
	"cmp"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/plgd-dev/go-coap/v3/message"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// Claims reports whether this binding can use the form f: its scheme is coap, coaps, coap+tcp or coaps+tcp. WebSockets are not
// spoken, and no subprotocol is known.
func Claims(f *td.Form) bool {
	return scheme.Lookup(f.Scheme()).Protocol == "coap" && f.Subprotocol == ""
}

// An address is where a request goes: whom it is sent to, and the options that name the resource there.
type address struct {
	scheme string
	host   string // a name or an IP address, without brackets
	port   string
	path   []string // segments as they are: not escaped
	query  []string
}

// parseAddress takes a URI apart (RFC 7252 §6.4).
func parseAddress(href string) (address, error) {
	u, err := url.Parse(href)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.Opaque != "" {
		return address{}, badForm(href, "is no absolute address of a CoAP resource")
	}
	s := scheme.Lookup(u.Scheme)
	a := address{scheme: s.Name, host: strings.ToLower(u.Hostname()), port: cmp.Or(u.Port(), s.Port)}
	if a.host == "" || len(a.host) > 255 || s.Protocol != "coap" {
		return address{}, badForm(href, "is no absolute address of a CoAP resource")
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
				return address{}, badForm(href, "has a part that is no option of CoAP: too long, or badly escaped")
			}
		}
	}
	return a, nil
}

// options adds what names the resource. The host is said where it is a name; the port is the one that is sent to (RFC 7252 §6.4).
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

// hostport is what is dialled.
func (a address) hostport() string { return net.JoinHostPort(a.host, a.port) }

// A piece of a template is text, or an expression with variables. Only two kinds of expressions are known: {name}, and {?a,b} or
// {&a,b} for the query (RFC 6570 §3.2.2, §3.2.8, §3.2.9).
type piece struct {
	text string
	lead string // what stands before the first variable of a query: "?" or "&"; empty outside of a query
	vars []string
}

// parseTemplate reads the template href.
func parseTemplate(href string) ([]piece, error) {
	var pieces []piece
	for rest := href; rest != ""; {
		text, expression, open := strings.Cut(rest, "{")
		if strings.Contains(text, "}") {
			return nil, badForm(href, "is no URI template (RFC 6570)")
		}
		pieces = append(pieces, piece{text: text})
		if !open {
			break
		}
		inner, after, closed := strings.Cut(expression, "}")
		p := piece{vars: []string{inner}}
		if strings.HasPrefix(inner, "?") || strings.HasPrefix(inner, "&") {
			p = piece{lead: inner[:1], vars: strings.Split(inner[1:], ",")}
		}
		for _, name := range p.vars {
			if !closed || !isVariable(name) {
				return nil, interact.Errorf(interact.NotAllowed, "write its variables as {name} in the path and as {?a,b} for the query",
					"the form's href %s has variables of a kind that is not known over CoAP", plain(href))
			}
		}
		pieces, rest = append(pieces, p), after
	}
	return pieces, nil
}

// isVariable tells names (RFC 6570 §2.3, without escapes; with the hyphen, which many write) from what else may stand in braces.
func isVariable(name string) bool {
	odd := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.')
	}
	return name != "" && strings.IndexFunc(name, odd) < 0
}

// expand fills vars into href. A variable of the path must be given; one of the query may be left out. What is filled in is
// escaped, so it stays in its segment, and the host is that of the template.
func expand(href string, vars map[string]string) (address, error) {
	if !strings.ContainsAny(href, "{}") {
		return parseAddress(href)
	}
	pieces, err := parseTemplate(href)
	if err != nil {
		return address{}, err
	}
	_, path, ok := strings.Cut(pieces[0].text, "://")
	if !ok || !strings.ContainsAny(path, "/?") && len(pieces) > 1 && pieces[1].lead == "" {
		return address{}, badForm(href, "has a variable in its host")
	}
	var b strings.Builder
	for _, p := range pieces {
		b.WriteString(p.text)
		lead := p.lead
		for _, name := range p.vars {
			value := vars[name]
			switch {
			case p.lead != "" && value != "":
				b.WriteString(lead + name + "=" + strings.ReplaceAll(url.PathEscape(value), "&", "%26"))
				lead = "&"
			case p.lead == "" && (value == "" || value == "." || value == ".."):
				return address{}, &interact.Error{Code: interact.Invalid, Title: "the address needs the variable " + name,
					Hint: "give it as a member of the input", Issues: []td.Issue{{Pointer: "/" + pointer.Replace(name), Reason: "is needed"}}}
			case p.lead == "":
				b.WriteString(url.PathEscape(value))
			}
		}
	}
	a, err := parseAddress(b.String())
	if err == nil && credentials.OriginOf(b.String()) != credentials.OriginOf(href) {
		err = badForm(href, "has a variable in its host")
	}
	return a, err
}

// pointer writes a name as a part of a JSON pointer (RFC 6901 §3).
var pointer = strings.NewReplacer("~", "~0", "/", "~1")

// plain returns an address as it may be shown: without user, query and fragment.
func plain(href string) string {
	href, _, _ = strings.Cut(href, "#")
	href, _, _ = strings.Cut(href, "?")
	if scheme, rest, ok := strings.Cut(href, "://"); ok {
		authority, path, _ := strings.Cut(rest, "/")
		href = scheme + "://" + authority[strings.LastIndexByte(authority, '@')+1:] + "/" + path
	}
	return clip(interact.Readable(href), 200)
}

func badForm(href, why string) error {
	return interact.Errorf(interact.BadTD, "correct the form and publish the description again",
		"the form's href %s %s", plain(href), why)
}
