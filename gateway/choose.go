package gateway

import (
	"context"
	"net/url"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// maxChosen is the number of Things in the order of a call.
const maxChosen = 20

// trustOf reads the order and the trust of a search; empty without the order of a call.
func trustOf(v url.Values, f findRequest) (api.Trust, error) {
	t := api.Trust(v.Get("trust"))
	switch {
	case v.Has("order") && v.Get("order") != "call":
		return "", interact.Errorf(interact.Usage, "order=call, or none", "unknown order %q", tdd.Clip(v.Get("order")))
	case !v.Has("order") && v.Has("trust"):
		return "", interact.Errorf(interact.Usage, "for example order=call&trust=partner", "trust requires order=call")
	case !v.Has("order"):
		return "", nil
	case !v.Has("trust"):
		t = api.TrustOwn
	case t != api.TrustOwn && t != api.TrustPartner && t != api.TrustAny:
		return "", interact.Errorf(interact.Usage, "trust=own, trust=partner or trust=any", "unknown trust %q", tdd.Clip(string(t)))
	}
	if len(f.query.Capability) != 1 || len(f.query.Or) > 0 || f.strategy != "" || f.explain {
		return "", interact.Errorf(interact.Usage, "for example capability=urn:example:weather&action=getWeather&order=call",
			"the order of a call requires exactly one capability, without strategy and explain")
	}
	return t, nil
}

// choose returns the Things that provide the capability itself and the action, and whose owners are trusted as f requires, in the order in which
// a caller should try them, and how many others were left out.
func (g *Gateway) choose(ctx context.Context, f findRequest, found []*td.Description) ([]api.Agent, *api.LeftOut) {
	g.o.Directory.VerifyMembers(ctx, found...)
	var fit []*td.Description
	var out api.LeftOut
	for _, d := range found {
		_, provides := f.provided(d)
		if a := f.query.Action; !provides || a != "" && d.Actions[a] == nil {
			continue
		}
		switch t := g.ownerTrust(ctx, d); {
		case t == api.TrustOwn, t == f.trust, f.trust == api.TrustAny:
			fit = append(fit, d)
		case t == api.TrustPartner:
			out.Partner++
		default:
			out.Any++
		}
	}
	g.o.Presence.Look(ctx, fit...)
	items := []api.Agent{}
	for _, c := range g.o.Presence.Choose(fit...) {
		if len(items) == min(f.limit, maxChosen) {
			f.query.Counter.SetMore()
			break
		}
		a := g.agent(ctx, fit[c.Index])
		a.Choice = &api.Choice{Reason: c.Reason, Cost: api.Milliseconds(c.Cost), Running: c.Running,
			Repeatable: interact.Repeatable(fit[c.Index].Thing, &interact.Message{Type: interact.InvokeAction, Name: f.query.Action})}
		items = append(items, a)
	}
	if out == (api.LeftOut{}) {
		return items, nil
	}
	return items, &out
}

// ownerTrust returns the closest trust that includes the owner of a Thing.
func (g *Gateway) ownerTrust(ctx context.Context, d *td.Description) api.Trust {
	a := g.o.Directory.Affiliation(ctx, d)
	switch {
	case g.o.Presence.Hosted(d), a != nil && a.State == directory.OwnOrganization:
		return api.TrustOwn
	case a != nil && a.State == directory.PartnerOrganization:
		return api.TrustPartner
	}
	return api.TrustAny
}
