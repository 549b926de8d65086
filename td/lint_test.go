package td

import (
	"slices"
	"strings"
	"testing"
)

// nice is a TD without warnings; each case violates one rule.
const nice = `{
	"@context": ["https://www.w3.org/2019/wot/td/v1", "https://www.w3.org/2022/wot/td/v1.1"],
	"title": "T", "security": ["n"], "securityDefinitions": {"n": {"scheme": "nosec"}},
	"version": {"instance": "1"},
	"links": [{"href": "http://x/doc", "hreflang": ["en"]}],
	"properties": {"p": {"type": "number", "forms": [
		{"href": "http://x/p", "op": ["readproperty", "writeproperty"]}]}},
	"actions": {"a": {"synchronous": true, "input": {"type": "object"}, "forms": [
		{"href": "http://x/a", "op": ["invokeaction"]},
		{"href": "ws://x/a", "op": ["invokeaction"]}]}},
	"events": {"e": {"forms": [
		{"href": "http://x/e", "subprotocol": "longpoll", "op": ["subscribeevent", "unsubscribeevent"]},
		{"href": "http://x/e", "subprotocol": "sse", "op": ["subscribeevent", "unsubscribeevent"]}]}}}`

func TestLint(t *testing.T) {
	t.Parallel()
	if w := mustParse(t, nice).Warnings; len(w) > 0 {
		t.Fatalf("a valid TD has warnings: %v", w)
	}
	tests := []struct{ name, old, new, want string }{
		{"no 1.0 context", `"https://www.w3.org/2019/wot/td/v1", `, ``,
			`/@context: without "https://www.w3.org/2019/wot/td/v1" first, a fresh install of node-wot rejects the TD`},
		{"a base", `"title"`, `"base": "http://x/", "title"`,
			`/base: kotlin-wot prepends the base to absolute hrefs, too: use absolute hrefs instead`},
		{"security as text", `"security": ["n"]`, `"security": "n"`, `/security: kotlin-wot expects an array`},
		{"several securities", `"security": ["n"]`, `"security": ["n", "n"]`,
			`/security: several names are deprecated in TD 1.1, and kotlin-wot does not support combo, their replacement`},
		{"a scheme that kotlin-wot does not support", `"nosec"`, `"auto"`,
			`/securityDefinitions/n/scheme: kotlin-wot does not support the scheme "auto"`},
		{"lmos terms without prefix", `"title"`, `"lmos:capabilities": [], "title"`,
			`/@context: {"lmos": "https://eclipse.dev/lmos/protocol/v1"} is missing, and lmos: terms are used`},
		{"an unknown member in version", `"instance": "1"`, `"instance": "1", "x": 1`,
			`/version/x: kotlin-wot rejects a TD with an unknown member here`},
		{"an unknown member in a link", `"http://x/doc"`, `"http://x/doc", "x": 1`,
			`/links/0/x: kotlin-wot rejects a TD with an unknown member here`},
		{"an unknown member in an action", `"synchronous": true`, `"synchronous": true, "lmos:x": 1`,
			`/actions/a/lmos:x: kotlin-wot rejects a TD with an unknown member here`},
		{"a language as text", `["en"]`, `"en"`, `/links/0/hreflang: kotlin-wot expects an array`},
		{"a property without type", `"type": "number", `, ``,
			`/properties/p: "type" is missing: kotlin-wot cannot read a property without it`},
		{"an action without synchronous", `"synchronous": true, `, ``,
			`/actions/a: "synchronous" is missing: the HTTP Basic Profile requires it`},
		{"op as text", `["invokeaction"]},`, `"invokeaction"},`, `/actions/a/forms/0/op: kotlin-wot expects an array`},
		{"a relative href", `"http://x/p"`, `"p"`,
			`/properties/p/forms/0/href: is relative: some clients do not resolve it`},
		{"a name twice", `"events": {"e"`, `"events": {"a"`, `/events/a: a property or an action has the same name`},
		{"a property and an action", `"properties": {"p"`, `"properties": {"a"`,
			`/actions/a: a property has the same name`},
		{"ws first", `"http://x/a", "op": ["invokeaction"]},`,
			`"ws://x/b", "op": ["invokeaction"]}, {"href": "http://x/a", "op": ["invokeaction"]},`,
			`/actions/a/forms/0: node-wot sends no responses over WebSocket: put the http forms first`},
		{"sse first", `"longpoll"`, `"sse"`,
			`/events/e/forms/0: node-wot ignores named server-sent events: put a longpoll form first`},
		{"CBOR first", `"http://x/a",`, `"http://x/a", "contentType": "application/cbor",`,
			`/actions/a/forms/0: kotlin-wot supports only JSON: put a JSON form first`},
		{"a scheme that lacks an operation", `["invokeaction"]},`, `["invokeaction", "queryaction"]},`,
			`/actions/a/forms: kotlin-wot uses only one scheme, and the ws forms lack "queryaction"`},
		{"a default that does not fit", `"type": "number"`, `"type": "number", "default": "x"`,
			`/properties/p/default: does not fit its own schema: expected number, got string`},
		{"const and enum", `"type": "number"`, `"type": "number", "const": 1, "enum": [1]`,
			`/properties/p: has both const and enum: one of them is enough`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if !strings.Contains(nice, tt.old) {
				t.Fatalf("%s is not in the TD", tt.old)
			}
			var got []string
			for _, w := range mustParse(t, strings.Replace(nice, tt.old, tt.new, 1)).Warnings {
				got = append(got, w.String())
			}
			if !slices.Equal(got, []string{tt.want}) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestVerifiedThingHasNoWarnings(t *testing.T) {
	t.Parallel()
	raw := []byte(strings.Replace(string(readFile(t, "weather.td.json")), `"synchronous": true,`, ``, 1))
	if w := mustParse(t, string(raw)).Warnings; len(w) != 1 {
		t.Errorf("got %v, want one warning", w)
	}
	if w := verified(t, published(t, raw, signer(t, 1), 7)).Warnings; w != nil {
		t.Errorf("a verified TD has the warnings %v", w)
	}
}
