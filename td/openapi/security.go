package openapi

import (
	"slices"
	"strings"
)

// A security selects the security requirements of the operations. Of several alternatives it selects the first without credentials, else
// the first with supported schemes; OAuth 2 and OpenID Connect come last, because the user must obtain the token.
type security struct {
	*converter
	general []string        // names of the schemes of the Thing
	used    map[string]bool // names of all used schemes
}

// noSecurity is the name of the scheme without security.
const noSecurity = "nosec_sc"

func newSecurity(c *converter) *security {
	s := &security{converter: c, used: map[string]bool{}}
	s.general = s.pick("the API", c.api)
	return s
}

// of returns the schemes of an operation.
func (s *security) of(op *operation) []string {
	if !op.spec.has("security") {
		return s.general
	}
	return s.pick(op.where(), op.spec)
}

// pick returns the names of one of the requirements of the API or of an operation: all of them apply.
func (s *security) pick(where string, owner object) []string {
	best, rank := []string{noSecurity}, 0
	for i, r := range owner.list("security", part) {
		names := r.names()
		n := 0
		for _, name := range names {
			n = max(n, s.rank(name))
		}
		if i == 0 || n < rank {
			best, rank = names, n
		}
	}
	switch {
	case rank >= unsupported:
		s.warn(where, "requires %s, which lmosd does not support: it is called without credentials", strings.Join(best, " and "))
		best = nil
	case rank == token:
		s.warn(where, "requires a token of %s: obtain one, and store it in the credentials as a bearer token",
			strings.Join(best, " and "))
	}
	if len(best) == 0 {
		best = []string{noSecurity}
	}
	for _, name := range best {
		s.used[name] = true
	}
	return best
}

// Ranks of schemes, best first.
const (
	supported = iota + 1
	token
	unsupported
)

func (s *security) rank(name string) int {
	switch scheme := s.scheme(name); {
	case scheme == nil || name == noSecurity:
		return unsupported
	case isToken(s.raw(name)):
		return token
	}
	return supported
}

func (s *security) raw(name string) object {
	return s.api.object("components").object("securitySchemes").object(name)
}

// isToken reports whether the user must obtain a token for a scheme.
func isToken(raw object) bool {
	return raw.text("type") == "oauth2" || raw.text("type") == "openIdConnect"
}

// scheme returns a scheme in the form of TD 1.1 §5.3.3, or nil if lmosd does not support it.
func (s *security) scheme(name string) map[string]any {
	raw := s.raw(name)
	if !raw.exists() {
		return nil
	}
	out := map[string]any{}
	if text := raw.text("description"); text != "" && !s.bare {
		out["description"] = clip(text, 300)
	}
	switch kind := raw.text("type") + " " + strings.ToLower(raw.text("scheme")); {
	case kind == "http basic":
		out["scheme"], out["in"] = "basic", "header"
	case kind == "http bearer", isToken(raw):
		out["scheme"], out["in"] = "bearer", "header"
		if strings.EqualFold(raw.text("bearerFormat"), "JWT") {
			out["format"] = "jwt"
		}
	case raw.text("type") == "apiKey" && slices.Contains([]string{"header", "query", "cookie"}, raw.text("in")) && raw.text("name") != "":
		out["scheme"], out["in"], out["name"] = "apikey", raw.text("in"), raw.text("name")
	default:
		return nil
	}
	return out
}

// definitions returns the schemes that are used.
func (s *security) definitions() map[string]any {
	all := map[string]any{}
	for name := range s.used {
		if all[name] = s.scheme(name); name == noSecurity {
			all[name] = map[string]any{"scheme": "nosec"}
		}
	}
	return all
}
