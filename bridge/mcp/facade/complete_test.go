package facade

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge/bridgetest"
)

// What a description names is completed, for clients of both eras.
func TestCompletion(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 150 {
		many = append(many, strconv.Itoa(1000+i))
	}
	m := bridgetest.NewMesh(t)
	d := add(t, m, "urn:x:atlas", `{"title":"Atlas","properties":{"map":{"type":"string","readOnly":true,"uriVariables":{
		"of":{"type":"string","enum":["Bonn","Berlin","Köln"]},"night":{"type":"boolean"},"page":{"type":"integer"},
		"year":{"enum":[`+strings.Join(many, ",")+`]}}},"size":{"type":"integer"}},
		"actions":{"tour":{"@type":"mcp:Prompt","input":{"type":"object","properties":{"by":{"enum":["foot","ferry"]}}}}}}`, newDesk())
	url := serveMesh(t, m)
	at := Scheme + aliasOf(d) + "/properties/map"
	template := at + "{?night,of,page,year}"
	eras(t, func(t *testing.T, version string) {
		s := connect(t, url+"/mcp/things/atlas", version, nil)
		if s.InitializeResult().Capabilities.Completions == nil {
			t.Error("it does not say that it completes")
		}
		for _, c := range []struct {
			ref        mcp.CompleteReference
			name, word string
			want       []string // nil is an error
		}{
			{mcp.CompleteReference{Type: "ref/resource", URI: template}, "of", "", []string{"Bonn", "Berlin", "Köln"}},
			{mcp.CompleteReference{Type: "ref/resource", URI: template}, "of", "b", []string{"Bonn", "Berlin"}},
			{mcp.CompleteReference{Type: "ref/resource", URI: template}, "of", "kÖ", []string{"Köln"}},
			{mcp.CompleteReference{Type: "ref/resource", URI: at + "?of=Bonn"}, "night", "t", []string{"true"}},
			{mcp.CompleteReference{Type: "ref/resource", URI: template}, "page", "", []string{}},
			{mcp.CompleteReference{Type: "ref/resource", URI: template}, "none", "", []string{}},
			{mcp.CompleteReference{Type: "ref/resource", URI: template}, "year", "1", many[:100]},
			{mcp.CompleteReference{Type: "ref/prompt", Name: "tour"}, "by", "f", []string{"foot", "ferry"}},
			{mcp.CompleteReference{Type: "ref/prompt", Name: "tour"}, "by", "x", []string{}},
			{mcp.CompleteReference{Type: "ref/prompt", Name: "none"}, "by", "", nil},
			{mcp.CompleteReference{Type: "ref/resource", URI: Scheme + "none"}, "of", "", nil},
		} {
			r, err := s.Complete(t.Context(), &mcp.CompleteParams{Ref: &c.ref, Argument: mcp.CompleteParamsArgument{Name: c.name, Value: c.word}})
			switch {
			case err != nil || c.want == nil:
				if (err != nil) != (c.want == nil) {
					t.Errorf("%+v %s: %v", c.ref, c.name, err)
				}
			case !slices.Equal(r.Completion.Values, c.want) || r.Completion.HasMore != (c.name == "year"):
				t.Errorf("%+v %s %q: got %+v", c.ref, c.name, c.word, r.Completion)
			}
		}
	})
}
