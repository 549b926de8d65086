package node

import (
	"context"
	"iter"
	"math"
	"strconv"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/discovery/explore"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/servient"
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
		return nil, n.WithClock(err)
	case h != nil:
		return h.Description, nil
	}
	d, err := n.dir.Get(ctx, ref)
	return d, n.WithClock(err)
}

// named returns the discovered thing that ref names, or nil if that is for the directory to say.
func (n *Node) named(ctx context.Context, ref string) (*explore.Discovered, error) {
	glance := func(ctx context.Context, ref string) (*td.Description, error) {
		return n.dir.Get(directory.WithoutUse(ctx), ref)
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

// bind returns the Thing of a description: the agent if this node offers it, else the Thing at its hosts. Only a TD that was published here
// leads to an agent of this node; a foreign record that names this node as a host does not.
func (n *Node) bind(d *td.Description) interact.Thing {
	if agent := n.offered.AgentOf(d); agent != nil {
		return agent
	}
	return n.servient.Consume(d, n.streams.Thing(d.Record.Hosts), n.presence.Watch(d))
}

// Presence returns the state of a Thing, as far as it is known; it sends no request.
func (n *Node) Presence(d *td.Description) reachability.Presence { return n.presence.Presence(d) }

// Look finds out whether Things can be reached, for [Node.Presence] (presence.Monitor.Look).
func (n *Node) Look(ctx context.Context, things ...*td.Description) { n.presence.Look(ctx, things...) }

// Resembles returns the name that the name of a Thing resembles (directory.Directory.Resembles).
func (n *Node) Resembles(r *td.Record) string { return n.dir.Resembles(r) }

// Connect connects to a peer, which then is a bootstrap peer as long as the node runs.
func (n *Node) Connect(ctx context.Context, addr string) error {
	p, err := n.peers.Connect(ctx, addr)
	if err == nil {
		n.bootstrap.HandlePeerFound(p)
	}
	return err
}

// Tasks are the tasks that consumers of this node started (gateway.TaskKeeper).
func (n *Node) Tasks() gateway.Tasks {
	return gateway.LedgerTasks{Ledger: n.ledger, Mesh: n.mesh, Directory: n.dir, Hosted: n.Hosted}
}

// Paths returns the paths to a Thing, best first (gateway.PathFinder).
func (n *Node) Paths(ctx context.Context, ref string) ([]api.Path, error) {
	t, err := n.dir.Locate(ctx, ref)
	if err != nil {
		return nil, err
	}
	far, ok := t.(*servient.Consumed)
	if !ok {
		return []api.Path{{Name: "local"}}, nil
	}
	var all []api.Path
	for _, s := range far.Paths.States(time.Now()) {
		all = append(all, api.Path{Name: s.Name, Down: s.Down, Took: ms(s.Took)})
	}
	return all, nil
}

// Ping measures the round trips to the host of a Thing (gateway.Pinger).
func (n *Node) Ping(ctx context.Context, ref string, times int) (*api.Ping, error) {
	d, err := n.dir.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	p := &api.Ping{Ref: d.Ref(), Node: n.DID(), Path: "local", RTT: make([]float64, 0, times)}
	if n.offered.Has(d) {
		for range times {
			p.RTT = append(p.RTT, 0)
		}
		return p, nil
	}
	for _, h := range d.Record.Hosts {
		transport, all, failed := n.peers.Ping(ctx, h.Node, times)
		if err = failed; err == nil {
			p.Node, p.Path = h.Node, "mesh "+transport
			for _, rtt := range all {
				p.RTT = append(p.RTT, float64(rtt)/float64(time.Millisecond))
			}
			return p, nil
		}
	}
	return nil, &interact.Error{Code: interact.Unreachable, Title: "no host of " + d.Name() + " answers a ping", Err: err,
		Hint: "see where it is", Next: interact.Next(interact.StepShow, ref)}
}
