package features

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// Values that a description lists are completed.
func TestCompletion(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 150 {
		many = append(many, strconv.Itoa(1000+i))
	}
	o := featuresOf(t, `{"title":"Atlas","properties":{"map":{"type":"string","readOnly":true,"uriVariables":{
		"of":{"type":"string","enum":["Bonn","Berlin","Köln"]},"night":{"type":"boolean"},"page":{"type":"integer"},
		"year":{"enum":[`+strings.Join(many, ",")+`]}}},"size":{"type":"integer"}},
		"actions":{"tour":{"@type":"mcp:Prompt","input":{"type":"object","properties":{"by":{"enum":["foot","ferry"]}}}}}}`)
	at := scheme + o.Alias + "/properties/map"
	template := at + "{?night,of,page,year}"
	type ref struct {
		Type string `json:"type"`
		URI  string `json:"uri,omitempty"`
		Name string `json:"name,omitempty"`
	}
	for _, c := range []struct {
		ref        ref
		name, word string
		want       []string // nil is an error
	}{
		{ref{Type: "ref/resource", URI: template}, "of", "", []string{"Bonn", "Berlin", "Köln"}},
		{ref{Type: "ref/resource", URI: template}, "of", "b", []string{"Bonn", "Berlin"}},
		{ref{Type: "ref/resource", URI: template}, "of", "kÖ", []string{"Köln"}},
		{ref{Type: "ref/resource", URI: at + "?of=Bonn"}, "night", "t", []string{"true"}},
		{ref{Type: "ref/resource", URI: template}, "page", "", []string{}},
		{ref{Type: "ref/resource", URI: template}, "none", "", []string{}},
		{ref{Type: "ref/resource", URI: template}, "year", "1", many[:100]},
		{ref{Type: "ref/prompt", Name: "tour"}, "by", "f", []string{"foot", "ferry"}},
		{ref{Type: "ref/prompt", Name: "tour"}, "by", "x", []string{}},
		{ref{Type: "ref/prompt", Name: "none"}, "by", "", nil},
		{ref{Type: "ref/resource", URI: scheme + "none"}, "of", "", nil},
		{ref{Type: "ref/tool", Name: "tour"}, "by", "", nil},
	} {
		r := o.Complete(protocol.Request("1", "completion/complete", map[string]any{"ref": c.ref, "argument": map[string]string{"name": c.name, "value": c.word}}))
		var got struct {
			Completion struct {
				Values []string `json:"values"`
				More   bool     `json:"hasMore"`
			} `json:"completion"`
		}
		switch {
		case c.want == nil:
			if r.Error() == nil || r.Error().Code != protocol.InvalidParams {
				t.Errorf("%+v %s: %s", c.ref, c.name, r.Bytes())
			}
		case json.Unmarshal(r.Result(), &got) != nil || !slices.Equal(got.Completion.Values, c.want) || got.Completion.More != (c.name == "year"):
			t.Errorf("%+v %s %q: got %s", c.ref, c.name, c.word, r.Bytes())
		}
	}
}
