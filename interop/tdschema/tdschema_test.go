package tdschema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/td"
)

// officialSchema is the JSON Schema of TD 1.1, as the W3C Working Group publishes it on npm.
func officialSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	testprogram.Modules(t, "..")
	f, err := os.Open("../node_modules/wot-thing-description-types/schema/td-json-schema-validation.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := jsonschema.UnmarshalJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("urn:official", doc); err != nil {
		t.Fatal(err)
	}
	return c.MustCompile("urn:official")
}

// A verdict has the results of the official schema and of lmosd for one document. Rules are those of lmosd beyond the schema.
type verdict struct {
	official, ours bool
	rules, unnamed []string
}

func judge(t *testing.T, official *jsonschema.Schema, raw []byte) (v verdict) {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	v.official = official.Validate(doc) == nil
	_, err = td.Parse(raw)
	var invalid *td.ValidationError
	if v.ours = err == nil; !v.ours && !errors.As(err, &invalid) {
		t.Fatal(err)
	}
	if v.ours {
		return v
	}
	for _, i := range invalid.Issues {
		switch {
		case i.Rule != "":
			v.rules = append(v.rules, i.Rule)
		case !strings.HasSuffix(i.Reason, " more"):
			v.unnamed = append(v.unnamed, i.String())
		}
	}
	return v
}

// draft reports whether a document has the context of the TD 2.0 draft, which lmosd supports.
func draft(raw []byte) bool { return bytes.Contains(raw, []byte("https://www.w3.org/ns/wot-next/td")) }

// disagreement returns the error of a verdict; "" if both agree, or lmosd names the stricter rule.
func (v verdict) disagreement() string {
	switch {
	case v.official && len(v.unnamed) > 0:
		return "the schema takes it, and lmosd refuses it without a rule: " + strings.Join(v.unnamed, "; ")
	case !v.official && v.ours:
		return "the schema refuses it, and lmosd takes it"
	}
	return ""
}

