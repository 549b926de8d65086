package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/sse"
)

// activityRoutes are the routes of what a fake node did lately.
func (n *fakeNode) activityRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/events", n.nodeEvents)
	mux.HandleFunc("GET /v1/series", n.series)
	mux.HandleFunc("GET /v1/calls", n.guard(n.listCalls))
	mux.HandleFunc("GET /v1/calls/{id}", n.guard(n.getCall))
}

// lately are the events of a fake node.
func (n *fakeNode) lately() []api.NodeEvent {
	if n.bare {
		return []api.NodeEvent{}
	}
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	return []api.NodeEvent{
		{Seq: 1, At: at, Kind: api.EventPeerConnected, DID: n.owner},
		{Seq: 2, At: at, Kind: api.EventAgentAdded, DID: n.owner, Thing: n.agents["weather"].Agent.Ref, Name: "weather", Text: "published"},
		{Seq: 3, At: at, Kind: api.EventWarningRaised, Code: "LMOS-W031", Name: "clock-skew", Text: "peer clocks differ by 41 s"},
		{Kind: api.EventGap, From: 3, To: 7, Name: "call"},
		{Seq: 8, At: at, Kind: api.EventTaskStarted, Thing: n.agents["weather"].Agent.Ref, Code: "pending", Text: "getReport", ID: "3f2a", TraceID: "4bf92f3577b34da6a3ce929d0e0e4736"},
	}
}

// nodeEvents answers with a list or a stream. A stream of all kinds ends with an error.
func (n *fakeNode) nodeEvents(w http.ResponseWriter, r *http.Request) {
	kinds := strings.Split(r.URL.Query().Get("types"), ",")
	all := slices.DeleteFunc(n.lately(), func(e api.NodeEvent) bool {
		return kinds[0] != "" && !slices.ContainsFunc(kinds, func(k string) bool { return strings.HasPrefix(e.Kind, k) })
	})
	if r.Header.Get("Accept") != sse.MediaType {
		list := api.EventList{APIVersion: api.APIVersion, Kind: "EventList", Items: all, Latest: 9}
		if r.URL.Query().Get("limit") == "2" {
			list.Items, list.Next = all[:2], "2"
		}
		answer(w, list)
		return
	}
	e := sse.NewWriter(w, time.Minute)
	for _, event := range all {
		data, err := json.Marshal(event)
		if err != nil {
			panic(err)
		}
		_ = e.Send("", "1", data)
	}
	if !r.URL.Query().Has("types") {
		problem.Send(e, interact.Errorf(interact.Internal, "see its log", "the fake has no more"))
	}
}

func (n *fakeNode) series(w http.ResponseWriter, _ *http.Request) {
	s := api.Series{APIVersion: api.APIVersion, Kind: "Series", Step: 5, To: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)}
	for i := range 120 {
		v := float64(i%60) / 4
		none := (*float64)(nil)
		s.Items.Calls, s.Items.Errors, s.Items.P50 = append(s.Items.Calls, &v), append(s.Items.Errors, new(float64)), append(s.Items.P50, &v)
		s.Items.P99, s.Items.Peers, s.Items.Agents, s.Items.RSS = append(s.Items.P99, &v), append(s.Items.Peers, &v), append(s.Items.Agents, none), append(s.Items.RSS, none)
	}
	answer(w, s)
}

// madeCalls are the calls of a fake node: of another node, one that failed, and one that runs.
func (n *fakeNode) madeCalls() []api.Call {
	if n.bare {
		return []api.Call{}
	}
	at := time.Now().Add(-3*time.Minute - time.Second)
	weather := n.agents["weather"].Agent
	return []api.Call{
		{ID: "b87e15f1-3a7b-4ace-ba0b-7f656102ac50", At: at, Thing: weather.Ref, Name: "weather", Action: "getWeather", Op: "invokeaction", From: "local", Via: "mesh quic-v1",
			Path: []did.DID{n.owner, n.owner}, Host: n.owner, Status: api.CallCompleted, Parts: 1, First: 12, Took: 14, BytesIn: 20, BytesOut: 40,
			Stages: &api.CallStages{Resolve: 0.1, Dial: 2, Host: 10, Agent: 8}, TraceID: "4bf92f3577b34da6a3ce929d0e0e4736"},
		{ID: "b9000000-0000-4000-8000-000000000000", At: at, Thing: "urn:x:gone", Action: "getWeather", Op: "invokeaction", From: "local", Status: api.CallFailed,
			Code: interact.Unreachable.String(), Took: 2000},
		{ID: "c9000000-0000-4000-8000-000000000000", At: at, Thing: weather.Ref, Name: "weather", Action: "units", Op: "observeproperty", From: "local#ada", Status: api.CallRunning,
			Took: 181000},
	}
}

func (n *fakeNode) listCalls(w http.ResponseWriter, r *http.Request) {
	v := r.URL.Query()
	all := slices.DeleteFunc(n.madeCalls(), func(c api.Call) bool {
		return v.Get("code") != "" && c.Code != v.Get("code") || v.Get("thing") != "" && c.Name != v.Get("thing") || v.Get("trace") != "" && c.TraceID != v.Get("trace")
	})
	answer(w, api.CallList{APIVersion: api.APIVersion, Kind: "CallList", Items: all})
}

func (n *fakeNode) getCall(w http.ResponseWriter, r *http.Request) {
	for _, c := range n.madeCalls() {
		if c.ID == r.PathValue("id") {
			c.APIVersion, c.Kind = api.APIVersion, "Call"
			answer(w, c)
			return
		}
	}
	problem.Write(w, r, interact.Errorf(interact.NotFound, "see the list", "no call"))
}
