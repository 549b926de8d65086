package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/rest/server"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
)

// Host offers a Thing of another owner, for the callers in ctx (publication.WithCallers).
func (p Publications) Host(ctx context.Context, grant, body []byte) (*api.Publication, error) {
	shown, err := p.result(p.Publisher.Host(ctx, grant, body, nil))
	if err != nil {
		return nil, err
	}
	return p.withHosted(shown), nil
}

// Attach publishes the Thing of an agent that is attached over a connection: raw is its TD, or an [api.HostingGrant] of an agent with a key of its own
// (publication.Publisher.Attach and AttachGranted).
func (p Publications) Attach(ctx context.Context, raw []byte, agent interact.Thing) (id string, detach func(final bool), err error) {
	if !api.IsHostingGrant(raw) {
		return p.Publisher.Attach(ctx, raw, agent)
	}
	g, _, err := api.ParseHostingGrant(raw)
	if err != nil {
		return "", nil, err
	}
	return p.AttachGranted(ctx, g.Grant, g.TD, agent)
}

// HostedThings returns the Things of other owners at this node, by id.
func (p Publications) HostedThings() []api.Hosted {
	all := []api.Hosted{}
	for _, h := range p.Granted() {
		all = append(all, hosted(h))
	}
	return all
}

// EndHosting stops to offer the Thing of another owner that ref names, also one whose grant has ended.
func (p Publications) EndHosting(ctx context.Context, ref string) (*api.Publication, error) {
	h, err := named(p.Granted(), ref)
	if err != nil {
		return nil, err
	}
	shown, err := p.result(p.Publisher.EndHosting(ctx, h.Thing))
	if err != nil {
		return nil, err
	}
	ended := hosted(*h)
	shown.Hosted = &ended
	return shown, nil
}

// WithdrawGranted announces a withdrawal that the owner of a Thing has signed.
func (p Publications) WithdrawGranted(ctx context.Context, record []byte) (*api.Publication, error) {
	return p.result(p.Publisher.WithdrawGranted(ctx, record))
}

// withHosted adds the state of a Thing of another owner to its publication.
func (p Publications) withHosted(shown *api.Publication) *api.Publication {
	for _, h := range p.Granted() {
		if h.Thing == shown.ID {
			state := hosted(h)
			shown.Hosted = &state
		}
	}
	return shown
}

// named returns the Thing that ref names: by id, or by the name that its title gives, with or without the owner.
func named(all []publication.Hosted, ref string) (*publication.Hosted, error) {
	r := td.ParseRef(ref)
	var found []publication.Hosted
	for _, h := range all {
		if r.Owns(h.Grant.Owner) && (h.Thing == r.Name || h.Name == td.Slug(r.Name)) {
			found = append(found, h)
		}
	}
	switch len(found) {
	case 0:
		return nil, interact.Errorf(interact.NotFound, "list the Things that it hosts", "this node hosts no %q of another owner", interact.Excerpt(ref, 200)).Then(interact.StepHosting, "ls")
	case 1:
		return &found[0], nil
	}
	e := interact.Errorf(interact.Ambiguous, "use an exact reference", "this node hosts %d Things with the name %q", len(found), interact.Excerpt(ref, 200))
	var refs []string
	for _, h := range found[:min(len(found), interact.MaxStepArgs)] {
		refs = append(refs, td.ExactRef(h.Thing, h.Grant.Owner))
	}
	return nil, e.Then(interact.StepUse, refs...)
}

// hosted returns h as the API has it.
func hosted(h publication.Hosted) api.Hosted {
	g := h.Grant
	shown := api.Hosted{Thing: h.Thing, Ref: td.ExactRef(h.Thing, g.Owner), Name: h.Name, Owner: g.Owner, Number: g.Number, Issued: g.Issued, Expires: g.Expires,
		Nodes: g.Nodes, Hosts: append([]did.DID{}, h.Hosts...), State: api.HostedNow, WaitingFor: h.Waiting}
	switch {
	case !h.Offered:
		shown.State = api.HostedGrantEnded
	case h.Draining:
		shown.State = api.HostedDraining
	case h.Waiting != 0:
		shown.State = api.HostedWaiting
	}
	return shown
}

// grantOfThing returns the grant of a Thing as the API has it; nil for a Thing of a node.
func grantOfThing(r *td.Record) *api.Grant {
	if r.Grant == nil {
		return nil
	}
	return &api.Grant{Number: r.Grant.Number, Issued: r.Grant.Issued, Expires: r.Grant.Expires, Nodes: r.Grant.Nodes}
}

// whole serves a request about the Things of this node when all are loaded.
func (g *Gateway) whole(serve handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := g.o.Publisher.AwaitLoad(r.Context()); err != nil {
			return err
		}
		return serve(w, r)
	}
}

func (g *Gateway) listHosted(w http.ResponseWriter, r *http.Request) error {
	return writeJSON(w, http.StatusOK, api.HostedList{APIVersion: api.APIVersion, Kind: "HostedList", Items: g.o.Publisher.HostedThings()})
}

func (g *Gateway) postHosting(w http.ResponseWriter, r *http.Request) error {
	q, err := tdd.Params(r, "for", "role")
	if err != nil {
		return err
	}
	body, err := readJSON(w, r, api.MaxHostingGrant)
	if err != nil {
		return err
	}
	grant, _, err := api.ParseHostingGrant(body)
	if err != nil {
		return err
	}
	p, err := g.o.Publisher.Host(publication.WithRoles(withCallers(r.Context(), q), q["role"]), grant.Grant, grant.TD)
	if err != nil {
		return err
	}
	return writePublished(w, p)
}

func (g *Gateway) deleteHosting(w http.ResponseWriter, r *http.Request) error {
	p, err := g.o.Publisher.EndHosting(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, p)
}

// withdrawGranted serves POST /v1/hosting/withdrawal.
func (g *Gateway) withdrawGranted(w http.ResponseWriter, r *http.Request) error {
	if r.PathValue("ref") != "withdrawal" {
		return errNothing(r)
	}
	body, err := readJSON(w, r, 2*td.MaxRecord)
	if err != nil {
		return err
	}
	var req api.HostingWithdrawal
	if json.Unmarshal(body, &req) != nil || len(req.Record) == 0 {
		return interact.Errorf(interact.Invalid, "send the withdrawal that the owner signed", "expected a JSON object with the member record, in base64")
	}
	p, err := g.o.Publisher.WithdrawGranted(r.Context(), req.Record)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, p)
}

// readJSON reads a body of type application/json of at most limit bytes.
func readJSON(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if err := server.CheckContentType(r, interact.JSON); err != nil {
		return nil, err
	}
	return problem.ReadBody(w, r, limit)
}

// withCallers returns ctx with the callers in the parameters "for"; without one, ctx.
func withCallers(ctx context.Context, q map[string][]string) context.Context {
	names, ok := q["for"]
	if !ok {
		return ctx
	}
	return publication.WithCallers(ctx, slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" }))
}
