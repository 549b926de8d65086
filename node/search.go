package node

import (
	"context"
	"iter"

	"github.com/lmosd/lmosd/directory/reachability"
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
	s.Unreachable, s.Refused = p.State == reachability.Unreachable, p.State == reachability.Refused
	s.Reached, s.Local = p.State == reachability.Reachable, n.offered.Has(d)
	s.Trust, _ = n.policy.Trust(d.Record.Owner)
	for _, h := range d.Record.Hosts {
		if took := n.peers.Latency(h.Node); took > 0 && (s.RoundTrip == 0 || took < s.RoundTrip) {
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
	messages := []openai.Turn{{Role: openai.System, Content: prompt}}
	for _, t := range turns {
		role := openai.User
		if t.Assistant() {
			role = openai.Assistant
		}
		messages = append(messages, openai.Turn{Role: role, Content: t.Content})
	}
	return d.Complete(ctx, messages, true)
}

// hosts returns how this node is reached, for the records that it signs.
func (n *Node) hosts() []td.Host {
	return []td.Host{{Node: n.key.DID(), Addrs: p2p.RecordAddrs(n.host.Addrs())}}
}

// Addrs returns the multiaddrs at which peers reach the node, with /p2p.
func (n *Node) Addrs() []string { return p2p.FullAddrs(n.host) }
