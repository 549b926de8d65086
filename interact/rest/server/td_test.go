package server

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// homeOf is where the test's thing is in descriptions.
const homeOf = "http://node.example:4668/things/urn:example:house@z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"

// described returns the TD that a server gives of the test's thing.
func described(t *testing.T, o Options, prepare func(*http.Request)) *td.Thing {
	t.Helper()
	o.Find = finds(t, "house")
	s := New(o)
	defer s.Close()
	r := httptest.NewRequestWithContext(t.Context(), "GET", "http://node.example:4668/things/house/td", nil)
	if prepare != nil {
		prepare(r)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if w.Code != 200 || w.Header().Get("Content-Type") != "application/td+json" {
		t.Fatalf("got %d %v %s", w.Code, w.Header(), w.Body)
	}
	thing, err := td.Parse(w.Body.Bytes())
	if err != nil {
		t.Fatalf("%v\n%s", err, w.Body)
	}
	return thing
}

// brief writes forms in a line each.
func brief(home string, forms []td.Form) (lines []string) {
	for _, f := range forms {
		line := strings.Replace(f.Href, home, "~", 1)
		for _, part := range []string{f.Subprotocol, f.HTTPMethod, strings.Join(f.Ops, ",")} {
			if part != "" {
				line += " " + part
			}
		}
		if f.ContentType != interact.JSON || f.ResponseType != f.ContentType {
			line += " " + f.ContentType + ">" + f.ResponseType
		}
		lines = append(lines, line)
	}
	return lines
}

func TestDescription(t *testing.T) {
	t.Parallel()
	thing := described(t, Options{Socket: "/ws"}, nil)
	const ws = "ws://node.example:4668/ws lmosprotocol "
	for what, tt := range map[string]struct {
		forms []td.Form
		want  []string
	}{
		"property": {thing.Properties["units"].Forms, []string{
			"~/properties/units readproperty,writeproperty",
			"~/properties/units/observable longpoll observeproperty,unobserveproperty",
			"~/properties/units sse observeproperty,unobserveproperty",
			"~/properties/units webhook POST observeproperty",
			ws + "readproperty,writeproperty,observeproperty,unobserveproperty"}},
		"property that is read only": {thing.Properties["serial"].Forms, []string{"~/properties/serial readproperty", ws + "readproperty"}},
		"property with a comma":      {thing.Properties["a,b"].Forms, []string{"~/properties/a%2Cb readproperty,writeproperty", ws + "readproperty,writeproperty"}},
		"action": {thing.Actions["fade"].Forms, []string{"~/actions/fade invokeaction", "~/actions/fade GET queryaction",
			"~/actions/fade DELETE cancelaction", ws + "invokeaction,queryaction,cancelaction"}},
		"action that takes no JSON": {thing.Actions["listen"].Forms, []string{"~/actions/listen invokeaction audio/wav>audio/wav",
			"~/actions/listen GET queryaction", "~/actions/listen DELETE cancelaction", ws + "invokeaction,queryaction,cancelaction"}},
		"event": {thing.Events["hot"].Forms, []string{"~/events/hot longpoll subscribeevent,unsubscribeevent",
			"~/events/hot sse subscribeevent,unsubscribeevent", "~/events/hot webhook POST subscribeevent",
			ws + "subscribeevent,unsubscribeevent"}},
		"thing": {thing.Forms, []string{
			"~/properties GET readallproperties", "~/properties POST readmultipleproperties", "~/properties?all=true PUT writeallproperties",
			"~/properties PUT writemultipleproperties", "~/properties sse observeallproperties,unobserveallproperties",
			"~/properties webhook POST observeallproperties", "~/actions GET queryallactions",
			"~/events longpoll subscribeallevents,unsubscribeallevents", "~/events sse subscribeallevents,unsubscribeallevents",
			"~/events webhook POST subscribeallevents",
			ws + "readallproperties,readmultipleproperties,writeallproperties,writemultipleproperties,observeallproperties," +
				"unobserveallproperties,queryallactions,subscribeallevents,unsubscribeallevents"}},
	} {
		if d := cmp.Diff(tt.want, brief(homeOf, tt.forms)); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
	for _, w := range thing.Warnings {
		if w.Pointer != "/actions/listen/forms/0" { // it accepts only audio
			t.Errorf("warning: %v", w)
		}
	}
	if d := cmp.Diff([]td.Link{{Href: homeOf, Rel: "alternate", Type: "application/td+json"}}, thing.Links); d != "" {
		t.Error(d)
	}
	if got := thing.SecurityDefs["nosec_sc"]; got == nil || thing.ID != "urn:example:thing" {
		t.Errorf("security %v, id %s", thing.SecurityDefs, thing.ID)
	}
}

// Every href of a description leads to something.
func TestDescriptionLeadsSomewhere(t *testing.T) {
	t.Parallel()
	thing := described(t, Options{}, nil)
	all := append([]td.Form{}, thing.Forms...)
	for _, p := range thing.Properties {
		all = append(all, p.Forms...)
	}
	for _, a := range thing.Actions {
		all = append(all, a.Forms...)
	}
	for _, e := range thing.Events {
		all = append(all, e.Forms...)
	}
	for _, f := range all {
		r := httptest.NewRequest("GET", f.Href, nil)
		id, rest := ThingID(r, "/things/")
		if _, offered := parseResource(rest); offered == nil || "http://node.example:4668/things/"+id != homeOf {
			t.Errorf("%s leads nowhere: %q %q", f.Href, id, rest)
		} else if f.HTTPMethod != "" && offered[f.HTTPMethod] == nil {
			t.Errorf("%s has no %s", f.Href, f.HTTPMethod)
		}
	}
}

func TestDescriptionForItsCaller(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name          string
		options       Options
		prepare       func(*http.Request)
		http, ws, def string
	}{
		{"as it was addressed", Options{Socket: "/ws"}, func(r *http.Request) { r.Host = "[::1]:99" }, "http://[::1]:99/", "ws://[::1]:99/ws", "nosec_sc"},
		{"over TLS", Options{Socket: "/ws"}, func(r *http.Request) { r.TLS = &tls.ConnectionState{} }, "https://node.example:4668/",
			"wss://node.example:4668/ws", "nosec_sc"},
		{"public", Options{Socket: "/ws", Bearer: true, Base: func(*http.Request) string { return "https://public.example/lmos" }}, nil,
			"https://public.example/lmos/", "wss://public.example/lmos/ws", "bearer_sc"},
		{"without WebSocket", Options{}, nil, "http://node.example:4668/", "", "nosec_sc"},
	} {
		thing := described(t, tt.options, tt.prepare)
		forms := thing.Events["hot"].Forms
		if !strings.HasPrefix(forms[0].Href, tt.http) || thing.SecurityDefs[tt.def] == nil || len(thing.SecurityDefs) != 1 {
			t.Errorf("%s: got %s, %v", tt.name, forms[0].Href, thing.SecurityDefs)
		}
		last := forms[len(forms)-1]
		if tt.ws != "" && last.Href != tt.ws || tt.ws == "" && strings.HasPrefix(last.Href, "ws") {
			t.Errorf("%s: the last form is %s", tt.name, last.Href)
		}
	}
	w := newWorld(t, Options{}, nil)
	if resp, body := send(t, "GET", w.url+"/td", "", "Accept", "application/json"); resp.Header.Get("Content-Type") != jsonType ||
		!json.Valid([]byte(body)) {
		t.Errorf("for a client of plain JSON: %v", resp.Header)
	}
	resp, body := send(t, "PUT", w.url+"/td", "{}")
	wantProblem(t, resp, body, 405, interact.NotAllowed)
	if resp.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("Allow %q", resp.Header.Get("Allow"))
	}
}

