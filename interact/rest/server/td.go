package server

import (
	"net/http"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// getTD responds with the TD of the thing, with the forms of this server.
func (v *visit) getTD() error {
	raw, err := v.Describe(v.r, v.desc)
	if err != nil {
		return err
	}
	media := "application/td+json"
	if wanted(v.r.Header) == interact.JSON {
		media = interact.JSON
	}
	v.w.Header().Set("Cache-Control", "no-cache") // it changes with the TD of the owner
	v.write(http.StatusOK, media, raw)
	return nil
}

// Describe returns the TD of d with the forms of this server in place of those of its owner, for the caller of r: with it, HTTP and
// WebSocket consumers can use any Thing of the mesh. It is not signed, and links to the TD of the owner. See [td.Thing.RewriteForms].
func (s *Server) Describe(r *http.Request, d *td.Description) ([]byte, error) {
	base := s.o.Base(r)
	f := forms{home: base + thingPath(d.Ref()), thing: d.Thing}
	if after, ok := strings.CutPrefix(base, "http"); ok && s.o.Socket != "" {
		f.socket = "ws" + after + s.o.Socket // ws and wss (RFC 6455 §3)
	}
	return d.Thing.RewriteForms(td.FormRewrite{Forms: f.of, Original: f.home, Bearer: s.o.Bearer})
}

// forms has the addresses of a Thing at this server.
type forms struct {
	home   string // the URL of the thing
	socket string // the URL of the WebSocket endpoint; empty: none
	thing  *td.Thing
}

// of returns the forms of an affordance, or of the whole Thing, in an order for the known clients: HTTP before WebSocket, on which one
// client hangs; long poll before server-sent events, because one client handles only events without a name, and another client handles
// the first form as a long poll. All schemes support all operations.
func (f *forms) of(kind, name string, ops []string) []td.Form {
	var all []td.Form
	switch kind {
	case "properties":
		all = f.property(name, ops)
	case "actions":
		all = f.action(name)
	case "events":
		all = watched(thingPathOf(f.home, kind, name), thingPathOf(f.home, kind, name), "event")
	default:
		all = f.whole(ops)
	}
	if f.socket != "" {
		all = append(all, td.Form{Href: f.socket, ContentType: interact.JSON, Subprotocol: "lmosprotocol", Ops: ops})
	}
	return all
}

func thingPathOf(home string, names ...string) string {
	return home + strings.TrimPrefix(thingPath("", names...), "/things/")
}

// watched returns the forms of an observation or a subscription; what is "property", "event", "allproperties" or "allevents". Without
// poll there is no long poll.
func watched(href, poll, what string) []td.Form {
	begin, end := "observe"+what, "unobserve"+what
	if strings.HasSuffix(what, "event") || strings.HasSuffix(what, "events") {
		begin, end = "subscribe"+what, "unsubscribe"+what
	}
	var all []td.Form
	if poll != "" {
		all = append(all, td.Form{Href: poll, ContentType: interact.JSON, Subprotocol: "longpoll", Ops: []string{begin, end}})
	}
	return append(all,
		td.Form{Href: href, ContentType: interact.JSON, Subprotocol: "sse", Ops: []string{begin, end}},
		td.Form{Href: href, ContentType: interact.JSON, Subprotocol: "webhook", Ops: []string{begin}, HTTPMethod: "POST"})
}

func (f *forms) property(name string, ops []string) []td.Form {
	p := f.thing.Properties[name]
	if p == nil {
		return nil
	}
	href := thingPathOf(f.home, "properties", name)
	form := carried(p.Forms)
	form.Href = href
	for _, op := range ops {
		if op == "readproperty" || op == "writeproperty" {
			form.Ops = append(form.Ops, op)
		}
	}
	all := []td.Form{form}
	if p.Observable {
		all = append(all, watched(href, href+"/"+observable, "property")...)
	}
	return all
}

func (f *forms) action(name string) []td.Form {
	a := f.thing.Actions[name]
	if a == nil {
		return nil
	}
	href := thingPathOf(f.home, "actions", name)
	form := carried(a.Forms)
	form.Href, form.Ops = href, []string{"invokeaction"}
	return []td.Form{form,
		{Href: href, ContentType: interact.JSON, Ops: []string{"queryaction"}, HTTPMethod: "GET"},
		{Href: href, ContentType: interact.JSON, Ops: []string{"cancelaction"}, HTTPMethod: "DELETE"}}
}

// carried returns a form with the media types of the forms of the agent. JSON is preferred, because some clients support nothing else and
// this server converts CBOR.
func carried(forms []td.Form) td.Form {
	best := td.Form{ContentType: interact.JSON}
	for i := range forms {
		own := &forms[i]
		isJSON := td.IsJSON(own.ContentType) || interact.IsCBOR(own.ContentType)
		if i > 0 && !isJSON {
			continue
		}
		best.ContentType, best.ResponseType = own.ContentType, ""
		if isJSON {
			best.ContentType = interact.JSON
		}
		if r := own.ResponseType; r != own.ContentType && (!isJSON || !td.IsJSON(r) && !interact.IsCBOR(r)) {
			best.ResponseType = r
		}
		if isJSON {
			break
		}
	}
	return best
}

// whole returns the forms of operations on all properties, actions or events.
func (f *forms) whole(ops []string) []td.Form {
	properties, actions, events := f.home+"/properties", f.home+"/actions", f.home+"/events"
	var all []td.Form
	for _, op := range ops {
		form := td.Form{Href: properties, ContentType: interact.JSON, Ops: []string{op}}
		switch op {
		case "readallproperties":
			form.HTTPMethod = "GET"
		case "readmultipleproperties": // an array of names is the body (TD 1.1 §5.3.4.2)
			form.HTTPMethod = "POST"
		case "writeallproperties":
			form.Href, form.HTTPMethod = properties+"?all=true", "PUT"
		case "writemultipleproperties":
			form.HTTPMethod = "PUT"
		case "queryallactions":
			form.Href, form.HTTPMethod = actions, "GET"
		case "observeallproperties":
			all = append(all, watched(properties, "", "allproperties")...)
			continue
		case "subscribeallevents":
			all = append(all, watched(events, events, "allevents")...)
			continue
		default: // unobserve and unsubscribe are with their counterparts
			continue
		}
		all = append(all, form)
	}
	return all
}
