package main

import (
	"io"
	"net/http"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
)

func (n *fakeNode) hostingRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/hosting", n.guard(n.hosted))
	mux.HandleFunc("POST /v1/hosting", n.guard(n.host))
	mux.HandleFunc("DELETE /v1/hosting/{ref}", n.guard(n.unpublish))
	mux.HandleFunc("POST /v1/hosting/withdrawal", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, api.Publication{APIVersion: api.APIVersion, Kind: "Publication", ID: "urn:example:weather", Ref: "urn:example:weather", Owner: n.owner, Withdrawn: true})
	}))
}

// hosted lists a Thing whose grant ends soon, one that waits, and one whose grant has ended.
func (n *fakeNode) hosted(w http.ResponseWriter, _ *http.Request) {
	list := api.HostedList{APIVersion: api.APIVersion, Kind: "HostedList", Items: []api.Hosted{}}
	add := func(name, state string, left time.Duration, waiting uint64) {
		end := time.Now().Add(left)
		list.Items = append(list.Items, api.Hosted{Thing: "urn:example:" + name, Ref: "urn:example:" + name + "@" + n.owner.Multibase(), Name: name, Owner: n.owner, Number: 7,
			Issued: end.Add(-time.Hour), Expires: end, Nodes: []did.DID{n.owner}, Hosts: []did.DID{n.owner}, State: state, WaitingFor: waiting})
	}
	if !n.bare {
		add("weather", api.HostedNow, 30*time.Hour+time.Minute, 0)
		add("slow", api.HostedWaiting, 100*time.Hour+time.Minute, 8)
		add("away", api.HostedGrantEnded, -time.Hour, 0)
	}
	answer(w, list)
}

func (n *fakeNode) host(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	_, g, err := api.ParseHostingGrant(body)
	if err != nil {
		problem.Write(w, r, interact.AsError(err))
		return
	}
	answer(w, api.Publication{APIVersion: api.APIVersion, Kind: "Publication", ID: g.Thing, Ref: g.Thing, Name: "weather", Owner: g.Owner, Created: true, GossipPeers: 2,
		Hosted: &api.Hosted{Thing: g.Thing, Number: g.Number, Expires: g.Expires, Nodes: g.Nodes, State: api.HostedNow}})
}
