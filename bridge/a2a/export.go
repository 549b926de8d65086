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

// An exporter serves the Things of a mesh to A2A clients.
type exporter struct {
	*server.Handler
	mesh     bridge.Mesh
	executor *executor.Executor
	pusher   *push.Pusher
	own      executor.Agent // the agent of the node itself
	secret   []byte         // derives the caller names that hosts see

	tasks, contexts bridge.Owners // of imported A2A agents

	mu  sync.Mutex
	can map[string]declaredCapabilities // by reference
}

// declaredCapabilities are the capabilities in the description of an agent.
type declaredCapabilities struct {
	of  *td.Description
	can card.Capabilities
}

// Export implements [bridge.Bridge].
func (b *Bridge) Export(m bridge.Mesh) bridge.Handler {
	e := &exporter{mesh: m, executor: executor.New(b.o.Executor), pusher: push.New(b.o.Push), own: directoryAgent(m),
		can: map[string]declaredCapabilities{}, secret: secretOf(m.Signer())}
	e.Handler = server.New(server.Options{Find: e.find, Base: m.PublicURL(), Log: b.o.Log})
	return e
}

// Paths implements [bridge.Handler].
func (e *exporter) Paths() []string { return server.Paths }

// Close implements [bridge.Handler].
func (e *exporter) Close() {
	e.pusher.Close()
	e.executor.Close()
}

// find returns the agent for the reference of a Thing; the directory agent for an empty name.
func (e *exporter) find(ctx context.Context, name string) (*server.Agent, error) {
	if name == "" {
		return e.directory(), nil
	}
	d, err := e.mesh.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	if action := bridge.ActionOfType(d.Thing, bridge.A2AOperation); action != "" {
		return e.relayed(d, action), nil
	}
	return e.plain(d), nil
}

// directory returns the agent of the node itself.
func (e *exporter) directory() *server.Agent {
	return &server.Agent{
		Card: func(at server.Endpoint) (*card.Card, error) { return e.sign(describeThing(e.own.Desc), at) },
		For: func(c server.Caller, _ server.Endpoint) protocol.Agent {
			own := e.own
			own.From = c.From
			return e.pusher.Agent(e.executor.Agent(own, c.Principal), own.Ref, c.Principal)
		},
	}
}

// plain returns an agent for a Thing that is not an A2A agent.
func (e *exporter) plain(d *td.Description) *server.Agent {
	s := executor.Agent{Ref: d.Ref(), Desc: d.Thing, Thing: e.mesh}
	whole := func(at server.Endpoint) *card.Card {
		c := describeThing(d.Thing)
		declareExtended(c)
		provenance(c, d, at)
		return c
	}
	return &server.Agent{
		Card: func(at server.Endpoint) (*card.Card, error) { return e.sign(whole(at), at) },
		For: func(c server.Caller, at server.Endpoint) protocol.Agent {
			s := s
			s.From = c.From
			return extendedFor(e.pusher.Agent(e.served(s, c.Principal), s.Ref, c.Principal), c,
				func(context.Context, *protocol.Operation) (json.RawMessage, error) {
					more := whole(at)
					extend(more, d.Thing)
					return e.signed(more, at)
				})
		},
	}
}

// relayed returns an agent for an imported A2A agent: its own card with the interfaces of this node, and its operations verbatim.
func (e *exporter) relayed(d *td.Description, action string) *server.Agent {
	ref, can := d.Ref(), e.capabilities(d)
	more := card.Supported(can.ExtendedCard)
	return &server.Agent{
		Card: func(at server.Endpoint) (*card.Card, error) {
			c := relayedCard(d.Thing)
			if more {
				declareExtended(c)
			}
			provenance(c, d, at)
			return e.sign(c, at)
		},
		For: func(c server.Caller, at server.Endpoint) protocol.Agent {
			far := &relay{e, ref, action, c.From, e.nameOf(c.Principal, ref)}
			a := e.pusher.Agent(within(owners{e.tasks.OfAgent(ref), e.contexts.OfAgent(ref), c.Shared()}.guard(far, c.Principal), can), ref, c.Principal)
			if !more {
				return extendedFor(a, c, nil)
			}
			return extendedFor(a, c, func(ctx context.Context, op *protocol.Operation) (json.RawMessage, error) {
				raw, err := protocol.Call(ctx, far, op)
				if err != nil {
					return nil, err
				}
				return e.extended(raw, d, at)
			})
		},
	}
}

