package gateway

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func TestOrderOfACall(t *testing.T) {
	t.Parallel()
	provider := func(name, version string, owner did.DID) *td.Description {
		d := describe("urn:x:"+name, name, owner)
		d.Capabilities = []td.Capability{{ID: "urn:example:rain", Version: version}}
		return d
	}
	below := provider("below", "1.0.0", owner1)
	below.Capabilities[0].ID = "urn:example:rain:today"
	other := provider("other action", "1.0.0", owner1)
	other.Actions = map[string]*td.Action{"run": {}}
	safe := provider("b safe", "1.5.0", owner1)
	safe.Actions = map[string]*td.Action{"ask": {Safe: true}}
	fake := newFake(below, other, safe, provider("d", "1.0.0", owner1), provider("e2", "2.0.0", owner1), provider("c member", "1.1.0", owner2),
		provider("a partner", "1.2.0", owner2), provider("z proven", "1.2.0", owner2), provider("y", "1.2.0", owner2))
	fake.affiliations = map[string]directory.AffiliationState{"c member": directory.OwnOrganization, "a partner": directory.PartnerOrganization,
		"z proven": directory.ProvenOrganization, "y": directory.ClaimedOrganization}
	c := dial(t, start(t, serving(fake, Options{})).url, "")
	q := td.Query{Capability: []string{"urn:example:rain"}, Version: "^1", Action: "ask"}
	for _, tt := range []struct {
		trust api.Trust
		limit int
		want  string
		out   api.LeftOut
		more  bool
	}{
		{"", 0, "b safe, c member, d", api.LeftOut{Partner: 1, Any: 2}, false},
		{api.TrustOwn, 2, "b safe, c member", api.LeftOut{Partner: 1, Any: 2}, true},
		{api.TrustPartner, 0, "a partner, b safe, c member, d", api.LeftOut{Any: 2}, false},
		{api.TrustAny, 0, "a partner, b safe, c member, d, y, z proven", api.LeftOut{}, false},
	} {
		q.Limit = tt.limit
		list, err := c.Choose(t.Context(), q, tt.trust, 0)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, a := range list.Items {
			names = append(names, strings.TrimPrefix(a.ID, "urn:x:"))
			if a.Choice == nil || a.Choice.Reason != "12 ms on average" || a.Choice.Cost != 12 || a.Choice.Running != 2 || a.Choice.Repeatable != (a.ID == safe.ID) {
				t.Errorf("%s has the choice %+v", a.ID, a.Choice)
			}
		}
		out := api.LeftOut{}
		if list.LeftOut != nil {
			out = *list.LeftOut
		}
		if got := strings.Join(names, ", "); got != tt.want || out != tt.out || list.Coverage.More != tt.more || list.Total != nil || list.Next != "" {
			t.Errorf("trust %q: got %s, left out %+v, %+v; want %s, %+v", tt.trust, got, out, list.Coverage, tt.want, tt.out)
		}
	}
	q.Version, q.Limit = "^3", 0
	if _, err := c.Choose(t.Context(), q, api.TrustAny, 0); interact.AsError(err).Code != interact.NotFound {
		t.Errorf("of no version: %v", err)
	}
}

// The order of a call has 20 Things at most.
func TestOrderOfACallIsShort(t *testing.T) {
	t.Parallel()
	fake := newFake()
	for i := range 30 {
		d := describe(fmt.Sprintf("urn:x:%d", i), "Weather", owner1)
		fake.things[d.ID] = d
	}
	r := start(t, serving(fake, Options{}))
	_, body := r.do(t, exchange{path: "/v1/find?" + url.Values{"capability": {"urn:example:weather:forecast"}, "order": {"call"}}.Encode()})
	var list api.AgentList
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Items) != maxChosen || !list.Coverage.More {
		t.Errorf("got %d, %+v, %v", len(list.Items), list.Coverage, err)
	}
	resp, _ := r.do(t, exchange{path: "/v1/find?capability=urn:x&order=call", header: map[string]string{"Accept": "text/event-stream"}})
	if resp.StatusCode != 400 {
		t.Errorf("a stream of it: status %d", resp.StatusCode)
	}
}