// wholeTD is a TD with all features of TD 1.1.
const wholeTD = `{"@context": ["https://www.w3.org/2019/wot/td/v1", "https://www.w3.org/2022/wot/td/v1.1", {"@language": "en", "ex": "http://example.org/"}],
	"@type": ["ex:Lamp"], "id": "urn:example:lamp", "title": "Lamp", "titles": {"en": "Lamp", "de-AT": "Lampe"}, "description": "d", "descriptions": {"en": "d"},
	"version": {"instance": "1.0.0", "model": "2.0.0"}, "created": "2026-01-31T12:00:00Z", "modified": "2026-01-31T12:00:00.5+01:00",
	"support": "mailto:a@example.org", "base": "http://example.org/", "profile": ["https://www.w3.org/2022/wot/profile/http-basic/v1"],
	"security": ["basic_sc"], "securityDefinitions": {"basic_sc": {"scheme": "basic", "in": "header", "name": "n", "description": "d", "proxy": "http://p"},
		"nosec_sc": {"scheme": "nosec"}, "key": {"scheme": "apikey", "in": "uri", "name": "apikey"}, "digest": {"scheme": "digest", "qop": "auth", "in": "cookie"},
		"bearer": {"scheme": "bearer", "alg": "ES256", "format": "jwt", "authorization": "http://a", "in": "query"}, "psk": {"scheme": "psk", "identity": "i"},
		"code": {"scheme": "oauth2", "flow": "code", "authorization": "http://a", "token": "http://t", "refresh": "http://r", "scopes": ["a", "b"]},
		"client": {"scheme": "oauth2", "flow": "client", "token": "http://t", "scopes": "a"}, "device": {"scheme": "oauth2", "flow": "device", "authorization": "http://a", "token": "http://t"},
		"combo": {"scheme": "combo", "oneOf": ["basic_sc", "psk"]}, "both": {"scheme": "combo", "allOf": ["basic_sc", "psk"]}, "auto": {"scheme": "auto"},
		"ace": {"scheme": "ace:ACESecurityScheme", "ace:as": "x"}},
	"schemaDefinitions": {"problem": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}},
	"uriVariables": {"unit": {"type": "string", "enum": ["c", "f"]}},
	"links": [{"href": "http://example.org/doc", "rel": "service-doc", "type": "text/html", "hreflang": ["en", "zh-Hans-CN"], "anchor": "#x"},
		{"href": "http://example.org/icon.png", "rel": "icon", "sizes": "16x16"}, {"href": "", "hreflang": "de"}],
	"forms": [{"href": "all{?unit}", "op": ["readallproperties", "writemultipleproperties"], "contentType": "application/json"}, {"href": "o", "op": "queryallactions"}],
	"properties": {"level": {"type": "integer", "minimum": 0, "maximum": 100, "exclusiveMaximum": 101, "multipleOf": 1, "unit": "percent", "observable": true, "readOnly": false,
			"title": "L", "titles": {"en": "L"}, "const": 5, "default": 5, "enum": [5, 6],
			"forms": [{"href": "", "op": ["readproperty", "observeproperty"], "subprotocol": "sse", "contentCoding": "gzip", "security": ["psk"], "scopes": ["a"]},
				{"href": "level", "op": "writeproperty", "response": {"contentType": "text/plain"}, "additionalResponses": [{"success": false, "contentType": "application/problem+json", "schema": "problem"}]}]},
		"text": {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^a", "format": "email", "contentEncoding": "base64", "contentMediaType": "image/png", "forms": [{"href": "t"}]},
		"list": {"type": "array", "items": [{"type": "number"}, {"type": "null"}], "minItems": 1, "maxItems": 2, "oneOf": [{"type": "array"}], "forms": [{"href": "l"}]}},
	"actions": {"fade": {"@type": "ex:Fade", "description": "d", "input": {"type": "object", "properties": {"to": {"type": "number"}}, "required": ["to"]},
		"output": {"type": "boolean"}, "safe": false, "idempotent": true, "synchronous": true, "uriVariables": {"speed": {"type": "number"}},
		"forms": [{"href": "fade{?speed}", "op": ["invokeaction", "queryaction"]}]}},
	"events": {"hot": {"subscription": {"type": "string"}, "data": {"type": "array", "items": {"type": "string"}}, "dataResponse": {"type": "string"}, "cancellation": {"type": "null"},
		"forms": [{"href": "hot", "op": ["subscribeevent", "unsubscribeevent"]}]}}}`

// lmosd validate agrees with the official schema: where lmosd is stricter, each reason names the rule. The documents are one with all
// features, with each of its values removed and replaced in many ways, and the examples.
func TestOfficialSchema(t *testing.T) {
	t.Parallel()
	official := officialSchema(t)
	for name, raw := range documents(t) {
		var doc any
		if err := json.Unmarshal(raw, &doc); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if v := judge(t, official, raw); !v.official || !v.ours {
			t.Errorf("%s: valid for the schema is %v, for lmosd %v %v %v", name, v.official, v.ours, v.rules, v.unnamed)
		}
		if name != "whole" {
			continue
		}
		seen := map[string]bool{}
		n := 0
		mutateParts(doc.(map[string]any), func(part map[string]any, what string) {
			changed, err := json.Marshal(part)
			if err != nil {
				t.Fatal(err)
			}
			n++
			v := judge(t, official, changed)
			if strings.HasPrefix(what, "only ") && !(v.official && v.ours) {
				t.Errorf("%s: valid for the schema is %v, for lmosd %v %v %v", what, v.official, v.ours, v.rules, v.unnamed)
			}
			if why := v.disagreement(); why != "" && !draft(changed) && !seen[why] {
				seen[why] = true
				t.Errorf("%s, %s: %s", name, what, why)
			}
		})
		t.Logf("%s: %d variants", name, n)
	}
}