// maxCapabilities is the number of cached capabilities.
const maxCapabilities = 1024

// capabilities returns the declared capabilities of an agent. They are cached, because each operation needs them.
func (e *exporter) capabilities(d *td.Description) card.Capabilities {
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
	if len(e.can) >= maxCapabilities {
		clear(e.can)
	}
	e.can[ref] = declaredCapabilities{d, can}
	return can
}

// extended converts the extended card of a remote agent: with the interfaces and the signature of this node.
func (e *exporter) extended(raw json.RawMessage, d *td.Description, at server.Endpoint) (json.RawMessage, error) {
	c, err := card.Parse(raw)
	if err != nil {
		return nil, protocol.Errorf(protocol.InvalidAgentResponse, "invalid extended card")
	}
	declareExtended(c) // the host of the agent has the credentials
	provenance(c, d, at)
	return e.signed(c, at)
}

// signed returns a signed card as JSON.
func (e *exporter) signed(c *card.Card, at server.Endpoint) (json.RawMessage, error) {
	c, err := e.sign(c, at)
	if err != nil {
		return nil, err
	}
	return c.Bytes()
}

// A relay invokes the verbatim action of a Thing.
type relay struct {
	*exporter
	ref, action string
	from        *did.Principal
	caller      string // the caller's name for the host
}

// Time limits of operations.
const (
	streamTimeout  = 24 * time.Hour
	sendTimeout    = time.Hour
	defaultTimeout = time.Minute
)

func operationTimeout(method string) time.Duration {
	switch {
	case protocol.Streams(method):
		return streamTimeout
	case method == protocol.SendMessage:
		return sendTimeout
	}
	return defaultTimeout
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
		Deadline: time.Now().Add(operationTimeout(op.Method))}
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

// secretOf derives a secret from the key of a node, which survives restarts: a signature that is not published.
func secretOf(s did.Signer) []byte {
	text := sha512.Sum512([]byte("lmosd: callers of A2A"))
	signature, err := s.Sign(did.PurposeAssertion, text[:])
	if err != nil { // a signer that refuses it gets a secret for this process
		return []byte(rand.Text())
	}
	return signature
}

// nameOf returns the name of a principal for the host of an agent. Only this node can compute it, and it reveals nothing about the
// principal. It differs per agent, so a host cannot use it at others.
func (e *exporter) nameOf(principal, agent string) string {
	if principal == "" {
		return ""
	}
	mac := hmac.New(sha256.New, e.secret)
	mac.Write([]byte(agent + "\n" + principal))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// sign sets the interfaces of a card, and signs it. Interfaces of 1.0 come first, then those of 0.3, and last the custom libp2p binding.
func (e *exporter) sign(c *card.Card, at server.Endpoint) (*card.Card, error) {
	address, path := at.Base, url.PathEscape(at.Name)
	if at.Name != "" {
		address += "/" + path
	}
	c.Interfaces = []card.Interface{
		{URL: address, Binding: card.JSONRPC, Version: "1.0"}, {URL: address, Binding: card.REST, Version: "1.0"},
		{URL: address, Binding: card.JSONRPC, Version: "0.3"}, {URL: address, Binding: card.REST, Version: "0.3"},
	}
	signer := e.mesh.Signer()
	if at.Name != "" {
		c.Interfaces = slices.Insert(c.Interfaces, 2, card.Interface{URL: at.Base, Binding: card.JSONRPC, Version: "1.0", Tenant: at.Name})
		c.Interfaces = append(c.Interfaces, card.Interface{URL: "libp2p://" + signer.DID().PeerText() + "/a2a/" + path,
			Binding: libp2pBinding, Version: "1.0", Tenant: at.Name})
	}
	c.Signatures = nil
	if err := card.Sign(c, signer); err != nil {
		return nil, &interact.Error{Code: interact.Internal, Title: "signing the card failed", Hint: "see the log of the node",
			Err: err}
	}
	return c, nil
}
