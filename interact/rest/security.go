package rest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/td"
)

// A secret is one value that a security scheme puts into a request.
type secret struct{ in, name, value string }

// secrets are what the security schemes of a form put into a request.
type secrets struct {
	list []secret
	// hidden are the texts that must not appear in an error, whatever the agent echoes.
	hidden []string
}

// maxNesting is how deep combo schemes may refer to each other.
const maxNesting = 4

// secrets collects what all security schemes of the form ask for (TD 1.1 §5.3.3: every name of the array applies).
func (c *Client) secrets(r *request, f *td.Form) (secrets, error) {
	var s secrets
	for _, name := range f.Security {
		if err := c.satisfy(&s, r, f, name, 0); err != nil {
			return secrets{}, err
		}
	}
	return s, nil
}

// satisfy adds what the scheme called name asks for.
func (c *Client) satisfy(s *secrets, r *request, f *td.Form, name string, depth int) error {
	scheme := r.thing.SecurityDefs[name]
	if scheme == nil || depth > maxNesting {
		return interact.Errorf(interact.BadTD, "define it in securityDefinitions and publish again",
			"%s names the security scheme %q, which is not defined", r.what(), name)
	}
	switch scheme.Scheme {
	case "nosec":
		return nil
	case "combo":
		return c.combine(s, r, f, scheme, depth)
	case "basic", "bearer", "apikey":
		found, err := c.credentials.Lookup(r.thing.ID, name, f.Href)
		if err != nil {
			return c.unauthenticated(r, f, name, scheme.Scheme, err)
		}
		return s.add(r, name, scheme, found)
	}
	return interact.Errorf(interact.Unauthenticated, "offer a form with nosec, basic, bearer or apikey",
		"%s wants the security scheme %q, which lmosd does not have", r.what(), scheme.Scheme)
}

