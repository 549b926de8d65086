package a2a

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"iter"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/executor"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/bridge/a2a/push"
	"github.com/lmosd/lmosd/bridge/a2a/server"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// An exporter serves the things of a mesh to A2A clients.
type exporter struct {
	*server.Handler
	mesh   bridge.Mesh
	desk   *executor.Desk
	pusher *push.Pusher
	own    executor.Subject // the agent of the node itself
	secret []byte           // of the names by which hosts know callers of this node

	tasks, contexts bridge.Owners // of agents that speak A2A

	mu  sync.Mutex
	can map[string]able // what they say that they can, by their references
}

// An able is what an agent says that it can, in a description.
type able struct {
	of  *td.Description
	can card.Capabilities
}

// Export implements [bridge.Bridge].
func (b *Bridge) Export(m bridge.Mesh) bridge.Handler {
	e := &exporter{mesh: m, desk: executor.New(b.o.Desk), pusher: push.New(b.o.Push), own: directoryAgent(m),
		can: map[string]able{}, secret: secretOf(m.Signer())}
	e.Handler = server.New(server.Options{Find: e.find, Base: m.PublicURL(), Log: b.o.Log})
	return e
}

// Paths implements [bridge.Handler].
func (e *exporter) Paths() []string { return server.Paths }

// Close implements [bridge.Handler].
func (e *exporter) Close() {
	e.pusher.Close()
	e.desk.Close()
}

// find returns the agent of a name: a reference to a thing. Without a name it is the node, which finds others.
func (e *exporter) find(ctx context.Context, name string) (*server.Agent, error) {
	if name == "" {
		return e.directory(), nil
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
	return e.plain(d), nil
}

// directory serves the agent of the node itself.
func (e *exporter) directory() *server.Agent {
	return &server.Agent{
		Card: func(at server.Place) (*card.Card, error) { return e.sign(describeThing(e.own.Desc), at) },
		As: func(c server.Caller, _ server.Place) protocol.Agent {
			own := e.own
			own.From = c.From
			return e.pusher.Wrap(e.desk.Agent(own, c.Principal), own.Ref, c.Principal)
		},
	}
}

// plain serves a thing that does not speak A2A.
func (e *exporter) plain(d *td.Description) *server.Agent {
	s := executor.Subject{Ref: d.Ref(), Desc: d.Thing, Thing: e.mesh}
	whole := func(at server.Place) *card.Card {
		c := describeThing(d.Thing)
		offerExtended(c)
		provenance(c, d, at)
		return c
	}
	return &server.Agent{
		Card: func(at server.Place) (*card.Card, error) { return e.sign(whole(at), at) },
		As: func(c server.Caller, at server.Place) protocol.Agent {
			s := s
			s.From = c.From
			return extendedFor(e.pusher.Wrap(e.served(s, c.Principal), s.Ref, c.Principal), c,
				func(context.Context, *protocol.Operation) (json.RawMessage, error) {
					more := whole(at)
					extend(more, d.Thing)
					return e.signed(more, at)
				})
		},
	}
}

// relayed serves a thing that does: its card is its own but for where it is, and its operations go to it as they are.
func (e *exporter) relayed(d *td.Description, action string) *server.Agent {
	ref, can := d.Ref(), e.abilities(d)
	more := card.Yes(can.ExtendedCard)
	return &server.Agent{
		Card: func(at server.Place) (*card.Card, error) {
			c := relayedCard(d.Thing)
			if more {
				offerExtended(c)
			}
			provenance(c, d, at)
			return e.sign(c, at)
		},
		As: func(c server.Caller, at server.Place) protocol.Agent {
			far := &relay{e, ref, action, c.From, e.nameOf(c.Principal, ref)}
			a := e.pusher.Wrap(within(claims{e.tasks.OfAgent(ref), e.contexts.OfAgent(ref)}.guard(far, c.Principal), can), ref, c.Principal)
			if !more {
				return extendedFor(a, c, nil)
			}
			return extendedFor(a, c, func(ctx context.Context, op *protocol.Operation) (json.RawMessage, error) {
				raw, err := protocol.Ask(ctx, far, op)
				if err != nil {
					return nil, err
				}
				return e.extended(raw, d, at)
			})
		},
	}
}

// maxAble bounds what is remembered of agents.
const maxAble = 1024

// abilities are what an agent says that it can. They are read once: each operation asks for them.
func (e *exporter) abilities(d *td.Description) card.Capabilities {
	ref := d.Ref()
	e.mu.Lock()
	known, ok := e.can[ref]
	e.mu.Unlock()
	if ok && known.of == d {
		return known.can
	}
	can := relayedCard(d.Thing).Capabilities
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.can) >= maxAble {
		clear(e.can)
	}
	e.can[ref] = able{d, can}
	return can
}

// extended makes the extended card of an agent elsewhere one of this node: it is here that the agent is asked.
func (e *exporter) extended(raw json.RawMessage, d *td.Description, at server.Place) (json.RawMessage, error) {
	c, err := card.Parse(raw)
	if err != nil {
		return nil, protocol.Errorf(protocol.InvalidAgentResponse, "the extended card cannot be read")
	}
	offerExtended(c) // the credentials stay at the agent's host
	provenance(c, d, at)
	return e.signed(c, at)
}

// signed is a card as it is sent.
func (e *exporter) signed(c *card.Card, at server.Place) (json.RawMessage, error) {
	c, err := e.sign(c, at)
	if err != nil {
		return nil, err
	}
	return c.Bytes()
}

// A relay asks the verbatim action of a thing.
type relay struct {
	*exporter
	ref, action string
	from        *did.Principal
	caller      string // what the host is told
}

// How long an operation may take: a stream goes on as long as its task.
const (
	streamFor = 24 * time.Hour
	sendFor   = time.Hour
	askFor    = time.Minute
)

func patience(method string) time.Duration {
	switch {
	case protocol.Streams(method):
		return streamFor
	case method == protocol.SendMessage:
		return sendFor
	}
	return askFor
}

// Do implements [protocol.Agent].
func (r *relay) Do(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
	if r.caller != "" {
		named := *op
		if named.Service = maps.Clone(op.Service); named.Service == nil {
			named.Service = map[string]string{}
		}
		named.Service[protocol.PrincipalParam] = r.caller
		op = &named
	}
	m := &interact.Message{Type: interact.InvokeAction, Thing: r.ref, Name: r.action, ID: interact.NewID(), From: r.from, Data: op.Bytes(),
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
			result, err := protocol.ParseOutcome(reply.Data)
			if !yield(result, err) || err != nil {
				return
			}
		}
	}
}

// secretOf makes a secret of the key of a node, the same after each start: a signature that is asked for here only, and shown to nobody.
func secretOf(s did.Signer) []byte {
	text := sha512.Sum512([]byte("lmosd: callers of A2A"))
	signature, err := s.Sign(did.PurposeAssertion, text[:])
	if err != nil { // a signer that signs nothing else has callers of this start
		return []byte(rand.Text())
	}
	return signature
}

// nameOf is what the host of an agent calls a principal of this node: nobody else can make it, and it says nothing about the
// principal. Each agent has another: what one learns is of no use at others.
func (e *exporter) nameOf(principal, agent string) string {
	if principal == "" {
		return ""
	}
	mac := hmac.New(sha256.New, e.secret)
	mac.Write([]byte(agent + "\n" + principal))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// sign puts into a card where the agent is, and signs it. Interfaces of 1.0 come first, then those of 0.3, and last the mesh,
// which ordinary clients do not know.
func (e *exporter) sign(c *card.Card, place server.Place) (*card.Card, error) {
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
