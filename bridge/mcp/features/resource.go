package features

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
)

// scheme is the URI scheme of resources that have no URI of their own.
const scheme = "lmos://"

// served precedes the URI of a resource of an MCP server.
const served = "/mcp/"

// A Resource is a property, the recent events of an event affordance, or a template (MCP 2026-07-28, "Resources").
type Resource struct {
	URI         string `json:"uri,omitempty"`
	Template    string `json:"uriTemplate,omitempty"`
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	Media       string `json:"mimeType,omitempty"`

	// Key is the name of the property or event; empty for a resource of an MCP server, which is read from the server.
	Key string `json:"-"`
	// Event marks recent events; Observable, resources with subscriptions.
	Event, Observable bool `json:"-"`

	raw  string // URI or template at the MCP server
	vars map[string]*td.Schema
}

// addResource adds a resource of an MCP server.
func (f *Features) addResource(key string, p *td.Property, v verbatim) {
	r := &Resource{Name: key, Title: p.Title, Description: p.Description, Media: mediaOf(p.Forms)}
	switch {
	case v.URI != "":
		r.raw, r.URI, r.Observable = v.URI, scheme+f.Alias+served+v.URI, p.Observable
		f.Resources = append(f.Resources, r)
	case v.Template != "":
		r.raw, r.Template = v.Template, scheme+f.Alias+served+v.Template
		f.Templates = append(f.Templates, r)
	}
}

// addProperty adds a resource, and tools, since many clients do not show resources to models.
func (f *Features) addProperty(key string, p *td.Property) {
	uri := scheme + f.Alias + "/properties/" + url.PathEscape(key)
	r := &Resource{Name: key, Title: p.Title, Description: p.Description, Media: mediaOf(p.Forms), Key: key, vars: p.URIVariables}
	switch {
	case p.WriteOnly:
	case len(p.URIVariables) > 0:
		r.Template = uri + "{?" + strings.Join(slices.Sorted(maps.Keys(p.URIVariables)), ",") + "}"
		f.Templates = append(f.Templates, r)
	default:
		r.URI, r.Observable = uri, p.Observable
		f.Resources = append(f.Resources, r)
	}
	title := cmp.Or(p.Title, key)
	if !p.WriteOnly {
		t := &Tool{Title: "Read " + title, Description: p.Description, kind: interact.ReadProperty, Key: key,
			Annotations: &Hints{ReadOnly: true}, shape: shapeOf(nil, &p.Affordance, valueMember)}
		t.Input = t.shape.schema
		t.Output, t.isWrapped = outputOf(p.Schema)
		f.addTool(t, plain("get_"+key, MaxName))
	}
	if !p.ReadOnly {
		t := &Tool{Title: "Set " + title, Description: p.Description, kind: interact.WriteProperty, Key: key,
			Annotations: &Hints{Idempotent: true}}
		if t.shape = (shape{schema: protocol.Encode(wrapped(p.Schema, valueMember, true)), member: valueMember}); len(p.URIVariables) > 0 {
			t.shape = shapeOf(p.Schema, &p.Affordance, valueMember)
		}
		t.Input = t.shape.schema
		f.addTool(t, plain("set_"+key, MaxName))
	}
}

// mediaOf returns the media type of the first form that reads a property.
func mediaOf(forms []td.Form) string {
	for _, f := range forms {
		if slices.Contains(f.Ops, "readproperty") && f.ResponseType != "" {
			return f.ResponseType
		}
	}
	return "application/json"
}

func (f *Features) addEvent(key string, e *td.Event) {
	f.Resources = append(f.Resources, &Resource{URI: scheme + f.Alias + "/events/" + url.PathEscape(key), Name: key, Title: e.Title,
		Description: strings.TrimSpace(e.Description + " (The latest events, while a client is subscribed.)"), Media: "application/json",
		Key: key, Event: true, Observable: true})
}

// Resource returns the resource with a URI, or the template that matches it; nil if there is none. Templates of an MCP server are left to
// the server.
func (f *Features) Resource(uri string) *Resource {
	for _, r := range f.Resources {
		if r.URI == uri {
			return r
		}
	}
	head, query, _ := strings.Cut(uri, "?")
	for _, r := range f.Templates {
		if before, _, _ := strings.Cut(r.Template, "{?"); r.raw == "" && before == head {
			if _, err := url.ParseQuery(query); err == nil {
				return r
			}
		}
	}
	return nil
}

// Message returns the message that reads uri, which is r or matches the template r. The sender sets the Thing, the id and the deadline.
func (r *Resource) Message(uri string) *interact.Message {
	msg := &interact.Message{Type: interact.ReadProperty, Name: r.Key}
	if _, query, _ := strings.Cut(uri, "?"); r.Template != "" {
		if values, err := url.ParseQuery(query); err == nil && len(values) > 0 {
			msg.Data = form.AddVariables(nil, values, r.vars, nil)
		}
	}
	return msg
}

// Split splits a resource URI into the alias of its Thing and the URI at the Thing. Other URIs have no alias.
func Split(uri string) (alias, inner string) {
	path, ours := strings.CutPrefix(uri, scheme)
	if !ours {
		return "", uri
	}
	alias, path, _ = strings.Cut(path, "/")
	if raw, passed := strings.CutPrefix("/"+path, served); passed {
		return alias, raw
	}
	return alias, uri
}

// Own returns the resources and templates with their URIs at the Thing.
func (f *Features) Own() (resources, templates []Resource) {
	for _, r := range f.Resources {
		c := *r
		c.URI = cmp.Or(c.raw, c.URI)
		resources = append(resources, c)
	}
	for _, r := range f.Templates {
		c := *r
		c.Template = cmp.Or(c.raw, c.Template)
		templates = append(templates, c)
	}
	return resources, templates
}

// OwnURI returns the URI at the Thing of a resource, which is given by name or by its URI here. Other values stay unchanged.
func (f *Features) OwnURI(name string) string {
	for _, r := range f.Resources {
		if r.Name == name || r.raw != "" && r.URI == name {
			return cmp.Or(r.raw, r.URI)
		}
	}
	return name
}
