package tdd

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/antchfx/jsonquery"
)

// The elements and texts are those of antchfx/jsonquery, which builds the whole tree.
func TestXPathLikeJSONQuery(t *testing.T) {
	t.Parallel()
	w := lamps(t, 12)
	var all []any
	for _, item := range w.allThings(t.Context()) {
		all = append(all, w.value(item))
	}
	raw, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := jsonquery.Parse(strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{
		`//id`, `/*/title`, `//href/..`, `//href/../..`, `//href/ancestor::*`, `//on/ancestor-or-self::*`, `//*[title='Lamp 3']//type`,
		`/*[3]/*[2]`, `//text()[.='boolean']`,
		`//forms/*[1]/href`, `/*[title='Lamp 1']/following-sibling::*/id`, `/*[5]/preceding-sibling::*/id`, `//title | //id`,
		`//*[count(*)=3]`, `/descendant::*[3]`, `//n[.>1]`,
		`//href/ancestor::*[title]/id`, `//registration[ttl]`, `//*[@type]`, `/*[last()-1]/version/instance`, `//n/following::id`,
		`//properties//*[type='boolean']`,
	} {
		nodes, err := jsonquery.QueryAll(tree, query)
		if err != nil {
			t.Fatal(query, err)
		}
		values := []any{}
		for _, n := range nodes {
			values = append(values, n.Value())
		}
		want, err := json.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		got := w.search(t, "xpath", query, 200)
		if encode(t, decode(t, strings.TrimSpace(string(got)))) != encode(t, decode(t, string(want))) {
			t.Errorf("%s: %.300s\nwant %.300s", query, got, want)
		}
	}
}
