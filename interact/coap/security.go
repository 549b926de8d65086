package coap

import (
	"encoding/json"
	"fmt"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/td"
)

// maxNesting is how deep combo schemes may refer to each other.
const maxNesting = 4

// secrets puts into the target what the security schemes of the form f ask for: the pre-shared key of one of them (TD 1.1
// §5.3.3, PSKSecurityScheme). Every name of a form's array applies.
func (r *request) secrets(f *td.Form, t *messaging.Target) error {
	for _, name := range f.Security {
		if err := r.satisfy(f, t, name, 0); err != nil {
			return err
		}
	}
	return nil
}

func (r *request) satisfy(f *td.Form, t *messaging.Target, name string, depth int) error {
	scheme := r.thing.SecurityDefs[name]
	if scheme == nil || depth > maxNesting {
		return interact.Errorf(interact.BadTD, "define it in securityDefinitions and publish again",
			"%s names the security scheme %q, which is not defined", r.what(), name)
	}
	switch scheme.Scheme {
	case "nosec":
		return nil
	case "combo":
		return r.combine(f, t, scheme, depth)
	case "psk":
		return r.psk(f, t, name, scheme)
	}
	return interact.Errorf(interact.Unauthenticated, "offer a form with nosec or psk",
		"%s wants the security scheme %q, which lmosd does not have over CoAP", r.what(), scheme.Scheme)
}

// combine satisfies all of allOf, or the first of oneOf that can be.
func (r *request) combine(f *td.Form, t *messaging.Target, scheme *td.SecurityScheme, depth int) error {
	for _, name := range scheme.AllOf {
		if err := r.satisfy(f, t, name, depth+1); err != nil {
			return err
		}
	}
	var first error
	for _, name := range scheme.OneOf {
		one := *t
		err := r.satisfy(f, &one, name, depth+1)
		if err == nil {
			*t = one
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// psk takes identity and key from the credentials; the identity may also stand in the description.
func (r *request) psk(f *td.Form, t *messaging.Target, name string, scheme *td.SecurityScheme) error {
	if t.Scheme != "coaps" {
		return interact.Errorf(interact.Unauthenticated, "offer a form whose href begins with coaps:",
			"%s wants a pre-shared key over %s, which lmosd has over coaps only", r.what(), t.Scheme)
	}
	found, err := r.client.credentials.Lookup(r.thing.ID, name, f.Href)
	if err == nil && found.Key == "" {
		err = fmt.Errorf("those there are have no key")
	}
	if err != nil {
		r.client.log.Warn("credentials", "thing", r.thing.ID, "scheme", name, "file", r.client.credentials.Path(), "err", err)
		hint := fmt.Sprintf(`on the agent's node add /%s/%s with "origin": %q, "username" (the identity) and "key" to %s`,
			pointer.Replace(r.thing.ID), pointer.Replace(name), credentials.OriginOf(f.Href), r.client.credentials.Name())
		return interact.Errorf(interact.Unauthenticated, hint,
			"%s needs credentials for its security scheme %s: %s", r.what(), name, err)
	}
	var own struct{ Identity string }
	_ = json.Unmarshal(scheme.Raw, &own) // a scheme without identity is one
	t.Identity, t.Key = found.Username, found.Key
	if t.Identity == "" {
		t.Identity = own.Identity
	}
	return nil
}
