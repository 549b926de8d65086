package td

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/lmosd/lmosd/td/schema"
)

// TestInputWithVariables combines inputs with URI variables.
func TestInputWithVariables(t *testing.T) {
	t.Parallel()
	const vars = `"uriVariables": {"id": {"type": "integer"}, "limit": {"type": "integer", "lmosd:required": true},
		"tag": {"$ref": "#/definitions/t", "definitions": {"t": {"enum": ["a", "b"]}}}},
		"forms": [{"href": "http://a/{id}{?limit,tag}"}, {"href": "mqtt://a/{id}"}]`
	for name, c := range map[string]struct {
		input, required string
		fits, not       []string
	}{
		"no input": {`null`, "[id limit]", []string{`{"id":1,"limit":2}`, `{"id":1,"limit":2,"tag":"a"}`},
			[]string{`{"id":1}`, `{"limit":1}`, `{"id":"x","limit":1}`, `{"id":1,"limit":1,"tag":"c"}`, `5`}},
		"an object": {`{"type":"object","properties":{"text":{"type":"string"},"id":{"type":"integer","minimum":5}},
			"required":["text","id"],"additionalProperties":false}`, "[text id limit]",
			[]string{`{"text":"x","id":7,"limit":1}`},
			[]string{`{"id":7,"limit":1}`, `{"text":"x","id":1,"limit":1}`, `{"text":"x","id":7,"limit":1,"z":1}`}},
		"an object whose members are counted": {
			`{"type":"object","properties":{"a":{"type":"string"}},"minProperties":1,"maxProperties":1}`, "[id limit]",
			[]string{`{"a":"x","id":1,"limit":1}`}, []string{`{"a":5,"id":1,"limit":1}`}},
		"one object": {`{"type":"object","const":{"a":"x"}}`, "[id limit]",
			[]string{`{"a":"x","id":1,"limit":1}`}, []string{`{"a":"x","id":1}`}},
		"some objects": {`{"type":"object","enum":[{"a":"x"},{}]}`, "[id limit]",
			[]string{`{"a":"x","id":1,"limit":1}`}, []string{`{"a":"x","id":1}`}},
		"closed parts": {
			`{"type":"object","oneOf":[{"properties":{"a":{}},"additionalProperties":false},{"allOf":[{"maxProperties":1}]}]}`,
			"[id limit]", []string{`{"a":"x","id":1,"limit":1}`}, []string{`{"a":"x","id":1}`}},
		"a closed part by reference": {
			`{"type":"object","allOf":[{"$ref":"#/definitions/p"}],"definitions":{"p":{"additionalProperties":false}}}`,
			"[id limit]", []string{`{"id":1,"limit":1}`}, []string{`{"id":1}`}},
		"a part that contains itself": {`{"type":"object","allOf":[{"$ref":"#"}]}`, "[id limit]",
			[]string{`{"id":1,"limit":1}`}, []string{`{"id":1}`}},
		"open parts": {`{"type":"object","oneOf":[{"required":["a"]},{"required":["b"]}]}`, "[id limit]",
			[]string{`{"a":"x","id":1,"limit":1}`}, []string{`{"id":1,"limit":1}`}},
		"a text": {`{"type":"string","minLength":2}`, "[value id limit]", []string{`{"value":"ab","id":1,"limit":1}`},
			[]string{`{"id":1,"limit":1}`, `{"value":"a","id":1,"limit":1}`}},
		"anything": {`{}`, "[id limit]", []string{`{"id":1,"limit":2,"more":[1]}`}, []string{`{"limit":2}`}},
	} {
		input := `"input": ` + c.input + `,`
		if c.input == "null" {
			input = ""
		}
		thing, err := Parse([]byte(`{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "x", "security": "n",
			"securityDefinitions": {"n": {"scheme": "nosec"}}, "actions": {"a": {` + input + vars + `}}}`))
		if err != nil {
			t.Fatal(err)
		}
		s := thing.Actions["a"].InputWithVariables()
		if got := fmt.Sprint(s.Required()); got != c.required {
			t.Errorf("%s: required are %s, want %s", name, got, c.required)
		}
		for i, text := range slices.Concat(c.fits, c.not) {
			var v any
			if err := json.Unmarshal([]byte(text), &v); err != nil {
				t.Fatal(err)
			}
			if issues := s.Check(v); (len(issues) == 0) != (i < len(c.fits)) {
				t.Errorf("%s: %s has the issues %v", name, text, issues)
			}
		}
	}
	plain := &Action{Input: schema.Parse(true)}
	if plain.InputWithVariables() != plain.Input {
		t.Error("an input without variables is another")
	}
}
