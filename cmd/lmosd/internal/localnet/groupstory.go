package localnet

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/aries"
	"github.com/lmosd/lmosd/group"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/testnet"
)

// A groupStory is the story of a group of two organizations. Its nodes are processes, its agent is an HTTP server of this process.
type groupStory struct {
	*federation
	host, adjuster, away, outsider *testnet.Member
	group                          *api.Group
	payout, ledger                 *api.Publication
	lent                           *api.Delegation // of an action of ledger, to the adjuster
	wallet                         *aries.Wallet   // of an issuer of credentials
	events                         chan string     // that the adjuster received
	ended                          chan error      // of its stream of them
	moved                          atomic.Int64    // events of the agent that the adjuster received
}

const (
	claims       = "claims-2026"
	adjusterRole = "adjuster"
	payoutTrack  = "payout/track"
	ledgerAgent  = "ledger"
)

func (s *groupStory) steps() []storyStep {
	return []storyStep{
		{"six nodes up and meshed", s.start},
		{"two organizations are partners", s.organize},
		{"a claims group of both", s.create},
		{"an agent for the group only", s.offer},
		{"outsider: find, exact id, join", s.refuse},
		{"adjuster let in by a foreign credential", s.letIn},
		{"adjuster finds and calls the agent", s.call},
		{"one action delegated for ten minutes", s.delegate},
		{"the delegator is locked out", s.lockOut},
		{"an event reaches all members", s.send},
		{"a node of the group stops", s.stop},
		{"adjuster removed, its streams end", s.remove},
		{"what follows does not reach it", s.sendAfter},
		{"the group is dissolved", s.dissolve},
		{"the log proves it to node 4", s.comeBack},
	}
}

// start runs the nodes: two of each organization, the adjuster, and one outside of the group.
func (s *groupStory) start(ctx context.Context) (string, error) {
	binary, err := os.Executable()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	s.net, err = testnet.Processes(ctx, 6, testnet.Options{Network: fmt.Sprintf("demo-%d", os.Getpid()), Seed: time.Now().UnixNano(),
		Dir: s.dir, Binary: binary, Flags: []string{"--trust.untrusted", "find"}})
	if err != nil {
		return "", err
	}
	m := s.net.Members
	s.acme, s.host, s.globex, s.away, s.adjuster, s.outsider = m[0], m[1], m[2], m[3], m[4], m[5]
	return "Acme: nodes 1, 2; Globex: 3, 4; the adjuster: 5; the outsider: 6, in no organization", s.net.Settle(ctx)
}

