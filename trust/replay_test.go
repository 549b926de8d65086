package trust

import (
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// An invitation acts once: before and after a restart of its issuer, within its life and after it, another node is refused, and a node that
// redeems it again becomes no second member.
func TestInvitationsActOnce(t *testing.T) {
	t.Parallel()
	acme, first, second := newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	i := must(acme.Invite(t.Context(), api.InvitationRequest{Kind: api.InviteNode}))(t)
	must(first.Join(t.Context(), api.Acceptance{Invitation: i.Text}))(t)
	once := func(when, says string) {
		t.Helper()
		_, err := second.Join(t.Context(), api.Acceptance{Invitation: i.Text})
		if e := interact.AsError(err); e == nil || e.Code != interact.InvalidInvite || !strings.Contains(e.Error(), says) {
			t.Errorf("%s, another node gets %v", when, err)
		}
		_, _ = first.Join(t.Context(), api.Acceptance{Invitation: i.Text}) // again, or refused: the members tell
		members := must(acme.Organization())(t).Members
		if len(members) != 2 {
			t.Errorf("%s, the organization has %+v", when, members)
		}
		if p := acme.Principal(second.did()); p.Relation != did.Untrusted {
			t.Errorf("%s, another node is %+v", when, p)
		}
	}
	once("at once", "used already")
	acme.halt()
	acme = acme.restart()
	second.connect(acme) // it has another port
	once("after a restart", "used already")
	advances(25*time.Hour, acme, first, second)
	once("after its life", "expired")
	acme.halt()
	later := acme.skew.Load()
	acme = acme.restart()
	acme.skew.Store(later)
	second.connect(acme)
	once("after its life and a restart", "expired")
}
