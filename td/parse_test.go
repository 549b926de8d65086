package td

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseKeepsRaw(t *testing.T) {
	t.Parallel()
	raw := readFile(t, "weather.td.json")
	thing := mustParse(t, string(raw))
	if string(thing.Raw) != string(raw) {
		t.Error("Raw differs")
	}
	if len(thing.Warnings) != 0 {
		t.Errorf("a TD that every client supports has warnings: %v", thing.Warnings)
	}
	bom := mustParse(t, "\ufeff"+string(raw))
	if string(bom.Raw) != string(raw) {
		t.Error("the byte order mark is in Raw")
	}
}

func TestParseWeather(t *testing.T) {
	t.Parallel()
	w := mustParse(t, string(readFile(t, "weather.td.json")))
	action := w.Actions["getWeather"]
	property := w.Properties["modelConfiguration"]
	event := w.Events["userFeedbackReceived"]
	got := map[string]any{
		"id": w.ID, "title": w.Title, "types": w.Types, "version": w.Version, "security": w.Security,
		"capability": w.Capabilities[0].ID, "examples": w.Capabilities[0].Examples, "capabilities": len(w.Capabilities),
		"vendor": w.Metadata.VendorName, "vendor url": w.Metadata.VendorURL, "model": w.Metadata.ModelName,
		"provider": w.Metadata.ModelProvider, "languages": w.Metadata.Languages, "modes": w.Metadata.Modes,
		"href": action.Forms[0].Href, "method": action.Forms[0].HTTPMethod, "synchronous": *action.Synchronous,
		"safe":  action.Safe,
		"input": action.Input.Properties(), "output": action.Output.Type(),
		"readOnly": property.ReadOnly, "property": property.Properties(), "property title": property.Title,
		"event": event.Forms[0].Subprotocol, "event ops": event.Forms[0].Ops,
		"rating": event.Data.Property("rating").Type(),
		"link":   w.Links[0], "name": w.Name(),
	}
	want := map[string]any{
		"id": "urn:example:agent:weather", "title": "Weather", "types": []string{"lmos:Agent"}, "version": "1.2.0",
		"security": []string{"nosec_sc"}, "capability": "urn:example:weather:forecast",
		"examples": []string{"Will it rain in Bonn tomorrow?", "Do I need a coat on Sunday?"}, "capabilities": 2,
		"vendor": "Example Weather Service", "vendor url": "https://weather.example", "model": "small-instruct",
		"provider": "Example Models", "languages": []string{"en_GB", "de_DE"}, "modes": []string{"text", "voice"},
		"href": "http://127.0.0.1:8081/actions/getWeather", "method": "POST", "synchronous": true, "safe": true,
		"input": []string{"interactionMode", "question"}, "output": "string",
		"readOnly": true, "property": []string{"maxTokens", "modelName", "temperature"},
		"property title": "Model configuration",
		"event":          "longpoll", "event ops": []string{"subscribeevent", "unsubscribeevent"}, "rating": "integer",
		"link": Link{"https://weather.example/manual", "service-doc", "text/html"}, "name": "weather",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The defaults of TD 1.1 §5.4, and the members that a form inherits.
func TestParseDefaults(t *testing.T) {
	t.Parallel()
	thing := mustParse(t, `{
		"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "T", "base": "https://x.example/a/",
		"security": "basic_sc",
		"securityDefinitions": {"basic_sc": {"scheme": "basic"}, "key_sc": {"scheme": "apikey", "name": "k"},
			"bearer_sc": {"scheme": "bearer", "in": "query"}, "nosec_sc": {"scheme": "nosec"}},
		"properties": {
			"rw": {"forms": [{"href": "p{?q}", "uriVariables": {}}], "uriVariables": {"q": {"type": "string"}}},
			"ro": {"readOnly": true, "forms": [{"href": "/p"}]},
			"wo": {"writeOnly": true, "forms": [{"href": "../p"}]},
			"ob": {"observable": true, "forms": [{"href": "//y.example/p", "op": "observeproperty"}]}},
		"actions": {"a": {"forms": [
			{"href": "a", "security": ["nosec_sc"], "scopes": "s", "contentType": "application/cbor"},
			{"href": "a", "response": {"contentType": "text/plain"},
			 "additionalResponses": [{"contentType": "application/problem+json"}, {"success": true}]}]}},
		"events": {"e": {"forms": [{"href": "wss://x.example/e"}]}},
		"uriVariables": {"u": {"type": "integer"}},
		"forms": [{"href": "all", "op": ["readallproperties"]}],
		"links": [{"href": "doc"}]}`)
	form := func(a Affordance, i int) Form { f := a.Forms[i]; f.Raw = nil; return f }
	basic, js := []string{"basic_sc"}, "application/json"
	got := map[string]any{
		"rw":   form(thing.Properties["rw"].Affordance, 0),
		"ro":   form(thing.Properties["ro"].Affordance, 0),
		"wo":   form(thing.Properties["wo"].Affordance, 0),
		"ob":   form(thing.Properties["ob"].Affordance, 0),
		"a0":   form(thing.Actions["a"].Affordance, 0),
		"a1":   form(thing.Actions["a"].Affordance, 1),
		"e":    form(thing.Events["e"].Affordance, 0),
		"root": thing.Forms[0].Href,
		"link": thing.Links[0].Href,
		"in": []string{thing.SecurityDefs["basic_sc"].In, thing.SecurityDefs["key_sc"].In,
			thing.SecurityDefs["bearer_sc"].In,
			thing.SecurityDefs["nosec_sc"].In},
		"flags": []bool{thing.Actions["a"].Safe, thing.Actions["a"].Idempotent,
			thing.Actions["a"].Synchronous == nil},
		"rw vars": sortedKeys(thing.Properties["rw"].URIVariables),
		"ro vars": sortedKeys(thing.Properties["ro"].URIVariables),
	}
	want := map[string]any{
		"rw": Form{Href: "https://x.example/a/p{?q}", ContentType: js, Ops: []string{"readproperty", "writeproperty"},
			Security: basic, ResponseType: js},
		"ro": Form{Href: "https://x.example/p", ContentType: js, Ops: []string{"readproperty"}, Security: basic,
			ResponseType: js},
		"wo": Form{Href: "https://x.example/p", ContentType: js, Ops: []string{"writeproperty"}, Security: basic,
			ResponseType: js},
		"ob": Form{Href: "https://y.example/p", ContentType: js, Ops: []string{"observeproperty"}, Security: basic,
			ResponseType: js},
		"a0": Form{Href: "https://x.example/a/a", ContentType: "application/cbor", Ops: []string{"invokeaction"},
			Security: []string{"nosec_sc"}, Scopes: []string{"s"}, ResponseType: "application/cbor"},
		"a1": Form{Href: "https://x.example/a/a", ContentType: js, Ops: []string{"invokeaction"}, Security: basic,
			ResponseType: "text/plain", AdditionalTypes: []string{"application/problem+json", js}},
		"e": Form{Href: "wss://x.example/e", ContentType: js, Ops: []string{"subscribeevent", "unsubscribeevent"},
			Security: basic, ResponseType: js},
		"root": "https://x.example/a/all", "link": "https://x.example/a/doc",
		"in":    []string{"header", "query", "query", ""},
		"flags": []bool{false, false, true}, "rw vars": []string{"q", "u"}, "ro vars": []string{"u"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseReadsContexts(t *testing.T) {
	t.Parallel()
	for _, context := range []string{
		`"https://www.w3.org/2022/wot/td/v1.1"`,
		`"https://www.w3.org/2019/wot/td/v1"`,
		`"https://www.w3.org/ns/wot-next/td"`,
		`["https://www.w3.org/2022/wot/td/v1.1", {"@language": "de", "@direction": "rtl"}]`,
		`["https://www.w3.org/2019/wot/td/v1", "https://www.w3.org/2022/wot/td/v1.1", "https://example.com/own"]`,
		`["https://www.w3.org/2019/wot/td/v1", {"x": "https://example.com/"}]`,
		`["https://www.w3.org/ns/wot-next/td", {"htv": "http://www.w3.org/2011/http#"}]`,
	} {
		raw := strings.Replace(tdWith(), `"https://www.w3.org/2022/wot/td/v1.1"`, context, 1)
		if _, err := Parse([]byte(raw)); err != nil {
			t.Errorf("%s: %v", context, err)
		}
	}
}

func TestParseRejects(t *testing.T) {
	t.Parallel()
	property := func(members string) string { return tdWith(`"properties": {"p": {` + members + `}}`) }
	action := func(members string) string { return tdWith(`"actions": {"a": {` + members + `}}`) }
	event := func(members string) string { return tdWith(`"events": {"e/~": {` + members + `}}`) }
	scheme := func(s string) string {
		return strings.Replace(tdWith(), `{"scheme": "nosec"}`, s, 1)
	}
	context := func(c string) string {
		return strings.Replace(tdWith(), `"https://www.w3.org/2022/wot/td/v1.1"`, c, 1)
	}
	const form = `"forms": [{"href": "http://x"}]`
	const wantContext = `is not a context of a Thing Description: it must be, or contain, "https://www.w3.org/2022/wot/td/v1.1"`
	tests := []struct{ name, raw, pointer, reason string }{
		{"an array", `[]`, "", "expected object, got array"},
		{"an empty object", `{}`, "", `"@context" is missing`},
		{"no title", strings.Replace(tdWith(), `"title": "T", `, "", 1), "", `"title" is missing`},
		{"a title that is a number", strings.Replace(tdWith(), `"T"`, "7", 1), "/title", "expected string, got number"},
		{"no security", strings.Replace(tdWith(), `"security": ["n"], `, "", 1), "", `"security" is missing`},
		{"empty security", strings.Replace(tdWith(), `["n"]`, `[]`, 1), "/security", "must not be empty"},
		{"no definitions", strings.Replace(tdWith(), `{"n": {"scheme": "nosec"}}`, "{}", 1), "/securityDefinitions",
			"must not be empty"},

		{"another context", context(`"https://example.com"`), "/@context", wantContext},
		{"another context in an array", context(`["https://example.com"]`), "/@context", wantContext},
		{"an empty context", context(`[]`), "/@context", wantContext},
		{"a context of a number", context(`5`), "/@context", "expected string or array, got number"},
		{"a number in a context", context(`["https://www.w3.org/2022/wot/td/v1.1", 5]`), "/@context/1",
			"expected string or object, got number"},
		{"a term definition that is an object", context(`["https://www.w3.org/2022/wot/td/v1.1", {"x": {"@id": "y"}}]`),
			"/@context/1/x", "expected string, got object"},
		{"1.1 before 1.0", context(`["https://www.w3.org/2022/wot/td/v1.1", "https://www.w3.org/2019/wot/td/v1"]`),
			"/@context/1", "the context of TD 1.0 must come first"},
		{"1.1 at the end", context(`["https://www.w3.org/2019/wot/td/v1", {}, "https://www.w3.org/2022/wot/td/v1.1"]`),
			"/@context/2", "the context of TD 1.1 must come second, right after that of TD 1.0"},
		{"1.1 alone and second", context(`[{}, "https://www.w3.org/2022/wot/td/v1.1"]`), "/@context/1",
			"the context of TD 1.1 must come first"},

		{"a Thing Model", tdWith(`"@type": "tm:ThingModel"`), "/@type",
			"is that of a Thing Model, a template; only a Thing Description can be used"},
		{"a Thing Model among others", tdWith(`"@type": ["x", "tm:ThingModel"]`), "/@type",
			"is that of a Thing Model, a template; only a Thing Description can be used"},
		{"a type that is a number", tdWith(`"@type": [1]`), "/@type/0", "expected string, got number"},
		{"an id without scheme", tdWith(`"id": "chatagent"`), "/id",
			`is not a URI: an id needs a scheme, for example "urn:example:weather"`},
		{"an id with a space", tdWith(`"id": "urn:a b"`), "/id",
			`is not a URI: an id needs a scheme, for example "urn:example:weather"`},
		{"an id of 2 kB", tdWith(`"id": "urn:` + strings.Repeat("x", 2000) + `"`), "/id",
			"has 2004 bytes; an id may have 1024"},
		{"an invalid time", tdWith(`"created": "yesterday"`), "/created",
			`is not a date and time like "2026-01-31T12:00:00Z"`},
		{"a version without instance", tdWith(`"version": {}`), "/version", `"instance" is missing`},
		{"a title in a language that is a number", tdWith(`"titles": {"de": 1}`), "/titles/de",
			"expected string, got number"},
		{"a base of 3 kB", tdWith(`"base": "http://` + strings.Repeat("x", 3000) + `"`), "/base",
			"may have 2048 characters, has 3007"},

		{"a base of 17 variables", tdWith(`"base": "http://` + strings.Repeat("{x}", 17) + `"`), "/base",
			"may have 16 variables, has 17"},
		{"a base of 2 kB in 300 addresses", tdWith(`"base": "http://`+strings.Repeat("x", 2000)+`"`,
			`"links": [`+strings.Repeat(`{"href": "x"},`, 299)+`{"href": "x"}]`), "/base",
			"has 2007 bytes, too many for so many relative addresses; make it shorter, or the addresses absolute"},
		{"a base with half a variable", tdWith(`"base": "http://{x"`), "/base",
			`an unmatched brace: "http://{x" is not a URI template`},
		{"a property without forms", property(`"type": "string"`), "/properties/p", `"forms" is missing`},
		{"an action without forms", action(``), "/actions/a", `"forms" is missing`},
		{"an event without forms", event(``), "/events/e~1~0", `"forms" is missing`},
		{"empty forms", action(`"forms": []`), "/actions/a/forms", "must not be empty"},
		{"a form that is a text", action(`"forms": ["http://x"]`), "/actions/a/forms/0", "expected object, got string"},
		{"a form without href", action(`"forms": [{}]`), "/actions/a/forms/0", `"href" is missing`},
		{"an enum with one value twice", property(`"type": "string", "enum": ["a", "b", "a"], "forms": [{"href": ""}]`),
			"/properties/p/enum", "must not be empty, and its values must be unique"},
		{"a title of an invalid language tag", tdWith(`"titles": {"en": "x", "not one": "y"}`), "/titles",
			`has a name that is not a language tag like "en" or "de-DE"`},
		{"an unknown op", action(`"forms": [{"href": "http://x", "op": ["invoke"]}]`), "/actions/a/forms/0/op/0",
			`must be one of "invokeaction", "queryaction", "cancelaction"`},
		{"an unknown op as text", event(`"forms": [{"href": "http://x", "op": "invokeaction"}]`),
			"/events/e~1~0/forms/0/op",
			`must be "subscribeevent" or "unsubscribeevent"`},
		{"an op of an action at a property", property(`"forms": [{"href": "http://x", "op": ["invokeaction"]}]`),
			"/properties/p/forms/0/op/0",
			`must be one of "readproperty", "writeproperty", "observeproperty", "unobserveproperty"`},
		{"empty ops", action(`"forms": [{"href": "http://x", "op": []}]`), "/actions/a/forms/0/op",
			"must not be empty"},
		{"a form of the thing without op", tdWith(`"forms": [{"href": "http://x"}]`), "/forms/0", `"op" is missing`},
		{"a response without type", action(`"forms": [{"href": "http://x", "response": {}}]`),
			"/actions/a/forms/0/response", `"contentType" is missing`},
		{"an undefined schema", action(`"forms": [{"href": "http://x", "additionalResponses": [{"schema": "s"}]}]`),
			"/actions/a/forms/0/additionalResponses/0/schema", `"s" is not in schemaDefinitions`},
		{"undefined security in a form", action(`"forms": [{"href": "http://x", "security": ["m"]}]`),
			"/actions/a/forms/0/security/0",
			`"m" is not in securityDefinitions`},
		{"an undeclared variable",
			action(`"forms": [{"href": "http://x/{id}{?from,to*}"}], "uriVariables": {"id": {}, "to": {}}`),
			"/actions/a/forms/0/href", `the variable "from" is in no uriVariables`},
		{"half a variable", action(`"forms": [{"href": "http://x/{id"}]`), "/actions/a/forms/0/href",
			`an unmatched brace: "http://x/{id" is not a URI template`},
		{"a variable that is an object", action(form + `, "uriVariables": {"v": {"type": "object"}}`),
			"/actions/a/uriVariables/v/type",
			"a variable of a URI cannot be an object or an array"},
		{"writing a property that is readOnly",
			property(`"readOnly": true, "forms": [{"href": "http://x", "op": ["writeproperty"]}]`),
			"/properties/p/forms/0/op", `"writeproperty" on a property that is readOnly`},
		{"reading a property that is writeOnly",
			property(`"writeOnly": true, "forms": [{"href": "http://x", "op": "readproperty"}]`),
			"/properties/p/forms/0/op", `"readproperty" on a property that is writeOnly`},
		{"readOnly and writeOnly", property(`"readOnly": true, "writeOnly": true, ` + form), "/properties/p",
			"readOnly and writeOnly exclude each other"},

		{"an unknown data type", property(`"type": "text", ` + form), "/properties/p/type",
			`must be one of "object", "array", "string", "number", "integer", "boolean", "null"`},
		{"a data type deep inside",
			action(`"input": {"type": "object", "properties": {"q": {"type": "str"}}}, ` + form),
			"/actions/a/input/properties/q/type",
			`must be one of "object", "array", "string", "number", "integer", "boolean", "null"`},
		{"a minimum that is a text", property(`"minimum": "0", ` + form), "/properties/p/minimum",
			"expected number, got string"},
		{"a negative length", property(`"minLength": -1, ` + form), "/properties/p/minLength", "must be at least 0"},
		{"half a length", property(`"minLength": 1.5, ` + form), "/properties/p/minLength",
			"expected integer, got number"},
		{"a multiple of nothing", property(`"multipleOf": 0, ` + form), "/properties/p/multipleOf",
			"must be more than 0"},
		{"required that is a text", property(`"required": "x", ` + form), "/properties/p/required",
			"expected array, got string"},

		{"undefined security", strings.Replace(tdWith(), `["n"]`, `["m"]`, 1), "/security/0",
			`"m" is not in securityDefinitions`},
		{"undefined security as text", strings.Replace(tdWith(), `["n"]`, `"m"`, 1), "/security",
			`"m" is not in securityDefinitions`},
		{"a scheme without scheme", scheme(`{}`), "/securityDefinitions/n", `"scheme" is missing`},
		{"an unknown scheme", scheme(`{"scheme": "magic"}`), "/securityDefinitions/n/scheme",
			`is no known scheme: use nosec, basic, digest, apikey, bearer, psk, oauth2, combo or auto; ` +
				`an extension has a prefix, such as "ace:ACESecurityScheme"`},
		{"a key in an unknown location", scheme(`{"scheme": "apikey", "in": "hat"}`), "/securityDefinitions/n/in",
			`must be one of "header", "query", "body", "cookie", "uri", "auto"`},
		{"a password in the URI", scheme(`{"scheme": "basic", "in": "uri"}`), "/securityDefinitions/n/in",
			`must be one of "header", "query", "body", "cookie", "auto"`},
		{"oauth2 without flow", scheme(`{"scheme": "oauth2"}`), "/securityDefinitions/n", `"flow" is missing`},
		{"a code flow without token", scheme(`{"scheme": "oauth2", "flow": "code", "authorization": "https://a"}`),
			"/securityDefinitions/n", `"token" is missing`},
		{"a device flow without authorization", scheme(`{"scheme": "oauth2", "flow": "device", "token": "https://a"}`),
			"/securityDefinitions/n", `"authorization" is missing`},
		{"a client flow with authorization",
			scheme(`{"scheme": "oauth2", "flow": "client", "token": "https://a", "authorization": "https://b"}`),
			"/securityDefinitions/n/authorization", "the client flow has no authorization server"},
		{"a combo of nothing", scheme(`{"scheme": "combo"}`), "/securityDefinitions/n",
			`a combo has either "oneOf" or "allOf"`},
		{"a combo of one", scheme(`{"scheme": "combo", "oneOf": ["n"]}`), "/securityDefinitions/n/oneOf",
			"must have at least 2 elements, has 1"},
		{"a combo of the undefined", scheme(`{"scheme": "combo", "allOf": ["n", "m"]}`),
			"/securityDefinitions/n/allOf/1", `"m" is not in securityDefinitions`},
		{"auto with a name", scheme(`{"scheme": "auto", "name": "x"}`), "/securityDefinitions/n/name",
			`a scheme "auto" has no name`},
		{"a variable that is also the key of a security scheme",
			strings.Replace(tdWith(`"uriVariables": {"k": {}}`), `{"scheme": "nosec"}`,
				`{"scheme": "apikey", "in": "uri", "name": "k"}`, 1),
			"/uriVariables/k", `has the name of a variable of the security scheme "n"`},

		{"a link without href", tdWith(`"links": [{}]`), "/links/0", `"href" is missing`},
		{"sizes without the relation icon", tdWith(`"links": [{"href": "x", "rel": "item", "sizes": "16x16"}]`),
			"/links/0/rel", `must be "icon", because the link has "sizes"`},
		{"invalid sizes", tdWith(`"links": [{"href": "x", "rel": "icon", "sizes": "small"}]`), "/links/0/sizes",
			`is not an icon size like "16x16" or "16x16 32x32"`},
		{"an invalid language tag", tdWith(`"links": [{"href": "x", "hreflang": ["en", "in english"]}]`),
			"/links/0/hreflang/1", `is no language tag like "en" or "de-DE"`},
		{"a relation of Thing Models", tdWith(`"links": [{"href": "x", "rel": "tm:extends"}]`), "/links/0/rel",
			`"tm:extends" is for Thing Models only`},
		{"a submodel of a Thing Model", tdWith(`"links": [{"href": "x", "rel": "tm:submodel"}]`), "/links/0/rel",
			`"tm:submodel" is for Thing Models only`},
		{"two collections", tdWith(`"links": [{"href": "x", "rel": "collection"}, {"href": "y", "rel": "collection"}]`),
			"/links/1/rel",
			`a Thing Description may have one link "collection"`},

		{"capabilities that are an object", tdWith(`"lmos:capabilities": {}`), "/lmos:capabilities",
			"expected array, got object"},
		{"a capability that is a number", tdWith(`"lmos:capabilities": [1]`), "/lmos:capabilities/0",
			"expected object or string, got number"},
		{"a capability without id", tdWith(`"lmos:capabilities": [{}]`), "/lmos:capabilities/0",
			`"id" is missing: a capability needs one, such as "urn:example:weather:forecast"`},
		{"a capability id that is a number", tdWith(`"lmos:capabilities": [{"id": 1}]`), "/lmos:capabilities/0/id",
			"expected string, got number"},
		{"a capability id of 10 kB", tdWith(`"lmos:capabilities": [{"id": "` + strings.Repeat("x", 10_000) + `"}]`),
			"/lmos:capabilities/0/id",
			"expected a capability id of at most 256 bytes, got 10000"},
		{"a capability id of separators", tdWith(`"lmos:capabilities": [{"lmos:id": ":/:"}]`),
			"/lmos:capabilities/0/lmos:id",
			`expected a capability id of words separated by colons or slashes, got ":/:"`},
		{"65 capabilities", tdWith(`"lmos:capabilities": [` + strings.Repeat(`"x",`, 64) + `"x"]`),
			"/lmos:capabilities", "has 65 capabilities; at most 64 are allowed"},
		{"metadata that is a text", tdWith(`"lmos:metadata": "x"`), "/lmos:metadata", "expected object, got string"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]byte(tt.raw))
			want := Issue{Pointer: tt.pointer, Reason: tt.reason}
			if got := issuesOf(err); !slices.Contains(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			if tt.raw != `{}` && len(issuesOf(err)) != 1 {
				t.Errorf("got %q, want one issue", issuesOf(err))
			}
		})
	}
}

func TestParseRejectsInvalidJSON(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, raw, reason string }{
		{"nothing", "", "not JSON at line 1, column 1"},
		{"a comma too many", "{\n  \"title\": \"T\",\n}", "not JSON at line 2, column 15"},
		{"a comment", "{\n// x\n}", "not JSON at line 2, column 1"},
		{"a duplicate name", `{"title": "T", "title": "U"}`, `duplicate member name "title"`},
		{"a duplicate name in disguise", `{"title": "T", "\u0074itle": "U"}`, `duplicate member name "title"`},
		{"invalid UTF-8", "{\"title\": \"\xff\"}", "UTF-8"},
		{"a byte order mark in the middle", "{} \ufeff", "not JSON"},
		{"two documents", "{}{}", "after the end of the value"},
		{"65 levels", strings.Repeat("[", 65) + strings.Repeat("]", 65), "nested deeper"},
		{"a number that loses digits", `{"x": 9007199254740993}`, "no exact binary64"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]byte(tt.raw))
			var v *ValidationError
			if !errors.As(err, &v) || !v.NotJSON || v.TooLarge || len(v.Issues) != 1 || v.Issues[0].Pointer != "" {
				t.Fatalf("got %#v", err)
			}
			if !strings.Contains(v.Error(), tt.reason) {
				t.Errorf("got %q, want %q in it", v.Error(), tt.reason)
			}
		})
	}
}

