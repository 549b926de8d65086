package node

import (
	"context"
	"iter"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/openai"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/td"
)

// Search says how questions in words are understood. The zero value compares words; it sends no request.
type Search struct {
	// Method decides which agent gets a task (package route); empty means by words.
	Method route.Method
	// Embeddings tell what things and questions mean; Model chooses between agents.
	Embeddings, Model Endpoint
}

// An Endpoint speaks the API of OpenAI (package openai). Without a URL it is none.
type Endpoint struct{ URL, Model, Key string }

// client returns a client of the endpoint; nil if it is none. key is the key of the configuration, for the error.
func (e Endpoint) client(key string) (*openai.Client, error) {
	if e.URL == "" {
		return nil, nil
	}
	c, err := openai.New(openai.Options{URL: e.URL, Model: e.Model, Key: e.Key})
	if err != nil {
		return nil, interact.Errorf(interact.ConfigInvalid, "for example "+key+".url: http://127.0.0.1:11434/v1 and "+key+".model: all-minilm",
			"%s: %v", key, err)
	}
	return c, nil
}

// openSearch opens what the directory and the router ask for meanings.
func (n *Node) openSearch() (err error) {
	embed, err := n.opts.Search.Embeddings.client("search.embeddings")
	if err != nil {
		return err
	}
	model, err := n.opts.Search.Model.client("search.model")
	if err != nil {
		return err
	}
	o := route.Options{Find: n.known, State: n.standing, Method: n.opts.Search.Method}
	if embed != nil {
		n.onClose(func() error { embed.Close(); return nil })
		n.embedder, o.Embedder = embed, embed
	}
	if model != nil {
		n.onClose(func() error { model.Close(); return nil })
		o.Model = decider{model}
	}
	n.router, err = route.New(o)
	return err
}

// known yields what the directory has for q; it sends no request: who routes a task is in a hurry.
func (n *Node) known(_ context.Context, q td.Query) iter.Seq2[*td.Description, error] {
	return func(yield func(*td.Description, error) bool) {
		for d := range n.dir.FindLocal(q) {
			if !yield(d, nil) {
				return
			}
		}
	}
}

// standing is what the router is told of an agent besides its description: a thing with several hosts is as near as the nearest.
func (n *Node) standing(d *td.Description) (s route.AgentState) {
	p := n.Presence(d)
	s.Unreachable, s.Refused = p.State == directory.StateUnreachable, p.State == directory.StateRefused
	s.Reached, s.Local = p.State == directory.StateReachable, n.offered.Has(d)
	s.Trust, _ = n.trust(d.Record.Owner)
	for _, h := range d.Record.Hosts {
		if took := n.latency(h.Node); took > 0 && (s.RoundTrip == 0 || took < s.RoundTrip) {
			s.RoundTrip = took
		}
	}
	return s
}

// Route picks an agent for a task.
func (n *Node) Route(ctx context.Context, q route.Request) (*route.Decision, error) {
	return n.router.Route(ctx, q)
}

// A decider asks a model that speaks the API of OpenAI.
type decider struct{ *openai.Client }

func (d decider) Decide(ctx context.Context, prompt string, turns []route.Turn) (string, error) {
	said := []openai.Turn{{Role: openai.System, Content: prompt}}
	for _, t := range turns {
		role := openai.User
		if t.Assistant() {
			role = openai.Assistant
		}
		said = append(said, openai.Turn{Role: role, Content: t.Content})
	}
	return d.Complete(ctx, said, true)
}

// ranking is what the directory ranks by, beside words.
func (n *Node) ranking(o *directory.Options) {
	o.Latency = n.latency
	o.Connected = n.connectedTo
	o.Share = n.shareOf
	o.Trust = n.trust
	o.Probe = n.probe
	if n.embedder != nil {
		o.Embedder = n.embedder
	}
}

// trust says how much the owner of a thing is trusted: what this node offers wholly, others by its rules. The vendor that a TD names
// does not count: anybody can name it.
func (n *Node) trust(owner did.DID) (amount float64, why string) {
	if owner == n.DID() {
		return 1, "this node"
	}
	return n.policy.Trust(owner)
}

// latency returns how long a message to a node takes, as the pings of its connections say.
func (n *Node) latency(node did.DID) time.Duration {
	raw, err := node.Peer()
	if err != nil {
		return 0
	}
	return n.host.Peerstore().LatencyEWMA(peer.ID(raw))
}

// probe tries to reach a node that was down, over the addresses that its things name, however lately it was dialled in vain: who
// asks paces it.
func (n *Node) probe(ctx context.Context, node did.DID) error {
	raw, err := node.Peer()
	if err != nil {
		return err
	}
	id := peer.ID(raw)
	to := peer.AddrInfo{ID: id}
	for d := range n.dir.FindLocal(td.Query{Host: node, Limit: 1}) {
		for _, h := range d.Record.Hosts {
			if h.Node == node {
				to.Addrs = addrsOf(h)
			}
		}
	}
	if s, ok := n.host.Network().(*swarm.Swarm); ok {
		s.Backoff().Clear(id)
	}
	return n.host.Connect(ctx, to)
}

// addrsOf returns the addresses of a host that are well-formed.
func addrsOf(h td.Host) []ma.Multiaddr {
	all := make([]ma.Multiaddr, 0, len(h.Addrs))
	for _, text := range h.Addrs {
		if a, err := ma.NewMultiaddr(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// hosts returns how this node is reached, for the records that it signs.
func (n *Node) hosts() []td.Host {
	return []td.Host{{Node: n.key.DID(), Addrs: p2p.RecordAddrs(n.host.Addrs())}}
}

// Addrs returns the multiaddrs at which peers reach the node, with /p2p.
func (n *Node) Addrs() []string { return p2p.FullAddrs(n.host) }

// shareOf returns the share of the directory that counts what a peer sends: its own, or one for all peers of its address range, if it is
// not trusted and has a public address. Keys cost nothing, a range of addresses does. A relay, a private network or loopback shows
// nothing of the address of a peer.
func (n *Node) shareOf(id did.DID) string {
	if amount, _ := n.trust(id); amount >= 1 {
		return string(id)
	}
	raw, err := id.Peer()
	if err != nil {
		return string(id)
	}
	for _, c := range n.host.Network().ConnsToPeer(peer.ID(raw)) {
		if r, ok := n.opts.Ranges.Of(c.RemoteMultiaddr()); ok && !c.Stat().Limited {
			return r.String()
		}
	}
	return string(id)
}
