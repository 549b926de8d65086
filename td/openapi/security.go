package openapi

import (
	"maps"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
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
	s.general = s.pick("the API", c.api.Security)
	return s
}

// of returns the schemes of an operation.
func (s *security) of(op *operation) []string {
	if op.Security == nil {
		return s.general
	}
	return s.pick(op.where(), *op.Security)
}

// pick returns the names of one requirement: all of them apply.
func (s *security) pick(where string, alternatives openapi3.SecurityRequirements) []string {
	best, rank := []string{noSecurity}, 0
	for i, r := range alternatives {
		names := slices.Sorted(maps.Keys(r))
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
	case s.raw(name).Type == "oauth2" || s.raw(name).Type == "openIdConnect":
		return token
	}
	return supported
}

func (s *security) raw(name string) *openapi3.SecurityScheme {
	if s.api.Components == nil || s.api.Components.SecuritySchemes[name] == nil {
		return nil
	}
	return s.api.Components.SecuritySchemes[name].Value
}

// scheme returns a scheme in the form of TD 1.1 §5.3.3, or nil if lmosd does not support it.
func (s *security) scheme(name string) map[string]any {
	raw := s.raw(name)
	if raw == nil {
		return nil
	}
	out := map[string]any{}
	if raw.Description != "" && !s.bare {
		out["description"] = clip(raw.Description, 300)
	}
	switch kind := raw.Type + " " + strings.ToLower(raw.Scheme); {
	case kind == "http basic":
		out["scheme"], out["in"] = "basic", "header"
	case kind == "http bearer", raw.Type == "oauth2", raw.Type == "openIdConnect":
		out["scheme"], out["in"] = "bearer", "header"
		if strings.EqualFold(raw.BearerFormat, "JWT") {
			out["format"] = "jwt"
		}
	case raw.Type == "apiKey" && slices.Contains([]string{"header", "query", "cookie"}, raw.In) && raw.Name != "":
		out["scheme"], out["in"], out["name"] = "apikey", raw.In, raw.Name
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
