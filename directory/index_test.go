package directory

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

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
		{"two capabilities that nobody has both", td.Query{Capability: []string{"telekom", "example"}}, ""},
		{"capability without a normal form", td.Query{Capability: []string{"::"}}, ""},
		{"deeper than the lists", td.Query{Capability: []string{"a:b:c:d:e:f:g:h:i:j:k:l:m"}}, "urn:d:1"},
		{"deeper and other", td.Query{Capability: []string{"a:b:c:d:e:f:g:h:i:j:k:l:x"}}, ""},
		{"action name as capability", td.Query{Capability: []string{"getforecast"}}, "urn:w:1"},
		{"id", td.Query{ID: "urn:w:2"}, "urn:w:2"},
		{"owner", td.Query{Owner: key(t, 2).DID()}, "urn:b:1 urn:d:1"},
		{"owner and capability", td.Query{Owner: key(t, 1).DID(), Capability: []string{"example:weather:radar"}}, "urn:w:2"},
		{"action in any case", td.Query{Action: "GETFORECAST"}, "urn:w:1"},
		{"agents in all spellings", td.Query{Type: "agent"}, "urn:b:1 urn:w:1"},
		{"tools", td.Query{Type: "lmos:Tool"}, "urn:w:2"},
		{"any type", td.Query{Type: "sensor"}, "urn:w:2"},
		{"word of a title", td.Query{Text: "bonn"}, "urn:w:1"},
		{"word of a description", td.Query{Text: "Rhine clouds"}, "urn:w:2"},
		{"beginning of a word of a capability", td.Query{Text: "weath"}, "urn:w:1 urn:w:2"},
		{"words that nobody has together", td.Query{Text: "bonn rhine"}, "urn:w:1 urn:w:2"},
		{"a typo", td.Query{Text: "radra"}, "urn:w:2"},
		{"words that nobody has", td.Query{Text: "mars"}, ""},
		{"alternatives", td.Query{Capability: []string{"telekom"}, Or: []td.Query{{Text: "rhine"}, {ID: "urn:nothing"}}}, "urn:b:1 urn:w:2"},
		{"alternatives only", td.Query{Or: []td.Query{{Text: "rhine"}, {Type: "tool"}}}, "urn:w:2"},
		{"an alternative without a list", td.Query{ID: "urn:w:1", Or: []td.Query{{Property: "none"}}}, "urn:w:1"},
		{"all but", td.Query{Not: []td.Query{{Owner: key(t, 2).DID()}, {Type: "tool"}}}, "urn:w:1"},
		{"text without a word", td.Query{Text: "!?"}, "urn:b:1 urn:d:1 urn:w:1 urn:w:2"},
		{"property", td.Query{Property: "AIRtemperature"}, "urn:w:1"},
		{"event", td.Query{Event: "Gale"}, "urn:w:1"},
		{"organisation", td.Query{Organisation: "deutscher wetterdienst"}, "urn:w:1"},
		{"protocol", td.Query{Protocol: "coap"}, "urn:w:1"},
		{"protocol of nobody", td.Query{Protocol: "tcp"}, ""},
		{"version", td.Query{Version: "^1.2"}, "urn:w:1"},
		{"version of a capability", td.Query{Version: "^1.2", Capability: []string{"telekom"}}, ""},
		{"no version", td.Query{Version: "one"}, ""},
		{"text and type", td.Query{Text: "weather", Type: "tool"}, "urn:w:2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := filled(t, Options{}, corpus(t)...)
			got := strings.Fields(ids(d.FindLocal(c.q)))
			slices.Sort(got)
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestFindLocalLeavesTheLoop(t *testing.T) {
	t.Parallel()
	d := filled(t, Options{}, corpus(t)...)
	n := 0
	for range d.FindLocal(td.Query{}) {
		if n++; n == 2 {
			break
		}
	}
	if n != 2 {
		t.Errorf("got %d, want 2", n)
	}
}

// Whatever is added, changed and removed, the index answers as if it had looked at everything.
func TestIndexAgreesWithMatch(t *testing.T) {
	t.Parallel()
	word := rapid.SampledFrom([]string{"weather", "rain", "billing", "a", "b", "urn:a:b", "A/b", "x:y:z:u:v:w", "éclair",
		"ſharp", "\u212a"})
	rapid.Check(t, func(rt *rapid.T) {
		var x index
		living := map[string]*entry{}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			id := fmt.Sprintf("urn:%d", rapid.IntRange(0, 9).Draw(rt, "id"))
			if e := living[id]; e != nil {
				x.remove(e)
				delete(living, id)
				if rapid.Bool().Draw(rt, "gone") {
					continue
				}
			}
			e := &entry{view: newView(drawThing(rt, t, id, word))}
			living[id] = e
			x.add(e, labelsOf(e.view.whole))
		}
		for range 10 {
			checkQuery(rt, &x, living, drawBranches(rt, word))
		}
		for _, e := range living {
			x.remove(e)
		}
		for k, ids := range x.ids {
			if len(ids) > 0 {
				rt.Errorf("terms of kind %d are left: %v", k, ids)
			}
		}
		if x.bytes != 0 || len(x.spare) != len(x.terms) || len(x.words.buckets) > 0 || x.words.sorted.n > 0 || len(x.words.sorted.parts) > 0 {
			rt.Errorf("left over: %d bytes, %d of %d terms free, words %v", x.bytes, len(x.spare), len(x.terms), x.words)
		}
		if x.order.n > 0 || len(x.free) != len(x.slots) {
			rt.Errorf("left over: order %v, %d of %d slots free", x.order.parts, len(x.free), len(x.slots))
		}
	})
}

