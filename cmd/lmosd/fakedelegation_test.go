package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/ucan"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
)

// fakeLinks are a delegation of the host didtest.Key(2), by the node didtest.Key(3). Each time they are the same.
func fakeLinks(to did.DID) []*ucan.Token {
	end := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	link := func(from int, to did.DID) *ucan.Token {
		t, err := ucan.Delegation{Audience: to, Subject: didtest.Key(2).DID(), Command: "/lmos/invoke/urn%3aexample%3apayout/pay", Expires: end, Nonce: []byte("twelve bytes")}.Sign(didtest.Key(from))
		if err != nil {
			panic(err)
		}
		return t
	}
	return []*ucan.Token{link(2, didtest.Key(3).DID()), link(3, to)}
}

// fakeDelegation is the token of fakeLinks.
func fakeDelegation(to did.DID) string {
	var raw [][]byte
	for _, t := range fakeLinks(to) {
		raw = append(raw, t.Bytes())
	}
	text, err := ucan.Pack(ucan.Base64URL, raw...)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// delegationRoutes serve a node with one delegation. Those of the agent "forbidden" are refused.
func (n *fakeNode) delegationRoutes(mux *http.ServeMux) {
	one := func(q api.DelegationRequest) api.Delegation {
		life, _ := time.ParseDuration(q.Life)
		return api.Delegation{APIVersion: api.APIVersion, Kind: "Delegation", ID: fakeLinks(q.To)[1].CID().String(), By: "crm", To: q.To, Host: didtest.Key(2).DID(), Agent: q.Agent,
			Thing: "urn:example:" + q.Agent, Op: q.Op, Name: q.Name, Where: q.Where, Expires: time.Now().Add(life + time.Second)}
	}
	kept := api.DelegationRequest{Agent: "payout", Name: "pay", Op: "invoke", To: "did:key:" + twin1, Life: "10m", Where: []string{"amount<=100"}}
	issued := one(kept)
	issued.ID, issued.By, issued.To, issued.Where = fakeLinks(kept.To)[0].CID().String(), string(didtest.Key(3).DID())+"#crm", "", nil
	mux.HandleFunc("GET /v1/delegations", n.guard(func(w http.ResponseWriter, r *http.Request) {
		list := api.DelegationList{APIVersion: api.APIVersion, Kind: "DelegationList", Items: []api.Delegation{}}
		switch {
		case n.bare:
		case r.URL.Query().Get("issued") == "true":
			list.Items = append(list.Items, issued)
		default:
			list.Items = append(list.Items, one(kept))
		}
		answer(w, list)
	}))
	mux.HandleFunc("POST /v1/delegations", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var q api.DelegationRequest
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			panic(err)
		}
		if q.Agent == "forbidden" {
			problem.Write(w, r, interact.Errorf(interact.Forbidden, "ask the operator of that host for a rule", "%s may not delegate %s", n.owner.Short(), q.Name))
			return
		}
		d := one(q)
		d.Token = fakeDelegation(q.To)
		answer(w, d)
	}))
	mux.HandleFunc("DELETE /v1/delegations/{id}", n.guard(func(w http.ResponseWriter, r *http.Request) {
		d, id := one(kept), r.PathValue("id")
		switch {
		case strings.HasPrefix(issued.ID, id):
			d = issued
		case id == "zdpuAyyH8fpE": // that of the help, whose host is away
			d.Revoking = true
		case !strings.HasPrefix(d.ID, id):
			problem.Write(w, r, interact.Errorf(interact.NotFound, "see the list of delegations", "no delegation of this node has the id %q", id))
			return
		}
		answer(w, d)
	}))
}