func TestParseLimit(t *testing.T) {
	t.Parallel()
	fill := func(n int) []byte {
		raw := tdWith(`"x": ""`)
		return []byte(strings.Replace(raw, `"x": "`, `"x": "`+strings.Repeat("a", n-len(raw)), 1))
	}
	if _, err := Parse(fill(MaxTD)); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	_, err := Parse(fill(MaxTD + 1))
	var v *ValidationError
	if !errors.As(err, &v) || !v.TooLarge || v.NotJSON {
		t.Fatalf("over the limit: %v", err)
	}
	if want := "has 131073 bytes; a Thing Description may have 131072"; v.Error() != want {
		t.Errorf("got %q, want %q", v.Error(), want)
	}
}

// All issues are reported at once, in document order, up to a limit.
func TestParseReportsAllIssues(t *testing.T) {
	t.Parallel()
	_, err := Parse([]byte(`{"@context": 1, "title": 2, "security": ["m"], "securityDefinitions": {"n": {"scheme": "nosec"}},
		"actions": {"a": {"forms": [{"href": "x"}, {"href": "x"}, {}, 1]}}, "id": "x"}`))
	want := []Issue{
		{Pointer: "/@context", Reason: "expected string or array, got number"},
		{Pointer: "/actions/a/forms/2", Reason: `"href" is missing`},
		{Pointer: "/actions/a/forms/3", Reason: "expected object, got number"},
		{Pointer: "/id", Reason: `is not a URI: an id needs a scheme, for example "urn:example:weather"`},
		{Pointer: "/security/0", Reason: `"m" is not in securityDefinitions`},
		{Pointer: "/title", Reason: "expected string, got number"},
	}
	if diff := cmp.Diff(want, issuesOf(err)); diff != "" {
		t.Error(diff)
	}
	if got, want := err.Error(), "/@context: expected string or array, got number (and 5 more)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestParseBoundsIssues(t *testing.T) {
	t.Parallel()
	_, err := Parse([]byte(tdWith(`"actions": {"a": {"forms": [` + strings.Repeat("1,", 9999) + `1]}}`)))
	issues := issuesOf(err)
	if len(issues) != 32 {
		t.Fatalf("got %d issues, want 32", len(issues))
	}
	for i, issue := range issues[:31] {
		if want := fmt.Sprintf("/actions/a/forms/%d", i); issue.Pointer != want {
			t.Errorf("got %v, want the pointer %s", issue, want)
		}
	}
	if last := (Issue{Reason: "and 9969 more"}); issues[31] != last {
		t.Errorf("got %v, want %v", issues[31], last)
	}
}

