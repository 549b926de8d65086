package publication

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func TestNames(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	key := d.o.Signer.DID().Multibase()
	weather := d.publish("Weather", "urn:x:weather")
	one, two := d.publish("Clock", "urn:x:clock-1"), d.publish("clock", "urn:x:clock-2")
	d.publish("Gone", "urn:x:gone")
	d.withdraw("urn:x:gone")
	for ref, want := range map[string]*Publication{
		"weather":                    weather,
		"urn:x:weather":              weather,
		"urn:x:weather@" + key:       weather,
		"urn:x:clock-1":              one,
		"urn:x:clock-2@" + key:       two,
		"clock":                      nil, // it may be either
		"Weather":                    nil, // the node of the caller resolves names
		"urn:x:weather@" + key[:20]:  nil,
		"urn:x:weather@z6MkOther":    nil,
		"urn:x:gone":                 nil,
		"gone":                       nil,
		"":                           nil,
		"urn:x:nobody":               nil,
		string(d.o.Signer.DID()):     nil,
		"http://127.0.0.1:1/weather": nil,
	} {
		if got := d.Find(ref); got != want {
			t.Errorf("%q names %+v, want %+v", ref, got, want)
		}
	}
	d.withdraw("urn:x:clock-1")
	if got := d.Find("clock"); got != two {
		t.Errorf("the name of one of two names %+v when the other is withdrawn, want the one that is left", got)
	}
	d.publish("Weather forecast", "urn:x:weather")
	if d.Find("weather") != nil || d.Find("weather-forecast") == nil {
		t.Error("a thing with a new title has the old name")
	}
	if d.Count(t.Context()) != 2 || len(d.refs) != 2 || len(d.hashes) != 2 || len(d.names) != 2 {
		t.Errorf("%d offers have %d references, %d hashes and %d names", d.Count(t.Context()), len(d.refs), len(d.hashes), len(d.names))
	}
}

func TestLocateReportsTheReason(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	of := d.publish("Weather", "urn:x:weather")
	d.publish("Gone", "urn:x:gone")
	d.withdraw("urn:x:gone")
	if thing, err := d.Locate(t.Context(), of.Description.Ref()); err != nil || thing != of.Agent {
		t.Errorf("got %v, %v; want the agent", thing, err)
	}
	for ref, want := range map[string]interact.Code{
		"urn:x:gone": interact.Withdrawn,
		"urn:x:gone@" + d.o.Signer.DID().Multibase(): interact.Withdrawn,
		"urn:x:nobody": interact.NotFound,
		"weathr":       interact.NotFound,
	} {
		_, err := d.Locate(t.Context(), ref)
		wantCode(t, err, want)
	}
}

// A record of another owner that names this node as host is not a publication; otherwise its owner could make this node send requests.
func TestRecordThatNamesThisNodeAsHostIsNotItsPublication(t *testing.T) {
	t.Parallel()
	d, stranger := newFixture(t), newFixture(t)
	own := d.publish("Echo", "urn:x:echo")
	stranger.o.Hosts = d.o.Hosts
	foreign := stranger.publish("Echo", "urn:x:echo")
	if foreign.Description.Record.Hosts[0].Node != d.o.Signer.DID() {
		t.Fatal("the foreign record names another host")
	}
	if d.Has(foreign.Description) || d.AgentOf(foreign.Description) != nil {
		t.Error("a stranger's thing of the same id was taken for an offer of this node")
	}
	if !d.Has(own.Description) || d.AgentOf(own.Description) != own.Agent {
		t.Error("its own offer was not recognised")
	}
	renewed, err := d.renew(t.Context(), "urn:x:echo")
	if err != nil || !d.Has(own.Description) || !d.Has(renewed.Description) {
		t.Errorf("an offer is not recognised by an older record of it (%v)", err)
	}
	d.withdraw("urn:x:echo")
	if d.Has(own.Description) || d.AgentOf(own.Description) != nil {
		t.Error("what was withdrawn is still bound to its agent")
	}
}

func TestOnlyOwnThingsAreAnnounced(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	for i := range 40 {
		d.publish("Tool", fmt.Sprintf("urn:x:tool-%d", i))
	}
	d.withdraw("urn:x:tool-7")
	of := d.Get("urn:x:tool-8")
	for name, c := range map[string]struct {
		q    td.Query
		want int
	}{
		"everything, as many as a query gives": {td.Query{}, 32},
		"everything":                           {td.Query{Limit: 100}, 39},
		"five":                                 {td.Query{Limit: 5}, 5},
		"one by id":                            {td.Query{ID: "urn:x:tool-8"}, 1},
		"a withdrawn one":                      {td.Query{ID: "urn:x:tool-7"}, 0},
		"one that never was":                   {td.Query{ID: "urn:x:tool"}, 0},
		"one by id, of another":                {td.Query{ID: "urn:x:tool-8", Owner: "did:key:z6MkOther"}, 0},
		"by capability":                        {td.Query{Capability: []string{"urn:example:tool"}, Limit: 100}, 39},
		"by what nobody can do":                {td.Query{Capability: []string{"urn:example:other"}}, 0},
		"by action and capability":             {td.Query{Action: "echo", Capability: []string{"urn:example:tool:echo"}, Limit: 3}, 3},
	} {
		if got := d.Hosted(t.Context(), c.q); len(got) != c.want {
			t.Errorf("%s: got %d records, want %d", name, len(got), c.want)
		}
	}
	if got := d.Hosted(t.Context(), td.Query{ID: "urn:x:tool-8"}); !slices.Equal(got, []*td.Signed{of.Signed}) {
		t.Errorf("by id: got %v, want its record", got)
	}
	if body, ok := d.Body(t.Context(), of.Description.Record.Hash); !ok || string(body) != string(of.Signed.TD) {
		t.Errorf("the TD by its hash: %s, %v", body, ok)
	}
	d.withdraw("urn:x:tool-8")
	if _, ok := d.Body(t.Context(), of.Description.Record.Hash); ok {
		t.Error("the TD of a withdrawn thing is given")
	}
}

func TestIndexIsQuickWithManyThings(t *testing.T) {
	t.Parallel()
	owner := did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")
	s := NewIndex(owner, nil)
	for i := range 40_000 { // each one twice
		id := fmt.Sprintf("urn:x:%d", i%20_000)
		s.set(&Publication{Thing: id, Description: &td.Description{Thing: &td.Thing{ID: id, Title: "Tool"},
			Record: &td.Record{Owner: owner, Thing: id, Hash: [32]byte{byte(i), byte(i >> 8)}, Issued: time.Unix(0, 0)}}})
	}
	if len(s.all) != 20_000 || s.Find("tool") != nil || s.Find("urn:x:19999") == nil {
		t.Errorf("the shelf holds %d things", len(s.all))
	}
}
