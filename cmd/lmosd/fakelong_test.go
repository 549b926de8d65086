package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
)

// The runs of the fake node: one continues until it is waited for, one failed, one completed.
const (
	runningTask   = "3f2a9c1b-0000-4000-8000-000000000001"
	failedTask    = "5d010000-0000-4000-8000-000000000002"
	completedTask = "5d020000-0000-4000-8000-000000000003"
	askingTask    = "a5c00000-0000-4000-8000-000000000004"
)

// longRoutes adds long requests: runs of actions, events, and the paths to an agent.
func (n *fakeNode) longRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/tasks", n.tasks)
	mux.HandleFunc("GET /v1/tasks/{id}", n.task)
	mux.HandleFunc("DELETE /v1/tasks/{id}", n.guard(n.task))
	mux.HandleFunc("GET /v1/paths/{ref}", n.paths)
	mux.HandleFunc("POST /v1/ping/{ref}", n.ping)
	mux.HandleFunc("GET /things/{ref}/events", n.events)
	mux.HandleFunc("GET /things/{ref}/events/{name}", n.events)
	mux.HandleFunc("GET /things/{ref}/actions/{name}/{run}", n.run)
	mux.HandleFunc("POST /things/{ref}/actions/{name}/{run}", n.tell)
}

func (n *fakeNode) list() []api.Task {
	if n.bare {
		return []api.Task{}
	}
	began := time.Now().Add(-90 * time.Second).UTC()
	ref := n.agents["weather"].Agent.Ref
	list := []api.Task{
		{ID: runningTask, Thing: ref, Name: "weather", Action: "getReport", Status: "running", Requested: began},
		{ID: failedTask, Thing: ref, Name: "weather", Action: "getReport", Status: "failed", Requested: began, Ended: began.Add(time.Second),
			Error: json.RawMessage(`{"type":"urn:lmosd:error:agent-failed","code":"LMOS-1502","title":"Agent failed","detail":"no paper","remote":true}`)},
		{ID: completedTask, Thing: ref, Name: "weather", Action: "getReport", Status: "completed", Requested: began, Ended: began.Add(3 * time.Second),
			Output: json.RawMessage(`"It rained."`)},
	}
	n.asking.Lock()
	defer n.asking.Unlock()
	if n.asking.inputs != nil {
		list = append(list, api.Task{ID: askingTask, Thing: n.agents["curious"].Agent.Ref, Name: "curious", Action: "getReport",
			Status: "input-required", Inputs: n.asking.inputs, Requested: began})
	}
	return list
}

// An asking is the input that the run of curious requires; nil before it started.
type asking struct {
	sync.Mutex
	inputs  interact.Inputs
	answers json.RawMessage
}

