package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/sse"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/querytext"
)

//go:embed testdata/weather.td.json
var weatherTD []byte

// The owners of the agents that have one name.
const (
	twin1 = "z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"
	twin2 = "z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"
)

// fakeToken is the token of the fake node.
const fakeToken = "secret"

// A fakeNode answers as the API of a node does. What an agent of it does is in its name: weather answers, slow never
// does, curious asks before it reports, and failing, refusing and away give the error that the name says; liar's description was changed after it was
// signed.
type fakeNode struct {
	owner  did.DID
	agents map[string]*api.AgentDetail // by name
	raw    map[string][]byte           // likewise: the descriptions byte for byte
	values map[string]string           // properties of all agents
	bare   bool                        // no peers, no agents
	asking asking                      // the run of curious
	tokens accessTokens
}

// newFakeNode serves a fake node until the test ends, and returns its URL.
func newFakeNode(t testing.TB) string {
	t.Helper()
	n := makeFake()
	s := httptest.NewServer(n.routes())
	t.Cleanup(func() {
		s.CloseClientConnections() // of callers that wait for slow
		s.Close()
	})
	return s.URL
}

func makeFake() *fakeNode {
	key, err := keystore.FromSeed([32]byte{1})
	if err != nil {
		panic(err)
	}
	n := &fakeNode{owner: key.DID(), agents: map[string]*api.AgentDetail{}, raw: map[string][]byte{},
		values: map[string]string{"modelConfiguration": `{"model":"small","temperature":0.2}`, "units": `"celsius"`, "build": `"7"`}}
	for _, name := range []string{"weather", "slow", "failing", "refusing", "away", "liar", "curious"} {
		n.add(name, key)
	}
	n.raw["liar"] = bytes.Replace(n.raw["liar"], []byte("Answers"), []byte("Dodges"), 1)
	n.agents["liar"].TD = n.raw["liar"]
	return n
}

func (n *fakeNode) add(name string, key *keystore.Key) {
	raw := bytes.ReplaceAll(weatherTD, []byte("urn:example:weather\""), []byte("urn:example:"+name+"\""))
	raw = bytes.ReplaceAll(raw, []byte(`"Weather"`), []byte(`"`+strings.ToUpper(name[:1])+name[1:]+`"`))
	if name == "curious" {
		raw = bytes.Replace(raw, []byte(`"getReport": {`), []byte(`"getReport": { "lmosd:requiresInput": true,`), 1)
	}
	t, err := td.Complete(raw, key.DID())
	if err != nil {
		panic(err)
	}
	now := time.Now()
	signed, err := td.Sign(t, key, td.Lease{Seq: 17, Now: now.Add(-3 * time.Second), Lifetime: 23*time.Hour + time.Minute})
	if err != nil {
		panic(err)
	}
	state := api.StateReachable
	if name == "away" {
		state = api.StateUnreachable
	}
	hash := sha256.Sum256(signed.TD)
	n.raw[name] = signed.TD
	n.agents[name] = &api.AgentDetail{APIVersion: api.APIVersion, Kind: "Agent", TD: signed.TD, Record: signed.Record,
		Agent: api.Agent{ID: t.ID, Ref: t.ID + "@" + n.owner.Multibase(), Name: name, Title: t.Title, Description: t.Description,
			Owner: n.owner, Hosts: []did.DID{n.owner}, Capabilities: []string{"urn:example:weather:forecast"},
			Actions: slices.Sorted(maps.Keys(t.Actions)), Properties: slices.Sorted(maps.Keys(t.Properties)),
			Local: name == "weather", State: state, LastSeen: now.Add(-3 * time.Second), Seen: now.Add(-3 * time.Second), Expires: now.Add(23*time.Hour + time.Minute)},
		Signature: api.Signature{Verified: true, Method: string(n.owner) + "#" + n.owner.Multibase(), Suite: "eddsa-jcs-2022",
			Created: now.Add(-time.Minute), Seq: 17, Hash: hex.EncodeToString(hash[:]), Size: len(signed.TD)}}
}

