package publication

import (
	"context"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Move announces that a Thing of this node has a new owner, and withdraws it here. To is the DID of the new owner, or names the Thing at
// its new host. References to the Thing resolve to its successor (td.Record.Heir), if the new owner offers that. A Thing that has moved can
// be moved again. The error is [interact.Invalid] if the Thing that to names cannot be the successor.
func (p *Publisher) Move(ctx context.Context, ref, to string) (*Result, error) {
	start := time.Now()
	thing, name, audience, err := p.movable(ctx, ref)
	if err != nil {
		return nil, err
	}
	owner, err := p.newOwner(ctx, thing, to)
	if err != nil {
		return nil, err
	}
	pub, err := p.end(ctx, thing, audience, owner)
	if err != nil {
		return nil, interact.AsError(err)
	}
	res := p.announced(ctx, pub, "moved", start)
	res.Name = name
	if d, err := p.o.Directory.Get(ctx, successorOf(thing, owner).String()); err == nil {
		res.Successor = d.Ref()
	}
	return res, nil
}

// successorOf returns the reference of the Thing that a moved one has become.
func successorOf(thing string, owner did.DID) td.Ref {
	return (&td.Record{Thing: thing, Successor: owner}).SuccessorRef()
}

// movable returns the id, the name and the audience of a Thing that this node may move: one of its own, or one that it moved before.
func (p *Publisher) movable(ctx context.Context, ref string) (thing, name string, audience td.Visibility, err error) {
	r := td.ParseRef(ref)
	if pub := p.o.Index.Get(r.Name); pub != nil && pub.Moved != "" && r.Owns(p.o.Signer.DID()) {
		return pub.Thing, td.Slug(pub.Thing), pub.Audience, nil
	}
	d, err := p.o.Directory.Get(ctx, ref)
	switch {
	case err != nil:
		return "", "", 0, err
	case d.Record.Owner != p.o.Signer.DID():
		return "", "", 0, notOwned(d)
	}
	return d.Record.Thing, d.Name(), d.Record.Audience, nil
}

// newOwner returns the owner that to names. It has a did:key, because only a did:key signs records.
func (p *Publisher) newOwner(ctx context.Context, thing, to string) (did.DID, error) {
	owner, err := did.Parse(to)
	if err != nil {
		d, err := p.o.Directory.Get(ctx, to)
		if err != nil {
			return "", err
		}
		owner = d.Record.Owner
		if want := successorOf(thing, owner).Name; d.Record.Thing != want {
			return "", interact.Errorf(interact.Invalid, "publish it there with the id "+want, "%s is another thing than %s: it has another id",
				d.Ref(), thing)
		}
	}
	switch {
	case owner == p.o.Signer.DID():
		return "", interact.Errorf(interact.Invalid, "name the DID of the node that has it now", "this node owns %s already", thing).Then(interact.StepID)
	case owner.Method() != "key":
		return "", interact.Errorf(interact.Invalid, "name the DID of its new node", "%s cannot own a thing of the mesh: expected a did:key",
			owner.Short()).Then(interact.StepID)
	}
	return owner, nil
}
