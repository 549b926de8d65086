package directory

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/td"
)

func corpus(t testing.TB) []*td.Description {
	w := plain(t, 1, "urn:w:1", "Weather in Bonn", "urn:example:weather:forecast")
	w.Actions = map[string]*td.Action{"getForecast": {}}
	w.Types = []string{"lmos:Agent"}
	w.Capabilities[0].Version = "1.4.0"
	w.Properties = map[string]*td.Property{"airTemperature": {Affordance: td.Affordance{Forms: []td.Form{{Href: "coaps+tcp://x"}}}}}
	w.Events = map[string]*td.Event{"gale": {}}
	w.Metadata = &td.Metadata{VendorName: "Deutscher Wetterdienst"}
	r := plain(t, 1, "urn:w:2", "Rain Radar", "example/weather/radar")
	r.Description = "Looks at the clouds above the Rhine"
	r.Types = []string{"lmos:Tool", "Sensor"}
	b := plain(t, 2, "urn:b:1", "Billing", "urn:telekom:billing:invoice", "plain-word")
	b.Types = []string{td.ContextLMOS + "#Agent"}
	deep := plain(t, 2, "urn:d:1", "Deep", "urn:a:b:c:d:e:f:g:h:i:j:k:l:m:n")
	return []*td.Description{w, r, b, deep}
}

func TestFindLocal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		q    td.Query
		want string
	}{
		{"everything, by id", td.Query{}, "urn:b:1 urn:d:1 urn:w:1 urn:w:2"},
		{"limit", td.Query{Limit: 2}, "urn:b:1 urn:d:1"},
		{"exact capability", td.Query{Capability: []string{"urn:example:weather:forecast"}}, "urn:w:1"},
		{"capability in other case and separators", td.Query{Capability: []string{"Example/WEATHER/forecast"}}, "urn:w:1"},
		{"level prefix", td.Query{Capability: []string{"example:weather"}}, "urn:w:1 urn:w:2"},
		{"half a level", td.Query{Capability: []string{"urn:example:weath"}}, ""},
		{"plain word", td.Query{Capability: []string{"plain-word"}}, "urn:b:1"},
		{"two capabilities", td.Query{Capability: []string{"telekom", "plain-word"}}, "urn:b:1"},
		{"two capabilities that no Thing has both", td.Query{Capability: []string{"telekom", "example"}}, ""},
		{"capability without a normal form", td.Query{Capability: []string{"::"}}, ""},
		{"deeper than the lists", td.Query{Capability: []string{"a:b:c:d:e:f:g:h:i:j:k:l:m"}}, "urn:d:1"},
		{"deeper, no match", td.Query{Capability: []string{"a:b:c:d:e:f:g:h:i:j:k:l:x"}}, ""},
		{"action name as capability", td.Query{Capability: []string{"getforecast"}}, "urn:w:1"},
		{"id", td.Query{ID: "urn:w:2"}, "urn:w:2"},
		{"owner", td.Query{Owner: didtest.Key(2).DID()}, "urn:b:1 urn:d:1"},
		{"owner and capability", td.Query{Owner: didtest.Key(1).DID(), Capability: []string{"example:weather:radar"}}, "urn:w:2"},
		{"action in any case", td.Query{Action: "GETFORECAST"}, "urn:w:1"},
		{"agents in all spellings", td.Query{Type: "agent"}, "urn:b:1 urn:w:1"},
		{"tools", td.Query{Type: "lmos:Tool"}, "urn:w:2"},
		{"any type", td.Query{Type: "sensor"}, "urn:w:2"},
		{"word of a title", td.Query{Text: "bonn"}, "urn:w:1"},
		{"word of a description", td.Query{Text: "Rhine clouds"}, "urn:w:2"},
		{"prefix of a word of a capability", td.Query{Text: "weath"}, "urn:w:1 urn:w:2"},
		{"words of different Things", td.Query{Text: "bonn rhine"}, "urn:w:1 urn:w:2"},
		{"a typo", td.Query{Text: "radra"}, "urn:w:2"},
		{"an unknown word", td.Query{Text: "mars"}, ""},
		{"alternatives", td.Query{Capability: []string{"telekom"}, Or: []td.Query{{Text: "rhine"}, {ID: "urn:nothing"}}},
			"urn:b:1 urn:w:2"},
		{"alternatives only", td.Query{Or: []td.Query{{Text: "rhine"}, {Type: "tool"}}}, "urn:w:2"},
		{"an alternative without a list", td.Query{ID: "urn:w:1", Or: []td.Query{{Property: "none"}}}, "urn:w:1"},
		{"all but", td.Query{Not: []td.Query{{Owner: didtest.Key(2).DID()}, {Type: "tool"}}}, "urn:w:1"},
		{"text without a word", td.Query{Text: "!?"}, "urn:b:1 urn:d:1 urn:w:1 urn:w:2"},
		{"property", td.Query{Property: "AIRtemperature"}, "urn:w:1"},
		{"event", td.Query{Event: "Gale"}, "urn:w:1"},
		{"organization", td.Query{Organization: "deutscher wetterdienst", Claimed: true}, "urn:w:1"},
		{"protocol", td.Query{Protocol: "coap"}, "urn:w:1"},
		{"unused protocol", td.Query{Protocol: "tcp"}, ""},
		{"version", td.Query{Version: "^1.2"}, "urn:w:1"},
		{"version of a capability", td.Query{Version: "^1.2", Capability: []string{"telekom"}}, ""},
		{"no version", td.Query{Version: "one"}, ""},
		{"text and type", td.Query{Text: "weather", Type: "tool"}, "urn:w:2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := filled(t, Options{}, corpus(t)...)
			got := strings.Fields(ids(d.FindLocal(t.Context(), c.q)))
			slices.Sort(got)
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestFindLocalStopsWithTheLoop(t *testing.T) {
	t.Parallel()
	d := filled(t, Options{}, corpus(t)...)
	n := 0
	for range d.FindLocal(t.Context(), td.Query{}) {
		if n++; n == 2 {
			break
		}
	}
	if n != 2 {
		t.Errorf("got %d, want 2", n)
	}
}

func TestManyWordsAreBounded(t *testing.T) {
	t.Parallel()
	desc := plain(t, 1, "urn:1", "Long")
	var b strings.Builder
	for i := range 3 * index.MaxWords {
		fmt.Fprintf(&b, "w%d ", i)
	}
	desc.Description = b.String()
	d := filled(t, Options{}, desc)
	if n := d.index.Words(); n != index.MaxWords {
		t.Errorf("got %d words in the index, want %d", n, index.MaxWords)
	}
	if got := ids(d.FindLocal(t.Context(), td.Query{Text: "w0"})); got != "urn:1" {
		t.Errorf("got %q by the first word", got)
	}
}