func (n *fakeNode) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", n.status)
	mux.HandleFunc("GET /v1/peers", n.peers)
	mux.HandleFunc("GET /v1/net", n.net)
	mux.HandleFunc("POST /v1/peers", n.guard(n.connect))
	mux.HandleFunc("GET /v1/find", n.find)
	mux.HandleFunc("POST /v1/route", n.route)
	mux.HandleFunc("GET /v1/agents/{ref}", n.agent)
	mux.HandleFunc("DELETE /v1/agents/{ref}", n.guard(n.unpublish))
	mux.HandleFunc("POST /v1/move/{ref}", n.guard(n.unpublish))
	mux.HandleFunc("POST /v1/publish", n.guard(n.publish))
	mux.HandleFunc("GET /things/{ref}", n.thing)
	mux.HandleFunc("POST /things/{ref}/actions/{name}", n.call)
	mux.HandleFunc("GET /things/{ref}/properties", n.readAll)
	mux.HandleFunc("GET /things/{ref}/properties/{name}", n.read)
	mux.HandleFunc("PUT /things/{ref}/properties/{name}", n.write)
	mux.HandleFunc("GET /v1/tokens", n.guard(n.listTokens))
	mux.HandleFunc("POST /v1/tokens", n.guard(n.createToken))
	mux.HandleFunc("DELETE /v1/tokens/{name}", n.guard(n.revokeToken))
	n.activityRoutes(mux)
	n.operatorRoutes(mux)
	n.hostingRoutes(mux)
	n.delegationRoutes(mux)
	n.groupRoutes(mux)
	n.longRoutes(mux)
	n.policyRoutes(mux)
	n.trustRoutes(mux)
	n.topologyRoutes(mux)
	n.consoleRoutes(mux)
	return mux
}

// guard requires the token.
func (n *fakeNode) guard(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+fakeToken {
			problem.Write(w, r, interact.Errorf(interact.TokenRejected, "export LMOSD_TOKEN=…", "this is not the token of the node"))
			return
		}
		next(w, r)
	}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	_, _ = w.Write(b)
}

func (n *fakeNode) status(w http.ResponseWriter, _ *http.Request) {
	s := api.Status{APIVersion: api.APIVersion, Kind: "Status", State: "ready", DID: n.owner, PeerID: n.owner.PeerText(),
		Name: "alpha", Version: "0.0.9", Uptime: 11520, Profile: "default", Network: "lmos", DataDir: "/var/lib/lmosd",
		Addrs: []string{"/ip4/192.0.2.7/tcp/4667/p2p/" + n.owner.PeerText()}, API: "http://127.0.0.1:4668"}
	s.DHT.Mode, s.DHT.Table, s.Peers.Total, s.Peers.Direct, s.Peers.Relayed = "server", 61, 14, 12, 2
	s.Reachability, s.Relays = api.ReachablePrivate, 2
	s.Agents.Local, s.Agents.Known, s.Calls.Total, s.Calls.P50 = 3, 212, 18200, 2.1
	s.Warnings = []api.Warning{{Code: "LMOS-W031", Title: "clock-skew", Severity: "medium", Text: "peer clocks differ by 41 s",
		Hint: "timedatectl set-ntp true"}}
	if n.bare {
		s.Peers.Total, s.Agents.Known, s.Agents.Local, s.State, s.Warnings = 0, 0, 0, "starting", nil
	}
	answer(w, s)
}

func (n *fakeNode) peers(w http.ResponseWriter, _ *http.Request) {
	list := api.PeerList{APIVersion: api.APIVersion, Kind: "PeerList", Items: []api.Peer{}}
	if !n.bare {
		list.Items = append(list.Items, api.Peer{DID: n.owner, PeerID: n.owner.PeerText(), Addr: "/ip4/192.0.2.8/udp/4667/quic-v1",
			Transport: "quic-v1", Direction: "outbound", Agent: "lmosd/0.1.0", RTT: 1.24, Since: 600}, api.Peer{DID: n.owner, PeerID: n.owner.PeerText(), Addr: "/ip4/192.0.2.8/tcp/4667/p2p-circuit",
			Relay: n.owner, Transport: "tcp", Direction: "inbound", Agent: "lmosd/0.1.0", Since: 60})
	}
	answer(w, list)
}

