package sdk

import (
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/lmosd/lmosd/internal/testprogram"
)

// types are the results of a library for the types of testdata/hints.*.
type types struct {
	About struct {
		ID           string           `json:"id"`
		Type         string           `json:"@type"`
		Capabilities []map[string]any `json:"lmos:capabilities"`
		Actions      map[string]json.RawMessage
		Properties   map[string]json.RawMessage
		Events       map[string]json.RawMessage
	}
	Built, Encoded string
	Errors         map[string]string
}

func readTypes(t *testing.T, program, file string) (all types) {
	t.Helper()
	cmd := exec.Command(program, file)
	raw, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(raw, &all)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", file, err, raw)
	}
	if a := all.About; a.ID != "urn:x:types" || a.Type != "lmos:Tool" || len(a.Capabilities) != 2 ||
		a.Capabilities[0]["name"] != "urn:x" || a.Capabilities[1]["version"] != "2" {
		t.Errorf("the agent is %+v", a)
	}
	return all
}

// sameEach compares affordances with the expected ones.
func sameEach(t *testing.T, got map[string]json.RawMessage, want map[string]string) {
	t.Helper()
	for name, w := range want {
		if !same(got[name], w) {
			t.Errorf("%s is\n%s, want\n%s", name, got[name], w)
		}
	}
}

func TestPythonTypes(t *testing.T) {
	t.Parallel()
	all := readTypes(t, testprogram.Path(t, "python3"), "testdata/hints.py")
	const leaf = `{"type":"object","required":["n"],
		"properties":{"n":{"type":"integer"},"tags":{"type":"array","items":{"type":"string"}}}}`
	sameEach(t, all.About.Actions, map[string]string{
		"nothing": `{"synchronous":true}`,
		"plain": `{"synchronous":true,"description":"Says\nmore.","input":{"type":"object","properties":{
			"s":{"type":"string"},"i":{"type":"integer"},"f":{"type":"number"},"b":{"type":"boolean"},"anything":{},
			"words":{"type":"string","description":"in words"}},
			"required":["s","i","f","b","anything"]},"output":{"type":"object"}}`,
		"lists": `{"synchronous":true,"idempotent":true,"title":"Lists","input":{"type":"object","properties":{"a":{"type":"array"},
			"b":{"type":"array","items":{"type":"integer"}},"c":{"type":"array","items":{"type":"string"}},"d":{"type":"array"},
			"e":{"type":"array","items":{"type":"boolean"}},"g":{"type":"array","items":{"type":"number"}}},
			"required":["a","b","c","d","e","g"]}}`,
		"unions": `{"synchronous":true,"safe":true,"idempotent":true,"input":{"type":"object","properties":{
			"a":{"oneOf":[{"type":"integer"},{"type":"null"}]},"b":{"oneOf":[{"type":"number"}]},"c":{},"d":{"enum":["x",1]},
			"e":{"oneOf":[{"type":"string"},{"type":"array","items":{"type":"integer"}},{"type":"null"}]}},
			"required":["a","b","c","d","e"]}}`,
		"whole":   `{"synchronous":true,"input":` + leaf + `,"output":{"type":"array","items":` + leaf + `}}`,
		"context": `{"synchronous":true,"input":{"type":"object","properties":{"n":{"type":"integer"}}},"output":{"type":"string"}}`,
	})
	if want := "{'tree': Tree(leaves=[Leaf(n=1, tags=[])], left=Tree(leaves=[], left=None)), 'some': [Leaf(n=2, tags=['x'])], " +
		"'maybe': Leaf(n=3, tags=[]), 'words': Leaf(n=4, tags=[])}"; all.Built != want {
		t.Errorf("the arguments are\n%s, want\n%s", all.Built, want)
	}
	if want := `[{"n":1,"tags":["é"]},[1,2]]`; all.Encoded != want {
		t.Errorf("the JSON is %s, want %s", all.Encoded, want)
	}
	for name, code := range map[string]string{"missing": "LMOS-1400", "no object": "LMOS-1400", "set": "LMOS-1502",
		"nan": "LMOS-1502", "surrogate": "LMOS-1502", "too long": "LMOS-1413", "twice": "LMOS-2011"} {
		if all.Errors[name] != code {
			t.Errorf("%s: got %q, want %s", name, all.Errors[name], code)
		}
	}
}

func TestJavaScriptTypes(t *testing.T) {
	t.Parallel()
	all := readTypes(t, testprogram.Path(t, "node"), "testdata/hints.mjs")
	sameEach(t, all.About.Actions, map[string]string{
		"nothing": `{"synchronous":true}`,
		"plain": `{"synchronous":true,"description":"Says more.","output":{"type":"object"},
			"input":{"type":"object","required":["s","i","anything"],"properties":{
				"s":{"type":"string"},"i":{"type":"integer"},"anything":{},"maybe":{"type":"number"}}}}`,
		"lists": `{"synchronous":true,"idempotent":true,"title":"Lists","input":{"type":"object","required":["a","b"],"properties":{
			"a":{"type":"array","items":{"type":"string"}},
			"b":{"type":"array","items":{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}}}}}`,
		"own": `{"synchronous":false,"input":{"type":"string","maxLength":3},"output":{"oneOf":[{"type":"string"}]}}`,
		"nested": `{"synchronous":true,"output":{"enum":[1,2]},"input":{"type":"object","required":["at"],"properties":{
			"at":{"type":"object","required":["lat","type"],"properties":{
				"lat":{"type":"number"},"type":{"type":"object","properties":{"of":{"type":"string"}}}}}}}}`,
	})
	sameEach(t, all.About.Properties, map[string]string{"one": `{"type":"boolean","readOnly":true}`,
		"two": `{"const":3,"observable":true,"readOnly":true}`})
	sameEach(t, all.About.Events, map[string]string{"three": `{}`})
	for name, code := range map[string]string{"twice": "LMOS-2011", "unnamed": "LMOS-2011", "emit": "LMOS-1405",
		"set": "LMOS-1405", "agent": "LMOS-2011"} {
		if all.Errors[name] != code {
			t.Errorf("%s: got %q, want %s", name, all.Errors[name], code)
		}
	}
}
