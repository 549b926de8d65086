package td

import (
	"encoding/json"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// nonconforming violates every rule that RewriteForms establishes.
const nonconforming = `{
	"@context": ["https://www.w3.org/2022/wot/td/v1.1", "https://w3id.org/security/data-integrity/v2",
		"https://voc.example/v1", {"saref": "https://w3id.org/saref#", "@language": "de"}],
	"id": "urn:x:odd", "title": "Odd", "lmos:capabilities": ["a:b"], "base": "http://agent.example/base/",
	"profile": "https://www.w3.org/2022/wot/profile/http-basic/v1",
	"version": {"instance": "1", "firmware": "2"},
	"security": "all_sc",
	"securityDefinitions": {"all_sc": {"scheme": "combo", "oneOf": ["a_sc", "b_sc"]},
		"a_sc": {"scheme": "basic"}, "b_sc": {"scheme": "apikey", "in": "uri", "name": "key"}},
	"schemaDefinitions": {"oops": {"type": "object"}},
	"uriVariables": {"lang": {"type": "string"}},
	"links": [{"href": "manual", "rel": "service-doc", "hreflang": "de", "x:note": 1}],
	"forms": [{"href": "all{?key}", "op": "readallproperties"}],
	"properties": {
		"level": {"minimum": 0, "maximum": 9, "observable": true, "uriVariables": {"room": {"type": "string"}},
			"oneOf": [{"type": "integer"}, {"type": "number"}], "saref:x": 1,
			"forms": [{"href": "level{?key,room}", "op": "readproperty", "scopes": "s"}]},
		"serial": {"readOnly": true, "const": "7", "forms": [{"href": "serial{?key}"}]},
		"pin": {"writeOnly": true, "default": 5, "forms": [{"href": "pin{?key}"}]},
		"photo": {"readOnly": true, "forms": [{"href": "photo{?key}", "contentType": "image/png"}]},
		"blob": {"forms": [{"href": "blob{?key}"}]}
	},
	"actions": {
		"go": {"input": {"type": "string"}, "lmos:cost": 1, "forms": [
			{"href": "go{?key}", "contentType": "text/plain", "response": {"contentType": "text/csv"},
			 "additionalResponses": [{"success": false, "schema": "oops"}]}]},
		"slow": {"synchronous": false, "forms": [{"href": "slow{?key}"}]}
	},
	"events": {"hot": {"data": {"type": "number"}, "forms": [{"href": "hot{?key}", "subprotocol": "sse", "op": "subscribeevent"}]}},
	"proof": {"type": "DataIntegrityProof"}, "registration": {"ttl": 1}
}`

// formRecorder records the operations that [FormRewrite.Forms] receives, and returns one HTTP form.
type formRecorder map[string][]string

func (a formRecorder) forms(kind, name string, ops []string) []Form {
	a[kind+"/"+name] = ops
	return []Form{{Href: "http://node.example/" + kind + "/" + url.PathEscape(name), ContentType: "application/json", Ops: ops}}
}

func rewriteForms(t *testing.T, raw string, r FormRewrite) (*Thing, map[string]any) {
	t.Helper()
	out, err := mustParse(t, raw).RewriteForms(r)
	if err != nil {
		t.Fatal(err)
	}
	thing, err := Parse(out)
	if err != nil {
		t.Fatalf("the result is not a valid TD: %v\n%s", err, out)
	}
	if len(thing.Warnings) > 0 {
		t.Errorf("warnings: %v", thing.Warnings)
	}
	var doc map[string]any
	if err := json.Unmarshal(out, &doc); err != nil {
		t.Fatal(err)
	}
	return thing, doc
}

func TestRewriteFormsRepairsTDs(t *testing.T) {
	t.Parallel()
	thing, doc := rewriteForms(t, nonconforming, FormRewrite{Forms: formRecorder{}.forms, Original: "http://node.example/things/odd"})
	for _, name := range []string{"proof", "registration", "base", "profile", "schemaDefinitions"} {
		if _, ok := doc[name]; ok {
			t.Errorf("%s was not removed", name)
		}
	}
	for pointer, want := range map[string]any{
		"@context": []any{Context10, Context11, ContextDiscovery, "https://voc.example/v1",
			map[string]any{"saref": "https://w3id.org/saref#", "@language": "de"}, map[string]any{"lmos": ContextLMOS}},
		"security": []any{"nosec_sc"}, "securityDefinitions": map[string]any{"nosec_sc": map[string]any{"scheme": "nosec"}},
		"version": map[string]any{"instance": "1"},
		"links": []any{
			map[string]any{"href": "http://agent.example/base/manual", "rel": "service-doc", "hreflang": []any{"de"}},
			map[string]any{"href": "http://node.example/things/odd", "rel": "alternate", "type": "application/td+json"}},
		"uriVariables": map[string]any{"lang": map[string]any{"type": "string"}},
	} {
		if d := cmp.Diff(want, doc[pointer]); d != "" {
			t.Errorf("%s: %s", pointer, d)
		}
	}
	types := map[string]string{}
	for name, p := range thing.Properties {
		types[name] = p.Type()
	}
	want := map[string]string{"level": "integer", "serial": "string", "pin": "number", "photo": "string", "blob": "object"}
	if d := cmp.Diff(want, types); d != "" {
		t.Error(d)
	}
	if len(thing.Properties["level"].URIVariables) != 2 {
		t.Error("the URI variables are missing")
	}
	if a := thing.Actions["go"]; a.Synchronous == nil || !*a.Synchronous {
		t.Error(`an action without "synchronous" did not become synchronous`)
	}
	if a := thing.Actions["slow"]; *a.Synchronous {
		t.Error("an asynchronous action became synchronous")
	}
	if strings.Contains(string(thing.Raw), "lmos:cost") || !strings.Contains(string(thing.Raw), "saref:x") {
		t.Error("a member of an action was kept, or one of a property removed")
	}
}

func TestRewriteFormsRequestsTheOperations(t *testing.T) {
	t.Parallel()
	requested := formRecorder{}
	rewriteForms(t, nonconforming, FormRewrite{Forms: requested.forms})
	want := formRecorder{
		"properties/level":  {"readproperty", "writeproperty", "observeproperty", "unobserveproperty"},
		"properties/serial": {"readproperty"},
		"properties/pin":    {"writeproperty"},
		"properties/photo":  {"readproperty"},
		"properties/blob":   {"readproperty", "writeproperty"},
		"actions/go":        {"invokeaction", "queryaction", "cancelaction"},
		"actions/slow":      {"invokeaction", "queryaction", "cancelaction"},
		"events/hot":        {"subscribeevent", "unsubscribeevent"},
		"/": {"readallproperties", "readmultipleproperties", "writeallproperties", "writemultipleproperties",
			"observeallproperties", "unobserveallproperties", "queryallactions", "subscribeallevents", "unsubscribeallevents"},
	}
	if d := cmp.Diff(want, requested); d != "" {
		t.Error(d)
	}
}

func TestRewriteFormsWritesForms(t *testing.T) {
	t.Parallel()
	_, doc := rewriteForms(t, nonconforming, FormRewrite{Bearer: true, Forms: func(kind, _ string, ops []string) []Form {
		if kind != "actions" {
			return nil
		}
		return []Form{{Href: "http://node.example/b", Ops: ops}, {Href: "http://node.example/a", ContentType: "text/plain", Subprotocol: "x",
			Ops: ops, ResponseType: "text/csv", HTTPMethod: "POST"}}
	}})
	action := doc["actions"].(map[string]any)["go"].(map[string]any)
	ops := []any{"invokeaction", "queryaction", "cancelaction"}
	want := []any{map[string]any{"href": "http://node.example/b", "op": ops},
		map[string]any{"href": "http://node.example/a", "contentType": "text/plain", "subprotocol": "x", "op": ops,
			"response": map[string]any{"contentType": "text/csv"}, "htv:methodName": "POST"}}
	if d := cmp.Diff(want, action["forms"]); d != "" {
		t.Error(d)
	}
	for _, kind := range []string{"properties", "events"} {
		if left := doc[kind].(map[string]any); len(left) > 0 {
			t.Errorf("%s without forms stay: %v", kind, left)
		}
	}
	if doc["forms"] != nil || len(doc["links"].([]any)) != 1 {
		t.Errorf("forms of the thing %v, links %v", doc["forms"], doc["links"])
	}
	if d := cmp.Diff(map[string]any{"bearer_sc": map[string]any{"scheme": "bearer", "in": "header"}}, doc["securityDefinitions"]); d != "" {
		t.Error(d)
	}
}

// RewriteForms does not change its Thing.
func TestRewriteFormsKeepsTheThing(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/weather.signed.td.json")
	if err != nil {
		t.Fatal(err)
	}
	thing := mustParse(t, string(raw))
	first, err := thing.RewriteForms(FormRewrite{Forms: formRecorder{}.forms})
	if err != nil {
		t.Fatal(err)
	}
	again, err := thing.RewriteForms(FormRewrite{Forms: formRecorder{}.forms})
	if err != nil || string(first) != string(again) || string(thing.Raw) != string(raw) || thing.doc["proof"] == nil {
		t.Errorf("the second result differs, or the Thing was changed: %v", err)
	}
	if strings.Contains(string(first), "proofValue") || !strings.Contains(string(first), `"lmos:capabilities"`) {
		t.Errorf("got %s", first)
	}
}

func TestRewriteFormsOfAnInvalidTD(t *testing.T) {
	t.Parallel()
	if _, err := (&Thing{Raw: []byte("{")}).RewriteForms(FormRewrite{}); err == nil {
		t.Error("no error")
	}
}

func FuzzRewriteForms(f *testing.F) {
	f.Add([]byte(nonconforming))
	f.Add([]byte(nice))
	f.Fuzz(func(t *testing.T, raw []byte) {
		thing, err := Parse(raw)
		if err != nil || len(raw) > MaxTD/8 {
			return
		}
		out, err := thing.RewriteForms(FormRewrite{Forms: formRecorder{}.forms, Original: "http://node.example/things/x"})
		if err != nil {
			t.Fatal(err)
		}
		if len(out) > MaxTD {
			return
		}
		again, err := Parse(out)
		if err != nil {
			t.Fatalf("%v\nof %s\nfrom %s", err, out, raw)
		}
		if again.ID != thing.ID || again.Base != "" || len(again.Actions) != len(thing.Actions) {
			t.Errorf("%s became %s", raw, out)
		}
	})
}
