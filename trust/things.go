package trust

import (
	"bytes"
	"context"
	"slices"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/trust/exchange"
)

// Things connects the descriptions that only their hosts give out with the members and partners that may find them.
type Things struct {
	// Restricted returns the records of this node, and their TDs, that the caller of ctx may find (publication.Index.Restricted).
	Restricted func(ctx context.Context) []*td.Signed
	// Moved returns those of Things that an earlier key of this node has withdrawn (directory.Directory.Handed). Nil: there are none.
	Moved func(ctx context.Context) []*td.Signed
	// Named reports whether a public description of this node names an organization as that of its owner; nil: none does.
	Named func(organization did.DID) bool
	// Agent returns the grant for this node of an agent with a key of its own that calls through this node, and its roles; nil for others. Signer has the
	// key of this node. Nil: there are no agents.
	Agent  func(agent did.DID) (grant []byte, roles []string)
	Signer did.Signer
	// Ingest takes a record that a node has sent (directory.Directory.IngestRestricted).
	Ingest func(ctx context.Context, s *td.Signed, from did.DID) error
}

// maxThingsPage limits a response with restricted records, in bytes; a record and its TD fit.
const maxThingsPage = 512 << 10

// Serve lets members and partners get the restricted descriptions. It is called once, before peers connect. A nil Trust serves none.
func (t *Trust) Serve(things Things) {
	if t != nil {
		t.things.Store(&things)
	}
}

// serveThings returns a page of the restricted records that a node may find, which access rules decide. The version of the request is the number of those to skip.
func (t *Trust) serveThings(ctx context.Context, id did.DID, q *exchange.Request) (*exchange.Response, error) {
	p, things := t.Principal(id), t.things.Load()
	if things == nil || p.Relation < did.Partner && p.Unconfirmed == nil && !p.Grouped() || len(q.Known) != 1 {
		return nil, refused
	}
	ctx = did.WithPrincipal(ctx, p)
	var all []*td.Signed
	for _, source := range []func(context.Context) []*td.Signed{things.Moved, things.Restricted} {
		if source != nil {
			all = append(all, slices.SortedFunc(slices.Values(source(ctx)), byRecord)...)
		}
	}
	all = all[:min(len(all), exchange.MaxThings)]
	r, size := &exchange.Response{}, 0
	for i, s := range all {
		if uint64(i) < q.Known[0].Version {
			continue
		}
		if size += len(s.Record) + len(s.TD); size > maxThingsPage && len(r.Things) > 0 {
			r.More = true
			break
		}
		r.Things = append(r.Things, exchange.Thing{Record: s.Record, TD: s.TD})
	}
	return r, nil
}

// byRecord is an order that is the same for each page.
func byRecord(a, b *td.Signed) int { return bytes.Compare(a.Record, b.Record) }

// fetchThings gets the restricted records of a node.
func (t *Trust) fetchThings(ctx context.Context, id did.DID) error {
	things := t.things.Load()
	if p := t.Principal(id); things == nil || p.Relation < did.Partner && !p.Grouped() {
		return nil
	}
	for skip := uint64(0); skip < exchange.MaxThings; {
		r, err := t.net.Ask(ctx, id, &exchange.Request{Op: exchange.OpThings, Known: []exchange.Known{{Kind: exchange.KindThings, Version: skip}}})
		if err != nil {
			return err
		}
		for _, one := range r.Things {
			if err := things.Ingest(ctx, &td.Signed{Record: one.Record, TD: one.TD, From: id}, id); err != nil {
				t.o.Log.Debug("restricted description rejected", "peer", id.Short(), "err", err)
			}
		}
		if skip += uint64(len(r.Things)); !r.More || len(r.Things) == 0 {
			return nil
		}
	}
	return interact.Errorf(interact.TooLarge, "", "node %s has more than %d restricted descriptions", id.Short(), exchange.MaxThings)
}

// ThingsChanged announces to the connected members, partners and members of groups that the restricted descriptions of this node have changed.
func (t *Trust) ThingsChanged() {
	t.mu.RLock()
	all := t.peersLocked(func(p *did.Principal) bool { return p.Relation >= did.Partner || p.Grouped() })
	t.mu.RUnlock()
	for _, id := range all {
		t.announceThings(id)
	}
}

// announceThings lets a node get the restricted descriptions of this one.
func (t *Trust) announceThings(id did.DID) {
	t.start(func(ctx context.Context) {
		if _, err := t.net.Ask(ctx, id, &exchange.Request{Op: exchange.OpHave, Known: []exchange.Known{{Kind: exchange.KindThings, Version: 1}}}); err != nil {
			t.o.Log.Debug("changed descriptions not announced", "peer", id.Short(), "err", err)
		}
	})
}
