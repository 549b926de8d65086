package index

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// plain returns an unsigned description.
func plain(owner int, id, title string, capabilities ...string) *td.Description {
	thing := &td.Thing{ID: id, Title: title}
	for _, c := range capabilities {
		thing.Capabilities = append(thing.Capabilities, td.Capability{ID: c})
	}
	r := &td.Record{Owner: did.DID(fmt.Sprintf("did:key:%d", owner)), Thing: id, Title: title}
	return &td.Description{Thing: thing, Record: r}
}

// After any sequence of changes a query has the same result as td.Query.Match on all Things.
func TestIndexAgreesWithMatch(t *testing.T) {
	t.Parallel()
	word := rapid.SampledFrom([]string{"weather", "rain", "billing", "a", "b", "urn:a:b", "A/b", "x:y:z:u:v:w", "éclair",
		"ſharp", "\u212a"})
	rapid.Check(t, func(rt *rapid.T) {
		var x Index
		living, places := map[string]*td.Description{}, map[string]Position{}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			id := fmt.Sprintf("urn:%d", rapid.IntRange(0, 9).Draw(rt, "id"))
			if living[id] != nil {
				x.Remove(places[id])
				delete(living, id)
				if rapid.Bool().Draw(rt, "gone") {
					continue
				}
			}
			living[id] = drawThing(rt, id, word)
			places[id] = x.Add(living[id].Record, Labels(living[id]))
		}
		for range 10 {
			checkQuery(rt, &x, living, drawBranches(rt, word))
		}
		for id := range living {
			x.Remove(places[id])
		}
		for k, ids := range x.ids {
			if ids.n > 0 {
				rt.Errorf("%d terms of kind %d remain", ids.n, k)
			}
		}
		if x.bytes != 0 || len(x.spare) != len(x.terms) || len(x.words.buckets) > 0 ||
			x.words.sorted.n > 0 || len(x.words.sorted.parts) > 0 {
			rt.Errorf("remaining: %d bytes, %d of %d terms free, words %v", x.bytes, len(x.spare), len(x.terms), x.words)
		}
		if x.order.n > 0 || len(x.free) != len(x.records) {
			rt.Errorf("remaining: order %v, %d of %d slots free", x.order.parts, len(x.free), len(x.records))
		}
	})
}

func drawThing(rt *rapid.T, id string, word *rapid.Generator[string]) *td.Description {
	desc := plain(rapid.IntRange(1, 3).Draw(rt, "owner"), id, word.Draw(rt, "title"),
		rapid.SliceOfN(word, 0, 3).Draw(rt, "capabilities")...)
	desc.Types = rapid.SliceOfN(word, 0, 2).Draw(rt, "types")
	desc.Description = word.Draw(rt, "description")
	desc.Actions, desc.Properties, desc.Events = map[string]*td.Action{}, map[string]*td.Property{}, map[string]*td.Event{}
	form := td.Affordance{Forms: []td.Form{{Href: schemes.Draw(rt, "scheme") + "://x"}}}
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
	desc.Record.Hosts = []td.Host{{Node: did.DID(fmt.Sprint("did:key:", rapid.IntRange(1, 3).Draw(rt, "host")))}}
	return desc
}

var schemes = rapid.SampledFrom([]string{"http", "HTTPS", "coaps+tcp", "mqtt", "s"})

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
		q.Organization = maybe("organization")
	case 3:
		q.Protocol = schemes.Draw(rt, "protocol")
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

func checkQuery(rt *rapid.T, x *Index, living map[string]*td.Description, q td.Query) {
	got, want := map[string]bool{}, map[string]bool{}
	c := x.Choose(&q)
	for slot := range c.All() {
		id := x.records[slot].Thing
		if c.Exact || q.Match(living[id]) {
			got[id] = true
		}
	}
	for id, desc := range living {
		if q.Match(desc) {
			want[id] = true
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		rt.Fatalf("query %+v: got %v, want %v", q, got, want)
	}
}

func TestPrefixesHaveWholeLevels(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		id, ok := td.Normal(rapid.StringMatching(`(urn:)?[a-c/:]{1,20}`).Draw(rt, "id"))
		if !ok {
			return
		}
		got := slices.Collect(prefixes(id))
		want := td.Levels(id)
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			rt.Errorf("prefixes of %q: got %q, want %q as a prefix", id, got, want)
		}
	})
}

// An exact search reads only the Things that it yields, so that its cost does not depend on the number of Things.
func TestExactSearchReadsItsResultsOnly(t *testing.T) {
	t.Parallel()
	var x Index
	for i := range 5000 {
		desc := plain(i/10, fmt.Sprintf("urn:%d", i), "Agent", fmt.Sprintf("urn:example:family-%02d:skill-%03d", i%50, i%1000))
		desc.Types = []string{"lmos:Agent"}
		desc.Actions = map[string]*td.Action{"ask": {}}
		x.Add(desc.Record, Labels(desc))
	}
	q := td.Query{Capability: []string{"example:family-07:skill-007"}, Type: "agent", Action: "ask"}
	lists, exact, ok := x.listsFor(&q, nil)
	shortest := slices.MinFunc(lists, func(a, b *List) int { return a.Len() - b.Len() })
	if !ok || !exact || len(lists) != 3 || shortest.Len() != 5 {
		t.Errorf("got %d lists, %v, %v; reads %d Things, want the 5 that match", len(lists), exact, ok, shortest.Len())
	}
	c := x.Choose(&q)
	if slots := c.In(1, 2, nil); c.Count() != 5 || fmt.Sprint(slots) != "[2007 1007]" && x.records[slots[0]].Thing != "urn:2007" {
		t.Errorf("got %v of %d", slots, c.Count())
	}
}
