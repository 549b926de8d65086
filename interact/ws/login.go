package ws

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A login is what the security schemes of a form put into the upgrade.
type login struct {
	header http.Header
	query  url.Values
	// hidden are the texts that must not appear in an error, whatever the agent echoes.
	hidden []string
}

// maxNesting is how deep combo schemes may refer to each other.
const maxNesting = 4

// login collects what the schemes of the form ask for (TD 1.1 §5.3.3: every name of the array applies).
func (c *Client) login(t *td.Thing, f *td.Form) (login, error) {
	l := login{header: http.Header{"User-Agent": {"lmosd"}}, query: url.Values{}}
	for _, name := range f.Security {
		if err := c.satisfy(&l, t, f, name, 0); err != nil {
			return login{}, err
		}
	}
	return l, nil
}

// satisfy adds what the scheme called name asks for.
func (c *Client) satisfy(l *login, t *td.Thing, f *td.Form, name string, depth int) error {
	s := t.SecurityDefs[name]
	switch {
	case s == nil || depth > maxNesting:
		return interact.Errorf(interact.BadTD, "define it in securityDefinitions and publish again",
			"%s names the security scheme %q, which is not defined", t.Name(), clip(name, 100))
	case s.Scheme == "nosec":
		return nil
	case s.Scheme == "combo":
		return c.combine(l, t, f, s, depth)
	case s.Scheme != "basic" && s.Scheme != "bearer" && s.Scheme != "apikey":
		return interact.Errorf(interact.Unauthenticated, "offer a form with nosec, basic, bearer or apikey",
			"%s wants the security scheme %q, which lmosd does not have here", t.Name(), clip(s.Scheme, 100))
	}
	found, err := c.credentials.Lookup(t.ID, name, f.Href)
	if err != nil {
		c.settings.log.Warn("credentials", "thing", t.ID, "scheme", name, "file", c.credentials.Path(), "err", err)
		return interact.Errorf(interact.Unauthenticated,
			fmt.Sprintf("on the agent's node add the scheme %s of %s to %s", interact.Quote(name), interact.Quote(t.ID),
				c.credentials.Name()),
			"%s needs credentials for its security scheme %s: %s", t.Name(), clip(name, 100), err)
	}
	switch s.Scheme {
	case "basic": // RFC 7617
		pair := base64.StdEncoding.EncodeToString([]byte(found.Username + ":" + found.Password))
		l.hidden = append(l.hidden, found.Password, pair)
		return l.add(s, "Authorization", "Basic "+pair)
	case "bearer": // RFC 6750: the prefix belongs to the header only
		l.hidden = append(l.hidden, found.Token)
		if s.In == "" || s.In == "header" {
			return l.add(s, "Authorization", "Bearer "+found.Token)
		}
		return l.add(s, "", found.Token)
	}
	l.hidden = append(l.hidden, found.Key)
	return l.add(s, "", found.Key)
}

// combine satisfies all of allOf, or the first of oneOf that can be.
func (c *Client) combine(l *login, t *td.Thing, f *td.Form, s *td.SecurityScheme, depth int) error {
	for _, name := range s.AllOf {
		if err := c.satisfy(l, t, f, name, depth+1); err != nil {
			return err
		}
	}
	var first error
	for _, name := range s.OneOf {
		err := c.satisfy(l, t, f, name, depth+1)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// add puts value where the scheme s wants it; usual is the header if it names none.
func (l *login) add(s *td.SecurityScheme, usual, value string) error {
	name := s.Name
	if name == "" {
		name = usual
	}
	switch {
	case name == "" || strings.ContainsAny(name+value, "\r\n\x00"):
	case s.In == "header" || s.In == "":
		if tokenOK(name) {
			l.header.Set(name, value)
			return nil
		}
	case s.In == "cookie" && tokenOK(name) && !strings.ContainsAny(value, "; ,\"\\"):
		l.header.Add("Cookie", name+"="+value)
		return nil
	case s.In == "query":
		l.query.Set(name, value)
		return nil
	}
	return interact.Errorf(interact.BadTD, `name a place in securityDefinitions, e.g. "in": "header", "name": "X-API-Key"`,
		"the value of a security scheme cannot go to in %q, name %q", clip(s.In, 40), clip(s.Name, 100))
}

// tokenOK reports whether name may be a field of a header (RFC 9110 §5.1).
func tokenOK(name string) bool {
	bad := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) }
	return name != "" && strings.IndexFunc(name, bad) < 0
}

// address returns href with what the schemes put into its query, and without a user: secrets come from the credentials file,
// never from a description.
func (l *login) address(href string) (string, error) {
	u, err := url.Parse(href)
	if err != nil || u.Host == "" {
		return "", interact.Errorf(interact.BadTD, "publish the description with an absolute address",
			"the form's address is none: %s", plain(href))
	}
	u.User, u.Fragment = nil, ""
	if len(l.query) > 0 {
		if u.RawQuery != "" {
			u.RawQuery += "&"
		}
		u.RawQuery += l.query.Encode()
	}
	return u.String(), nil
}

// sum tells logins apart, and shows nothing of them.
func (l *login) sum() [sha256.Size]byte {
	if len(l.hidden) == 0 {
		return [sha256.Size]byte{}
	}
	header := l.header.Clone()
	header.Del("Traceparent")
	return sha256.Sum256([]byte(fmt.Sprint(header, l.query))) // maps are printed in the order of their keys
}

// scrub drops the words of an agent if they repeat a secret. To cut out the secret alone would show where it was.
func (l *login) scrub(err error) error {
	e := interact.AsError(err)
	if e == nil || !e.Remote {
		return err
	}
	text := fmt.Sprint(e.Error(), e.Hint, e.Issues)
	for _, h := range l.hidden {
		if h != "" && (strings.Contains(text, h) || strings.Contains(text, url.QueryEscape(h))) {
			return &interact.Error{Code: e.Code, Remote: true, Title: "the agent failed (its words repeat a secret and were dropped)",
				Hint: "see the agent's log"}
		}
	}
	return err
}
