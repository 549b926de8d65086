package node

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/policy/access"
)

// A member whose bootstrap peers are gone joins through a node that the document of its organization lists.
func TestMemberJoinsByTheDocument(t *testing.T) {
	t.Parallel()
	entry := start(t, quiet())
	o := quiet()
	o.Dir = t.TempDir()
	issuer := start(t, o)
	c := issuer.Client()
	if _, err := c.InitOrganization(t.Context(), api.OrganizationInit{Domain: "acme.internal", RecoveryFile: filepath.Join(t.TempDir(), "recovery")}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SetBootstrap(t.Context(), entry.Addrs()); err != nil {
		t.Fatal(err)
	}
	invitation, err := c.Invite(t.Context(), api.InvitationRequest{Kind: api.InviteNode})
	if err != nil {
		t.Fatal(err)
	}
	o = quiet()
	o.Dir, o.Bootstrap, o.alone = t.TempDir(), []string{"/ip4/127.0.0.1/tcp/9/p2p/" + didtest.NewKey().DID().PeerText()}, 10*time.Millisecond
	member := start(t, o)
	if _, err := member.Client().JoinOrganization(t.Context(), api.Acceptance{Invitation: invitation.Text}); err != nil {
		t.Fatal(err)
	}
	isJoined := func() bool {
		return member.network.peers.IsConnected(entry.DID())
	}
	if isJoined() {
		t.Error("the member knew the listed node before")
	}
	if err := issuer.stop(); err != nil {
		t.Fatal(err)
	}
	until(t, "the member is connected with the listed node", isJoined)
}

// Nodes may ask an issuer to join while trust.connect in force lets anyone connect, whatever it was at the start.
func TestRequestsToJoinFollowTheRules(t *testing.T) {
	t.Parallel()
	for _, first := range []string{access.ConnectAnyone, access.ConnectMembers} {
		o := quiet()
		o.Dir, o.MDNS, o.Policy.Connect = t.TempDir(), true, first
		issuer := opened(t, o) // it does not run: no multicast
		if _, err := issuer.Client().InitOrganization(t.Context(), api.OrganizationInit{Domain: "acme.internal", RecoveryFile: filepath.Join(t.TempDir(), "recovery")}); err != nil {
			t.Fatal(err)
		}
		o = quiet()
		o.Dir = t.TempDir()
		node := opened(t, o)
		for _, connect := range []string{access.ConnectAnyone, access.ConnectMembers, access.ConnectAnyone} {
			rules := issuer.opts.Policy
			rules.Connect = connect
			if err := issuer.policy.Change(rules, nil); err != nil {
				t.Fatal(err)
			}
			_ = node.Client().Connect(t.Context(), issuer.Addrs()[0]) // which may refuse it
			if got := len(node.network.trust.Offers(t.Context())); got != map[string]int{access.ConnectAnyone: 1}[connect] {
				t.Errorf("started with %s, now %s: %d organizations to join", first, connect, got)
			}
		}
	}
}
