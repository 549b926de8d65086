package trust

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/trust/exchange"
)

// agentLife is the life of a credential that a node issues for an agent at it: how long the agent counts there after it has left.
const agentLife = time.Hour

const (
	maxAgents  = 4096        // of other nodes
	agentRetry = time.Second // until a node is asked again after it has not proven that an agent is there
)

// agents are the agents with keys of their own for which other nodes call.
type agents struct {
	mu  sync.Mutex // owns what follows
	all map[agentAt]*agentThere
	// grouped are the last results of [Trust.Agent] for agents that only groups know.
	grouped map[agentAt]agentPrincipal
}

// An agentPrincipal is a principal of an agent, derived from that of its node.
type agentPrincipal struct{ node, agent *did.Principal }

type agentAt struct{ node, agent did.DID }

// An agentThere is what a node has proven of an agent.
type agentThere struct {
	ready      chan struct{} // closed when the next three are set
	credential *vc.Credential
	until      time.Time // of the proof, or of the time in which the node is not asked again
	err        error     // why credential is nil

	node, principal *did.Principal // the last result of [Trust.Agent], for the same standing of the node; owned by agents.mu
}

// isDone reports whether the node must be asked again at now.
func (a *agentThere) isDone(now time.Time) bool {
	select {
	case <-a.ready:
		return now.After(a.until)
	default:
		return false
	}
}

// Agent returns the principal of an agent with a key of its own for which a node calls: with those of the agent's roles that the node has. It is nil
// unless the node has proven two things: that it is responsible for the agent, with an AgentCredential of its own, and that the agent agrees, with a grant
// of the agent's key; or a group has the agent as a member that agreed to be reached through the node. Then it has no roles. A node that is asked for the
// first time has 2 s. The same pointer means the same standing. A nil Trust knows no agents.
func (t *Trust) Agent(ctx context.Context, node *did.Principal, agent did.DID) *did.Principal {
	if t == nil {
		return nil
	}
	if proven := t.provenAgent(ctx, node, agent); proven != nil {
		return proven
	}
	if !slices.ContainsFunc(node.Agents, func(m did.AgentMembership) bool { return m.Agent == agent }) {
		return nil
	}
	at := agentAt{node.Node, agent}
	t.agents.mu.Lock()
	defer t.agents.mu.Unlock()
	if p := t.agents.grouped[at]; p.node == node {
		return p.agent
	}
	p := agentPrincipal{node, node.WithAgent(agent, func(string) bool { return false }, time.Time{})}
	boundedmap.Put(&t.agents.grouped, at, p, maxAgents, nil)
	return p.agent
}

// provenAgent returns the principal of an agent by what its node has proven, or nil.
func (t *Trust) provenAgent(ctx context.Context, node *did.Principal, agent did.DID) *did.Principal {
	if node.Relation < did.Partner && node.Unconfirmed == nil {
		return nil
	}
	a := t.agentAt(agentAt{node.Node, agent})
	if a == nil {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, waitFor)
	defer cancel()
	select {
	case <-a.ready:
	case <-wait.Done():
		return nil
	}
	c := a.credential
	if c == nil || t.now().After(a.until) {
		return nil
	}
	t.agents.mu.Lock()
	defer t.agents.mu.Unlock()
	if a.node != node {
		a.node, a.principal = node, nil
		if node.Org == c.Organization || node.Unconfirmed != nil && node.Unconfirmed.Org == c.Organization {
			a.principal = node.WithAgent(agent, c.HasRole, a.until)
		}
	}
	return a.principal
}

// agentAt returns what a node has proven of an agent. The node is asked in the background if it is not known.
func (t *Trust) agentAt(at agentAt) *agentThere {
	now := t.now()
	t.agents.mu.Lock()
	defer t.agents.mu.Unlock()
	if a := t.agents.all[at]; a != nil && !a.isDone(now) {
		return a
	}
	a := &agentThere{ready: make(chan struct{})}
	boundedmap.Put(&t.agents.all, at, a, maxAgents, func(a *agentThere) bool { return a.isDone(now) })
	t.start(func(ctx context.Context) {
		defer close(a.ready)
		if a.credential, a.until, a.err = t.askAgent(ctx, at); a.err != nil {
			a.until = t.now().Add(agentRetry)
			t.o.Log.Debug("agent of a node not proven", "peer", at.node.Short(), "agent", at.agent.Short(), "err", a.err)
		}
	})
	return a
}

