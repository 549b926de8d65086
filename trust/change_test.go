package trust

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/poll"
)

// OnChange receives the standing before and after a change.
func TestOnChangeHasBothPrincipals(t *testing.T) {
	t.Parallel()
	a, b := newMember(t), newMember(t)
	a.founds("acme.example")
	a.admits(b, false, "clerk")
	a.connect(b)
	a.becomes(b, did.Own, "clerk")
	if err := a.Distrust(t.Context(), b.did(), true); err != nil {
		t.Fatal(err)
	}
	a.bars(b)
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.last[b.did()]
	if c[0] == nil || c[0].Relation != did.Own || !slices.Contains(c[0].Roles, "clerk") || c[1].Barred == "" || !c[1].Lost(c[0]) {
		t.Errorf("a distrusted member changed from %+v to %+v", c[0], c[1])
	}
}

// A connected member gets a credential with its roles at once: new ones, fewer, and after its exclusion ended. One that was
// away gets it when it connects.
func TestChangedRoles(t *testing.T) {
	t.Parallel()
	acme, node := newMember(t), newMember(t)
	acme.founds("acme.example")
	acme.admits(node, false, "billing")
	node.connect(acme)
	acme.becomes(node, did.Own, "billing")
	for _, want := range [][]string{{"billing", "support"}, {"support"}, {}} {
		noError(t, acme.SetRoles(t.Context(), node.did(), want))
		all := append(slices.Clone(want), "node")
		slices.Sort(all)
		poll.Until(t, fmt.Sprintf("the roles %q", want), func() bool {
			return slices.Equal(must(node.Organization())(t).Roles, all) && slices.Equal(acme.Principal(node.did()).Roles, all)
		})
	}
	noError(t, acme.Revoke(t.Context(), node.did()))
	acme.becomesNobody(node)
	noError(t, acme.Restore(t.Context(), node.did()))
	node.connect(acme)
	acme.becomes(node, did.Own, "")
	noError(t, acme.SetRoles(t.Context(), node.did(), []string{"clerk"}))
	acme.becomes(node, did.Own, "clerk")
	node.halt()
	noError(t, acme.SetRoles(t.Context(), node.did(), []string{})) // the credential of the halted node is revoked
	node = node.restart()
	node.connect(acme)
	acme.becomes(node, did.Own, "")
	noError(t, acme.SetRoles(t.Context(), acme.did(), []string{"boss"}))
	if got := must(acme.Organization())(t).Roles; !slices.Contains(got, "boss") {
		t.Errorf("the issuer itself has the roles %q", got)
	}
}

// A member leaves an organization that has partners, and its open invitations end with its membership.
func TestLeaveWithPartners(t *testing.T) {
	t.Parallel()
	acme, globex, node := newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example")
	acme.admits(node, false)
	node.connect(acme)
	acme.federates(globex)
	poll.Until(t, "the partner at the member", func() bool { return len(node.Partners()) == 1 })
	noError(t, node.Leave(t.Context()))
	if got := node.Partners(); len(got) > 0 {
		t.Errorf("after leaving, the node has %d partners", len(got))
	}
	noError(t, acme.Leave(t.Context()))
	if got := acme.Invitations(); len(got) > 0 {
		t.Errorf("after leaving, the node has %d invitations", len(got))
	}
}

// Clocks may differ: an invitation of a partner is accepted until 5 minutes after its end.
func TestInvitationShortlyAfterItsEnd(t *testing.T) {
	t.Parallel()
	acme, globex := newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example")
	i := must(acme.Invite(t.Context(), api.InvitationRequest{Kind: api.InvitePartner, Life: api.Duration(time.Minute)}))(t)
	advances(2*time.Minute, acme, globex)
	must(globex.Accept(t.Context(), api.Acceptance{Invitation: i.Text}))(t)
	must(globex.Confirm(t.Context(), "acme", ""))(t)
	if p := must(globex.Accept(t.Context(), api.Acceptance{Invitation: i.Text}))(t); p.State != api.PartnerActive {
		t.Errorf("after accepting again, the confirmed partner is %s", p.State)
	}
}

// Connected members and partners learn at once that the organization has ended.
func TestMembersLearnTheEndOfTheOrganization(t *testing.T) {
	t.Parallel()
	acme, node, globex := newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example")
	acme.admits(node, false)
	node.connect(acme)
	acme.federates(globex)
	acme.becomes(node, did.Own, "")
	node.becomes(acme, did.Own, "")
	globex.becomes(acme, did.Partner, "")
	noError(t, acme.Deactivate(t.Context()))
	for _, m := range []*member{node, globex} {
		poll.Until(t, "the end at "+m.did().Short(), func() bool { return m.Principal(acme.did()).Relation == did.Untrusted })
	}
	for _, m := range []*member{acme, node} {
		if o := must(m.Organization())(t); o.State != api.OrganizationEnded {
			t.Errorf("%s: the organization is %s", m.did().Short(), o.State)
		}
	}
}
