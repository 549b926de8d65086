package features

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
)

// scheme is that of the URIs of what is a resource here only.
const scheme = "lmos://"

// served stands before the URI that a server's resource has there.
const served = "/mcp/"

// A Resource is a property, or the latest events of a kind; or a template of such (MCP 2026-07-28, "Resources").
type Resource struct {
	URI         string `json:"uri,omitempty"`
	Template    string `json:"uriTemplate,omitempty"`
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	Media       string `json:"mimeType,omitempty"`

	// Key is the name of the property or event; empty for a resource of an MCP server, which the server answers for.
	Key string `json:"-"`
	// Event tells that it is the latest events; Told, that its changes can be listened to.
	Event, Told bool `json:"-"`

	raw  string // the URI, or template, that the server itself has
	vars map[string]*td.Schema
}

// addResource adds what is a resource of a server.
func (o *Offer) addResource(key string, p *td.Property, v verbatim) {
	r := &Resource{Name: key, Title: p.Title, Description: p.Description, Media: mediaOf(p.Forms)}
	switch {
	case v.URI != "":
		r.raw, r.URI, r.Told = v.URI, scheme+o.Alias+served+v.URI, p.Observable
		o.Resources = append(o.Resources, r)
	case v.Template != "":
		r.raw, r.Template = v.Template, scheme+o.Alias+served+v.Template
		o.Templates = append(o.Templates, r)
	}
}

// addProperty adds a resource, and tools: many clients show no resources to models.
func (o *Offer) addProperty(key string, p *td.Property) {
	uri := scheme + o.Alias + "/properties/" + url.PathEscape(key)
	r := &Resource{Name: key, Title: p.Title, Description: p.Description, Media: mediaOf(p.Forms), Key: key, vars: p.URIVariables}
	switch {
	case p.WriteOnly:
	case len(p.URIVariables) > 0:
		r.Template = uri + "{?" + strings.Join(slices.Sorted(maps.Keys(p.URIVariables)), ",") + "}"
		o.Templates = append(o.Templates, r)
	default:
		r.URI, r.Told = uri, p.Observable
		o.Resources = append(o.Resources, r)
	}
	title := cmp.Or(p.Title, key)
	if !p.WriteOnly {
		t := &Tool{Title: "Read " + title, Description: p.Description, kind: interact.ReadProperty, Key: key,
			Annotations: &Hints{ReadOnly: true}, shape: shapeOf(nil, &p.Affordance, valueMember)}
		t.Input = t.shape.schema
		t.Output, t.wraps = outputOf(p.Schema)
		o.addTool(t, plain("get_"+key, MaxName))
	}
	if !p.ReadOnly {
		t := &Tool{Title: "Set " + title, Description: p.Description, kind: interact.WriteProperty, Key: key,
			Annotations: &Hints{Idempotent: true}}
		if t.shape = (shape{schema: written(wrapped(p.Schema, valueMember, true)), member: valueMember}); len(p.URIVariables) > 0 {
			t.shape = shapeOf(p.Schema, &p.Affordance, valueMember)
		}
		t.Input = t.shape.schema
		o.addTool(t, plain("set_"+key, MaxName))
	}
}

// mediaOf is the media type in which a property is read first.
func mediaOf(forms []td.Form) string {
	for _, f := range forms {
		if slices.Contains(f.Ops, "readproperty") && f.ResponseType != "" {
			return f.ResponseType
		}
	}
	return "application/json"
}

func (o *Offer) addEvent(key string, e *td.Event) {
	o.Resources = append(o.Resources, &Resource{URI: scheme + o.Alias + "/events/" + url.PathEscape(key), Name: key, Title: e.Title,
		Description: strings.TrimSpace(e.Description + " (The latest events, while somebody listens.)"), Media: "application/json",
		Key: key, Event: true, Told: true})
}

// Resource returns the resource that a URI names, or the template that it is of; nil if there is none. What is of a template of an MCP
// server, the server knows alone.
func (o *Offer) Resource(uri string) *Resource {
	for _, r := range o.Resources {
		if r.URI == uri {
			return r
		}
	}
	head, query, _ := strings.Cut(uri, "?")
	for _, r := range o.Templates {
		if before, _, _ := strings.Cut(r.Template, "{?"); r.raw == "" && before == head {
			if _, err := url.ParseQuery(query); err == nil {
				return r
			}
		}
	}
	return nil
}

// Message is what reading uri, which r has or is a template of, is to the thing. The name of that, an id and a deadline are the
// sender's to set.
func (r *Resource) Message(uri string) *interact.Message {
	msg := &interact.Message{Type: interact.ReadProperty, Name: r.Key}
	if _, query, _ := strings.Cut(uri, "?"); r.Template != "" {
		if values, err := url.ParseQuery(query); err == nil && len(values) > 0 {
			msg.Data = form.AddVariables(nil, values, r.vars, nil)
		}
	}
	return msg
}

// Split splits a URI of a resource here into the alias of whose it is, and the URI that this has itself. Those of others have no alias.
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

// Own are the resources, and the templates, under the URIs that the thing itself has for them.
func (o *Offer) Own() (resources, templates []Resource) {
	for _, r := range o.Resources {
		c := *r
		c.URI = cmp.Or(c.raw, c.URI)
		resources = append(resources, c)
	}
	for _, r := range o.Templates {
		c := *r
		c.Template = cmp.Or(c.raw, c.Template)
		templates = append(templates, c)
	}
	return resources, templates
}

// OwnURI is the URI that the thing itself has for a resource, which is named by its name, or by its URI here. What is neither stays.
func (o *Offer) OwnURI(name string) string {
	for _, r := range o.Resources {
		if r.Name == name || r.raw != "" && r.URI == name {
			return cmp.Or(r.raw, r.URI)
		}
	}
	return name
}