func drawThing(rt *rapid.T, t testing.TB, id string, word *rapid.Generator[string]) *td.Description {
	desc := plain(t, byte(rapid.IntRange(1, 3).Draw(rt, "owner")), id, word.Draw(rt, "title"),
		rapid.SliceOfN(word, 0, 3).Draw(rt, "capabilities")...)
	desc.Types = rapid.SliceOfN(word, 0, 2).Draw(rt, "types")
	desc.Description = word.Draw(rt, "description")
	desc.Actions, desc.Properties, desc.Events = map[string]*td.Action{}, map[string]*td.Property{}, map[string]*td.Event{}
	form := td.Affordance{Forms: []td.Form{{Href: scheme.Draw(rt, "scheme") + "://x"}}}
	for _, a := range rapid.SliceOfN(word, 0, 2).Draw(rt, "actions") {
		desc.Actions[a] = &td.Action{Affordance: form}
	}
	desc.Properties[word.Draw(rt, "property")] = &td.Property{Affordance: form}
	desc.Events[word.Draw(rt, "event")] = &td.Event{}
	if rapid.Bool().Draw(rt, "vendor?") {
		desc.Metadata = &td.Metadata{VendorName: word.Draw(rt, "vendor")}
	}
	for i := range desc.Capabilities {
		desc.Capabilities[i].Version = rapid.SampledFrom([]string{"", "1.0.0", "1.4", "2.0.0", "x"}).Draw(rt, "version")
	}
	desc.Record.Hosts = []td.Host{{Node: key(t, byte(rapid.IntRange(1, 3).Draw(rt, "host"))).DID()}}
	return desc
}

var scheme = rapid.SampledFrom([]string{"http", "HTTPS", "coaps+tcp", "mqtt", "s"})

func drawQuery(rt *rapid.T, word *rapid.Generator[string]) td.Query {
	maybe := func(name string) string {
		if !rapid.Bool().Draw(rt, name+"?") {
			return ""
		}
		return word.Draw(rt, name)
	}
	q := td.Query{Action: maybe("action"), Type: maybe("type"), Text: maybe("text"), Limit: 100}
	switch rapid.IntRange(0, 9).Draw(rt, "more") {
	case 0:
		q.Property = maybe("property")
	case 1:
		q.Event = maybe("event")
	case 2:
		q.Organisation = maybe("organisation")
	case 3:
		q.Protocol = scheme.Draw(rt, "protocol")
	case 4:
		q.Version = rapid.SampledFrom([]string{"^1", "1.x", ">1.2", "nonsense"}).Draw(rt, "range")
	case 5:
		q.ID = fmt.Sprintf("urn:%d", rapid.IntRange(0, 9).Draw(rt, "asked id"))
	}
	if c := maybe("capability"); c != "" {
		q.Capability = []string{c}
	}
	return q
}

// drawBranches returns a query with alternatives and exceptions.
func drawBranches(rt *rapid.T, word *rapid.Generator[string]) td.Query {
	q := drawQuery(rt, word)
	for range rapid.IntRange(0, 2).Draw(rt, "or") {
		q.Or = append(q.Or, drawQuery(rt, word))
	}
	for range rapid.IntRange(0, 2).Draw(rt, "not") {
		q.Not = append(q.Not, drawQuery(rt, word))
	}
	return q
}

func checkQuery(rt *rapid.T, x *index, living map[string]*entry, q td.Query) {
	got, want := map[string]bool{}, map[string]bool{}
	c := x.choose(&q)
	for e := range x.living(c.each(), time.Now()) {
		if c.exact || fits(&q, e.view.whole) {
			got[e.view.record.Thing] = true
		}
	}
	for id, e := range living {
		if q.Match(e.view.whole) {
			want[id] = true
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		rt.Fatalf("query %+v: got %v, want %v", q, got, want)
	}
}

func TestPrefixesBeginWithLevels(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		id, ok := td.Normal(rapid.StringMatching(`(urn:)?[a-c/:]{1,20}`).Draw(rt, "id"))
		if !ok {
			return
		}
		got := slices.Collect(prefixes(id))
		want := td.Levels(id)
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			rt.Errorf("prefixes of %q: got %q, want %q at the beginning", id, got, want)
		}
	})
}

func TestManyWordsAreBounded(t *testing.T) {
	t.Parallel()
	desc := plain(t, 1, "urn:1", "Long")
	var b strings.Builder
	for i := range 3 * maxWords {
		fmt.Fprintf(&b, "w%d ", i)
	}
	desc.Description = b.String()
	d := filled(t, Options{}, desc)
	if n := len(d.index.ids[byWord]); n != maxWords {
		t.Errorf("got %d words in the index, want %d", n, maxWords)
	}
	if got := ids(d.FindLocal(td.Query{Text: "w0"})); got != "urn:1" {
		t.Errorf("got %q by the first word", got)
	}
}
