package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/keys"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
)

// An ownKey is the key of an agent, and what it has signed. It is safe for concurrent use.
type ownKey struct {
	path string

	mu     sync.Mutex // owns what follows
	holder api.KeyHolder
	raw    []byte    // the last TD of an agent of the configuration
	due    time.Time // of its next grant
}

// openOwnKey opens the key that s has for the agent x, or makes it in the data directory dir; nil if the node owns the agent.
func (a *app) openOwnKey(dir string, s expose.Spec, x *expose.Agent) (*ownKey, error) {
	if !s.HasKey() {
		return nil, nil
	}
	path := s.Key
	if s.OwnKey {
		draft, err := td.Draft(x.TD)
		if err != nil {
			return nil, err
		}
		t, err := td.Parse(draft)
		if err != nil {
			return nil, err
		}
		path = keys.AgentPath(dir, t.Name())
	}
	audience, err := s.Audience()
	if err != nil {
		return nil, err
	}
	key, made, err := keys.Agent(path, s.OwnKey)
	if err != nil {
		return nil, err
	}
	if made && a.ForPeople() {
		a.Talk.Line(terminal.OneLine("made the key of the agent " + key.DID().Short() + "; keep a copy of its file: another key is another agent"))
	}
	x.Identify(key.DID())
	return &ownKey{path: path, holder: api.KeyHolder{Key: key, Visibility: audience}}, nil
}

// file returns the path of the key; empty for nil.
func (k *ownKey) file() string {
	if k == nil {
		return ""
	}
	return k.path
}

// host grants a web server to the node of c, for as long as a grant can be: this process does not stay to sign the next one.
func (k *ownKey) host(ctx context.Context, c *api.Client, x *expose.Agent, s expose.Spec) (*api.Publication, error) {
	k.holder.Life = td.GrantLife
	id, err := c.Identity(ctx)
	if err != nil {
		return nil, err
	}
	if err := k.holder.Follow(ctx, c, x.TD); err != nil {
		return nil, err
	}
	g, _, err := k.holder.Grant(x.TD, id.DID, time.Now())
	if err != nil {
		return nil, interact.AsError(err)
	}
	p, err := c.Host(ctx, g, s.For, s.Roles...)
	if err == nil && p.Hosted != nil {
		x.Warnings = append(x.Warnings, "the grant of its key ends at "+render.Stamp(p.Hosted.Expires)+
			": expose it again before, or put these arguments under agents: in the configuration (lmosd config edit)")
	}
	return p, err
}

// offer offers an agent of the configuration of n with the TD raw.
func (k *ownKey) offer(ctx context.Context, n *node.Node, x *expose.Agent, raw []byte, s expose.Spec) (*api.Publication, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.holder.Follow(ctx, n.Client(), raw); err != nil {
		return nil, err
	}
	g, due, err := k.holder.Grant(raw, n.DID(), time.Now())
	if err != nil {
		return nil, interact.AsError(err)
	}
	k.raw, k.due = raw, due
	if x.Thing == nil {
		return n.Client().Host(ctx, g, s.For, s.Roles...)
	}
	signed, err := g.Encode()
	if err != nil {
		return nil, err
	}
	return n.Offer(publication.WithRoles(ctx, s.Roles), signed, x.Thing)
}

// renew signs the next grant of an agent of the configuration when it is due, until ctx ends or the agent is at another node.
func (k *ownKey) renew(ctx context.Context, offer func(context.Context, []byte) (*api.Publication, error), s expose.Spec, log *slog.Logger) {
	const retry = time.Minute
	for wait := time.Duration(0); ; {
		k.mu.Lock()
		raw, due := k.raw, k.due
		k.mu.Unlock()
		if wait = max(wait, time.Until(due)); backoff.Sleep(ctx, wait) != nil {
			return
		}
		wait = 0
		switch _, err := offer(ctx, raw); {
		case err == nil:
		case ctx.Err() != nil:
			return
		case interact.AsError(err).Code == interact.RolledBack:
			log.Warn("grant of an agent not signed again", "target", s.Target, "err", err)
			return
		default:
			log.Warn("grant of an agent not signed again", "target", s.Target, "err", err, "retry", retry)
			wait = retry
		}
	}
}
