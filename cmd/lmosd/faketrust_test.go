package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
)

// The organization of the fake node, and its partners.
const (
	acmeDID   = did.DID("did:webvh:QmAcme:acme.example")
	globexDID = did.DID("did:webvh:QmGlobex:globex.example")
	invite    = "lmos-invite:c2VjcmV0"
)

// fakeKey is the root key of the fake node.
const fakeKey = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAAA\n-----END PRIVATE KEY-----\n"

func fakeOrganization(n *fakeNode) *api.Organization {
	now := time.Now()
	return &api.Organization{APIVersion: api.APIVersion, Kind: "Organization", DID: acmeDID, SCID: "QmAcme", Name: "acme.example", Head: "2-QmHead",
		State: api.OrganizationConfirmed, Roles: []string{"node", "billing"}, Until: now.Add(23*time.Hour + time.Minute), Issuer: true, Root: true,
		Issuers: []api.Issuer{{Method: "#i1", Node: n.owner, This: true, ListVersion: 12, ListFrom: now.Add(-3 * time.Minute)},
			{Method: "#i2", Node: "did:key:" + twin1}},
		Members: []api.Member{{DID: n.owner, Name: "alpha", Roles: []string{"node", "billing"}, Until: now.Add(23*time.Hour + time.Minute), Connected: true},
			{DID: "did:key:" + twin1, Roles: []string{"node"}, Until: now.Add(12*time.Hour + time.Minute)},
			{DID: "did:key:" + twin2, Name: "beta", Roles: []string{"node"}, Revoked: now}}}
}

func fakeJoinRequest(node did.DID) api.JoinRequest {
	return api.JoinRequest{Node: node, Organization: acmeDID, SCID: "QmAcme", Name: "acme", Words: fakePartner().Words, Expires: time.Now().Add(10 * time.Minute)}
}

func fakePartner() api.Partner {
	return api.Partner{Name: "globex", DID: globexDID, SCID: "QmGlobex", State: api.PartnerUnconfirmed, Since: time.Now(),
		Words: []string{"apple", "bird", "cloud", "door", "egg", "fox"}, Head: "1-QmHead", Connected: 2}
}