// documents returns valid TDs: wholeTD, and the examples.
func documents(t *testing.T) map[string][]byte {
	t.Helper()
	all := map[string][]byte{"whole": []byte(wholeTD)}
	files, err := filepath.Glob("../../examples/*/*/*.td.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no examples", err)
	}
	for _, name := range files {
		if all[name], err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// values replace others.
var values = []any{nil, true, "", "x", "a:b", "tm:ThingModel", 5.0, -1.5, []any{}, []any{""}, []any{"x", "x"}, []any{5.0, 5.0},
	map[string]any{}, map[string]any{"type": "string"}, map[string]any{"en": "x", "x_y": "z"}, "en", "16x16 32x32", "any", "https://www.w3.org/2022/wot/td/v1.1"}

// mutateParts is mutate with smaller documents: an affordance is changed in a document that has no other one.
func mutateParts(doc map[string]any, try func(part map[string]any, what string)) {
	part := maps.Clone(doc)
	change := func(what string) { try(part, what) }
	kinds := []string{"properties", "actions", "events"}
	for _, kind := range kinds {
		delete(part, kind)
	}
	mutate(part, "", change)
	needed := []string{"@context", "title", "base", "security", "securityDefinitions", "schemaDefinitions"}
	maps.DeleteFunc(part, func(name string, _ any) bool { return !slices.Contains(needed, name) })
	for _, kind := range kinds {
		for name, affordance := range doc[kind].(map[string]any) {
			only := map[string]any{name: affordance}
			part[kind] = only
			change("only " + name)
			mutate(only, "/"+kind, change)
		}
		replace(part, kind, "/"+kind, change)
		delete(part, kind)
	}
}

// replace removes and replaces the member name of v, calls try after each change, and reverts it.
func replace(v map[string]any, name, at string, try func(what string)) {
	old := v[name]
	delete(v, name)
	try("without " + at)
	for _, other := range values {
		v[name] = other
		try(fmt.Sprintf("%v at %s", other, at))
	}
	v[name] = old
}

// mutate changes one position of v after the other, calls try, and reverts the change.
func mutate(v any, pointer string, try func(what string)) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			at := pointer + "/" + name
			mutate(v[name], at, try)
			replace(v, name, at, try)
		}
	case []any:
		for i, old := range v {
			at := fmt.Sprintf("%s/%d", pointer, i)
			mutate(old, at, try)
			for _, other := range values {
				v[i] = other
				try(fmt.Sprintf("%v at %s", other, at))
			}
			v[i] = old
		}
	}
}