// combine satisfies all of allOf, or the first of oneOf that can be.
func (c *Client) combine(s *secrets, r *request, f *td.Form, scheme *td.SecurityScheme, depth int) error {
	for _, name := range scheme.AllOf {
		if err := c.satisfy(s, r, f, name, depth+1); err != nil {
			return err
		}
	}
	var first error
	for _, name := range scheme.OneOf {
		var one secrets
		err := c.satisfy(&one, r, f, name, depth+1)
		if err == nil {
			s.list, s.hidden = append(s.list, one.list...), append(s.hidden, one.hidden...)
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// unauthenticated says which member of which file is missing. The full path is for the log of this node only.
func (c *Client) unauthenticated(r *request, f *td.Form, name, scheme string, why error) error {
	c.log.Warn("credentials", "thing", r.thing.ID, "scheme", name, "file", c.credentials.Path(), "err", why)
	wants := map[string]string{"basic": `"username" and "password"`, "bearer": `"token"`, "apikey": `"key"`}[scheme]
	pointer := "/" + escapePointer.Replace(r.thing.ID) + "/" + escapePointer.Replace(name)
	hint := fmt.Sprintf("on the agent's node add %s with \"origin\": %q, %s to %s",
		pointer, credentials.OriginOf(f.Href), wants, c.credentials.Name())
	return interact.Errorf(interact.Unauthenticated, hint,
		"%s needs credentials for its security scheme %s: %s", r.what(), name, why)
}

// add puts the values of found where scheme wants them.
func (s *secrets) add(r *request, name string, scheme *td.SecurityScheme, found credentials.Credential) error {
	add := secret{in: scheme.In, name: scheme.Name}
	switch scheme.Scheme {
	case "basic": // RFC 7617
		pair := base64.StdEncoding.EncodeToString([]byte(found.Username + ":" + found.Password))
		add.value = "Basic " + pair
		s.hidden = append(s.hidden, found.Password, pair)
	case "bearer": // RFC 6750: the prefix belongs to the header only
		add.value = found.Token
		if add.in == "" || add.in == "header" {
			add.value = "Bearer " + found.Token
		}
		s.hidden = append(s.hidden, found.Token)
	case "apikey":
		add.value = found.Key
	}
	if add.in == "" {
		add.in = "header"
	}
	if add.in == "header" && add.name == "" && scheme.Scheme != "apikey" {
		add.name = "Authorization"
	}
	if !add.possible(scheme.Scheme) {
		return interact.Errorf(interact.BadTD,
			`name a place in securityDefinitions, e.g. "in": "header", "name": "X-API-Key"`,
			"%s: the value of the security scheme %q cannot go to in %q, name %q", r.what(), name, add.in, add.name)
	}
	s.list, s.hidden = append(s.list, add), append(s.hidden, add.value)
	return nil
}

// possible tells whether the place is one that this binding can fill.
func (s secret) possible(scheme string) bool {
	switch s.in {
	case "header":
		return HeaderOK(s.name, s.value)
	case "cookie":
		return HeaderOK(s.name, s.value) && scheme != "basic" && !strings.ContainsAny(s.value, "; ,\"\\")
	case "query", "body", "uri":
		return s.name != "" && scheme != "basic"
	}
	return false
}

// variables returns vars with the secrets that stand in the address (in: uri).
func (s *secrets) variables(vars map[string][]string) map[string][]string {
	for _, x := range s.list {
		if x.in == "uri" {
			vars = maps.Clone(vars)
			if vars == nil {
				vars = map[string][]string{}
			}
			vars[x.name] = []string{x.value}
		}
	}
	return vars
}

// apply puts the secrets into header, query and cookies of req.
func (s *secrets) apply(req *http.Request) {
	for _, x := range s.list {
		switch x.in {
		case "header":
			req.Header.Set(x.name, x.value)
		case "cookie":
			cookies := append(req.Header["Cookie"], x.name+"="+x.value)
			req.Header.Set("Cookie", strings.Join(cookies, "; ")) // RFC 6265 §5.4: one field
		case "query":
			if req.URL.RawQuery != "" {
				req.URL.RawQuery += "&"
			}
			req.URL.RawQuery += url.QueryEscape(x.name) + "=" + url.QueryEscape(x.value)
		}
	}
}

// inBody tells whether a secret stands in the body.
func (s *secrets) inBody() bool {
	return slices.ContainsFunc(s.list, func(x secret) bool { return x.in == "body" })
}

// fill puts the secrets that stand in the body into it.
func (s *secrets) fill(body []byte) ([]byte, error) {
	for _, x := range s.list {
		if x.in != "body" {
			continue
		}
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber() // what the consumer wrote keeps its digits
		var v any
		if len(body) == 0 {
			v = map[string]any{}
		} else if err := d.Decode(&v); err != nil {
			return nil, &interact.Error{Code: interact.Invalid, Err: err}
		}
		if !place(v, bodyPointer(x.name), x.value) {
			return nil, interact.Errorf(interact.Invalid, "send an object",
				"the security scheme needs a body with room for its member %s", x.name)
		}
		var err error
		if body, err = json.Marshal(v); err != nil {
			return nil, &interact.Error{Code: interact.Internal, Err: err}
		}
	}
	return body, nil
}

// bodyPointer returns the JSON pointer of a name with in: body; a bare word is a member of the body.
func bodyPointer(name string) string {
	name = strings.TrimPrefix(name, "#")
	if !strings.HasPrefix(name, "/") {
		return "/" + escapePointer.Replace(name)
	}
	return name
}

// scrub drops a text that an agent sent if it repeats a secret. To cut out the secret alone would show where it was.
func (s *secrets) scrub(text string) string {
	for _, h := range s.hidden {
		for _, spelling := range []string{h, url.QueryEscape(h), url.PathEscape(h)} {
			if spelling != "" && strings.Contains(text, spelling) {
				return "(its words repeat a secret and were dropped)"
			}
		}
	}
	return text
}

// HopsHeader is the header of a request that says how many nodes relayed it, so that a loop ends.
const HopsHeader = "Lmos-Hops"

// HeaderOK reports whether a field may go into a header (RFC 9110 §5.1, §5.5).
func HeaderOK(name, value string) bool {
	token := func(r rune) bool {
		return r > ' ' && r < 0x7f && !strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	}
	if name == "" || strings.IndexFunc(name, func(r rune) bool { return !token(r) }) >= 0 {
		return false
	}
	return strings.IndexFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) < 0
}