// trustRoutes are the routes of organizations and partners. The bare node has no organization.
func (n *fakeNode) trustRoutes(mux *http.ServeMux) {
	organization := func(w http.ResponseWriter, _ *http.Request) { answer(w, fakeOrganization(n)) }
	none := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	mux.HandleFunc("GET /v1/org", func(w http.ResponseWriter, r *http.Request) {
		if n.bare {
			problem.Write(w, r, interact.Errorf(interact.NotFound, "", "this node is in no organization").Then(interact.StepOrgInit).Then(interact.StepOrgJoin))
			return
		}
		organization(w, r)
	})
	mux.HandleFunc("POST /v1/org", n.guard(func(w http.ResponseWriter, r *http.Request) {
		o := fakeOrganization(n)
		var body api.OrganizationInit
		if json.NewDecoder(r.Body).Decode(&body) != nil || !strings.HasPrefix(body.RecoveryFile, "/") {
			problem.Write(w, r, interact.Errorf(interact.Invalid, "send it", "no recovery file"))
			return
		}
		o.Name, o.Members, o.Issuers = body.Domain, o.Members[:1], o.Issuers[:1]
		answer(w, o)
	}))
	mux.HandleFunc("DELETE /v1/org", n.guard(none))
	mux.HandleFunc("GET /v1/org/invitations", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		list := api.InvitationList{APIVersion: api.APIVersion, Kind: "InvitationList", Items: []api.Invitation{}}
		if !n.bare {
			list.Items = append(list.Items, *fakeInvitation(api.InvitationRequest{Kind: api.InviteNode, Uses: 2, Life: api.Duration(time.Hour)}))
			list.Items[0].Text = ""
		}
		answer(w, list)
	}))
	mux.HandleFunc("POST /v1/org/invitations", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var body api.InvitationRequest
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			panic(err)
		}
		answer(w, fakeInvitation(body))
	}))
	mux.HandleFunc("POST /v1/org/join", n.guard(accepted(func(w http.ResponseWriter, _ api.Acceptance) {
		o := fakeOrganization(n)
		o.Issuer, o.Root, o.Members = false, false, nil
		answer(w, o)
	})))
	mux.HandleFunc("GET /v1/org/offers", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		list := api.OfferList{APIVersion: api.APIVersion, Kind: "OfferList", Items: []api.Offer{}}
		if !n.bare {
			list.Items = append(list.Items, api.Offer{Node: "did:key:" + twin1, Organization: acmeDID, SCID: "QmAcme", Name: "acme"})
		}
		answer(w, list)
	}))
	mux.HandleFunc("GET /v1/org/requests", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		list := api.JoinRequestList{APIVersion: api.APIVersion, Kind: "JoinRequestList", Items: []api.JoinRequest{}}
		if !n.bare {
			list.Items = append(list.Items, fakeJoinRequest("did:key:"+twin1))
		}
		answer(w, list)
	}))
	mux.HandleFunc("POST /v1/org/requests", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var q api.JoinQuery
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			panic(err)
		}
		j := fakeJoinRequest(q.Node)
		j.Joined = q.SCID == j.SCID
		answer(w, j)
	}))
	mux.HandleFunc("POST /v1/org/renew", n.guard(organization))
	mux.HandleFunc("POST /v1/org/members/{did}/revoke", n.guard(n.member))
	mux.HandleFunc("POST /v1/org/members/{did}/restore", n.guard(n.member))
	mux.HandleFunc("PUT /v1/org/members/{did}/roles", n.guard(n.member))
	mux.HandleFunc("PUT /v1/org/bootstrap", n.guard(func(w http.ResponseWriter, r *http.Request) {
		body := api.OrganizationBootstrap{}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			panic(err)
		}
		o := fakeOrganization(n)
		if o.Bootstrap = body.Addresses; body.Addresses == nil {
			o.Bootstrap = []string{"/ip4/192.0.2.7/tcp/4667/p2p/12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"}
		}
		answer(w, o)
	}))
	mux.HandleFunc("POST /v1/org/root/export", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var body api.RootExport
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			panic(err)
		}
		key := fakeKey
		if body.Passphrase != "" {
			key = "-----BEGIN AGE ENCRYPTED FILE-----\n" + body.Passphrase + "\n"
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write([]byte(key))
	}))
	mux.HandleFunc("PUT /v1/org/root", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var body api.RootImport
		if json.NewDecoder(r.Body).Decode(&body) != nil || body.Passphrase != "" && !strings.Contains(body.Key, body.Passphrase) {
			problem.Write(w, r, interact.Errorf(interact.Invalid, "try again", "the passphrase is wrong"))
			return
		}
		none(w, r)
	}))
	for _, route := range []string{"POST /v1/org/issuers", "DELETE /v1/org/issuers/{method}", "DELETE /v1/org/root", "POST /v1/org/root/rotate",
		"POST /v1/org/root/recover", "POST /v1/org/deactivate", "POST /v1/org/export", "DELETE /v1/trust/partners/{name}",
		"PUT /v1/trust/distrusted/{did}", "DELETE /v1/trust/distrusted/{did}",
		"DELETE /v1/trust/credentials/{hash}", "DELETE /v1/trust/issuers/{name}"} {
		mux.HandleFunc(route, n.guard(none))
	}
	mux.HandleFunc("GET /v1/trust/credentials", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		list := api.ForeignCredentialList{APIVersion: api.APIVersion, Kind: "ForeignCredentialList", Items: []api.ForeignCredential{}}
		if !n.bare {
			list.Items = append(list.Items, fakeForeignCredential(), api.ForeignCredential{Hash: strings.Repeat("ab", 32), Issuer: "did:web:registry.example", IssuerName: "registry",
				Subject: "did:key:" + twin1, Types: []string{"RoleCredential"}, Roles: []string{"adjuster"}, Until: time.Now().Add(time.Hour + time.Minute)})
		}
		answer(w, list)
	}))
	mux.HandleFunc("POST /v1/trust/credentials", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var body api.CredentialPresentation
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			panic(err)
		}
		if !strings.Contains(string(body.Credential), "proof") {
			problem.Write(w, r, interact.Errorf(interact.CredentialInvalid, "ask the issuer for a new one", "Credential refused: it has no proof"))
			return
		}
		c := fakeForeignCredential()
		c.APIVersion, c.Kind, c.To = api.APIVersion, "ForeignCredential", body.To
		answer(w, c)
	}))
	mux.HandleFunc("POST /v1/trust/credentials/fetch", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, api.ForeignCredentialList{APIVersion: api.APIVersion, Kind: "ForeignCredentialList", Items: []api.ForeignCredential{fakeForeignCredential()}})
	}))
	mux.HandleFunc("GET /v1/trust/issuers", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		list := api.ForeignIssuerList{APIVersion: api.APIVersion, Kind: "ForeignIssuerList", Items: []api.ForeignIssuer{}}
		if !n.bare {
			list.Items = append(list.Items, api.ForeignIssuer{Name: "registry", DID: "did:web:registry.example", Roles: []string{"adjuster"}})
		}
		answer(w, list)
	}))
	mux.HandleFunc("POST /v1/trust/issuers", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var body api.ForeignIssuer
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			panic(err)
		}
		body.APIVersion, body.Kind = api.APIVersion, "ForeignIssuer"
		answer(w, body)
	}))
	mux.HandleFunc("POST /v1/trust/check", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var body api.DomainCheckRequest
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			panic(err)
		}
		c := api.DomainCheck{APIVersion: api.APIVersion, Kind: "DomainCheck", Domain: body.Domain, Problems: []string{"the file does not exist"}, Agents: []api.CheckedAgent{}}
		if strings.HasSuffix(body.Domain, "globex.example") { // also a DID at the domain
			c.Proven, c.DID, c.SCID, c.Head, c.Problems = true, globexDID, "QmGlobex", "1-QmHead", []string{}
			c.Organization = &api.OrganizationClaim{Name: "globex", DID: globexDID, State: "partner"}
			c.Agents = append(c.Agents, api.CheckedAgent{Ref: "urn:x", Owner: n.owner, Organization: &api.OrganizationClaim{Name: "globex\x1b[31m", State: "claimed"}})
		}
		answer(w, c)
	}))
	mux.HandleFunc("GET /v1/trust/partners", func(w http.ResponseWriter, _ *http.Request) {
		list := api.PartnerList{APIVersion: api.APIVersion, Kind: "PartnerList", Items: []api.Partner{}}
		if !n.bare {
			list.Items = append(list.Items, fakePartner())
		}
		answer(w, list)
	})
	mux.HandleFunc("POST /v1/trust/partners", n.guard(accepted(func(w http.ResponseWriter, a api.Acceptance) {
		p := fakePartner()
		p.APIVersion, p.Kind = api.APIVersion, "Partner"
		if a.Name != "" {
			p.Name = a.Name
		}
		answer(w, p)
	})))
	mux.HandleFunc("POST /v1/trust/partners/{name}/confirm", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		p := fakePartner()
		p.APIVersion, p.Kind, p.State = api.APIVersion, "Partner", api.PartnerActive
		answer(w, p)
	}))
}

