package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/group/chain"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
)

// fakeGroup is the log of the group of the fake node.
func fakeGroup() *chain.Chain {
	k := didtest.Key(3)
	c, err := chain.New(chain.Op{Name: "claims-2026", Threshold: 2, Labels: map[string]string{"tenant": "acme", "channel": "web"}, Member: chain.Member{Node: k.DID()}}, k,
		time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	if err != nil {
		panic(err)
	}
	return c
}

func (n *fakeNode) groupRoutes(mux *http.ServeMux) {
	read := func(r *http.Request, v any) {
		if err := json.NewDecoder(r.Body).Decode(v); err != nil {
			panic(err)
		}
	}
	mux.HandleFunc("GET /v1/groups", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		list := api.GroupList{APIVersion: api.APIVersion, Kind: "GroupList", Items: []api.Group{}}
		if !n.bare {
			for _, state := range []string{api.GroupActive, api.GroupInvited, api.GroupDissolved} {
				g := n.group("claims-2026", state)
				g.Members = nil
				list.Items = append(list.Items, *g)
			}
		}
		answer(w, list)
	}))
	mux.HandleFunc("POST /v1/groups", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var q api.GroupCreate
		read(r, &q)
		answer(w, n.group(q.Name, api.GroupActive))
	}))
	mux.HandleFunc("POST /v1/groups/join", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var q api.GroupJoin
		read(r, &q)
		answer(w, n.group("claims-2026", api.GroupActive))
	}))
	mux.HandleFunc("GET /v1/groups/{group}", n.guard(func(w http.ResponseWriter, r *http.Request) {
		answer(w, n.group(r.PathValue("group"), api.GroupActive))
	}))
	mux.HandleFunc("GET /v1/groups/{group}/log", n.guard(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(fakeGroup().Bytes()) }))
	mux.HandleFunc("POST /v1/groups/{group}/invite", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var q api.GroupInvite
		read(r, &q)
		i := api.GroupInvitation{APIVersion: api.APIVersion, Kind: "GroupInvitation", Expires: time.Now().Add(24 * time.Hour)}
		if !q.Offer {
			i.Invitation = "lmos-invite:" + strings.Repeat("A", 40)
		}
		answer(w, i)
	}))
	mux.HandleFunc("POST /v1/groups/{group}/change", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var q api.GroupChange
		read(r, &q)
		g := n.group(r.PathValue("group"), api.GroupActive)
		if q.Role == chain.Admin {
			q.Approved, q.Needed = 1, 2
			g.Pending = []api.GroupChange{q}
		}
		answer(w, g)
	}))
	mux.HandleFunc("POST /v1/groups/{group}/events", n.guard(func(w http.ResponseWriter, r *http.Request) {
		d := api.GroupDelivery{APIVersion: api.APIVersion, Kind: "GroupDelivery", ID: "E7", Delivered: 2}
		if r.PathValue("group") == "away" {
			d.Delivered, d.Failed = 0, map[did.DID]string{n.owner: "not connected"}
		}
		answer(w, d)
	}))
	mux.HandleFunc("GET /v1/groups/{group}/events", n.guard(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, data := range []string{`{"claim":4711}`, `"the meeting begins"`} {
			e, _ := json.Marshal(api.GroupEvent{ID: "E7", Group: "Qm", Member: n.owner, Node: n.owner, Sender: "crm", Time: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), Type: "claim", Data: json.RawMessage(data)})
			_, _ = w.Write([]byte("event: event\nid: E7\ndata: " + string(e) + "\n\n"))
		}
		if r.PathValue("group") != "former" {
			return
		}
		doc, _ := problem.Marshal(interact.Errorf(interact.NotMember, "ask an admin of the group", "this node is not a member of the group %s", r.PathValue("group")))
		_, _ = w.Write([]byte("event: " + problem.EventName + "\ndata: " + string(doc) + "\n\n"))
	}))
}

// group returns a group with two members, one of which has no rights.
func (n *fakeNode) group(name, state string) *api.Group {
	c := fakeGroup()
	return &api.Group{APIVersion: api.APIVersion, Kind: "Group", ID: c.Group(), Name: name, Title: "claims-2026", State: state, Role: chain.Admin, Labels: c.State().Labels, Threshold: 2,
		Join: []api.GroupRule{{Issuer: "did:web:issuer.example", Role: "adjuster", As: "adjuster"}}, Count: 2, Entries: 2, Head: c.Head().ID, Changed: c.Head().Time,
		Members: []api.GroupMember{{DID: n.owner, Node: n.owner, Role: chain.Admin, Since: 1}, {DID: didtest.Key(4).DID(), Node: didtest.Key(4).DID(), Role: "adjuster", Since: 2,
			Org: "did:webvh:QmYsVb3TqC9mCMKCZPG7uCZVZKkZcSiNd7E8wQq1mTXcM7:globex.example", Problem: "its node is revoked or distrusted"}},
		Splits: []api.GroupSplit{{After: c.Head().ID, Entries: []string{"2-Qm", "2-Qn"}, Signer: n.owner}}}
}
