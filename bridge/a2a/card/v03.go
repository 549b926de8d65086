package card

import (
	"cmp"
	"maps"
	"strings"

	"github.com/lmosd/lmosd/internal/jcs"
)

// free are members with application-defined names below them.
var free = map[string]bool{"securitySchemes": true, "schemes": true, "params": true, "scopes": true, "header": true}

// camel converts names to camelCase: ProtoJSON allows the proto names, too.
func camel(v any, depth int) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			camel(e, depth+1)
		}
	case map[string]any:
		for name, m := range v {
			to := camelName(name)
			if _, both := v[to]; to != name && !both {
				delete(v, name)
				v[to] = m
			}
			if !free[to] {
				camel(m, depth+1)
			} else if entries, ok := m.(map[string]any); ok && to == "securitySchemes" {
				for _, e := range entries {
					camel(e, depth+1)
				}
			}
		}
	}
}

func camelName(name string) string {
	words := strings.Split(name, "_")
	for i, w := range words[1:] {
		if w != "" {
			words[i+1] = strings.ToUpper(w[:1]) + w[1:]
		}
	}
	return strings.Join(words, "")
}

type object = map[string]any

// fromV03 converts a card of 0.3 to 1.0 (A2A 0.3.0 §5.5).
func fromV03(old object) object {
	c := object{}
	for _, name := range list("name", "description", "version", "provider", "documentationUrl", "iconUrl", "defaultInputModes",
		"defaultOutputModes", "signatures") {
		if v, ok := old[name]; ok {
			c[name] = v
		}
	}
	c["supportedInterfaces"] = oldInterfaces(old)
	capabilities, _ := old["capabilities"].(object)
	can := object{}
	for _, name := range list("streaming", "pushNotifications", "extensions") {
		if v, ok := capabilities[name]; ok {
			can[name] = v
		}
	}
	if yes, ok := old["supportsAuthenticatedExtendedCard"].(bool); ok {
		can["extendedAgentCard"] = yes
	}
	c["capabilities"] = can
	if schemes, ok := old["securitySchemes"].(object); ok {
		all := object{}
		for name, s := range schemes {
			all[name] = newScheme(s)
		}
		c["securitySchemes"] = all
	}
	if needs, ok := old["security"].([]any); ok {
		c["securityRequirements"] = newRequirements(needs)
	}
	c["skills"] = oldSkills(old["skills"])
	return c
}

// oldSkills are objects in 0.3; entries of other types are ignored.
func oldSkills(v any) []any {
	skills, _ := v.([]any)
	out := []any{}
	for _, s := range skills {
		if m, ok := s.(object); ok {
			kept := project(m, message.fields["skills"]).(object)
			if needs, ok := m["security"].([]any); ok {
				kept["securityRequirements"] = newRequirements(needs)
			}
			out = append(out, kept)
		}
	}
	return out
}

func oldInterfaces(old object) []any {
	var all []any
	seen := map[string]bool{}
	add := func(url, transport any) {
		u, _ := url.(string)
		binding, _ := transport.(string)
		binding = cmp.Or(binding, JSONRPC) // A2A 0.3.0 §5.5.1, default of preferredTransport
		if key := binding + " " + u; u != "" && !seen[key] {
			seen[key] = true
			all = append(all, object{"url": u, "protocolBinding": binding, "protocolVersion": "0.3"})
		}
	}
	add(old["url"], old["preferredTransport"])
	more, _ := old["additionalInterfaces"].([]any)
	for _, m := range more {
		i, _ := m.(object)
		add(i["url"], i["transport"])
	}
	return all
}

func newRequirements(old []any) []any {
	all := []any{}
	for _, e := range old {
		schemes := object{}
		needs, _ := e.(object)
		for name, scopes := range needs {
			schemes[name] = object{"list": scopes}
		}
		all = append(all, object{"schemes": schemes})
	}
	return all
}

// newScheme converts a scheme of 0.3, which is that of OpenAPI, to 1.0.
func newScheme(v any) any {
	s, _ := v.(object)
	with := func(names ...string) object {
		out := object{}
		for _, name := range append(names, "description") {
			if m, ok := s[name]; ok {
				out[name] = m
			}
		}
		return out
	}
	switch s["type"] {
	case "apiKey":
		key := with("name")
		key["location"] = s["in"]
		return object{"apiKeySecurityScheme": key}
	case "http":
		return object{"httpAuthSecurityScheme": with("scheme", "bearerFormat")}
	case "oauth2":
		return object{"oauth2SecurityScheme": with("flows", "oauth2MetadataUrl")}
	case "openIdConnect":
		return object{"openIdConnectSecurityScheme": with("openIdConnectUrl")}
	case "mutualTLS":
		return object{"mtlsSecurityScheme": with()}
	}
	return v
}

// Union encodes a card for clients of an unknown version: the members of 1.0 and of 0.3. The signatures remain valid, because they
// cover the members of 1.0 only.
func Union(c *Card) ([]byte, error) {
	raw, err := c.Bytes()
	if err != nil {
		return nil, err
	}
	doc, err := jcs.Object(raw, 2*MaxCard)
	if err != nil {
		return nil, err
	}
	addV03(doc, c)
	return jcs.Append(nil, doc)
}

func addV03(doc object, c *Card) {
	doc["protocolVersion"] = "0.3.0"
	more := []any{}
	for _, i := range c.Interfaces {
		if i.Version != "0.3" {
			continue
		}
		if doc["url"] == nil {
			doc["url"], doc["preferredTransport"] = i.URL, i.Binding
		}
		more = append(more, object{"url": i.URL, "transport": i.Binding})
	}
	doc["additionalInterfaces"] = more
	doc["supportsAuthenticatedExtendedCard"] = Supported(c.Capabilities.ExtendedCard)
	if schemes, ok := doc["securitySchemes"].(object); ok {
		for name, s := range schemes {
			addOldScheme(s.(object), c.Schemes[name])
		}
	}
	if len(c.Requirements) > 0 {
		doc["security"] = oldRequirements(c.Requirements)
	}
}

func oldRequirements(all []Requirement) []any {
	out := []any{}
	for _, r := range all {
		needs := object{}
		for name, scopes := range r.Schemes {
			list := []any{}
			for _, s := range scopes.List {
				list = append(list, s)
			}
			needs[name] = list
		}
		out = append(out, needs)
	}
	return out
}

// addOldScheme adds the members of 0.3 to a scheme of 1.0.
func addOldScheme(to object, s Scheme) {
	copyOf := func(name string) {
		from, _ := to[name].(object)
		maps.Copy(to, from)
	}
	switch {
	case s.APIKey != nil:
		to["type"], to["in"], to["name"] = "apiKey", s.APIKey.Location, s.APIKey.Name
	case s.HTTP != nil:
		to["type"] = "http"
		copyOf("httpAuthSecurityScheme")
	case s.OAuth2 != nil:
		to["type"] = "oauth2"
		copyOf("oauth2SecurityScheme")
	case s.OpenID != nil:
		to["type"] = "openIdConnect"
		copyOf("openIdConnectSecurityScheme")
	case s.MTLS != nil:
		to["type"] = "mutualTLS"
	}
}