// member accepts a change of a member.
func (n *fakeNode) member(w http.ResponseWriter, r *http.Request) {
	if _, err := did.Parse(r.PathValue("did")); err != nil {
		problem.Write(w, r, interact.Errorf(interact.Invalid, "", "no DID"))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func fakeForeignCredential() api.ForeignCredential {
	return api.ForeignCredential{Hash: "9f2c0b7d51aa" + strings.Repeat("0", 52), Issuer: "did:web:registry.example", Subject: "did:key:" + twin1,
		Types: []string{"RoleCredential"}, Until: time.Now().Add(time.Hour + time.Minute), Held: true}
}

func fakeInvitation(r api.InvitationRequest) *api.Invitation {
	return &api.Invitation{APIVersion: api.APIVersion, Kind: "Invitation", ID: "9f2c", Text: invite, InvitationKind: r.Kind, For: r.For, Roles: r.Roles,
		Issuer: r.Issuer, Uses: r.Uses, Expires: time.Now().Add(time.Duration(r.Life) + time.Minute), Organization: acmeDID, SCID: "QmAcme"}
}

// accepted calls next with the body of a request. The invitation "lmos-invite:used" is refused.
func accepted(next func(http.ResponseWriter, api.Acceptance)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var a api.Acceptance
		if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
			panic(err)
		}
		if a.Invitation == "lmos-invite:used" {
			problem.Write(w, r, interact.Errorf(interact.InvalidInvite, "get a new one from the issuer", "the invitation was used"))
			return
		}
		next(w, a)
	}
}