// One TD of each class from plugfests that the schema accepts: the reason of lmosd, by rule; "" is none.
func TestStricterRules(t *testing.T) {
	t.Parallel()
	official := officialSchema(t)
	const head = `"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "x", "security": "n", "securityDefinitions": {"n": {"scheme": "nosec"}}`
	property := func(members string) string { return head + `, "properties": {"p": {` + members + `}}` }
	for name, c := range map[string]struct{ members, rule string }{
		"an empty href":                      {property(`"forms": [{"href": ""}]`), ""},
		"an empty href of a link":            {head + `, "links": [{"href": ""}]`, ""},
		"sizes of an icon":                   {head + `, "links": [{"href": "a", "rel": "icon", "sizes": "16x16 32x32"}]`, ""},
		"a type without elements":            {property(`"@type": [], "forms": [{"href": "a"}]`), ""},
		"a write of what is read only":       {property(`"readOnly": true, "forms": [{"href": "a", "op": ["readproperty", "writeproperty"]}]`), "TD 1.1 §5.4, op"},
		"a read of what is write only":       {property(`"writeOnly": true, "forms": [{"href": "a", "op": "readproperty"}]`), "TD 1.1 §5.4, op"},
		"a variable that is not declared":    {property(`"forms": [{"href": "a{?x}"}]`), "td-uriVariables-names"},
		"a variable that is an object":       {property(`"uriVariables": {"x": {"type": "object"}}, "forms": [{"href": "a{?x}"}]`), "TD 1.1 §5.3.1.1, uriVariables"},
		"a schema that is not defined":       {property(`"forms": [{"href": "a", "additionalResponses": [{"schema": "s"}]}]`), "TD 1.1 §5.3.4.2, schema"},
		"security that is not defined":       {strings.Replace(head, `"security": "n"`, `"security": "m"`, 1), "td-security"},
		"a client flow with authorization":   {strings.Replace(head, `{"scheme": "nosec"}`, `{"scheme": "oauth2", "flow": "client", "token": "http://t", "authorization": "http://a"}`, 1), "td-security-oauth2-client-flow-no-auth"},
		"a flow without its token":           {strings.Replace(head, `{"scheme": "nosec"}`, `{"scheme": "oauth2", "flow": "code", "authorization": "http://a"}`, 1), "td-security-oauth2-code-flow"},
		"oauth2 without a flow":              {strings.Replace(head, `{"scheme": "nosec"}`, `{"scheme": "oauth2"}`, 1), "TD 1.1 §5.3.3.10, flow"},
		"a name that is no language":         {head + `, "titles": {"not a language": "x"}`, "td-multilanguage-language-tag"},
		"two links of a kind there is once":  {head + `, "links": [{"href": "a", "rel": "collection"}, {"href": "b", "rel": "collection"}]`, "TD 1.1 §5.3.4.1"},
		"the second context in third place":  {strings.Replace(head, `"https://www.w3.org/2022/wot/td/v1.1"`, `["https://www.w3.org/2019/wot/td/v1", "http://a", "https://www.w3.org/2022/wot/td/v1.1"]`, 1), "td-context"},
		"a context without any":              {strings.Replace(head, `"https://www.w3.org/2022/wot/td/v1.1"`, `[]`, 1), "td-context"},
		"a member that is there twice":       {head + `, "title": "y"`, "RFC 7493 §2"},
		"a variable of a secret's name":      {strings.Replace(head, `{"scheme": "nosec"}`, `{"scheme": "apikey", "in": "uri", "name": "k"}`, 1) + `, "uriVariables": {"k": {"type": "string"}}`, "td-security-uri-variables-distinct"},
		"an address that is too long for us": {property(`"forms": [{"href": "` + strings.Repeat("a", 9000) + `"}]`), "a limit of lmosd"},
	} {
		v := judge(t, official, []byte("{"+c.members+"}"))
		if got := strings.Join(slices.Compact(v.rules), ", "); !v.official || got != c.rule || v.ours != (c.rule == "") || len(v.unnamed) > 0 {
			t.Errorf("%s: valid for the schema is %v, for lmosd %v: rules %q, want %q; %v", name, v.official, v.ours, got, c.rule, v.unnamed)
		}
	}
}

// TestPlugfests validates the TDs in the folder LMOSD_TDS, and counts.
func TestPlugfests(t *testing.T) {
	folder := os.Getenv("LMOSD_TDS")
	if folder == "" {
		t.Skip("LMOSD_TDS names no folder of TDs, such as a copy of w3c/wot-testing")
	}
	official, rules := officialSchema(t), map[string]int{}
	valid, refused := 0, 0
	err := filepath.WalkDir(folder, func(name string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		raw, err := os.ReadFile(name)
		var doc map[string]any
		if err != nil || json.Unmarshal(raw, &doc) != nil || doc["@context"] == nil {
			return err
		}
		v := judge(t, official, raw)
		if why := v.disagreement(); why != "" {
			t.Errorf("%s: %s", name, why)
		}
		if v.official {
			valid++
		}
		if v.official && !v.ours {
			refused++
			slices.Sort(v.rules)
			for _, rule := range slices.Compact(v.rules) {
				rules[rule]++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("of %d that the official schema takes, lmosd refuses %d, each by a rule that it names: %v", valid, refused, rules)
}
