package trust

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/td"
)

// grantTo signs a grant of an agent for nodes.
func grantTo(t *testing.T, agent *keystore.Key, now time.Time, life time.Duration, nodes ...did.DID) []byte {
	t.Helper()
	draft, err := td.Draft([]byte(`{"title": "Agent", "actions": {"ask": {}}}`))
	if err != nil {
		t.Fatal(err)
	}
	thing, err := td.Complete(draft, agent.DID())
	if err != nil {
		t.Fatal(err)
	}
	g, _, err := td.SignGrant(thing, agent, td.GrantLease{Number: 1, Now: now, Lifetime: life, Nodes: nodes})
	if err != nil {
		t.Fatal(err)
	}
	return g.Raw
}

// A partner learns of an agent of a node when it first counts it, with the roles that node and agent have in common; no agent of a revoked node counts.
func TestAgentOfANode(t *testing.T) {
	t.Parallel()
	acme, desk, globex, stranger := newMember(t), newMember(t), newMember(t), newMember(t)
	agent, other := didtest.NewKey(), didtest.NewKey()
	grant := grantTo(t, agent, time.Now(), time.Hour, desk.did())
	var asked atomic.Int64
	desk.Serve(Things{Restricted: func(context.Context) []*td.Signed { return nil }, Signer: desk.key, Agent: func(id did.DID) ([]byte, []string) {
		if asked.Add(1); id != agent.DID() {
			return nil, nil
		}
		return grant, []string{"clerk", "root"}
	}})
	acme.founds("acme.example")
	globex.founds("globex.example")
	acme.admits(desk, false, "clerk", "boss")
	globex.federates(acme)
	for _, m := range []*member{acme, globex, stranger} {
		desk.connect(m)
	}
	globex.becomes(desk, did.Partner, "clerk")
	desk.becomes(globex, did.Partner, "")
	p := globex.Agent(t.Context(), globex.Principal(desk.did()), agent.DID())
	if p == nil || p.DID != agent.DID() || p.Node != desk.did() || p.Agent() != agent.DID() || !slices.Equal(p.Roles, []string{"clerk"}) || p.Relation != did.Partner ||
		p.ID() != string(agent.DID()) || p.Base() != string(desk.did()) || p.Org != globex.Principal(desk.did()).Org || time.Until(p.Expires) > agentLife {
		t.Fatalf("got %+v", p)
	}
	if again := globex.Agent(t.Context(), globex.Principal(desk.did()), agent.DID()); again != p || asked.Load() != 1 {
		t.Errorf("asked %d times; another principal: %v", asked.Load(), again != p)
	}
	if q := globex.Agent(t.Context(), globex.Principal(desk.did()), other.DID()); q != nil {
		t.Errorf("an agent that is elsewhere: %+v", q)
	}
	if q := stranger.Agent(t.Context(), stranger.Principal(desk.did()), agent.DID()); q != nil {
		t.Errorf("an agent of a node that proves nothing: %+v", q)
	}
	if q := globex.Agent(t.Context(), globex.Principal(stranger.did()), agent.DID()); q != nil {
		t.Errorf("an agent of an untrusted node: %+v", q)
	}
	if q := (*Trust)(nil).Agent(t.Context(), globex.Principal(desk.did()), agent.DID()); q != nil {
		t.Errorf("without trust: %+v", q)
	}
	if err := acme.Revoke(t.Context(), desk.did()); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the agent of a revoked node does not count", func() bool {
		return globex.Agent(t.Context(), globex.Principal(desk.did()), agent.DID()) == nil
	})
}

// What proves an agent at a node, changed in one point at a time.
func TestVerifyAgent(t *testing.T) {
	t.Parallel()
	node, agent, other := didtest.NewKey(), didtest.NewKey(), didtest.NewKey()
	const org did.DID = "did:webvh:QmYsABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqr:acme.example"
	now := time.Now().Truncate(time.Second)
	at := agentAt{node.DID(), agent.DID()}
	for name, c := range map[string]struct {
		change func(*vc.Credential)
		signer *keystore.Key
		grant  []byte
		now    time.Time
		ok     bool
	}{
		"as it is":                         {ok: true},
		"another signer":                   {signer: other},
		"issued by the agent":              {signer: agent, change: func(c *vc.Credential) { c.Issuer, c.Host = agent.DID(), agent.DID() }},
		"issued by another node":           {signer: other, change: func(c *vc.Credential) { c.Issuer, c.Host = other.DID(), other.DID() }},
		"for another agent":                {change: func(c *vc.Credential) { c.Subject = other.DID() }},
		"expired":                          {now: now.Add(agentLife + 2*vc.Skew)},
		"not valid yet":                    {now: now.Add(-2 * vc.Skew)},
		"a grant of another key":           {grant: grantTo(t, other, now, time.Hour, node.DID())},
		"a grant for another node":         {grant: grantTo(t, agent, now, time.Hour, other.DID())},
		"a grant that has ended":           {grant: grantTo(t, agent, now.Add(-2*time.Hour), time.Hour, node.DID())},
		"a grant that is not in force yet": {grant: grantTo(t, agent, now.Add(time.Hour), time.Hour, node.DID())},
		"no grant":                         {grant: []byte{0xa0}},
	} {
		cred := vc.Credential{Type: vc.Agent, Issuer: node.DID(), Organization: org, Subject: agent.DID(), Host: node.DID(), Roles: []string{"clerk"}, From: now,
			Until: now.Add(agentLife)}
		signer, grant, when := node, grantTo(t, agent, now, time.Hour, node.DID()), now
		if c.change != nil {
			c.change(&cred)
		}
		if c.signer != nil {
			signer = c.signer
		}
		if c.grant != nil {
			grant = c.grant
		}
		if !c.now.IsZero() {
			when = c.now
		}
		signed, err := vc.Issue(cred, signer, "")
		if err != nil {
			t.Fatal(name, err)
		}
		got, until, err := verifyAgent(t.Context(), at, signed.Raw, grant, when)
		if (err == nil) != c.ok || c.ok && (got.Organization != org || !until.Equal(now.Add(time.Hour))) {
			t.Errorf("%s: %+v, %v, %v", name, got, until, err)
		}
	}
	for name, change := range map[string]func(*vc.Credential){
		"a node that is a member of another node's word": func(c *vc.Credential) { c.Type, c.Host = vc.Node, "" },
		"an agent at another node":                       func(c *vc.Credential) { c.Host = other.DID() },
		"no organization":                                func(c *vc.Credential) { c.Organization = "acme" },
	} {
		cred := vc.Credential{Type: vc.Agent, Issuer: node.DID(), Organization: org, Subject: agent.DID(), Host: node.DID(), From: now, Until: now.Add(agentLife)}
		change(&cred)
		if signed, err := vc.Issue(cred, node, ""); err == nil {
			t.Errorf("%s: issued %s", name, signed.Raw)
		}
	}
}