// organize makes the organizations with two nodes each, and partners of them.
func (s *groupStory) organize(ctx context.Context) (string, error) {
	for _, o := range []struct {
		domain     string
		at, member *testnet.Member
	}{{"acme.example", s.acme, s.host}, {"globex.example", s.globex, s.away}} {
		if _, err := o.at.InitOrganization(ctx, api.OrganizationInit{Domain: o.domain, RecoveryFile: filepath.Join(s.dir, o.domain+".recovery")}); err != nil {
			return "", err
		}
		i, err := o.at.Invite(ctx, api.InvitationRequest{Kind: api.InviteNode})
		if err != nil {
			return "", err
		}
		if _, err := o.member.JoinOrganization(ctx, api.Acceptance{Invitation: i.Text}); err != nil {
			return "", err
		}
	}
	i, err := s.acme.Invite(ctx, api.InvitationRequest{Kind: api.InvitePartner})
	if err != nil {
		return "", err
	}
	p, err := s.globex.AcceptInvitation(ctx, api.Acceptance{Invitation: i.Text})
	if err != nil {
		return "", err
	}
	for _, m := range []*testnet.Member{s.acme, s.globex} {
		list, err := m.Partners(ctx)
		if err != nil || len(list.Items) != 1 {
			return "", errors.Join(err, errors.New("the organizations are not partners"))
		}
		if _, err := m.ConfirmPartner(ctx, list.Items[0].Name, ""); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("acme.example and globex.example, with the words %q", p.Words), nil
}

// create creates the group at Acme, which trusts a foreign issuer of credentials for adjusters, and lets the nodes of both organizations in.
func (s *groupStory) create(ctx context.Context) (_ string, err error) {
	if s.wallet, err = newWallet(); err != nil {
		return "", err
	}
	if _, err := s.acme.TrustIssuer(ctx, api.ForeignIssuer{Name: "association", DID: s.wallet.DID(), Roles: []string{adjusterRole}}); err != nil {
		return "", err
	}
	s.group, err = s.acme.CreateGroup(ctx, api.GroupCreate{Name: claims, Labels: map[string]string{"tenant": "acme", "channel": "web"},
		Join: []api.GroupRule{{Issuer: string(s.wallet.DID()), Role: adjusterRole, As: adjusterRole}}})
	if err != nil {
		return "", err
	}
	for _, m := range []*testnet.Member{s.host, s.globex, s.away} {
		i, err := s.acme.InviteToGroup(ctx, claims, api.GroupInvite{For: m.DID})
		if err != nil {
			return "", err
		}
		if _, err := m.JoinGroup(ctx, api.GroupJoin{Invitation: i.Invitation}); err != nil {
			return "", fmt.Errorf("node %d: %w", m.N, err)
		}
	}
	return fmt.Sprintf("%s, %.8s…: nodes 1 to 4, of both organizations", claims, s.group.ID), s.agree(ctx, 4, s.acme, s.host, s.globex, s.away)
}

// newWallet returns the wallet of an issuer of another project.
func newWallet() (*aries.Wallet, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	return aries.NewWallet(key)
}

// agree waits until nodes know the same newest entry, with a number of members.
func (s *groupStory) agree(ctx context.Context, members int, all ...*testnet.Member) error {
	return s.wait(ctx, "the nodes know the same members", func(ctx context.Context) error {
		head := ""
		for _, m := range all {
			g, err := m.Group(ctx, s.group.ID)
			if err != nil {
				return err
			}
			if g.Count != members || head != "" && g.Head != head {
				return fmt.Errorf("node %d knows %d members, by the entry %s", m.N, g.Count, g.Head)
			}
			head = g.Head
		}
		return nil
	})
}

// offer publishes an agent at a node of Acme for the group.
func (s *groupStory) offer(ctx context.Context) (_ string, err error) {
	if s.agents, err = startParcels(); err != nil {
		return "", err
	}
	s.payout, err = s.host.PublishWith(ctx, s.agents.describe("payout", td.Named), api.PublishOptions{For: []string{"group:" + claims}})
	if err != nil {
		return "", err
	}
	err = s.wait(ctx, "node 4 finds it", func(ctx context.Context) error {
		refs, _, err := found(ctx, s.away)
		if err == nil && !slices.Contains(refs, s.payout.Ref) {
			err = fmt.Errorf("it finds %v", refs)
		}
		return err
	})
	return "payout at node 2, found by node 4 of Globex, as lmosd expose --for group:" + claims + " offers it", err
}

// refuse: a node outside of the group gets the answers for what does not exist.
func (s *groupStory) refuse(ctx context.Context) (string, error) {
	refs, answered, err := found(ctx, s.outsider)
	switch {
	case err != nil:
		return "", err
	case len(refs) > 0:
		return "", fmt.Errorf("node 6 finds %v", refs)
	case answered < 5:
		return "", fmt.Errorf("only %d nodes answered node 6", answered)
	}
	if _, err := s.outsider.Agent(ctx, s.payout.Ref); codeOf(err) != interact.NotFound {
		return "", fmt.Errorf("node 6 asks for the exact id, and gets %w", err)
	}
	if _, err := s.outsider.JoinGroup(ctx, api.GroupJoin{Group: s.group.ID, At: string(s.acme.DID)}); codeOf(err) != interact.NotFound {
		return "", fmt.Errorf("node 6 asks to join, and gets %w", err)
	}
	detail, err := refused(interact.NotFound, fmt.Sprintf("node 6 finds nothing at %d nodes, asks to join, and calls", answered))(invoke(ctx, s.outsider, s.payout, "track"))
	return detail, errors.Join(err, s.explain(ctx, s.host, s.outsider, "1404", "invoke", payoutTrack))
}

// letIn: the wallet of an issuer that is no organization of the mesh signs a credential, by which the adjuster joins.
func (s *groupStory) letIn(ctx context.Context) (string, error) {
	join := api.GroupJoin{Group: s.group.ID, At: string(s.acme.DID)}
	if _, err := s.adjuster.JoinGroup(ctx, join); codeOf(err) != interact.NotFound {
		return "", fmt.Errorf("node 5 joins without a credential: %w", err)
	}
	now := time.Now()
	raw, err := s.wallet.Issue(s.adjuster.DID, now.Add(-time.Minute), now.Add(time.Hour), adjusterRole)
	if err != nil {
		return "", err
	}
	if _, err := s.adjuster.PresentCredential(ctx, api.CredentialPresentation{Credential: raw, To: []did.DID{s.acme.DID}}); err != nil {
		return "", err
	}
	var g *api.Group
	if err := s.wait(ctx, "node 5 joins", func(ctx context.Context) (err error) { g, err = s.adjuster.JoinGroup(ctx, join); return err }); err != nil {
		return "", err
	}
	if g.Role != adjusterRole {
		return "", fmt.Errorf("node 5 is %s", g.Role)
	}
	return fmt.Sprintf("a credential of the data model 1.1 by %s; node 5 is %s", s.wallet.DID().Short(), g.Role), s.agree(ctx, 5, s.acme, s.host, s.globex, s.away, s.adjuster)
}

// call: the adjuster, of no organization, finds and calls the agent.
func (s *groupStory) call(ctx context.Context) (string, error) {
	var c caller
	err := s.wait(ctx, "node 5 calls the agent", func(ctx context.Context) (err error) { c, err = invoke(ctx, s.adjuster, s.payout, "track"); return err })
	if err != nil {
		return "", err
	}
	if node, _, _ := strings.Cut(c.ID, "#"); node != string(s.adjuster.DID) || c.Org != "" {
		return "", fmt.Errorf("the agent was called by %+v, not by node 5, %s", c, s.adjuster.DID)
	}
	return "the agent prints who called: " + s.adjuster.DID.Short() + ", of no organization", s.explain(ctx, s.host, s.adjuster, "allowed", "invoke", payoutTrack)
}

// delegate: an agent of Acme is for one node of Globex only, which lets the adjuster use one action of it.
func (s *groupStory) delegate(ctx context.Context) (_ string, err error) {
	if s.ledger, err = s.host.Publish(ctx, s.agents.describe(ledgerAgent, td.Public)); err != nil {
		return "", err
	}
	if _, err := s.host.AddRule(ctx, api.RuleRequest{Allow: []string{string(s.globex.DID)}, To: []string{"invoke", "delegate"}, On: []string{ledgerAgent}}); err != nil {
		return "", err
	}
	err = s.wait(ctx, "node 5 finds the agent", func(ctx context.Context) error {
		_, err := invoke(ctx, s.adjuster, s.ledger, "track")
		if codeOf(err) == interact.Forbidden {
			return nil
		}
		return fmt.Errorf("it calls without a right, and gets %w", err)
	})
	if err != nil {
		return "", err
	}
	var c caller
	err = s.wait(ctx, "node 5 calls by the right of node 3", func(ctx context.Context) (err error) { // node 2 may not know yet whether node 3 is a member
		if s.lent == nil {
			if s.lent, err = s.globex.Delegate(ctx, api.DelegationRequest{Agent: s.ledger.Ref, Name: "track", To: s.adjuster.DID, Life: "10m"}); err != nil {
				return err
			}
		}
		c, err = s.callLent(ctx, s.adjuster, "track")
		return err
	})
	if err != nil {
		return "", err
	}
	if node, _, _ := strings.Cut(c.LentBy, "#"); node != string(s.globex.DID) {
		return "", fmt.Errorf("the agent was called by %+v, not by the right of node 3", c)
	}
	for who, one := range map[string]struct {
		m      *testnet.Member
		action string
	}{"node 6": {s.outsider, "track"}, "another action": {s.adjuster, "reroute"}} {
		if _, err := s.callLent(ctx, one.m, one.action); codeOf(err) != interact.DelegationInvalid {
			return "", fmt.Errorf("%s with the delegation: %w", who, err)
		}
	}
	return "by node 3 to node 5, which calls by it; node 6, and another action, get LMOS-1425", nil
}

// callLent calls an action of ledger by the delegation.
func (s *groupStory) callLent(ctx context.Context, m *testnet.Member, action string) (c caller, err error) {
	out, _, err := m.With(s.lent.Token).Call(ctx, s.ledger.Ref, action, interact.JSON, []byte(`{"claim":4711}`))
	if err == nil {
		err = json.Unmarshal(out, &c)
	}
	return c, err
}

// lockOut takes the right of the delegator.
func (s *groupStory) lockOut(ctx context.Context) (string, error) {
	if _, err := s.host.AddRule(ctx, api.RuleRequest{Deny: []string{string(s.globex.DID)}, To: []string{"call"}, On: []string{ledgerAgent}}); err != nil {
		return "", err
	}
	return refused(interact.DelegationInvalid, "node 2 denies its agent to node 3; node 5 calls by what node 3 delegated")(s.callLent(ctx, s.adjuster, "track"))
}

// send sends an event, and receives it at the adjuster, whose stream goes on.
func (s *groupStory) send(ctx context.Context) (string, error) {
	watch, end := context.WithCancel(ctx)
	s.subscribed = end
	s.events, s.ended = make(chan string, 16), make(chan error, 1)
	go func() {
		var last error
		for e, err := range s.adjuster.WatchGroup(watch, s.group.ID) {
			if last = err; err == nil {
				s.events <- string(e.Data)
			}
		}
		s.ended <- last
	}()
	go func() {
		for _, err := range s.adjuster.Watch(watch, s.payout.Ref, "events", "moved", "") {
			if err == nil {
				s.moved.Add(1)
			}
		}
	}()
	err := s.wait(ctx, "node 5 receives events of the agent", func(context.Context) error {
		if s.moved.Load() == 0 {
			return errors.New("it received none")
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	err = s.wait(ctx, "node 5 receives the event", func(ctx context.Context) error {
		d, err := s.globex.SendToGroup(ctx, claims, "claim", json.RawMessage(`{"claim":4711}`))
		switch {
		case err != nil:
			return err
		case d.Delivered != 4:
			return fmt.Errorf("%d members received it: %v", d.Delivered, d.Failed)
		}
		select {
		case <-s.events:
			return nil
		case <-time.After(time.Second):
			return errors.New("it receives nothing")
		}
	})
	return "sent by node 3, delivered to 4 nodes, each over a stream of its own", err
}

func (s *groupStory) stop(context.Context) (string, error) {
	return "node 4 of Globex", s.away.Kill()
}

// remove removes the adjuster, whose streams end.
func (s *groupStory) remove(ctx context.Context) (string, error) {
	start := time.Now()
	if _, err := s.acme.ChangeGroup(ctx, claims, api.GroupChange{Kind: api.GroupRemove, Member: s.adjuster.DID}); err != nil {
		return "", err
	}
	select {
	case err := <-s.ended:
		if codeOf(err) != interact.NotMember {
			return "", fmt.Errorf("the stream of events ended with %w", err)
		}
	case <-time.After(soon):
		return "", errors.New("the stream of events of the removed member goes on")
	}
	took := time.Since(start)
	err := s.wait(ctx, "the subscription to the agent ends", func(ctx context.Context) error {
		before := s.moved.Load()
		if err := backoff.Sleep(ctx, 300*time.Millisecond); err != nil {
			return err
		}
		if n := s.moved.Load() - before; n > 0 { // the agent sends one in 50 ms
			return fmt.Errorf("%d events in 300 ms", n)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if err := s.agree(ctx, 4, s.acme, s.host, s.globex); err != nil {
		return "", err
	}
	detail, err := refused(interact.NotFound, fmt.Sprintf("its stream of events ended after %d ms, its subscription to the agent too, and it calls", took.Milliseconds()))(invoke(ctx, s.adjuster, s.payout, "track"))
	return detail, errors.Join(err, s.explain(ctx, s.host, s.adjuster, "1404", "invoke", payoutTrack))
}

// sendAfter sends an event after the removal: no stream leads to the former member, and it gets none again.
func (s *groupStory) sendAfter(ctx context.Context) (string, error) {
	d, err := s.acme.SendToGroup(ctx, claims, "claim", json.RawMessage(`{"claim":4712}`))
	if err != nil || d.Delivered != 2 || len(d.Failed) != 1 {
		return "", errors.Join(err, fmt.Errorf("delivered: %+v", d))
	}
	if _, err := s.adjuster.SendToGroup(ctx, claims, "", json.RawMessage(`1`)); codeOf(err) != interact.NotMember {
		return "", fmt.Errorf("node 5 sends, and gets %w", err)
	}
	for _, err := range s.adjuster.WatchGroup(ctx, s.group.ID) {
		if codeOf(err) != interact.NotMember {
			return "", fmt.Errorf("node 5 watches the group, and gets %w", err)
		}
	}
	return "delivered to nodes 2 and 3, not to 5; the message names node 4, which is away", nil
}

func (s *groupStory) dissolve(ctx context.Context) (string, error) {
	g, err := s.acme.ChangeGroup(ctx, claims, api.GroupChange{Kind: api.GroupDissolve})
	if err != nil {
		return "", err
	}
	if err := s.knowsEnd(ctx, s.globex); err != nil {
		return "", err
	}
	if _, err := s.globex.SendToGroup(ctx, claims, "", json.RawMessage(`1`)); codeOf(err) != interact.GroupDissolved {
		return "", fmt.Errorf("node 3 sends, and gets %w", err)
	}
	return fmt.Sprintf("by entry %d; nothing follows", g.Entries), nil
}

// knowsEnd waits until a node knows that the group is dissolved.
func (s *groupStory) knowsEnd(ctx context.Context, m *testnet.Member) error {
	return s.wait(ctx, fmt.Sprintf("node %d knows that the group is dissolved", m.N), func(ctx context.Context) error {
		g, err := m.Group(ctx, claims)
		if err == nil && g.State != api.GroupDissolved {
			err = fmt.Errorf("it is %s", g.State)
		}
		return err
	})
}

// comeBack starts the node that was away. It gets the entries from the others, and its log proves the end without a node.
func (s *groupStory) comeBack(ctx context.Context) (string, error) {
	if err := s.net.Restart(ctx, s.away); err != nil {
		return "", err
	}
	if err := s.knowsEnd(ctx, s.away); err != nil {
		return "", err
	}
	log, err := s.away.GroupLog(ctx, claims)
	if err != nil {
		return "", err
	}
	g, err := group.ReadLog(log, time.Now())
	if err != nil || g.ID != s.group.ID || g.State != api.GroupDissolved {
		return "", errors.Join(err, fmt.Errorf("the log of node 4 states %+v", g))
	}
	return fmt.Sprintf("%d entries, %d bytes, verified without a node", g.Entries, len(log)), nil
}
