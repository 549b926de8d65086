package node

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
)

// Members of an organization map each other's connections; a node outside of it maps its own ones, and appears in maps only as the end of a connection.
// The map shows the end of a member.
func TestTopologyOfAnOrganization(t *testing.T) {
	t.Parallel()
	names := map[did.DID]string{}
	node := func(name string, isMember bool) *running {
		o := quiet()
		if o.Name = name; isMember {
			o.Dir = t.TempDir()
		}
		n := start(t, o)
		names[n.DID()] = name
		return n
	}
	issuer, a, b, outside := node("issuer", true), node("a", true), node("b", true), node("outside", false)
	for _, m := range []*running{a, b} {
		connect(t, m, issuer)
	}
	connect(t, b, outside)
	c := issuer.Client()
	if _, err := c.InitOrganization(t.Context(), api.OrganizationInit{Domain: "acme.internal", RecoveryFile: filepath.Join(t.TempDir(), "recovery")}); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*running{a, b} {
		invitation, err := c.Invite(t.Context(), api.InvitationRequest{Kind: api.InviteNode})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Client().JoinOrganization(t.Context(), api.Acceptance{Invitation: invitation.Text}); err != nil {
			t.Fatal(err)
		}
		until(t, "the member knows the issuer", func() bool { return slices.Contains(m.network.trust.OwnMembers(), issuer.DID()) })
	}
	until(t, "the issuer knows two members", func() bool { return len(issuer.network.trust.OwnMembers()) == 2 })
	publish(t, b, tool("Radar", "urn:x:radar"))
	knows(t, issuer, "urn:x:radar")

	draw := func(by *running, scope api.TopologyScope) *api.Topology {
		m, err := by.Client().Topology(t.Context(), scope, 0)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	has := func(m *api.Topology, x, y string) bool {
		return slices.ContainsFunc(m.Links, func(l api.TopologyLink) bool {
			return names[l.From] == x && names[l.To] == y || names[l.From] == y && names[l.To] == x
		})
	}
	m := draw(issuer, api.TopologyMesh)
	if text := summary(m, names); m.Coverage.Asked != 2 || m.Coverage.Answered != 2 || !has(m, "issuer", "a") || !has(m, "issuer", "b") || !has(m, "b", "outside") ||
		!strings.Contains(text, "b acme 1 true connection") || !strings.Contains(text, "outside  0 true") {
		t.Errorf("the map of the issuer: %s", text)
	}
	m = draw(issuer, api.TopologyOrganization)
	if text := summary(m, names); len(m.Nodes) != 3 || has(m, "b", "outside") || !has(m, "issuer", "b") || m.Coverage.Answered != 2 {
		t.Errorf("the map of the organization: %s", text)
	}
	m = draw(outside, api.TopologyMesh)
	if text := summary(m, names); has(m, "b", "issuer") || !has(m, "b", "outside") || m.Coverage.Asked != 0 {
		t.Errorf("the map of another node: %s", text)
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	until(t, "the map shows the end of a member", func() bool {
		m = draw(issuer, api.TopologyOrganization)
		return m.Coverage == (api.TopologyCoverage{Asked: 2, Answered: 1, Unreachable: 1})
	})
	if text := summary(m, names); !slices.ContainsFunc(m.Nodes, func(n api.TopologyNode) bool {
		return n.DID == b.DID() && n.Name == "b" && n.Source != api.SourceConnection
	}) {
		t.Errorf("after the end of b: %s", text)
	}
}

// summary returns a line for each node: name, organization, agents, whether it is reachable, and the source.
func summary(m *api.Topology, names map[did.DID]string) string {
	text := fmt.Sprintf("%+v", m.Coverage)
	for _, n := range m.Nodes {
		text += fmt.Sprintf("; %s %s %d %v %s", names[n.DID], n.Organization, n.Agents, n.Reachable, n.Source)
	}
	for _, l := range m.Links {
		text += fmt.Sprintf("; %s-%s by %s", names[l.From], names[l.To], names[l.SeenBy])
	}
	return text
}