// askAgent gets and verifies what a node proves of an agent.
func (t *Trust) askAgent(ctx context.Context, at agentAt) (*vc.Credential, time.Time, error) {
	r, err := t.net.Ask(ctx, at.node, &exchange.Request{Op: exchange.OpAgent, Key: string(at.agent)})
	if err != nil {
		return nil, time.Time{}, err
	}
	return verifyAgent(ctx, at, r.Credential, r.Body, t.now())
}

// errAgent means that a node has not proven that an agent is there.
var errAgent = errors.New("the agent is not proven")

// verifyAgent verifies what a node proves of an agent: a credential of the node, and a grant of the agent for the node. It returns the credential, and the
// end of both.
func verifyAgent(ctx context.Context, at agentAt, credential, grant []byte, now time.Time) (*vc.Credential, time.Time, error) {
	c, err := vc.Verify(ctx, credential, vc.Check{Now: now})
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("%w: %w", errAgent, err)
	}
	g, err := td.ParseGrant(grant)
	switch {
	case err != nil:
		return nil, time.Time{}, fmt.Errorf("%w: %w", errAgent, err)
	case c.Type != vc.Agent || c.Issuer != at.node || c.Host != at.node || c.Subject != at.agent:
		return nil, time.Time{}, fmt.Errorf("%w: its credential is of %s at %s, issued by %s", errAgent, c.Subject.Short(), c.Host.Short(), c.Issuer.Short())
	case g.Owner != at.agent || !g.Names(at.node):
		return nil, time.Time{}, fmt.Errorf("%w: its grant is of %s for other nodes", errAgent, g.Owner.Short())
	case now.Add(vc.Skew).Before(g.Issued) || now.After(g.Expires):
		return nil, time.Time{}, fmt.Errorf("%w: its grant is valid from %s to %s", errAgent, g.Issued.Format(time.RFC3339), g.Expires.Format(time.RFC3339))
	}
	until := c.Until
	if g.Expires.Before(until) {
		until = g.Expires
	}
	return c, until, nil
}

// serveAgent proves to a member or a partner that an agent with a key of its own is at this node. The credential is issued now: chain organization, node,
// agent, each with the roles of the one before at most.
func (t *Trust) serveAgent(ctx context.Context, id did.DID, q *exchange.Request) (*exchange.Response, error) {
	t.Wait(ctx, id)
	p, things, agent := t.Principal(id), t.things.Load(), did.DID(q.Key)
	t.mu.RLock()
	own := t.credentialLocked()
	t.mu.RUnlock()
	if things == nil || things.Agent == nil || own == nil || p.Relation < did.Partner && p.Unconfirmed == nil {
		return nil, refused
	}
	grant, roles := things.Agent(agent)
	if grant == nil {
		return nil, refused
	}
	c, err := issueAgent(own, things.Signer, agent, roles, t.now())
	if err != nil {
		return nil, err
	}
	return &exchange.Response{Credential: c.Raw, Body: grant}, nil
}

// issueAgent issues the credential of an agent at a node with the credential own, whose key is that of s.
func issueAgent(own *vc.Credential, s did.Signer, agent did.DID, roles []string, now time.Time) (*vc.Credential, error) {
	until := now.Add(agentLife)
	if own.Until.Before(until) {
		until = own.Until
	}
	has := slices.DeleteFunc(slices.Clone(roles), func(role string) bool { return !own.HasRole(role) })
	return vc.Issue(vc.Credential{Type: vc.Agent, Issuer: own.Subject, Organization: own.Issuer, Subject: agent, Host: own.Subject, Roles: has, From: now, Until: until},
		s, "")
}

// Roles returns the roles in the valid credential of this node. A nil Trust has none.
func (t *Trust) Roles() []string {
	if t == nil {
		return nil
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if c := t.credentialLocked(); c != nil {
		return c.Roles
	}
	return nil
}
