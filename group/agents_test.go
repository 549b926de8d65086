package group

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/group/chain"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/invitation"
)

// Of returns the memberships of a node, without those of its agents.
func (n *member) Of(id did.DID) []did.Membership {
	own, _ := n.Groups.Of(id)
	return own
}

// agentsOf returns the agents that are members through a node.
func (n *member) agentsOf(id did.DID) (all []did.DID) {
	_, agents := n.Groups.Of(id)
	for _, m := range agents {
		all = append(all, m.Agent)
	}
	return all
}

// joinAgent makes an agent a member by an invitation, through a node that the statement names.
func (n *member) joinAgent(text string, key did.Signer, node did.DID, role string) error {
	n.mesh.t.Helper()
	i, err := invitation.Parse(text)
	if err != nil {
		n.mesh.t.Fatal(err)
	}
	st, err := chain.SignJoin(i.Group, i.Head, node, role, key, time.Now())
	if err != nil {
		n.mesh.t.Fatal(err)
	}
	_, err = n.Join(n.mesh.t.Context(), api.GroupJoin{Invitation: text, Statement: json.RawMessage(st.Raw)})
	return err
}

// An agent with a key of its own is a member through its node, which is none. It sends events, leaves, and moves to another node.
func TestAgents(t *testing.T) {
	simulate(t, 3, func(t *testing.T, m *mesh, n []*member) {
		ada, ben, cyd := n[0], n[1], n[2]
		id := ada.create(api.GroupCreate{Name: "claims"})
		key := didtest.Key(50)
		agent := key.DID()
		invite := func() string {
			i, err := ada.Invite(t.Context(), id, api.GroupInvite{})
			if err != nil {
				t.Fatal(err)
			}
			return i.Invitation
		}
		for name, err := range map[string]error{
			"a statement for another node": ben.joinAgent(invite(), key, cyd.id(), chain.Plain),
			"for another role":             ben.joinAgent(invite(), key, ben.id(), "adjuster"),
			"of the node":                  ben.joinAgent(invite(), ben.key, ben.id(), chain.Plain),
		} {
			if code(err) != interact.Invalid {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := ben.Join(t.Context(), api.GroupJoin{Group: id, At: string(ada.id()), Statement: json.RawMessage(`{}`)}); code(err) != interact.Usage {
			t.Errorf("without an invitation: %v", err)
		}
		if err := ben.joinAgent(invite(), key, ben.id(), chain.Plain); err != nil {
			t.Fatal(err)
		}
		at := func(node *member, want int) {
			t.Helper()
			synctest.Wait()
			for _, one := range []*member{ada, ben} {
				if got := one.agentsOf(node.id()); len(got) != want || want > 0 && got[0] != agent {
					t.Errorf("agents of %s: %v", node.id().Short(), got)
				}
			}
		}
		at(ben, 1)
		if len(ada.Of(ben.id())) != 0 {
			t.Error("its node is a member")
		}
		events := ada.collect(t.Context(), id)
		asAgent := did.WithPrincipal(t.Context(), did.Consumer(did.Process, "").WithAgent(agent, nil, time.Time{}))
		if d, err := ben.Send(asAgent, id, "note", json.RawMessage(`"hello"`)); err != nil || d.Delivered != 1 {
			t.Errorf("the agent sends: %+v, %v", d, err)
		}
		synctest.Wait()
		if events.got() != `"hello"` {
			t.Errorf("ada receives %s", events.got())
		}
		for name, err := range map[string]error{
			"its node sends":              second(ben.Send(did.AsProcess(t.Context()), id, "note", json.RawMessage(`1`))),
			"its node leaves":             second(ben.Change(t.Context(), id, api.GroupChange{Kind: api.GroupLeave})),
			"another agent sends":         second(ben.Send(did.WithPrincipal(t.Context(), did.Consumer(did.Process, "").WithAgent(didtest.Key(51).DID(), nil, time.Time{})), id, "", json.RawMessage(`1`))),
			"another node sends as agent": second(cyd.Send(asAgent, id, "", json.RawMessage(`1`))),
		} {
			if c := code(err); c != interact.NotMember && c != interact.NotFound {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := ada.Change(t.Context(), id, api.GroupChange{Kind: api.GroupSetRole, Member: agent, Role: chain.Admin}); code(err) != interact.Usage {
			t.Errorf("an agent as an admin: %v", err)
		}

		// Its node joins as well, and its streams go on.
		atBen := ben.collect(t.Context(), id)
		if _, err := ben.Join(t.Context(), api.GroupJoin{Invitation: invite()}); err != nil {
			t.Fatal(err)
		}
		at(ben, 1)
		if len(ada.Of(ben.id())) != 1 || len(ben.Of(ben.id())) != 1 {
			t.Error("the node is no member")
		}
		ada.send(id, "two")
		synctest.Wait()
		if atBen.got() != `"two"` {
			t.Errorf("ben receives %s", atBen.got())
		}

		leave := func(through *member, by did.Signer) error {
			t.Helper()
			g, err := through.Get(id)
			if err != nil {
				t.Fatal(err)
			}
			st, err := chain.SignLeave(id, g.Head, by, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return second(through.Change(t.Context(), id, api.GroupChange{Kind: api.GroupLeave, Statement: json.RawMessage(st.Raw)}))
		}
		if err := leave(ben, didtest.Key(51)); err == nil && len(ada.agentsOf(ben.id())) != 1 {
			t.Error("another key ends the membership of the agent")
		}
		m.set(func() { ada.off = true })
		if err := leave(ben, key); code(err) != interact.Unreachable {
			t.Errorf("no admin is online: %v", err)
		}
		m.set(func() { ada.off = false })
		if err := leave(ben, key); err != nil {
			t.Error(err)
		}
		at(ben, 0)
		if len(ada.Of(ben.id())) != 1 {
			t.Error("its node left, too")
		}

		// It joins again, and moves to another node, which is none before.
		if err := ben.joinAgent(invite(), key, ben.id(), chain.Plain); err != nil {
			t.Fatal(err)
		}
		at(ben, 1)
		if err := cyd.joinAgent(invite(), key, cyd.id(), chain.Plain); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := ada.agentsOf(cyd.id()); len(got) != 1 || len(ada.agentsOf(ben.id())) != 0 {
			t.Errorf("after it moved: %v at cyd, %v at ben", got, ada.agentsOf(ben.id()))
		}
		// The node that it leaves learns that, and is not in the group any more.
		gone := cyd.collect(t.Context(), id)
		if err := ben.joinAgent(invite(), key, ben.id(), chain.Plain); err != nil {
			t.Fatal(err)
		}
		<-gone.done
		if code(gone.ended) != interact.NotMember || len(cyd.agentsOf(cyd.id())) != 0 || cyd.State(id) == api.GroupActive {
			t.Errorf("the node that it left: %v, its stream ended with %v", cyd.agentsOf(cyd.id()), gone.ended)
		}
		at(ben, 1)

		// Its node leaves, and it stays.
		if _, err := ben.Change(t.Context(), id, api.GroupChange{Kind: api.GroupLeave}); err != nil {
			t.Fatal(err)
		}
		at(ben, 1)
		if len(ada.Of(ben.id()))+len(ben.Of(ben.id())) != 0 {
			t.Error("its node is a member after it left")
		}
		// A key that is revoked is no member, wherever it is.
		if _, err := ada.Change(t.Context(), id, api.GroupChange{Kind: api.GroupRemove, Member: agent}); err != nil {
			t.Fatal(err)
		}
		at(ben, 0)
		if err := ben.joinAgent(invite(), cyd.key, ben.id(), chain.Plain); err != nil {
			t.Fatal(err)
		}
		ada.StandingChanged(&did.Principal{DID: cyd.id(), Node: cyd.id(), Barred: "revoked"})
		synctest.Wait()
		if got := ada.agentsOf(ben.id()); len(got) != 0 {
			t.Errorf("a revoked key is a member: %v", got)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// Groups of tenants and channels are separate: a member of one receives no entry and no event of another, and has no rights by it.
func TestGroupsAreSeparate(t *testing.T) {
	simulate(t, 3, func(t *testing.T, _ *mesh, n []*member) {
		ada, ben, cyd := n[0], n[1], n[2]
		web := ada.create(api.GroupCreate{Name: "acme-web", Labels: map[string]string{"tenant": "acme", "channel": "web"}}, ben)
		phone := ada.create(api.GroupCreate{Name: "acme-phone", Labels: map[string]string{"tenant": "acme", "channel": "phone"}}, cyd)
		atBen, atCyd := ben.collect(t.Context(), web), cyd.collect(t.Context(), phone)
		ada.send(web, "of web")
		ada.send(phone, "of phone")
		if atBen.got() != `"of web"` || atCyd.got() != `"of phone"` {
			t.Errorf("ben receives %s, cyd %s", atBen.got(), atCyd.got())
		}
		for one, want := range map[*member]string{ben: web, cyd: phone} {
			if got := ada.Of(one.id()); len(got) != 1 || got[0].Group != want {
				t.Errorf("%s has %+v", one.id().Short(), got)
			}
		}
		for _, err := range []error{
			second(ben.ask(t.Context(), ada.id(), &request{Op: opSync, Group: phone})),
			second(ben.Send(t.Context(), phone, "", json.RawMessage(`1`))),
			second(ben.Join(t.Context(), api.GroupJoin{Group: phone, At: string(ada.id())})),
		} {
			if code(err) != interact.NotFound {
				t.Errorf("a member of another group: %v", err)
			}
		}
	})
}
