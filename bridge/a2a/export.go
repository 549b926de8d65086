package a2a

import (
	"context"
	"encoding/json"
	"iter"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/desk"
	"github.com/lmosd/lmosd/bridge/a2a/push"
	"github.com/lmosd/lmosd/bridge/a2a/serve"
	"github.com/lmosd/lmosd/bridge/a2a/wire"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// An exporter serves the things of a mesh to A2A clients.
type exporter struct {
	*serve.Handler
	mesh   bridge.Mesh
	desk   *desk.Desk
	pusher *push.Pusher
	own    desk.Subject // the agent of the node itself

	mu     sync.Mutex
	claims map[string]*claims // of agents that speak A2A, by their references
}

// Export implements [bridge.Bridge].
func (b *Bridge) Export(m bridge.Mesh) bridge.Handler {
	e := &exporter{mesh: m, desk: desk.New(b.o.Desk), pusher: push.New(b.o.Push), own: directoryAgent(m),
		claims: map[string]*claims{}}
	e.Handler = serve.New(serve.Options{Find: e.find, Base: m.PublicURL(), Log: b.o.Log})
	return e
}

// Paths implements [bridge.Handler].
func (e *exporter) Paths() []string { return serve.Paths }

// Close implements [bridge.Handler].
func (e *exporter) Close() {
	e.pusher.Close()
	e.desk.Close()
}

// find returns the agent of a name: a reference to a thing. Without a name it is the node, which finds others.
func (e *exporter) find(ctx context.Context, name string) (*serve.Agent, error) {
	if name == "" {
		return e.plain(e.own), nil
	}
	d, err := e.mesh.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	for action, a := range d.Thing.Actions {
		if slices.Contains(a.Types, bridge.A2AOperation) {
			return e.relayed(d, action), nil
		}
	}
	return e.plain(desk.Subject{Ref: d.Ref(), Desc: d.Thing, Thing: e.mesh}), nil
}

// plain serves a thing that does not speak A2A.
func (e *exporter) plain(s desk.Subject) *serve.Agent {
	return &serve.Agent{
		Card: func(at serve.Place) (*card.Card, error) { return e.sign(describeThing(s.Desc), at) },
		As: func(principal string, _ serve.Place) wire.Agent {
			return e.pusher.Wrap(e.desk.Agent(s, principal), s.Ref, principal)
		},
	}
}

// relayed serves a thing that does: its card is its own but for where it is, and its operations go to it as they are.
func (e *exporter) relayed(d *td.Description, action string) *serve.Agent {
	ref := d.Ref()
	return &serve.Agent{
		Card: func(at serve.Place) (*card.Card, error) { return e.sign(relayedCard(d.Thing), at) },
		As: func(principal string, at serve.Place) wire.Agent {
			return e.pusher.Wrap(e.claimsOf(ref).guard(&relay{e, ref, action, at}, principal), ref, principal)
		},
	}
}

// extended makes the extended card of an agent elsewhere one of this node: it is here that the agent is asked.
func (e *exporter) extended(raw json.RawMessage, at serve.Place) (json.RawMessage, error) {
	c, err := card.Parse(raw)
	if err != nil {
		return nil, wire.Errorf(wire.InvalidAgentResponse, "the extended card cannot be read")
	}
	c.Schemes, c.Requirements = nil, nil // the credentials stay at the agent's host
	if c, err = e.sign(c, at); err != nil {
		return nil, err
	}
	return c.Bytes()
}

// claimsOf are the claims on the tasks of an agent.
func (e *exporter) claimsOf(ref string) *claims {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.claims[ref]
	if c == nil {
		c = &claims{}
		e.claims[ref] = c
	}
	return c
}

// A relay asks the verbatim action of a thing.
type relay struct {
	*exporter
	ref, action string
	at          serve.Place
}

// How long an operation may take: a stream goes on as long as its task.
const (
	streamFor = 24 * time.Hour
	sendFor   = time.Hour
	askFor    = time.Minute
)

func patience(method string) time.Duration {
	switch {
	case wire.Streams(method):
		return streamFor
	case method == wire.SendMessage:
		return sendFor
	}
	return askFor
}

// Do implements [wire.Agent].
func (r *relay) Do(ctx context.Context, op *wire.Operation) iter.Seq2[json.RawMessage, error] {
	m := &interact.Message{Type: interact.InvokeAction, Thing: r.ref, Name: r.action, ID: interact.NewID(), Data: op.Bytes(),
		Deadline: time.Now().Add(patience(op.Method))}
	return func(yield func(json.RawMessage, error) bool) {
		for reply, err := range r.mesh.Do(ctx, m) {
			if err != nil {
				yield(nil, err)
				return
			}
			if len(reply.Data) == 0 {
				continue
			}
			result, err := wire.ParseOutcome(reply.Data)
			if err == nil && op.Method == wire.ExtendedCard {
				result, err = r.extended(result, r.at)
			}
			if !yield(result, err) || err != nil {
				return
			}
		}
	}
}

// sign puts into a card where the agent is, and signs it. Interfaces of 1.0 come first, then those of 0.3, and last the mesh,
// which ordinary clients do not know.
func (e *exporter) sign(c *card.Card, place serve.Place) (*card.Card, error) {
	base, name := place.Base, place.Name
	at := base
	if name != "" {
		at += "/" + url.PathEscape(name)
	}
	c.Interfaces = []card.Interface{
		{URL: at, Binding: card.JSONRPC, Version: "1.0"}, {URL: at, Binding: card.REST, Version: "1.0"},
		{URL: at, Binding: card.JSONRPC, Version: "0.3"}, {URL: at, Binding: card.REST, Version: "0.3"},
	}
	signer := e.mesh.Signer()
	if name != "" {
		c.Interfaces = slices.Insert(c.Interfaces, 2, card.Interface{URL: base, Binding: card.JSONRPC, Version: "1.0", Tenant: name})
		c.Interfaces = append(c.Interfaces, card.Interface{URL: "libp2p://" + signer.DID().PeerText() + "/a2a/" + url.PathEscape(name),
			Binding: Libp2pBinding, Version: "1.0", Tenant: name})
	}
	c.Signatures = nil
	if err := card.Sign(c, signer); err != nil {
		return nil, &interact.Error{Code: interact.Internal, Title: "the card cannot be signed", Hint: "see the log of the node",
			Err: err}
	}
	return c, nil
}
