package form

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/schema"
)

// maxNesting limits the nesting of combo schemes.
const maxNesting = 4

// Security are the security schemes that a binding supports, and the credentials of this node for them.
type Security struct {
	Protocol    string   // for errors: "HTTP"
	Schemes     []string // in addition to nosec and combo: "psk"
	NotIn       []string // unsupported positions of [Secrets]: "body"
	Credentials credentials.Store
	Log         *slog.Logger
	// Add adds the credential of a scheme to s; nil means [Secrets.Add].
	Add func(s *Secrets, by *Scheme) error
}

// A Scheme is a security scheme that a form requires.
type Scheme struct {
	*td.SecurityScheme
	Ref string // its name in securityDefinitions

	Form  *td.Form
	by    *Security
	thing *td.Thing
	asks  *interact.Message
}

// what returns the name of the affordance and the Thing in errors.
func (s *Scheme) what() string { return what(s.thing, s.asks) }

// collect returns the credentials of all security schemes of f, a form of t for m (TD 1.1 §5.3.3: every name of the array applies). The
// error is an [*interact.Error].
func (by *Security) collect(t *td.Thing, f *td.Form, m *interact.Message) (all Secrets, err error) {
	for _, name := range f.Security {
		if d := t.SecurityDefs[name]; d != nil && d.Scheme == "nosec" {
			continue
		}
		if err := collectOne(&Scheme{Ref: name, by: by, thing: t, Form: f, asks: m}, &all, 0); err != nil {
			return Secrets{}, err
		}
	}
	return all, nil
}

func collectOne(s *Scheme, all *Secrets, depth int) error {
	s.SecurityScheme = s.thing.SecurityDefs[s.Ref]
	switch {
	case s.SecurityScheme == nil || depth > maxNesting:
		return interact.Errorf(interact.BadTD, "define it in securityDefinitions and publish again",
			"%s names the security scheme %q, which is not defined", s.what(), interact.Clip(s.Ref, 100))
	case s.Scheme == "nosec":
		return nil
	case s.Scheme == "combo":
		return combine(s, all, depth)
	case !slices.Contains(s.by.Schemes, s.Scheme):
		last := len(s.by.Schemes) - 1
		return interact.Errorf(interact.Unauthenticated,
			"offer a form with "+strings.Join(append([]string{"nosec"}, s.by.Schemes[:last]...), ", ")+" or "+s.by.Schemes[last],
			"%s requires the security scheme %q, which lmosd does not support over %s", s.what(), interact.Clip(s.Scheme, 100), s.by.Protocol)
	}
	if s.by.Add != nil {
		return s.by.Add(all, s)
	}
	return all.Add(s)
}

// combine satisfies all schemes of allOf, and the first of oneOf that can be satisfied.
func combine(s *Scheme, all *Secrets, depth int) error {
	part := func(name string, all *Secrets) error {
		one := *s
		one.Ref = name
		return collectOne(&one, all, depth+1)
	}
	for _, name := range s.AllOf {
		if err := part(name, all); err != nil {
			return err
		}
	}
	var first error
	for _, name := range s.OneOf {
		one := *all
		err := part(name, &one)
		if err == nil {
			*all = one
			return nil
		}
		first = cmp.Or(first, err)
	}
	return first
}

// Errorf returns an error of code Unauthenticated whose title begins with the name of the affordance.
func (s *Scheme) Errorf(hint, format string, args ...any) error {
	return interact.Errorf(interact.Unauthenticated, hint, "%s "+format, append([]any{s.what()}, args...)...)
}

// credentialMembers are the members of a credential by scheme.
var credentialMembers = map[string]string{"basic": `"username" and "password"`, "bearer": `"token"`, "apikey": `"key"`,
	"psk": `"username" (the identity) and "key"`}

// credential returns the credential of this node for the scheme. The error names the missing member of the credentials file. The
// full path of the file is only in the log of this node.
func (s *Scheme) credential() (credentials.Credential, error) {
	store := s.by.Credentials
	found, err := store.Lookup(s.thing.ID, s.Ref, s.Form.Href)
	if err == nil && s.Scheme == "psk" && found.Key == "" {
		err = errors.New("the credentials have no key")
	}
	if err == nil {
		return found, nil
	}
	s.by.Log.Warn("credentials missing", "thing", s.thing.ID, "scheme", s.Ref, "file", store.Path(), "err", err)
	hint := fmt.Sprintf("on the agent's node add %s with \"origin\": %q, %s to %s", schema.Pointer(s.thing.ID, s.Ref),
		credentials.OriginOf(s.Form.Href), credentialMembers[s.Scheme], store.Name())
	return found, interact.Errorf(interact.Unauthenticated, hint, "%s requires credentials for its security scheme %s: %s", s.what(),
		interact.Clip(s.Ref, 100), err)
}
