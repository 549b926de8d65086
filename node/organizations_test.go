package node

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did/didtest"
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
