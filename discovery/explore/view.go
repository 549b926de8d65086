package explore

import (
	"context"
	"iter"
	"math"
	"strconv"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A View contains the Things that consumers of a node find: the Things of the mesh, and the discovered Things. It implements
// [interact.Finder] and [tdd.Things]. All fields are required.
type View struct {
	*directory.Directory
	Discoveries *Discoveries
	Self        did.DID // the node
	// Explain adds the cause to an error of Get or Locate, if it is known.
	Explain func(error) error
}

// Find yields the matches of the directory and of the mesh (directory.Directory.Find), and then the discovered Things, within the limit of
// q.
func (v View) Find(ctx context.Context, q td.Query) iter.Seq2[*td.Description, error] {
	return v.Discoveries.After(v.Directory.Find(ctx, q), q, v.visible(ctx))
}

// Get returns the Thing that ref names. An id without an owner names the Thing of the mesh, if the mesh has it. A name of a Thing of the mesh
// and of a discovered one is [interact.Ambiguous], see [Discoveries.named].
func (v View) Get(ctx context.Context, ref string) (*td.Description, error) {
	found, err := v.named(ctx, ref)
	switch {
	case err != nil:
		return nil, v.Explain(err)
	case found != nil:
		return found.Description, nil
	}
	d, err := v.Directory.Get(ctx, ref)
	return d, v.Explain(err)
}

// Locate implements [interact.Finder].
func (v View) Locate(ctx context.Context, ref string) (interact.Thing, error) {
	found, err := v.named(ctx, ref)
	switch {
	case err != nil:
		return nil, v.Explain(err)
	case found != nil:
		return found.Agent, nil
	}
	t, err := v.Directory.Locate(ctx, ref)
	return t, v.Explain(err)
}

// named returns the discovered Thing that ref names, or nil if the result of the directory applies.
func (v View) named(ctx context.Context, ref string) (*Discovered, error) {
	get := func(ctx context.Context, ref string) (*td.Description, error) {
		return v.Directory.Get(directory.WithoutUse(ctx), ref)
	}
	return v.Discoveries.named(ctx, ref, get, v.Established, v.visible(ctx))
}

// visible returns the check whether the caller of ctx may receive a description.
func (v View) visible(ctx context.Context) func(*td.Description) bool {
	return func(d *td.Description) bool { return v.Sees(ctx, d) }
}

// Known yields the Things in the directory. It sends no request.
func (v View) Known(ctx context.Context) iter.Seq[*td.Description] {
	return v.FindLocal(ctx, td.Query{Limit: math.MaxInt})
}

// Page implements [tdd.Things]. Discovered Things have a separate list, so that a node that explores this directory does not mistake them for
// Things of the mesh.
func (v View) Page(ctx context.Context, s tdd.Scope, offset, limit int) tdd.Page {
	if s != tdd.Discovered {
		return v.index().Page(ctx, s, offset, limit)
	}
	all, state := v.Discoveries.All(v.visible(ctx))
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

// Lookup implements [tdd.Things].
func (v View) Lookup(ctx context.Context, id string) []tdd.Item { return v.index().Lookup(ctx, id) }

func (v View) index() tdd.Index { return tdd.Index{Directory: v.Directory, Self: v.Self} }
