package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/rest/server"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
)

// Publications publish the Things of a node and return results of the API. They implement [Publisher]. All fields are required.
type Publications struct {
	*publication.Publisher
	Owner   did.DID       // the node
	Callers func() string // which callers the node accepts (policy.Policy.Callers)
}

// Publish publishes a TD with a registration, which limits its life. A non-nil agent handles the calls of a Thing that is part of this process,
// within the schemas of its TD; a TD without forms comes from td.Draft. Such a Thing ends with the process, and other nodes remember it until
// its last record expires. Raw may be an [api.HostingGrant], too: the Thing is then that of an agent with a key of its own, and has no registration.
func (p Publications) Publish(ctx context.Context, raw []byte, agent interact.Thing, r publication.Registration) (*api.Publication, error) {
	if agent == nil || !api.IsHostingGrant(raw) {
		return p.result(p.Publisher.Publish(ctx, raw, agent, r))
	}
	g, _, err := api.ParseHostingGrant(raw)
	if err != nil {
		return nil, err
	}
	return p.result(p.Publisher.Host(ctx, g.Grant, g.TD, agent))
}

// Enter publishes a TD with a registration.
func (p Publications) Enter(ctx context.Context, raw []byte, r publication.Registration) (*api.Publication, error) {
	return p.Publish(ctx, raw, nil, r)
}

// Unpublish withdraws a Thing of this node.
func (p Publications) Unpublish(ctx context.Context, ref string) (*api.Publication, error) {
	return p.result(p.Withdraw(ctx, ref))
}

// Move announces that a Thing of this node has a new owner.
func (p Publications) Move(ctx context.Context, ref, to string) (*api.Publication, error) {
	return p.result(p.Publisher.Move(ctx, ref, to))
}

func (p Publications) result(r *publication.Result, err error) (*api.Publication, error) {
	if err != nil {
		return nil, err
	}
	owner := cmp.Or(r.Publication.Owner, p.Owner)
	shown := &api.Publication{APIVersion: api.APIVersion, Kind: "Publication", ID: r.Thing, Ref: td.ExactRef(r.Thing, owner), Name: r.Name,
		Owner: owner, Seq: r.Seq, Withdrawn: r.Description == nil, MovedTo: r.Moved, Successor: r.Successor, Created: r.Created,
		Replicas: r.Reach.Replicas, Wanted: r.Reach.Wanted, GossipPeers: r.Reach.GossipPeers, Pending: r.IsPending(),
		RecordSize: len(r.Signed.Record), TDSize: len(r.Signed.TD), Took: float64(r.Took.Microseconds()) / 1000, Visibility: r.Audience,
		Warnings: r.Warnings, CallerSecret: r.CallerSecret}
	if !shown.Withdrawn {
		shown.Callers, shown.For = p.Callers(), r.For
		shown.Capability, shown.Action = examplesOf(r.Description)
	}
	return shown, nil
}

// examplesOf returns a capability and an action of d, for the commands that a user tries next.
func examplesOf(d *td.Description) (capability, action string) {
	if len(d.Capabilities) > 0 {
		capability = d.Capabilities[0].ID
	}
	for name := range d.Actions {
		if action == "" || name < action {
			action = name
		}
	}
	return capability, action
}

func (g *Gateway) postPublish(w http.ResponseWriter, r *http.Request) error {
	if err := server.CheckContentType(r, tdTypes...); err != nil {
		return err
	}
	raw, err := problem.ReadBody(w, r, int64(g.o.MaxTD))
	if err != nil {
		return err
	}
	q, err := tdd.Params(r, "for", "caller_secret")
	if err != nil {
		return err
	}
	ctx := withCallers(r.Context(), q)
	secret, err := tdd.Flag(q, "caller_secret", false)
	if err != nil {
		return err
	}
	if secret {
		ctx = publication.WithCallerSecret(ctx)
	}
	p, err := g.publish(ctx, raw, publication.Registration{})
	if err != nil {
		return err
	}
	return writePublished(w, p)
}

// writePublished answers with a publication, which may be new.
func writePublished(w http.ResponseWriter, p *api.Publication) error {
	status := http.StatusOK
	if p.Created {
		status = http.StatusCreated
		w.Header().Set("Location", tdd.ThingPath(p.ID))
	}
	return writeJSON(w, status, p)
}

func (g *Gateway) postMove(w http.ResponseWriter, r *http.Request) error {
	body, err := readJSON(w, r, 4<<10)
	if err != nil {
		return err
	}
	var req api.MoveRequest
	if json.Unmarshal(body, &req) != nil || req.To == "" {
		return interact.Errorf(interact.Invalid, `send {"to":"did:key:z6Mk…"}`, "expected a JSON object with the member to")
	}
	p, err := g.o.Publisher.Move(r.Context(), r.PathValue("ref"), req.To)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, p)
}

func (g *Gateway) deleteAgent(w http.ResponseWriter, r *http.Request) error {
	p, err := g.o.Publisher.Unpublish(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, p)
}
