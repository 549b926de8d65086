package trust

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/aries"
	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/weblocation"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/trust/foreign"
	"github.com/lmosd/lmosd/trust/partners"
)

// fetchReason returns why a document of a domain could not be read, without the words of the HTTP client.
func fetchReason(err error) string {
	var failed *url.Error
	switch {
	case !errors.As(err, &failed):
		return err.Error()
	case failed.Timeout():
		return failed.URL + " does not answer in time"
	}
	return fmt.Sprintf("%s cannot be read: %v", failed.URL, failed.Err)
}

// CheckDomain fetches the log of the organization at a domain over HTTPS and compares it with what this node knows. The proof counts for the
// time to live of the log. name is a domain, with a port and a path if it has them, or a did:webvh, whose SCID the domain must serve then.
func (t *Trust) CheckDomain(ctx context.Context, name string) (*api.DomainCheck, error) {
	id, location := did.DID(""), name
	if strings.HasPrefix(name, "did:") {
		id = did.DID(name)
		if location = webvh.Location(id); webvh.SCID(id) == "" {
			location = ""
		}
	} else {
		host, path, _ := strings.Cut(strings.ToLower(name), "/")
		location = strings.Replace(host, ":", "%3A", 1)
		if path != "" {
			location += ":" + strings.ReplaceAll(path, "/", ":")
		}
	}
	if _, err := weblocation.URL(location, ""); err != nil {
		return nil, interact.Errorf(interact.Usage, "for example acme.example, or did:webvh:Qm…:acme.example", "expected a domain, got %q",
			interact.Excerpt(name, 200))
	}
	out := &api.DomainCheck{Domain: td.OrganizationDomain(webvhAt(location))}
	l, err := webvh.New(t.o.Web).LogAt(ctx, location)
	switch {
	case errors.Is(err, did.ErrNotFound) && (t.linkedByWeb(ctx, location, out) || t.linkedByConfiguration(ctx, location, out)):
		return out, nil
	case ctx.Err() != nil:
		return nil, interact.AsError(ctx.Err())
	case err != nil:
		out.Problems = append(out.Problems, interact.Excerpt(fetchReason(err), 500))
		if errors.Is(err, did.ErrNotFound) || errors.Is(err, did.ErrInvalid) { // otherwise it may be a failure of the network
			t.proven.Remove(location)
		}
		return out, nil
	}
	out.DID, out.SCID, out.Head = l.DID(), l.SCID(), l.Head()
	if id != "" && webvh.SCID(id) != l.SCID() {
		out.Problems = append(out.Problems, fmt.Sprintf("the domain serves the log of another organization than %s", webvh.SCID(id)))
		return out, nil
	}
	if l.Deactivated() {
		out.Problems = append(out.Problems, "the organization has ended: its log is deactivated")
		t.proven.Remove(location)
		return out, nil
	}
	t.prove(ctx, l, out)
	return out, nil
}

// webvhAt returns a DID at a location, for functions that need only that.
func webvhAt(location string) did.DID { return did.DID("did:webvh:-:" + location) }

// linkedByWeb reports whether the did:web at a location names the own organization or a partner, whose log is known, as the same.
func (t *Trust) linkedByWeb(ctx context.Context, location string, out *api.DomainCheck) bool {
	doc, err := web.New(t.o.Web).Resolve(ctx, did.DID("did:web:"+location))
	if err != nil {
		return false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, a := range t.authorities {
		if id := a.DID(); webvh.Location(id) == location && slices.Contains(doc.AlsoKnownAs, string(id)) {
			out.DID, out.SCID, out.Head, out.Proven = id, a.SCID(), a.Log().Head(), true
			out.Organization = a.claim()
			out.Problems = append(out.Problems, "the domain serves no log, only a did:web document that names the organization")
			return true
		}
	}
	return false
}

// linkedDomains is the type of the service that lists the origins of a DID (DIF Well Known DID Configuration 1.0).
const linkedDomains = "LinkedDomains"

// linkedByConfiguration reports whether the DID configuration of a domain names the own organization or a partner, whose log is known. The DID of
// the organization has the domain, or its document lists the origin.
func (t *Trust) linkedByConfiguration(ctx context.Context, location string, out *api.DomainCheck) bool {
	if strings.Contains(location, ":") { // an origin has no path
		return false
	}
	origin := "https://" + strings.Replace(location, "%3A", ":", 1)
	t.mu.RLock()
	resolver, candidates := t.resolverLocked(), []*trusted{}
	for _, scid := range t.soughtLocked() {
		a := t.authorities[scid]
		if a == nil {
			continue
		}
		doc, err := a.Log().Document()
		if err == nil && (webvh.Location(a.DID()) == location || slices.Contains(doc.Endpoints(linkedDomains), origin)) {
			candidates = append(candidates, a)
		}
	}
	t.mu.RUnlock()
	if len(candidates) == 0 { // nothing is fetched for others
		return false
	}
	raw, err := weblocation.NewClient(t.o.Web).Fetch(ctx, origin+"/.well-known/did-configuration.json", "application/json", foreign.MaxConfiguration)
	if err != nil {
		return false
	}
	for _, a := range candidates {
		if err := foreign.Linked(ctx, raw, origin, a.DID(), aries.Check{Resolver: resolver, Now: t.now()}); err != nil {
			out.Problems = append(out.Problems, "its DID configuration: "+interact.Excerpt(err.Error(), 300))
			continue
		}
		t.mu.RLock()
		defer t.mu.RUnlock()
		out.DID, out.SCID, out.Head, out.Proven, out.Organization = a.DID(), a.SCID(), a.Log().Head(), true, a.claim()
		out.Problems = append(out.Problems, "the domain serves no log, only a DID configuration of the organization")
		return true
	}
	return false
}

// claim returns an organization that counts here as it is shown.
func (a *trusted) claim() *api.OrganizationClaim {
	if a.partner != nil {
		return &api.OrganizationClaim{Name: a.partner.Name, DID: a.DID(), State: string(directory.PartnerOrganization)}
	}
	return &api.OrganizationClaim{Name: partners.NameOf(a.DID()), DID: a.DID(), State: string(directory.OwnOrganization)}
}

// prove keeps the log that a domain serves, and fills out.
func (t *Trust) prove(ctx context.Context, l *webvh.Log, out *api.DomainCheck) {
	location, now := webvh.Location(l.DID()), t.now()
	t.mu.RLock()
	known := t.authorities[l.SCID()]
	for _, a := range t.authorities {
		if a != known && webvh.Location(a.DID()) == location {
			out.Problems = append(out.Problems, fmt.Sprintf("%s (%s) names this domain, which serves the log of another organization",
				a.claim().Name, a.SCID()))
		}
	}
	if known != nil {
		out.Organization = known.claim()
		if known.Log().Forked(l) {
			out.Problems = append(out.Problems, "the domain serves another history of the organization than its nodes")
		} else {
			out.Proven = true
		}
		t.mu.RUnlock()
		t.proven.Remove(location)
		return
	}
	t.mu.RUnlock()
	until, problems := t.proven.Prove(ctx, t.o.Web, l, now)
	out.Proven, out.Until, out.Problems = true, until, append(out.Problems, problems...)
	out.Organization = &api.OrganizationClaim{Name: out.Domain, DID: l.DID(), State: string(directory.ProvenOrganization)}
}
