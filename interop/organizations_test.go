package interop

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a"
	"github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/td"
)

// TestOrganizationsOfAgents has two organizations, and a node of neither that claims to be of the partner: all have an agent "Logistics".
func TestOrganizationsOfAgents(t *testing.T) {
	t.Parallel()
	network := fmt.Sprintf("orgs-%d", time.Now().UnixNano()%1e9)
	m := testmesh.Start(t, func(o *node.Options) {
		o.Network = network
		o.Bridges = []bridge.Bridge{mcp.New(mcp.Options{}), a2a.New(a2a.Options{})}
	})
	rest := testmesh.Start(t, func(o *node.Options) { o.Network, o.Bootstrap = network, append(o.Bootstrap, m.Host.Addrs()...) })
	globex, acme, liar := m.Host, m.Consumer, rest.Host
	found := func(n *node.Node, domain string) did.DID {
		t.Helper()
		o, err := n.Client().InitOrganization(t.Context(), api.OrganizationInit{Domain: domain, RecoveryFile: filepath.Join(t.TempDir(), "recovery.pem")})
		if err != nil {
			t.Fatal(err)
		}
		return o.DID
	}
	found(acme, "acme.example")
	theirs := found(globex, "globex.example")
	i, err := acme.Client().Invite(t.Context(), api.InvitationRequest{Kind: api.InvitePartner})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := globex.Client().AcceptInvitation(t.Context(), api.Acceptance{Invitation: i.Text}); err != nil {
		t.Fatal(err)
	}
	publish := func(n *node.Node, members string) {
		t.Helper()
		raw := strings.Replace(string(kettle("Logistics", members)), "urn:x:Logistics", "urn:x:"+n.DID().Short(), 1)
		if _, err := n.Publish(t.Context(), []byte(raw)); err != nil {
			t.Fatal(err)
		}
	}
	publish(globex, "")
	publish(acme, "")
	publish(liar, `"lmosd:memberOf":"`+string(theirs)+`",`)
	c := acme.Client()
	states := func(q td.Query) (all []string) {
		t.Helper()
		list, err := c.Find(t.Context(), q, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range list.Items {
			state := "none"
			if g.Organization != nil {
				state = g.Organization.State + " " + g.Organization.Name
			}
			all = append(all, state)
		}
		slices.Sort(all)
		return all
	}
	want := []string{"claimed globex.example", "own acme", "partner globex"}
	poll.Until(t, "all agents are shown with their organizations", func() bool { return slices.Equal(states(td.Query{Name: "logistics"}), want) })
	for _, tt := range []struct {
		q    td.Query
		want string
	}{
		{td.Query{Organization: "globex"}, "partner globex"},
		{td.Query{Organization: string(theirs)}, "partner globex"},
		{td.Query{Organization: string(theirs), Claimed: true}, "claimed globex.example; partner globex"},
		{td.Query{Organization: "own"}, "own acme"},
	} {
		if got := strings.Join(states(tt.q), "; "); got != tt.want {
			t.Errorf("%s, claimed %t: got %s, want %s", tt.q.String(), tt.q.Claimed, got, tt.want)
		}
	}
	for ref, want := range map[string]did.DID{"globex/logistics": globex.DID(), "own/logistics": acme.DID(), "acme/logistics": acme.DID()} {
		if g, err := c.Agent(t.Context(), ref); err != nil || g.Agent.Owner != want {
			t.Errorf("%s: got %+v, %v", ref, g, err)
		}
	}
	local := audience{t: t, api: acme.API()}
	for _, r := range readings { // each way in resolves the name in one place
		if slices.Contains([]string{"show", "paths", "description", "A2A card", "MCP describe"}, r.name) {
			if got := local.read(r, "globex/logistics"); !strings.HasPrefix(got, "200 ") || !strings.Contains(got, "Logistics") && r.name != "paths" {
				t.Errorf("%s: got %s", r.name, got)
			}
			if got := local.read(r, "initech/logistics"); !strings.Contains(got, `no organization is called`) {
				t.Errorf("%s of an unknown partner: got %s", r.name, got)
			}
		}
	}
	if got := (audience{t, acme.API(), true}).read(reading{method: "GET", path: "/v1/find?name=logistics"}, ""); strings.Contains(got, `"partner"`) {
		t.Errorf("an unproven caller learns who the partners are: %s", got)
	}
	if err := c.RemovePartner(t.Context(), "globex"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Agent(t.Context(), "globex/logistics"); interact.AsError(err).Code != interact.NotFound || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a former partner: %v", err)
	}
	if s, err := c.Standing(t.Context(), globex.DID()); err != nil || s.Organization != nil && s.Organization.State == "partner" || s.Relation == "partner" {
		t.Errorf("the standing of a former partner: %+v, %v", s, err)
	}
}