// Reasons quote text of the author; they must fit on a line and contain no control characters.
func TestReasonsAreSafeToPrint(t *testing.T) {
	t.Parallel()
	_, err := Parse([]byte(strings.Replace(tdWith(), `["n"]`, `["\u001b[31m`+strings.Repeat("x", 500)+`"]`, 1)))
	got := issuesOf(err)[0].Reason
	if strings.ContainsRune(got, '\x1b') || len(got) > 120 {
		t.Errorf("got %q", got)
	}
}

func TestLMOSSpellings(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"Agent", "lmos:Agent", ContextLMOS + "Agent", ContextLMOS + "#Agent", ContextLMOS + "/Agent"} {
		for _, form := range []string{`"@type": "%s"`, `"@type": ["saref:Sensor", "%s"]`} {
			thing := mustParse(t, tdWith(fmt.Sprintf(form, typ)))
			if !thing.HasType("agent") || !thing.HasType("lmos:Agent") || thing.HasType("tool") {
				t.Errorf("%s does not match the type agent", typ)
			}
		}
	}
	if mustParse(t, tdWith(`"@type": "Agents"`)).HasType("agent") {
		t.Error(`"Agents" matches the type agent`)
	}
}

func TestLMOSCapabilities(t *testing.T) {
	t.Parallel()
	const stringContext = `"@context": ["https://www.w3.org/2022/wot/td/v1.1", "https://eclipse.dev/lmos/protocol/v1/"]`
	bare := func(members string) string {
		return strings.Replace(tdWith(members), `"@context": "https://www.w3.org/2022/wot/td/v1.1"`, stringContext, 1)
	}
	full := Capability{ID: "urn:x", Name: "X", Version: "1.0", Description: "D", Examples: []string{"e"}}
	tests := []struct {
		name, raw string
		want      []Capability
	}{
		{"bare keys",
			tdWith(`"lmos:capabilities": [
				{"id": "urn:x", "name": "X", "version": "1.0", "description": "D", "examples": ["e"]}]`),
			[]Capability{full}},
		{"prefixed keys",
			tdWith(`"lmos:capabilities": [{"lmos:id": "urn:x", "lmos:name": "X", "lmos:version": "1.0",
				"lmos:description": "D", "lmos:examples": "e"}]`),
			[]Capability{full}},
		{"strings", tdWith(`"lmos:capabilities": ["urn:x", "urn:y"]`),
			[]Capability{{ID: "urn:x", Name: "urn:x"}, {ID: "urn:y", Name: "urn:y"}}},
		{"a name alone", tdWith(`"lmos:capabilities": [{"name": "view bills"}]`),
			[]Capability{{ID: "view bills", Name: "view bills"}}},
		{"a version without quotes", tdWith(`"lmos:capabilities": [{"id": "x", "version": 1.5}]`),
			[]Capability{{ID: "x", Version: "1.5"}}},
		{"an absolute name", tdWith(`"https://eclipse.dev/lmos/protocol/v1#capabilities": ["urn:x"]`),
			[]Capability{{ID: "urn:x", Name: "urn:x"}}},
		{"a bare name under the context", bare(`"capabilities": ["urn:x"]`),
			[]Capability{{ID: "urn:x", Name: "urn:x"}}},
		{"a bare foreign name", tdWith(`"capabilities": ["urn:x"]`), nil},
		{"none", tdWith(), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, mustParse(t, tt.raw).Capabilities); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLMOSMetadata(t *testing.T) {
	t.Parallel()
	want := &Metadata{
		VendorName: "V", VendorURL: "https://v", ModelName: "M", ModelProvider: "P",
		Languages: []string{"en"}, Modes: []string{"text", "voice"},
	}
	for name, raw := range map[string]string{
		"prefixed": `{"lmos:vendor": {"lmos:name": "V", "lmos:url": "https://v"}, "lmos:model": {"lmos:name": "M", "lmos:provider": "P"},
			"lmos:interaction": {"lmos:supportedLanguages": ["en"], "lmos:interactionMode": ["text", "voice"]}}`,
		"bare": `{"vendor": {"name": "V", "url": "https://v"}, "model": {"name": "M", "provider": "P"},
			"interaction": {"supportedLanguages": "en", "interactionMode": ["text", "voice"]}}`,
	} {
		got := mustParse(t, tdWith(`"lmos:metadata": `+raw)).Metadata
		if len(got.Raw) == 0 {
			t.Errorf("%s: no raw metadata", name)
		}
		got.Raw = nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if mustParse(t, tdWith()).Metadata != nil {
		t.Error("metadata of a TD that has none")
	}
}

func TestHTTPTerms(t *testing.T) {
	t.Parallel()
	for name, form := range map[string]string{
		"prefixed": `{"href": "http://x", "htv:methodName": "PUT",
			"htv:headers": [{"htv:fieldName": "A", "htv:fieldValue": "b"}]}`,
		"bare headers": `{"href": "http://x", "htv:methodName": "PUT",
			"htv:headers": [{"fieldName": "A", "fieldValue": "b"}, {"fieldValue": "lost"}, 7]}`,
		"kotlin-wot's nest": `{"href": "http://x", "optionalProperties": {"htv:methodName": "PUT",
			"htv:headers": [{"htv:fieldName": "A", "htv:fieldValue": "b"}]}}`,
	} {
		f := mustParse(t, tdWith(`"actions": {"a": {"forms": [`+form+`]}}`)).Actions["a"].Forms[0]
		if f.HTTPMethod != "PUT" || !slices.Equal(f.HTTPHeaders, []HTTPHeader{{"A", "b"}}) {
			t.Errorf("%s: got %q %v", name, f.HTTPMethod, f.HTTPHeaders)
		}
		if decodeJSON(t, string(f.Raw)) == nil {
			t.Errorf("%s: raw form %s", name, f.Raw)
		}
	}
}

// The error text of a TD with many issues.
func TestBrokenTD(t *testing.T) {
	t.Parallel()
	_, err := Parse(readFile(t, "broken.td.json"))
	var b strings.Builder
	for _, issue := range issuesOf(err) {
		b.WriteString(issue.String() + "\n")
	}
	golden(t, "broken.txt", []byte(b.String()))
}

// Validate accepts what Parse accepts, with the same id and the same errors.
func TestValidate(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{tdWith(`"id": "urn:x"`), tdWith(), "\ufeff" + tdWith(`"id": "urn:y"`), "{", "[]", `{"title": 1}`, tdWith(`"id": "urn:x"`, `"id": "urn:x"`)} {
		thing, want := Parse([]byte(raw))
		id, err := Validate([]byte(raw))
		if fmt.Sprint(err) != fmt.Sprint(want) || want == nil && id != thing.ID || want != nil && id != "" {
			t.Errorf("%s: %q, %v; want that of %v, %v", raw, id, err, thing, want)
		}
	}
}
