package node

import (
	"context"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// movedFor is how long others are told where a thing has gone: as long as a record may live.
const movedFor = 30 * 24 * time.Hour

// Move tells the mesh that a thing of this node is another owner's from now on, and withdraws it here. To is the owner's DID, or names
// the thing at its new host. Who asks for the thing as it was called here gets the new owner's (td.Record.Heir), if there is one. A
// thing that has moved may be sent elsewhere. The error is [interact.Invalid] if the thing that to names is no heir.
func (n *Node) Move(ctx context.Context, ref, to string) (*api.Publication, error) {
	start := time.Now()
	thing, name, err := n.movable(ctx, ref)
	if err != nil {
		return nil, err
	}
	successor, err := n.successor(ctx, thing, to)
	if err != nil {
		return nil, err
	}
	of, err := n.offers.end(ctx, thing, successor)
	if err != nil {
		return nil, interact.AsError(err)
	}
	p := n.report(of, n.tellSoon(ctx, of), start)
	p.Name, p.Withdrawn, p.MovedTo = name, true, successor
	if d, err := n.dir.Get(ctx, heir(thing, successor).String()); err == nil {
		p.Successor = d.Ref()
	}
	n.log.Info("moved", "thing", of.Thing, "to", successor, "seq", of.Seq, "replicas", p.Replicas, "gossip", p.GossipPeers, "took", time.Since(start))
	return p, nil
}

func heir(thing string, successor did.DID) td.Ref {
	return (&td.Record{Thing: thing, Successor: successor}).Heir()
}

// movable returns the id and the name of a thing that this node may send elsewhere: one of its own, or one that it sent away.
func (n *Node) movable(ctx context.Context, ref string) (thing, name string, err error) {
	r := td.ParseRef(ref)
	if of := n.offers.get(r.Name); of != nil && of.Moved != "" && r.Owns(n.DID()) {
		return of.Thing, td.Slug(of.Thing), nil
	}
	d, err := n.dir.Get(ctx, ref)
	switch {
	case err != nil:
		return "", "", err
	case d.Record.Owner != n.DID():
		return "", "", notOurs(d)
	}
	return d.Record.Thing, d.Name(), nil
}

// successor returns the owner that to names. Records are signed by did:keys alone, so that others could have no heir.
func (n *Node) successor(ctx context.Context, thing, to string) (did.DID, error) {
	owner, err := did.Parse(to)
	if err != nil {
		d, err := n.dir.Get(ctx, to)
		if err != nil {
			return "", err
		}
		owner = d.Record.Owner
		if want := heir(thing, owner).Name; d.Record.Thing != want {
			return "", interact.Errorf(interact.Invalid, "publish it there with the id "+want, "%s is another thing than %s: it has another id",
				d.Ref(), thing)
		}
	}
	switch {
	case owner == n.DID():
		return "", interact.Errorf(interact.Invalid, "name the node that has it now: lmosd id prints its DID there", "%s is this node's already", thing)
	case owner.Method() != "key":
		return "", interact.Errorf(interact.Invalid, "the DID that lmosd id prints there", "%s cannot own a thing of the mesh: its owner is a did:key",
			owner.Short())
	}
	return owner, nil
}