// asked returns the required inputs, for the year of the report.
var asked = map[int]interact.Inputs{
	1: {"form": {Kind: interact.InputForm, Message: "How shall it be?\nSay it.", Schema: json.RawMessage(`{"type":"object","required":["style","pages"],
		"properties":{"style":{"type":"string","title":"Style","enum":["short","long"],"default":"short"},"pages":{"type":"integer","minimum":1,"maximum":9},
		"draft":{"type":"boolean"}}}`)}},
	2: {"site": {Kind: interact.InputURL, Message: "Pay first", URL: "https://pay.example/7"}},
	3: {"say": {Kind: interact.InputModel, Params: json.RawMessage(`{"systemPrompt":"Be short.","messages":[{"role":"user","content":{"type":"text","text":"Who?"}}]}`)},
		"dirs": {Kind: interact.InputRoots}},
	5: {"who": {Kind: interact.InputForm, Schema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`)}},
	6: {"dirs": {Kind: interact.InputRoots}},
	4: {"more": {Kind: interact.InputMessage, Message: "Which town?"}},
}

// ask starts the run of curious.
func (n *fakeNode) ask(w http.ResponseWriter, r *http.Request, body []byte) {
	if !strings.Contains(strings.Join(r.Header.Values("Prefer"), ","), "lmos-input") || r.Header.Get("Idempotency-Key") == "" {
		problem.Write(w, r, interact.NeedsInput("getReport"))
		return
	}
	n.asking.Lock()
	defer n.asking.Unlock()
	var of struct{ Year int }
	_ = json.Unmarshal(body, &of)
	n.asking.inputs, n.asking.answers = asked[of.Year], nil
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, `{"status":"running","href":"/x/%s","lmosd:inputRequired":%s}`, askingTask, encode(n.asking.inputs))
}

// tell receives the answers for the run of curious.
func (n *fakeNode) tell(w http.ResponseWriter, r *http.Request) {
	n.asking.Lock()
	defer n.asking.Unlock()
	n.asking.inputs = nil
	n.asking.answers, _ = io.ReadAll(r.Body)
	w.WriteHeader(http.StatusNoContent)
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func (n *fakeNode) tasks(w http.ResponseWriter, _ *http.Request) {
	answer(w, api.TaskList{APIVersion: api.APIVersion, Kind: "TaskList", Items: n.list()})
}

func (n *fakeNode) task(w http.ResponseWriter, r *http.Request) {
	for _, t := range n.list() {
		if t.ID != r.PathValue("id") {
			continue
		}
		if t.APIVersion, t.Kind = api.APIVersion, "Task"; r.Method == http.MethodDelete {
			t.Status = "cancelled"
		}
		answer(w, t)
		return
	}
	problem.Write(w, r, interact.Errorf(interact.NoTask, "", "no such task").Then(interact.StepTasks))
}

// begun responds that an action continues.
func begun(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, `{"status":"pending","href":"/things/%s/actions/%s/%s"}`, url.PathEscape(r.PathValue("ref")), r.PathValue("name"), runningTask)
}

// run sends the states of a run until it has ended.
func (n *fakeNode) run(w http.ResponseWriter, r *http.Request) {
	if name, d := n.named(w, r); d == nil || misbehave(w, r, name) {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	id := r.PathValue("run")
	state := func(text string) {
		_, _ = fmt.Fprintf(w, "event: getReport\ndata: {\"href\":\"/x/%s\",%s}\n\n", id, text)
		_ = http.NewResponseController(w).Flush()
	}
	switch id {
	case failedTask:
		state(`"status":"failed","error":` + string(n.list()[1].Error))
	case askingTask:
		n.asking.Lock()
		defer n.asking.Unlock()
		if n.asking.inputs != nil {
			state(`"status":"running","lmosd:inputRequired":` + string(encode(n.asking.inputs)))
			return
		}
		state(`"status":"completed","output":` + string(n.asking.answers))
	default:
		state(`"status":"running"`)
		state(`"status":"completed","output":"It rained.","timeEnded":"2026-01-02T03:04:05Z"`)
	}
}

// events sends two events, or two values, and ends.
func (n *fakeNode) events(w http.ResponseWriter, r *http.Request) {
	name, d := n.named(w, r)
	if d == nil || misbehave(w, r, name) {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	list := []string{"event: userFeedbackReceived\nid: e1\ndata: {\"rating\":4}\n\n", "event: userFeedbackReceived\nid: e2\ndata: {\"rating\": 5}\n\n"}
	if r.PathValue("name") == "units" || r.URL.Path == "/things/"+r.PathValue("ref")+"/properties" {
		list = []string{"event: units\nid: p1\ndata: \"celsius\"\n\n", "event: units\nid: p2\ndata: \"fahr\\tenheit\"\n\n"}
	}
	if after := r.Header.Get("Last-Event-Id"); after == "e1" || after == "p1" {
		list = list[1:]
	}
	for _, e := range list {
		_, _ = w.Write([]byte(e))
	}
}

func (n *fakeNode) paths(w http.ResponseWriter, r *http.Request) {
	if _, d := n.named(w, r); d != nil {
		answer(w, api.PathList{APIVersion: api.APIVersion, Kind: "PathList", Ref: d.Agent.Ref, Items: []api.Path{
			{Name: "mesh", Took: 1.2}, {Name: "https", Href: "https://weather.example/actions", Down: true}}})
	}
}

func (n *fakeNode) ping(w http.ResponseWriter, r *http.Request) {
	name, d := n.named(w, r)
	if d == nil || misbehave(w, r, name) {
		return
	}
	p := api.Ping{APIVersion: api.APIVersion, Kind: "Ping", Ref: d.Agent.Ref, Node: n.owner, Path: "mesh quic-v1"}
	for i := range int(r.URL.Query().Get("n")[0] - '0') {
		p.RTT = append(p.RTT, 0.4+float64(i))
	}
	answer(w, p)
}