// net answers for a node behind a router, or for one without anything.
func (n *fakeNode) net(w http.ResponseWriter, _ *http.Request) {
	v := api.Net{APIVersion: api.APIVersion, Kind: "Net", Reachability: api.ReachablePrivate, Addrs: []api.NetAddr{},
		PortMapping: api.PortMapping{State: api.MappingNone, Mappings: []api.Mapping{}}, Relays: []api.NetRelay{}, RelayFailures: []api.RelayFailure{}}
	v.NAT.UDP, v.NAT.TCP, v.Punches.Last = api.NATIndependent, api.NATUnknown, []api.Punch{}
	if !n.bare {
		now := time.Now()
		v.Addrs = []api.NetAddr{{Addr: "/ip4/192.168.1.4/udp/4667/quic-v1", Source: api.SourceInterface, Announced: true},
			{Addr: "/ip4/203.0.113.7/udp/4667/quic-v1", Source: api.SourceObserved, Checked: api.CheckedReachable, Announced: true},
			{Addr: "/ip4/203.0.113.7/tcp/4667", Source: api.SourceMapping, Proof: api.SourceMapping, Checked: api.CheckedUnreachable}}
		v.Relays = []api.NetRelay{{DID: n.owner, Addr: "/ip4/192.0.2.8/tcp/4667/p2p/" + n.owner.PeerText() + "/p2p-circuit", RTT: 12.5,
			Since: now.Add(-5*time.Minute - time.Second), Until: now.Add(55*time.Minute + time.Second), Seconds: 1800, Bytes: 64 << 20}}
		v.RelayFailures = []api.RelayFailure{{DID: n.owner, Reason: "its policy refuses this node", At: now.Add(-3*time.Minute - time.Second), Until: now.Add(9*time.Minute + 30*time.Second)}}
		v.Punches.PunchCounts = api.PunchCounts{Tried: 10, Won: 9, Failed: 1}
		v.Punches.Last = []api.Punch{{DID: n.owner, At: now.Add(-2*time.Minute - time.Second), Result: api.PunchFailed, Took: 5000, Reason: "timeout"}}
		v.Serving = &api.Serving{Reservations: []api.Reservation{{DID: n.owner, Terms: "long"}}, Bytes: 3 << 20, Today: 1 << 20, Limit: 16 << 30,
			Circuits: []api.Circuit{{From: n.owner, To: n.owner, Terms: "long", Since: now.Add(-time.Minute - time.Second), Bytes: 1 << 20}}, Refused: map[string]uint64{"PERMISSION_DENIED": 3}}
		v.Peers.Total, v.Peers.Direct, v.Peers.Relayed = 14, 12, 2
	}
	answer(w, v)
}

