package node

import (
	"context"
	"fmt"
	"iter"
	"math"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/discovery/explore"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Mesh asks any thing, here or elsewhere.
func (n *Node) Mesh() interact.Thing { return n.mesh }

// Find reads the directory, then asks the mesh (directory.Directory.Find); last comes what the local network introduces, as far as
// the limit of q has room for it.
func (n *Node) Find(ctx context.Context, q td.Query) iter.Seq2[*td.Description, error] {
	return n.discoveries.After(n.dir.Find(ctx, q), q)
}

// Get returns the one thing that ref names. An id without its owner is the mesh's, if the mesh has it; a name that a thing of the
// local network has as well names neither (interact.Ambiguous).
func (n *Node) Get(ctx context.Context, ref string) (*td.Description, error) {
	h, err := n.named(ctx, ref)
	switch {
	case err != nil:
		return nil, n.blameClock(err)
	case h != nil:
		return h.Description, nil
	}
	d, err := n.dir.Get(ctx, ref)
	return d, n.blameClock(err)
}

// named returns the discovered thing that ref names, or nil if that is for the directory to say.
func (n *Node) named(ctx context.Context, ref string) (*explore.Discovered, error) {
	glance := func(ctx context.Context, ref string) (*td.Description, error) {
		return n.dir.Get(directory.Glance(ctx), ref)
	}
	return n.discoveries.Named(ctx, ref, glance, n.dir.Established)
}

// Namesakes returns exact references to others of the name by which d was asked for.
func (n *Node) Namesakes(ref string, d *td.Description) []string {
	return n.dir.Namesakes(ref, d, maxNamesakes)
}

// maxNamesakes is how many others of a name are listed.
const maxNamesakes = 8

// Known yields what the directory holds; it sends no request.
func (n *Node) Known() iter.Seq[*td.Description] {
	return n.dir.FindLocal(td.Query{Limit: math.MaxInt})
}

// Page returns a part of what the directory holds; it sends no request. Discovered things are in a list of their own: whoever explores
// this directory must not hear of them as if they were of the mesh.
func (n *Node) Page(s tdd.Scope, offset, limit int) tdd.Page {
	if s != tdd.Discovered {
		return n.index().Page(s, offset, limit)
	}
	all, state := n.discoveries.All()
	p := tdd.Page{Total: len(all), Tag: "d" + strconv.FormatUint(state, 36)}
	all = all[min(offset, len(all)):]
	if limit > 0 {
		all = all[:min(limit, len(all))]
	}
	for _, one := range all {
		p.Items = append(p.Items, tdd.Item{Record: one.Record, TD: one.Raw, Describe: func() *td.Description { return one.Description }})
	}
	return p
}

// Lookup returns what the directory holds of an id; it sends no request.
func (n *Node) Lookup(id string) []tdd.Item { return n.index().Lookup(id) }

func (n *Node) index() tdd.Index { return tdd.Index{Directory: n.dir, Self: n.DID()} }

// Watch yields the changes of what q asks for (directory.Directory.Watch), discovered things included.
func (n *Node) Watch(ctx context.Context, q td.Query, after uint64) iter.Seq2[directory.Change, error] {
	return n.dir.Watch(ctx, q, after)
}

// Rank orders descriptions by how well they fit q, and says why.
func (n *Node) Rank(ctx context.Context, q td.Query, found []*td.Description) []directory.Ranked {
	return n.dir.Rank(ctx, q, found)
}

// Latest returns the number of the last change of what is known.
func (n *Node) Latest() uint64 { return n.dir.Latest() }

// Hosted reports whether this node offers d.
func (n *Node) Hosted(d *td.Description) bool { return n.offered.Has(d) }

// bind makes the Thing of a description: the agent itself if this node offers it, else the ways to it. An agent is asked over
// its forms without a guard only if its TD was published here: a stranger's record that names this node as host leads nowhere.
func (n *Node) bind(d *td.Description) interact.Thing {
	if agent := n.offered.AgentOf(d); agent != nil {
		return agent
	}
	far := &elsewhere{ways: n.ways(d)}
	far.Thing = interact.Chain(far.ways, interact.Named(d.Ref()), n.hub.Middleware(), n.doubted(d))
	return far
}

// elsewhere is a thing of another node, and the ways to it.
type elsewhere struct {
	interact.Thing
	ways *interact.Paths
}

// ways are the mesh, at whose other end the host checks what it is asked, and what forms there are that may be asked directly.
func (n *Node) ways(d *td.Description) *interact.Paths {
	paths := []interact.Path{{Name: "mesh", Thing: n.streams.Thing(d.Record.Hosts)}}
	if n.strangers != nil {
		for _, p := range n.strangers.paths(d.Thing, 1) {
			p.Thing = interact.Chain(p.Thing, n.checked(d.Thing), interact.Composed(d.Thing))
			paths = append(paths, p)
		}
	}
	return interact.NewPaths(d.Thing, paths...)
}

// agent puts around an agent of this host what every interaction with it passes, in this order: the checks of its description,
// tasks, its limits, one subscription for all, operations on all made of single ones, the replies' checks and times, and last what
// notes whether the agent answers.
// Without an agent of this process it is asked over the forms of its TD.
func (n *Node) agent(d *td.Description, agent interact.Thing) interact.Thing {
	h := n.healthOf(d, agent)
	if agent == nil {
		paths := n.own.paths(d.Thing, 0)
		for i, p := range paths {
			paths[i].Thing = n.metrics.Stage("agent", p.Name)(p.Thing)
		}
		agent = interact.NewPaths(d.Thing, paths...)
	} else {
		agent = n.metrics.Stage("agent", "inside")(agent)
	}
	layers := []interact.Middleware{n.checked(d.Thing), n.tasks.Middleware(d.Thing), n.limits(d), n.hub.Middleware(), interact.Composed(d.Thing)}
	if !n.opts.NoValidation {
		layers = append(layers, interact.CheckedReplies(d.Thing))
	}
	layers = append(layers, n.guards(d)...)
	return &hosted{health: h, Thing: interact.Chain(agent, append(layers, interact.Timed(func(t *interact.Timing, took time.Duration) { t.Agent = took }),
		interact.Spans(n.tracer, "agent"), h.wrap)...)}
}

// limits are the places of an agent: as many as the policy gives one, or as its description says that it takes calls at once. A
// session of MCP is open for long and mostly idle; an operation of A2A is a call like others.
func (n *Node) limits(d *td.Description) interact.Middleware {
	return n.policy.LimitThing(d.ID, d.Concurrency, func(name string) bool {
		a := d.Actions[name]
		return a != nil && slices.Contains(a.Types, bridge.MCPSession)
	})
}

// guards are what looks into the tunnels of other protocols that d has, so that the policy holds in them.
func (n *Node) guards(d *td.Description) (layers []interact.Middleware) {
	for _, b := range n.opts.Bridges {
		g, ok := b.(bridge.TunnelGuard)
		if !ok {
			continue
		}
		// The tunnel itself has a place of the node's and of the thing's.
		if w := g.Guard(d.Thing, func(_ context.Context, m *interact.Message) error { return n.policy.Allows(m, d.ID, d.Concurrency) }); w != nil {
			layers = append(layers, w)
		}
	}
	if len(layers) > 0 {
		layers = append(layers, n.steady)
	}
	return layers
}

// steady is an agent that may panic: that is an error to who asks. Who looks into a tunnel asks in a goroutine of its own, where nobody
// else would catch it.
func (n *Node) steady(agent interact.Thing) interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			ours, more := false, true // what runs is the loop, whose panics are not the agent's; the loop goes on
			defer func() {
				if ours {
					return
				}
				if p := recover(); p != nil {
					n.log.Error("an agent panicked", "thing", m.Thing, "name", m.Name, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
					if more {
						yield(nil, interact.Errorf(interact.Internal, "see the log of the host", "the host failed while it asked %s", m.Name))
					}
				}
			}()
			agent.Do(ctx, m)(func(r *interact.Message, err error) bool {
				ours = true
				more = yield(r, err)
				ours = false
				return more
			})
		}
	})
}

// checked is the check of requests, unless it is off.
func (n *Node) checked(d *td.Thing) interact.Middleware {
	if n.opts.NoValidation {
		return func(t interact.Thing) interact.Thing { return t }
	}
	return interact.Checked(d)
}

// reached notes whether a node could be reached. One that refuses this node is there, and is no host that failed.
func (n *Node) reached(id did.DID, ok bool) {
	if ok || n.refusal(id) == nil {
		n.dir.Reach(id, ok)
	}
}

// lost deals with a host of known things that was found gone.
func (n *Node) lost(id did.DID) {
	if p, err := id.Peer(); err == nil {
		n.dht.Forget(peer.ID(p))
	}
	n.suspicion.Report(id)
}
