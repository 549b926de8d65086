package node

import (
	"context"
	"iter"
	"math"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Mesh asks any thing, here or elsewhere.
func (n *Node) Mesh() interact.Thing { return n.mesh }

// Find reads the directory, then asks the mesh (directory.Directory.Find).
func (n *Node) Find(ctx context.Context, q td.Query) iter.Seq2[*td.Description, error] {
	return n.dir.Find(ctx, q)
}

// Get returns the one thing that ref names.
func (n *Node) Get(ctx context.Context, ref string) (*td.Description, error) {
	return n.dir.Get(ctx, ref)
}

// Known yields what the directory holds, and asks nobody.
func (n *Node) Known() iter.Seq[*td.Description] {
	return n.dir.FindLocal(td.Query{Limit: math.MaxInt})
}

// Reachable reports whether a host of d is not known to be down.
func (n *Node) Reachable(d *td.Description) bool { return n.offers.has(d) || n.dir.Reachable(d) }

// Hosted reports whether this node offers d.
func (n *Node) Hosted(d *td.Description) bool { return n.offers.has(d) }

// bind makes the Thing of a description: the agent itself if this node offers it, else its hosts. Only what was published
// here is ever asked directly: a stranger's record that names this node as host leads nowhere.
func (n *Node) bind(d *td.Description) interact.Thing {
	if agent := n.offers.agentOf(d); agent != nil {
		return agent
	}
	return interact.Chain(n.streams.Thing(d.Record.Hosts), interact.Named(d.Ref()), interact.Checked(d.Thing))
}

// agent asks an agent of this host over the forms of its TD. The binding checks what it sends: only it knows which members of
// the input are secrets that it adds itself.
func (n *Node) agent(d *td.Description) interact.Thing {
	return n.agents.Thing(d.Thing)
}

func (n *Node) reached(id did.DID, ok bool) { n.dir.Reach(id, ok) }
