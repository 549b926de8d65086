package openapi

import (
	"maps"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// A security is the requirement of the operations. An operation may offer alternatives; one is taken: the first without any
// credentials, else the first whose schemes this node has, tokens that must be got elsewhere last.
type security struct {
	*converter
	general []string        // of the thing
	used    map[string]bool // names of schemes
}

// open is the name of the scheme without security.
const open = "nosec_sc"

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
	best, rank := []string{open}, 0
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
	case rank >= unknown:
		s.warn(where, "asks for %s, which lmosd does not have: it is called without", strings.Join(best, " and "))
		best = nil
	case rank == token:
		s.warn(where, "asks for a token of %s: get one, and put it into the credentials as that of a bearer scheme",
			strings.Join(best, " and "))
	}
	if len(best) == 0 {
		best = []string{open}
	}
	for _, name := range best {
		s.used[name] = true
	}
	return best
}

// Ranks of schemes, the most welcome first.
const (
	known = iota + 1
	token
	unknown
)

func (s *security) rank(name string) int {
	switch scheme := s.scheme(name); {
	case scheme == nil || name == open:
		return unknown
	case s.raw(name).Type == "oauth2" || s.raw(name).Type == "openIdConnect":
		return token
	}
	return known
}

func (s *security) raw(name string) *openapi3.SecurityScheme {
	if s.api.Components == nil || s.api.Components.SecuritySchemes[name] == nil {
		return nil
	}
	return s.api.Components.SecuritySchemes[name].Value
}

// scheme returns a scheme as TD 1.1 §5.3.3 has it, or nil if it has none that a node can fill.
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
		if all[name] = s.scheme(name); name == open {
			all[name] = map[string]any{"scheme": "nosec"}
		}
	}
	return all
}