func TestCarried(t *testing.T) {
	t.Parallel()
	form := func(media, response string) td.Form { return td.Form{ContentType: media, ResponseType: response} }
	for _, tt := range []struct {
		name            string
		forms           []td.Form
		media, response string
	}{
		{"none", nil, "application/json", ""},
		{"JSON", []td.Form{form("application/json", "application/json")}, "application/json", ""},
		{"a kind of JSON", []td.Form{form("application/ld+json", "application/ld+json")}, "application/json", ""},
		{"CBOR, which is converted", []td.Form{form("application/cbor", "application/cbor")}, "application/json", ""},
		{"text", []td.Form{form("text/plain", "text/plain")}, "text/plain", ""},
		{"text and JSON", []td.Form{form("text/plain", "text/plain"), form("application/json", "application/json")}, "application/json", ""},
		{"a picture of text", []td.Form{form("text/plain", "image/png")}, "text/plain", "image/png"},
		{"a picture of JSON", []td.Form{form("application/json", "image/png")}, "application/json", "image/png"},
		{"CBOR of JSON", []td.Form{form("application/json", "application/cbor")}, "application/json", ""},
		{"several that are not JSON", []td.Form{form("audio/wav", "audio/wav"), form("audio/opus", "audio/opus")}, "audio/wav", ""},
	} {
		if got := carried(tt.forms); got.ContentType != tt.media || got.ResponseType != tt.response {
			t.Errorf("%s: %q %q, want %q %q", tt.name, got.ContentType, got.ResponseType, tt.media, tt.response)
		}
	}
}
