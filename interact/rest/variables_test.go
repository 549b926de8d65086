package rest

import (
	"net/http"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// rooms has variables in path and query, of an affordance and of the thing.
const rooms = `
	"uriVariables": {"lang": {"type": "string", "enum": ["de", "en"]}},
	"properties": {
		"light": {"type": "object", "uriVariables": {"room": {"type": "string", "minLength": 1},
			"n": {"type": "integer"}, "on": {"type": "boolean"}},
			"forms": [{"href": "BASE/rooms/{room}/light{?n,on,lang}"}]},
		"heat": {"type": "number", "uriVariables": {"room": {"type": "string"}}, "forms": [{"href": "BASE/heat/{room}"}]}
	},
	"actions": {
		"say": {"input": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"},
			"room": {"type": "string"}}},
			"uriVariables": {"room": {"type": "string"}, "volume": {"type": "number"}},
				"forms": [{"href": "BASE/say/{room}{?volume}"}]},
		"ring": {"uriVariables": {"room": {"type": "string"}}, "forms": [{"href": "BASE/ring{/room}"}]},
		"look": {"input": {"type": "object"}, "output": {}, "uriVariables": {"q": {"type": "string"}},
			"forms": [{"href": "BASE/look{?q}", "htv:methodName": "GET"}]},
		"pick": {"uriVariables": {"ids": {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}, "maxItems": 3}]},
			"tags": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
			"limit": {"type": "integer", "lmosd:required": true}, "deep": {"type": "boolean"}},
			"forms": [{"href": "BASE/pick/{ids}{?tags*,limit,deep}"}]},
		"note": {"input": {"type": "string"}, "uriVariables": {"room": {"type": "string"}},
			"forms": [{"href": "BASE/note/{room}"}]}
	}`

func TestVariables(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	c, thing := newClient(t, Options{}), describe(t, agent.URL, rooms)
	tests := []struct {
		name              string
		m                 *interact.Message
		path, query, body string
	}{
		{"of a read come from its data", with(read("light"), `{"room":"hall","n":2,"on":true}`), "/rooms/hall/light",
			"n=2&on=true", ""},
		{"of the thing too", with(read("light"), `{"room":"hall","lang":"de"}`), "/rooms/hall/light", "lang=de", ""},
		{"in the query may be absent or null", with(read("light"), `{"room":"hall","n":null}`), "/rooms/hall/light",
			"", ""},
		{"are escaped", with(read("light"), `{"room":"a/b c?%ü"}`), "/rooms/a%2Fb%20c%3F%25%C3%BC/light", "", ""},
		{"are removed from the written value", write("light", `{"room":"hall","a":1.50,"b":12345678901234567890e2}`),
			"/rooms/hall/light", "", `{"a":1.50,"b":12345678901234567890e2}`},
		{"stay in the body if the schema names them", invoke("say", `{"room":"hall","text":"hi","volume":0.5}`),
			"/say/hall", "volume=0.5", `{"room":"hall","text":"hi"}`},
		{"alone leave no body", invoke("ring", `{"room":"hall"}`), "/ring/hall", "", ""},
		{"in an optional path segment need a value", invoke("ring", `{"room":"x"}`), "/ring/x", "", ""},
		{"of a GET", invoke("look", `{"q":"a b"}`), "/look", "q=a%20b", ""},
		{"of the types of their schemas", invoke("pick", `{"ids":7,"limit":10,"deep":true,"tags":"a b"}`), "/pick/7", "tags=a%20b&limit=10&deep=true", ""},
		{"that are lists", invoke("pick", `{"ids":[7,8.0],"limit":1,"tags":["a","b,c"]}`), "/pick/7,8.0", "tags=a&tags=b%2Cc&limit=1", ""},
		{"that are an empty list", invoke("pick", `{"ids":[7],"limit":1,"tags":[]}`), "/pick/7", "limit=1", ""},
		{"next to a string", invoke("note", `{"room":"hall","value":"milk"}`), "/note/hall", "", `"milk"`},
		{"next to a number", write("heat", `{"room":"hall","value":21.5}`), "/heat/hall", "", `21.5`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := ask(t, c, thing, tt.m); err != nil && tt.m.Type != interact.ReadProperty {
				t.Fatal(err)
			}
			if got := agent.last(t); got.path != tt.path || got.query != tt.query || got.body != tt.body {
				t.Errorf("got %s ? %s with %s", got.path, got.query, got.body)
			}
		})
	}
}

func with(m *interact.Message, data string) *interact.Message {
	m.Data = []byte(data)
	return m
}

func TestBadVariables(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`{}`))
	c, thing := newClient(t, Options{}), describe(t, agent.URL, rooms)
	for name, tt := range map[string]struct {
		m       *interact.Message
		pointer string
	}{
		"missing in the path":      {read("light"), "/room"},
		"empty in the path":        {invoke("ring", `{"room":""}`), "/room"},
		"null in the path":         {with(read("light"), `{"room":null}`), "/room"},
		"wrong type":               {with(read("light"), `{"room":"hall","n":"two"}`), "/n"},
		"not in the enum":          {with(read("light"), `{"room":"hall","lang":"fr"}`), "/lang"},
		"an object":                {with(read("light"), `{"room":{"a":1}}`), "/room"},
		"an array":                 {with(read("light"), `{"room":["a"]}`), "/room"},
		"missing in the query":     {invoke("pick", `{"ids":7}`), "/limit"},
		"all that is missing":      {invoke("pick", `{}`), "/ids"},
		"an empty list":            {invoke("pick", `{"ids":[],"limit":1}`), "/ids"},
		"too long a list":          {invoke("pick", `{"ids":[1,2,3,4],"limit":1}`), "/ids"},
		"a list of other types":    {invoke("pick", `{"ids":[1,"x"],"limit":1}`), "/ids/1"},
		"lists in a list":          {invoke("pick", `{"ids":[[1]],"limit":1}`), "/ids"},
		"no value next to it":      {invoke("note", `{"room":"hall"}`), ""},
		"invalid value next to it": {write("heat", `{"room":"hall","value":"hot"}`), ""},
		"number for a string":      {with(read("light"), `{"room":7}`), "/room"},
		"dot segment":              {with(read("light"), `{"room":".."}`), ""},
		"the rest does not fit":    {invoke("say", `{"room":"hall","text":5}`), "/text"},
	} {
		_, err := ask(t, c, thing, tt.m)
		e := wantError(t, err, interact.Invalid)
		if tt.pointer != "" && e.Issues[0].Pointer != tt.pointer {
			t.Errorf("%s: got %v, want pointer %s", name, e.Issues, tt.pointer)
		}
	}
	if n := len(agent.requests()); n != 0 {
		t.Errorf("the agent received %d requests", n)
	}
}
