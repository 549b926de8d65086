package td

import (
	"slices"
	"strings"

	"github.com/lmosd/lmosd/td/schema"
)

// WithVariables returns the schema of a consumer's input for a: input (nil: none) with the URI variables as additional members, of which
// [Affordance.RequiredVariables] are required; see [schema.WithVariables]. Without variables it returns input.
func (a *Affordance) WithVariables(input *Schema) *Schema {
	if len(a.URIVariables) == 0 {
		return input
	}
	return schema.WithVariables(input, a.URIVariables, a.RequiredVariables())
}

// InputWithVariables returns the schema of a consumer's input to invoke a; see [Affordance.WithVariables].
func (a *Action) InputWithVariables() *Schema { return a.WithVariables(a.Input) }

// RequiredVariables returns the names of the variables that each form of a needs, sorted. These are the variables that all forms have outside
// of query and fragment, and the variables whose schema has "lmosd:required". TD 1.1 has no term for the latter.
func (a *Affordance) RequiredVariables() (names []string) {
	for _, name := range sortedKeys(a.URIVariables) {
		needed := len(a.Forms) > 0 && !slices.ContainsFunc(a.Forms, func(f Form) bool { return !needs(f.Href, name) })
		if needed || flag(a.URIVariables[name].Keyword("lmosd:required")) {
			names = append(names, name)
		}
	}
	return names
}

// needs reports whether a URI template has an expression outside of query and fragment with the variable name (RFC 6570 §3.2).
func needs(href, name string) bool {
	for {
		_, rest, ok := strings.Cut(href, "{")
		if !ok {
			return false
		}
		expression, after, _ := strings.Cut(rest, "}")
		if !strings.HasPrefix(expression, "?") && !strings.HasPrefix(expression, "&") && !strings.HasPrefix(expression, "#") {
			if names, _ := templateVars("{" + expression + "}"); slices.Contains(names, name) {
				return true
			}
		}
		href = after
	}
}
