package interact

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// Received steps are limited. Unknown and invalid steps are ignored.
func TestSteps(t *testing.T) {
	t.Parallel()
	show := `{"kind":"show","args":["a b"]}`
	for name, test := range map[string]struct {
		raw  string
		want Steps
	}{
		"one":                 {"[" + show + "]", Steps{{StepShow, []string{"a b"}}}},
		"no list":             {`"https://a.example/2"`, nil},
		"no steps":            {`[7,"x",null,{"kind":7},` + show + `]`, Steps{{StepShow, []string{"a b"}}}},
		"unknown kind":        {`[{"kind":"sing"},{"kind":"find"}]`, Steps{{StepFind, nil}}},
		"arguments":           {`[{"kind":"find","args":["1","2","3","4","5"]},{"kind":"show","args":[{}]}]`, Steps{{StepShow, []string{""}}}},
		"a long argument":     {`[{"kind":"show","args":["` + strings.Repeat("x", MaxStepArg+1) + `"]}]`, nil},
		"a control character": {`[{"kind":"show","args":["a\u001b[2J"]}]`, nil},
		"too many":            {"[" + strings.Repeat(show+",", MaxSteps) + `{"kind":"find"}]`, KnownSteps(slicesOf(Step{StepShow, []string{"a b"}}, MaxSteps))},
	} {
		var doc struct {
			Next Steps
			Last string
		}
		if err := json.Unmarshal([]byte(`{"next":`+test.raw+`,"last":"read"}`), &doc); err != nil || doc.Last != "read" || !reflect.DeepEqual(doc.Next, test.want) {
			t.Errorf("%s: got %v, %v, want %v", name, doc.Next, err, test.want)
		}
	}
}

func slicesOf(s Step, n int) (list []Step) {
	for range n {
		list = append(list, s)
	}
	return list
}
