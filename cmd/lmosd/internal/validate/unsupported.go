package validate

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// Obstacles returns the reasons why an agent with a valid description cannot be called through a node.
func Obstacles(t *td.Thing) []td.Issue {
	var found []td.Issue
	if len(t.Actions)+len(t.Properties)+len(t.Events) == 0 {
		found = append(found, td.Issue{Reason: "describes no action, property or event: there is nothing to call"})
	}
	used := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(t.Actions)) {
		found = append(found, deaf("/actions/"+escape(name), t.Actions[name].Forms, used)...)
	}
	for _, name := range slices.Sorted(maps.Keys(t.Properties)) {
		found = append(found, deaf("/properties/"+escape(name), t.Properties[name].Affordance.Forms, used)...)
	}
	for _, name := range slices.Sorted(maps.Keys(t.Events)) {
		found = append(found, deaf("/events/"+escape(name), t.Events[name].Forms, used)...)
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		s := t.SecurityDefs[name]
		if s != nil && !slices.Contains([]string{"nosec", "basic", "bearer", "apikey", "combo"}, s.Scheme) {
			found = append(found, td.Issue{Pointer: "/securityDefinitions/" + escape(name) + "/scheme",
				Reason: fmt.Sprintf("a node cannot log in by %q; it can by basic, bearer and apikey", s.Scheme)})
		}
	}
	return found
}

// deaf reports an affordance that no node can call, and records the security schemes of its forms in used.
func deaf(pointer string, forms []td.Form, used map[string]bool) []td.Issue {
	answered := false
	for _, f := range forms {
		u, err := url.Parse(strings.NewReplacer("{", "", "}", "").Replace(f.Href)) // the href may be a template
		if err == nil && u.Host != "" && servient.Supports(&f) {
			answered = true
		}
		for _, name := range f.Security {
			used[name] = true
		}
	}
	if answered {
		return nil
	}
	return []td.Issue{{Pointer: pointer + "/forms", Reason: "none has an address that a node can ask: " + scheme.Protocols() + ", or the secure ones"}}
}

// escape returns name as a part of a JSON pointer (RFC 6901 §3).
func escape(name string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(name) }

// signed checks the signature: a proof must be valid, and a registration must not be signed.
func signed(ctx context.Context, raw []byte) (issues, warnings []td.Issue) {
	doc, err := jcs.Decode(raw, td.MaxTD)
	object, ok := doc.(map[string]any)
	if err != nil || !ok {
		return nil, nil // already reported
	}
	if object["proof"] != nil {
		if _, err := proof.Verify(ctx, object, proof.Check{}); err != nil {
			issues = append(issues, td.Issue{Pointer: "/proof", Reason: err.Error()})
		}
	} else if object["registration"] != nil {
		warnings = append(warnings, td.Issue{Pointer: "/registration",
			Reason: "is what a directory says about the agent; lmosd publish refuses to sign it"})
	}
	return issues, warnings
}
