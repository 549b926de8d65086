package mqtt

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/td"
)

// A login is what a broker is told at CONNECT; the zero value is nobody.
type login struct{ user, password string }

// digest tells logins apart without holding the password.
func (l login) digest() [32]byte { return sha256.Sum256([]byte(l.user + "\x00" + l.password)) }

// maxNesting is how deep combo schemes may refer to each other.
const maxNesting = 4

// login collects what the security schemes of the form ask for (TD 1.1 §5.3.3: every name of the array applies).
func (c *Client) login(a *agent, f *td.Form) (login, error) {
	var l login
	for _, name := range f.Security {
		if err := c.satisfy(&l, a, f, name, 0); err != nil {
			return login{}, err
		}
	}
	return l, nil
}

// satisfy adds what the scheme called name asks for.
func (c *Client) satisfy(l *login, a *agent, f *td.Form, name string, depth int) error {
	scheme := a.thing.SecurityDefs[name]
	if scheme == nil || depth > maxNesting {
		return badForm(f, fmt.Sprintf("names the security scheme %s, which is not defined", quoted(name)))
	}
	switch scheme.Scheme {
	case "nosec":
		return nil
	case "combo":
		return c.combine(l, a, f, scheme, depth)
	case "basic":
		found, err := c.o.Credentials.Lookup(a.thing.ID, name, f.Href)
		if err != nil {
			return c.unauthenticated(a, f, name, err)
		}
		l.user, l.password = found.Username, found.Password
		return nil
	}
	return interact.Errorf(interact.Unauthenticated, "offer a form with nosec or basic",
		"%s wants the security scheme %s, which MQTT does not have here", a.thing.Name(), quoted(scheme.Scheme))
}

// combine satisfies all of allOf, or the first of oneOf that can be.
func (c *Client) combine(l *login, a *agent, f *td.Form, scheme *td.SecurityScheme, depth int) error {
	for _, name := range scheme.AllOf {
		if err := c.satisfy(l, a, f, name, depth+1); err != nil {
			return err
		}
	}
	var first error
	for _, name := range scheme.OneOf {
		one := *l
		err := c.satisfy(&one, a, f, name, depth+1)
		if err == nil {
			*l = one
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// unauthenticated says which member of which file is missing. The full path is for the log of this node only.
func (c *Client) unauthenticated(a *agent, f *td.Form, name string, why error) error {
	c.o.Log.Warn("credentials", "thing", a.thing.ID, "scheme", name, "file", c.o.Credentials.Path(), "err", why)
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	return interact.Errorf(interact.Unauthenticated,
		fmt.Sprintf("on the agent's node add /%s/%s with \"origin\": %q, \"username\" and \"password\" to %s",
			escape.Replace(a.thing.ID), escape.Replace(name), credentials.OriginOf(f.Href), c.o.Credentials.Name()),
		"%s needs credentials for its security scheme %s: %s", a.thing.Name(), name, why)
}