func (n *fakeNode) connect(w http.ResponseWriter, r *http.Request) {
	var body struct{ Addr string }
	if json.NewDecoder(r.Body).Decode(&body) != nil || !strings.Contains(body.Addr, "/p2p/") {
		problem.Write(w, r, interact.Errorf(interact.Invalid, "copy what lmosd id prints there", "no address of a peer"))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

var wrongClock = []api.Warning{{Code: "LMOS-W031", Title: "clock-skew", Severity: "high", Text: "this node's clock is off by +2h0m0s (ahead) against 3 peers"}}

func (n *fakeNode) find(w http.ResponseWriter, r *http.Request) {
	v := r.URL.Query()
	q, err := querytext.Parse(v.Get("q"), td.Query{})
	if err != nil {
		panic(err)
	}
	list := api.AgentList{APIVersion: api.APIVersion, Kind: "AgentList", Items: []api.Agent{}, Took: 14.2,
		Coverage: td.Coverage{Asked: 3, Answered: 3, Oldest: time.Now().Add(-2 * time.Minute)}}
	for _, name := range slices.Sorted(maps.Keys(n.agents)) {
		g := n.agents[name].Agent
		if c := strings.Join(q.Capability, " "); strings.HasPrefix(g.Capabilities[0], c) && strings.Contains(name, q.Text) && !n.bare && name != "curious" {
			if v.Get("explain") != "" {
				g.Score, g.ScoreFactors = 0.9, []api.ScoreFactor{{Signal: "word", Amount: 0.8, Asked: "wether", Found: "weather", Field: "title"},
					{Signal: "trust", Amount: 0.07, Found: "partner"}, {Signal: "reach", Amount: 0.03}, {Signal: "fallback", Found: "no endpoint"}}
			}
			list.Items = append(list.Items, g)
		}
	}
	if v.Get("order") == "call" {
		n.order(&list, q, v.Get("trust"))
	}
	if v.Get("limit") == "1" {
		list.Items, list.Coverage.Truncated = list.Items[:min(1, len(list.Items))], true
	}
	if v.Get("limit") == "2" {
		list.Warnings = wrongClock
	}
	if v.Get("timeout") == "1ms" {
		list.Coverage.Answered, list.Coverage.Unreachable = 1, 2
	}
	if r.Header.Get("Accept") == "text/event-stream" {
		n.tellFound(w, list, q.Text != "")
		return
	}
	answer(w, list)
}

// order puts away before weather; for trust any, failing before both. The other agents are of owners that are not trusted.
func (n *fakeNode) order(list *api.AgentList, q td.Query, trust string) {
	names := []string{"away", "weather"}
	if trust == "any" {
		names = []string{"failing", "away", "weather"}
	}
	list.Items = []api.Agent{}
	for _, name := range names {
		g := n.agents[name].Agent
		g.Choice = &api.Choice{Reason: "12 ms on average, 2 calls run", Cost: 36, Running: 2, Repeatable: q.Action == "getWeather"}
		if slices.Contains(g.Actions, q.Action) && strings.Join(q.Capability, " ") == g.Capabilities[0] && q.Version != "^2" {
			list.Items = append(list.Items, g)
		}
	}
	if trust == "own" {
		list.LeftOut = &api.LeftOut{Any: 3}
	}
}

// route picks the agent whose name the task has.
func (n *fakeNode) route(w http.ResponseWriter, r *http.Request) {
	var q api.RouteRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		panic(err)
	}
	d := api.RouteAnswer{APIVersion: api.APIVersion, Kind: "Route", Candidates: []api.Candidate{}, Method: cmp.Or(q.Method, "lexical"),
		Reason: "no example is similar", Took: 3}
	for name, g := range n.agents {
		if strings.Contains(q.Message, name) {
			d.Agent = &api.Candidate{ID: g.Agent.Ref, Name: name, Score: 0.75, Capabilities: []api.CandidateCapability{{ID: "urn:x:y"}}}
			d.Candidates, d.Reason = append(d.Candidates, *d.Agent), "it has its name"
		}
	}
	answer(w, d)
}

// tellFound sends the found agents, then a change and a removal, and ends, with an error if it should fail.
func (n *fakeNode) tellFound(w http.ResponseWriter, list api.AgentList, fail bool) {
	e := sse.NewWriter(w, time.Minute)
	tell := func(c api.AgentChange) {
		data, err := json.Marshal(c)
		if err != nil {
			panic(err)
		}
		_ = e.Send(c.Change, "1", data)
	}
	for i := range list.Items {
		tell(api.AgentChange{Change: "known", Agent: &list.Items[i]})
	}
	tell(api.AgentChange{Change: "ready", Coverage: &list.Coverage})
	if len(list.Items) > 0 {
		tell(api.AgentChange{Change: "changed", Reason: "unreachable", Time: time.Now(), Agent: &list.Items[0]})
		tell(api.AgentChange{Change: "removed", Reason: "expired", Time: time.Now(), Agent: &list.Items[0]})
	}
	tell(api.AgentChange{Change: "overflow"})
	if fail {
		problem.Send(e, interact.Errorf(interact.Internal, "see its log", "the fake has no more"))
	}
}

// named returns the agent of a request, or responds with an error.
func (n *fakeNode) named(w http.ResponseWriter, r *http.Request) (string, *api.AgentDetail) {
	ref := td.ParseRef(r.PathValue("ref")).Name
	name := ref[strings.LastIndexByte(ref, ':')+1:]
	switch d := n.agents[name]; {
	case name == "twins":
		problem.Write(w, r, interact.Errorf(interact.Ambiguous, "use an exact reference", `2 agents match "twins"`).
			Then(interact.StepUse, "urn:lmos:did:key:"+twin1+":twins", "urn:example:twins@"+twin2))
	case d == nil:
		problem.Write(w, r, interact.Errorf(interact.NotFound, "", "no agent matches %q", ref).Then(interact.StepShow, "weather"))
	default:
		return name, d
	}
	return "", nil
}

func (n *fakeNode) agent(w http.ResponseWriter, r *http.Request) {
	if _, d := n.named(w, r); d != nil {
		moved := *d
		if ref := r.PathValue("ref"); strings.HasSuffix(ref, "@z6Mkold") {
			moved.MovedFrom = ref
		}
		if moved.Agent.Name == "liar" {
			moved.Agent.Equivocation = &api.Equivocation{Seq: 17, Seen: time.Now()}
			moved.Warnings = wrongClock
		}
		answer(w, moved)
	}
}

func (n *fakeNode) thing(w http.ResponseWriter, r *http.Request) {
	if name, d := n.named(w, r); d != nil {
		w.Header().Set("Content-Type", "application/td+json")
		_, _ = w.Write(n.raw[name])
	}
}

func (n *fakeNode) unpublish(w http.ResponseWriter, r *http.Request) {
	name, d := n.named(w, r)
	if d == nil {
		return
	}
	p := api.Publication{APIVersion: api.APIVersion, Kind: "Publication", ID: d.Agent.ID, Ref: d.Agent.Ref, Name: name,
		Owner: n.owner, Seq: 18, Withdrawn: true, Replicas: 20, Wanted: 20, GossipPeers: 6, Took: 41}
	if body, _ := io.ReadAll(r.Body); len(body) > 0 {
		var to struct{ To did.DID }
		if err := json.Unmarshal(body, &to); err != nil {
			panic(err)
		}
		if p.MovedTo = to.To; name == "away" {
			p.Successor = name + "@" + p.MovedTo.Multibase()
		}
	}
	answer(w, p)
}

func (n *fakeNode) publish(w http.ResponseWriter, r *http.Request) {
	raw, _ := io.ReadAll(r.Body)
	t, err := td.Parse(raw)
	if err != nil {
		problem.Write(w, r, err)
		return
	}
	answer(w, api.Publication{APIVersion: api.APIVersion, Kind: "Publication", ID: t.ID, Ref: t.ID + "@" + n.owner.Multibase(),
		Name: t.Name(), Owner: n.owner, Seq: 1, Created: true, Capability: "urn:example:weather:forecast", Action: "getWeather",
		Replicas: 20, Wanted: 20, GossipPeers: 6, RecordSize: 900, TDSize: len(raw), Took: 184, Pending: t.Title == "Lonely",
		Callers: map[bool]string{true: "anyone", false: "permitted"}[t.Title == "Lonely"], For: r.URL.Query()["for"],
		Warnings: []td.Issue{{Pointer: "/title", Reason: "short"}}})
}

// misbehave does what the name of an agent promises, and reports whether there was something to do.
func misbehave(w http.ResponseWriter, r *http.Request, name string) bool {
	var err error
	switch name {
	case "slow":
		<-r.Context().Done()
		return true
	case "failing":
		err = &interact.Error{Code: interact.AgentFailed, Title: "the agent answered 500: \x1b[31mboom", Remote: true}
	case "refusing":
		err = interact.Errorf(interact.Forbidden, "lmosd config get trust.untrusted", "trust.untrusted none does not let you in")
	case "away":
		e := interact.Errorf(interact.Unreachable, "try again", "no host of away answers")
		e.Started, err = strings.HasSuffix(r.URL.Path, "/echo"), e
	default:
		return false
	}
	problem.Write(w, r, err)
	return true
}

func (n *fakeNode) call(w http.ResponseWriter, r *http.Request) {
	// The server notices that a client has gone only when the body was read.
	body, _ := io.ReadAll(r.Body)
	name, d := n.named(w, r)
	if d == nil || misbehave(w, r, name) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if r.Header.Get("Lmos-Timing") != "" {
		w.Header().Set("Server-Timing", `resolve;dur=0.040, host;dur=2.5, agent;dur=1.9, total;dur=3.2, path;desc="mesh quic-v1"`)
	}
	if name == "curious" && r.PathValue("name") == "getReport" {
		n.ask(w, r, body)
		return
	}
	if r.Header.Get("Prefer") == "respond-async" || r.PathValue("name") == "getReport" {
		begun(w, r)
		return
	}
	switch r.PathValue("name") {
	case "transcribe":
		if !strings.Contains(r.Header.Get("Accept"), "application/x-ndjson") {
			_, _ = w.Write([]byte(`"Rain in Bonn?"`))
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		for _, part := range []string{"\"Rain \"\n", "\"in Bonn?\"\n"} {
			_, _ = w.Write([]byte(part))
			_ = http.NewResponseController(w).Flush()
		}
	case "getWeather":
		_, _ = w.Write([]byte(`"Light rain, 12 °C, until 16:00."`))
	case "getForecast":
		if parent := r.Header.Get("Traceparent"); parent != "" {
			body = []byte(`"` + parent + `"`)
		}
		_, _ = w.Write([]byte(`{"input":` + string(body) + `}`))
	case "echo":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		var text string
		_ = json.Unmarshal(body, &text)
		_, _ = w.Write([]byte(text))
	default:
		w.Header().Del("Content-Type")
		w.WriteHeader(http.StatusNoContent)
	}
}

func (n *fakeNode) readAll(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.Header.Get("Accept"), "event-stream") {
		n.events(w, r)
		return
	}
	if name, d := n.named(w, r); d != nil && !misbehave(w, r, name) {
		all := map[string]json.RawMessage{}
		for k, v := range n.values {
			all[k] = json.RawMessage(v)
		}
		answer(w, all)
	}
}

func (n *fakeNode) read(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.Header.Get("Accept"), "event-stream") {
		n.events(w, r)
		return
	}
	if name, d := n.named(w, r); d != nil && !misbehave(w, r, name) {
		answer(w, json.RawMessage(n.values[r.PathValue("name")]))
	}
}

func (n *fakeNode) write(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	name, d := n.named(w, r)
	if d == nil || misbehave(w, r, name) {
		return
	}
	if !json.Valid(body) {
		problem.Write(w, r, interact.Errorf(interact.Invalid, "send JSON", "no JSON"))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
