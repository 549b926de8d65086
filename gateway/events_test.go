package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/journal"
)

// marked returns a node whose changes have the numbers of a directory.
func marked(n *fakeNode) *fakeNode {
	n.mark = func() uint64 { return uint64(time.Now().UnixMicro()) }
	return n
}

// startActive is start for a node whose first state has been compared: a relay was found.
func startActive(t *testing.T, o Options) *running {
	t.Helper()
	r := start(t, o)
	<-r.journal.More(0, false)
	return r
}

func kinds(events []api.NodeEvent) string {
	var all []string
	for _, e := range events {
		all = append(all, e.Kind)
	}
	return strings.Join(all, " ")
}

// varying are the numbers and times of events.
var varying = regexp.MustCompile(`"(seq|at|latest|from|id|first_ms|agents|rss_bytes)":("[^"]*"|[0-9.]+)`)

func TestGoldenActivity(t *testing.T) {
	t.Parallel()
	weather := describe("urn:x:weather", "Weather", owner1)
	n := marked(newFake(weather))
	m := NewMetrics()
	r := startActive(t, serving(n, Options{Metrics: m}))
	n.changes = []directory.Change{{Seq: m.Journal().Mark(), Kind: directory.Added, Reason: directory.Published, Thing: weather}}
	n.onConnection(owner2, true)
	m.Journal().Add(api.NodeEvent{Kind: api.EventTaskEnded, Thing: weather.Ref(), Code: "completed", Text: "ask", ID: "7", TraceID: "4bf92f3577b34da6a3ce929d0e0e4736"})
	m.Journal().Changed("trust", "member added")
	agent := interact.Chain(interact.Unary(echo), m.Journal().Middleware(owner1))
	if _, err := interact.Call(t.Context(), agent, &interact.Message{ID: "c1", Type: interact.InvokeAction, Thing: weather.Ref(), Name: "ask", Data: []byte("12"),
		From: did.Consumer(did.Process, ""), Timing: &interact.Timing{}}); err != nil {
		t.Fatal(err)
	}
	m.Journal().Sample(journal.Sample{Calls: 1.5, P50: 2, P99: 3.25, Peers: 1, Agents: 4, Open: 3, RSS: 1 << 20})
	for name, x := range map[string]exchange{
		"event-list":           {path: "/v1/events?types=agent,peer,task,trust,call", header: asAdmin},
		"event-list-anonymous": {path: "/v1/events?types=agent,peer,task"},
		"call-list":            {path: "/v1/calls", header: asAdmin},
		"call":                 {path: "/v1/calls/c1", header: asAdmin},
		"problem-event-kind":   {path: "/v1/events?types=weather"},
		"problem-no-call":      {path: "/v1/calls/c2", header: asAdmin},
	} {
		t.Run(name, func(t *testing.T) {
			_, body := r.do(t, x)
			golden(t, name, varying.ReplaceAll([]byte(body), []byte(`"$1":"…"`)), r.url)
		})
	}
	t.Run("series", func(t *testing.T) {
		_, body := r.do(t, exchange{path: "/v1/series?window=10s", header: asAdmin})
		golden(t, "series", regexp.MustCompile(`"to":"[^"]*"`).ReplaceAll([]byte(body), []byte(`"to":"…"`)), r.url)
	})
}

func TestParametersOfActivity(t *testing.T) {
	t.Parallel()
	r := startActive(t, serving(marked(newFake()), Options{}))
	for _, x := range []exchange{
		{name: "nothing", path: "/v1/events", status: 200, contain: `"kind":"EventList","items":[`},
		{name: "head", method: "HEAD", path: "/v1/events", status: 200},
		{name: "an unknown kind", path: "/v1/events?types=peer,agents", status: 400, code: "LMOS-2000", contain: `unknown kind of events \"agents\"`},
		{name: "a part of a kind", path: "/v1/events?types=peer.conn", status: 400, code: "LMOS-2000"},
		{name: "gap", path: "/v1/events?types=gap", status: 200},
		{name: "no number", path: "/v1/events?since=yesterday", status: 400, code: "LMOS-2000", contain: "expected the number of an event"},
		{name: "a negative number", path: "/v1/events?since=-1", status: 400, code: "LMOS-2000"},
		{name: "zero", path: "/v1/events?since=0", status: 400, code: "LMOS-2000"},
		{name: "a large number", path: "/v1/events?since=18446744073709551615", status: 400, code: "LMOS-2000"},
		{name: "a cursor", path: "/v1/events?cursor=5", status: 200, contain: `"kind":"gap"`},
		{name: "a wrong cursor", path: "/v1/events?cursor=x", status: 400, code: "LMOS-2000"},
		{name: "a limit", path: "/v1/events?limit=1001", status: 400, code: "LMOS-2000"},
		{name: "an unknown parameter", path: "/v1/events?type=peer", status: 400, code: "LMOS-2000", contain: "unknown parameter"},
		{name: "a repeated one", path: "/v1/events?since=1&since=2", status: 400, code: "LMOS-2000"},
		{name: "calls without rights", path: "/v1/events?types=call", status: 401},
		{name: "trust without rights", path: "/v1/events?types=peer,trust", status: 401},
		{name: "a kind that there is not", path: "/v1/events?types=peer,log", status: 400, code: "LMOS-2000", contain: "unknown kind"},
		{name: "trust with rights", path: "/v1/events?types=trust,call", header: asAdmin, status: 200},
		{name: "a method", method: "POST", path: "/v1/events", status: 405},
		{name: "a foreign host", path: "/v1/events", header: map[string]string{"Host": "evil.example"}, status: 403},
		{name: "a window", path: "/v1/series?window=1m", status: 200, contain: `"calls":[null,null,null,null,null,null,null,null,null,null,null,null]`},
		{name: "a short window", path: "/v1/series?window=1ms", status: 200, contain: `"calls":[null]`},
		{name: "a long window", path: "/v1/series?window=16m", status: 400, code: "LMOS-2000"},
		{name: "no window", path: "/v1/series?window=all", status: 400, code: "LMOS-2000"},
		{name: "head of series", method: "HEAD", path: "/v1/series", status: 200},
		{name: "calls", path: "/v1/calls", header: asAdmin, status: 200, contain: `"items":[]`},
		{name: "calls of anyone", path: "/v1/calls", status: 401},
		{name: "one of anyone", path: "/v1/calls/1", status: 401},
		{name: "head of calls", method: "HEAD", path: "/v1/calls", header: asAdmin, status: 200},
		{name: "head of a call", method: "HEAD", path: "/v1/calls/1", header: asAdmin, status: 404},
		{name: "an unknown code", path: "/v1/calls?code=LMOS-1", header: asAdmin, status: 400, code: "LMOS-2000"},
		{name: "a limit of calls", path: "/v1/calls?limit=501", header: asAdmin, status: 400, code: "LMOS-2000"},
		{name: "no call", path: "/v1/calls/" + strings.Repeat("x", 2000), header: asAdmin, status: 404, code: "LMOS-1404"},
	} {
		t.Run(x.name, func(t *testing.T) { r.check(t, x) })
	}
}

// A list with since has the following events, page by page, and without it the newest ones.
func TestPagesOfEvents(t *testing.T) {
	t.Parallel()
	n := marked(newFake(describe("urn:x:weather", "Weather", owner1)))
	m := NewMetrics()
	r := startActive(t, serving(n, Options{Metrics: m}))
	c := dial(t, r.o.Socket, "")
	begin := m.Journal().Mark()
	for i := range 700 {
		m.Journal().Add(api.NodeEvent{Kind: api.EventPeerConnected, Text: fmt.Sprint(i)})
		if i%2 == 0 {
			all, _ := m.Journal().Events(begin, m.Journal().Mark(), 1<<20)
			// In the directory, at the time of the event of the journal.
			n.changes = append(n.changes, directory.Change{Seq: all[len(all)-1].Seq, Kind: directory.Added, Reason: directory.Published, Thing: n.things["urn:x:weather"]})
		}
	}
	time.Sleep(time.Microsecond)
	peers, agents := 0, 0
	for since := begin; since != 0; {
		list, err := c.Events(t.Context(), api.EventQuery{Since: since, Limit: 99, Types: []string{"peer", "agent.added"}})
		if err != nil || len(list.Items) == 0 || len(list.Items) > 99 {
			t.Fatalf("%d events, %v", len(list.Items), err)
		}
		for _, e := range list.Items {
			switch {
			case e.Kind == api.EventAgentAdded:
				agents++
			case e.Text == fmt.Sprint(peers):
				peers++
			case e.Text != fmt.Sprint(peers-1): // repeated after a page that ends between two of one number
				t.Fatalf("got %+v after %d", e, peers-1)
			}
		}
		since = 0
		if list.Next != "" {
			if _, err := fmt.Sscan(list.Next, &since); err != nil {
				t.Fatal(err)
			}
		}
	}
	if peers != 700 || agents < 350 || agents > 360 {
		t.Errorf("got %d events of peers and %d of agents", peers, agents)
	}
	m.Journal().Add(api.NodeEvent{Kind: api.EventTrustChanged})
	// A page that is not the last one names no event that its caller may not see, and one of only a gap continues after that.
	anyone := dial(t, r.url, "")
	for since, want := range map[uint64]string{begin: api.EventPeerConnected, 1: api.EventGap} {
		list, err := anyone.Events(t.Context(), api.EventQuery{Since: since, Limit: 1, Types: []string{"peer"}})
		if err != nil || len(list.Items) != 1 || list.Items[0].Kind != want || list.Next != fmt.Sprint(list.Latest) || list.Latest != max(list.Items[0].Seq, list.Items[0].To) {
			t.Fatalf("after %d: %+v, %v", since, list, err)
		}
		if list, err = anyone.Events(t.Context(), api.EventQuery{Since: list.Latest, Limit: 1, Types: []string{"peer"}}); err != nil || len(list.Items) != 1 {
			t.Errorf("after that: %+v, %v", list, err)
		}
	}
	list, err := c.Events(t.Context(), api.EventQuery{Limit: 3, Types: []string{"peer"}})
	if err != nil || len(list.Items) != 3 || list.Items[2].Text != "699" || list.Next != "" || list.Latest < list.Items[2].Seq {
		t.Errorf("the newest: %+v, %v", list, err)
	}
}

// Events of tasks of Things that a caller may not see, texts that may name them, and kinds that need full rights are for those who have these.
func TestEventsForACaller(t *testing.T) {
	t.Parallel()
	n := marked(newFake(describe("urn:x:weather", "Weather", owner1)))
	m := NewMetrics()
	r := startActive(t, serving(&busyNode{fakeNode: n}, Options{Metrics: m}))
	begin := m.Journal().Mark()
	for _, e := range []api.NodeEvent{
		{Kind: api.EventTaskStarted, Thing: "urn:x:weather"}, {Kind: api.EventTaskStarted, Thing: "urn:x:hidden"},
		{Kind: api.EventEquivocation, Thing: "urn:x:weather@" + owner1.Multibase(), DID: owner1}, {Kind: api.EventEquivocation, Thing: "urn:x:hidden@" + owner1.Multibase(), DID: owner1},
		{Kind: api.EventWarningRaised, Name: "equivocation", Code: "LMOS-W061", Text: "urn:x:hidden"},
		{Kind: api.EventTrustChanged, Text: "member added"}, {Kind: "log", Text: "secret"},
	} {
		m.Journal().Add(e)
	}
	for range interact.Chain(interact.Unary(echo), m.Journal().Middleware(owner1)).Do(t.Context(), &interact.Message{Type: interact.InvokeAction, Thing: "urn:x:hidden"}) {
	}
	list, err := dial(t, r.url, "").Events(t.Context(), api.EventQuery{Since: begin})
	if err != nil {
		t.Fatal(err)
	}
	if got := kinds(list.Items); got != "task.started equivocation warning.raised" || strings.Contains(fmt.Sprint(list.Items), "hidden") {
		t.Errorf("anyone: got %s: %+v", got, list.Items)
	}
	list, err = dial(t, r.url, token).Events(t.Context(), api.EventQuery{Since: begin})
	if err != nil || kinds(list.Items) != "task.started task.started equivocation equivocation warning.raised trust.changed log call.done" || list.Items[4].Text == "equivocation" {
		t.Errorf("the operator: got %+v, %v", list, err)
	}
}

// Counts of agents, and the memory, are for those who may see all of them.
func TestSeriesForACaller(t *testing.T) {
	t.Parallel()
	store, err := tokens.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	m := NewMetrics()
	r := startActive(t, serving(newFake(), Options{Metrics: m, Tokens: store}))
	m.Journal().Sample(journal.Sample{Peers: 2, Agents: 9, Open: 7, RSS: 5, P50: -1, P99: -1})
	find := strings.TrimPrefix(grant(t, store, "ci", "find")["Authorization"], "Bearer ")
	manage := strings.TrimPrefix(grant(t, store, "boss", "manage", "find")["Authorization"], "Bearer ")
	for name, c := range map[string]struct {
		client      *api.Client
		agents, rss float64 // -1: unknown
	}{"anyone on loopback": {dial(t, r.url, ""), 7, -1}, "a token": {dial(t, r.url, find), -1, -1}, "an operator": {dial(t, r.url, manage), 9, 5},
		"the socket": {dial(t, r.o.Socket, ""), 9, 5}} {
		s, err := c.client.Series(t.Context(), journal.Step)
		if err != nil {
			t.Fatal(name, err)
		}
		value := func(all []*float64) float64 {
			if len(all) != 1 || all[0] == nil {
				return -1
			}
			return *all[0]
		}
		if a, m, p := value(s.Items.Agents), value(s.Items.RSS), value(s.Items.Peers); a != c.agents || m != c.rss || p != 2 || value(s.Items.P50) != -1 {
			t.Errorf("%s: agents %v, memory %v, peers %v", name, a, m, p)
		}
	}
}

// watching follows the events of a client; next returns the next one.
func watching(t *testing.T, c *api.Client, since uint64, types ...string) (next func() (api.NodeEvent, error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	pull, stop := iter.Pull2(c.WatchEvents(ctx, types, since))
	t.Cleanup(func() { cancel(); stop() })
	return func() (api.NodeEvent, error) {
		e, err, _ := pull()
		return e, err
	}
}

func TestWatchEvents(t *testing.T) {
	t.Parallel()
	weather := describe("urn:x:weather", "Weather", owner1)
	n, m := marked(newFake(weather)), NewMetrics()
	r := startActive(t, serving(n, Options{Metrics: m}))
	j := m.Journal()
	j.Add(api.NodeEvent{Kind: api.EventPeerConnected, Text: "before"})
	begin := j.Mark()
	for name, c := range map[string]*api.Client{"url": dial(t, r.url, token), "socket": dial(t, r.o.Socket, ""), "inside": r.InProcess()} {
		from := j.Mark()
		next := watching(t, c, from)
		j.Add(api.NodeEvent{Kind: api.EventPeerConnected, Text: name})
		if e, err := next(); err != nil || e.Text != name || e.Seq <= from {
			t.Fatalf("%s: got %+v, %v", name, e, err)
		}
		j.Changed("key", "rotated")
		if e, err := next(); err != nil || e.Kind != api.EventTrustKey {
			t.Fatalf("%s: got %+v, %v", name, e, err)
		}
		for range interact.Chain(interact.Unary(echo), j.Middleware(owner1)).Do(t.Context(), &interact.Message{ID: "c1", Type: interact.InvokeAction, Name: "ask"}) {
		}
		if e, err := next(); err != nil || e.Kind != api.EventCallDone || e.ID != "c1" || e.Text != "ask completed" {
			t.Fatalf("%s: got %+v, %v", name, e, err)
		}
	}
	next := watching(t, dial(t, r.url, ""), begin, "agent", "peer")
	for range 3 {
		if e, err := next(); err != nil || e.Kind != api.EventPeerConnected {
			t.Errorf("after the number: got %+v, %v", e, err)
		}
	}
	// Another run of the node: its numbers are higher.
	next = watching(t, dial(t, r.url, ""), 5, "peer")
	if e, err := next(); err != nil || e.Kind != api.EventGap || e.From != 5 || e.To == 0 || e.Seq != 0 {
		t.Errorf("of an earlier run: got %+v, %v", e, err)
	}
	if e, err := next(); err != nil || e.Text != "before" || e.Seq > begin {
		t.Errorf("after the gap: got %+v, %v", e, err)
	}
	// The clock was set back.
	next = watching(t, dial(t, r.url, ""), j.Mark()+1e9, "peer")
	if e, err := next(); err != nil || e.Kind != api.EventGap || e.To == 0 {
		t.Errorf("of a later run: got %+v, %v", e, err)
	}
}

// Changes of the directory are in the order of the other events.
func TestEventsOfAgents(t *testing.T) {
	t.Parallel()
	weather := describe("urn:x:weather", "Weather", owner1)
	n, m := marked(newFake(weather)), NewMetrics()
	r := startActive(t, serving(n, Options{Metrics: m}))
	begin := m.Journal().Mark()
	m.Journal().Add(api.NodeEvent{Kind: api.EventPeerConnected})
	at := m.Journal().Mark()
	for i, c := range []directory.Change{{Kind: directory.Added, Reason: directory.Published}, {Kind: directory.Changed, Reason: directory.Published},
		{Kind: directory.Changed, Reason: directory.Unreachable}, {Kind: directory.Changed, Reason: directory.Reachable}, {Kind: directory.Removed, Reason: directory.Withdrawn}} {
		c.Seq, c.Thing = at+1+uint64(i), weather
		n.changes = append(n.changes, c)
	}
	time.Sleep(10 * time.Microsecond) // the numbers are times
	m.Journal().Add(api.NodeEvent{Kind: api.EventPeerDisconnected})
	list, err := dial(t, r.url, "").Events(t.Context(), api.EventQuery{Since: begin})
	if want := "peer.connected agent.added agent.changed agent.unreachable agent.reachable agent.removed peer.disconnected"; err != nil || kinds(list.Items) != want {
		t.Errorf("got %v, %v", list, err)
	}
	if e := list.Items[1]; e.Thing != weather.Ref() || e.Name != "weather" || e.DID != owner1 || e.Text != "published" {
		t.Errorf("got %+v", e)
	}
	n.changes = append([]directory.Change{{Seq: at, Kind: directory.Overflow}}, n.changes...)
	list, err = dial(t, r.url, "").Events(t.Context(), api.EventQuery{Since: begin, Types: []string{"agent.removed"}})
	if err != nil || kinds(list.Items) != "gap agent.removed" || list.Items[0].From != begin || list.Items[0].To != at {
		t.Errorf("with a gap: got %v, %v", list, err)
	}
}

// The number of streams is limited. When the node ends, streams end with an error event, and with their token if that is revoked.
func TestWatchEventsEnds(t *testing.T) {
	t.Parallel()
	store, err := tokens.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	r := startActive(t, serving(marked(newFake()), Options{Tokens: store}))
	r.eventStreams.Store(maxEventStreams)
	req := func(header map[string]string) *http.Response {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/v1/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Accept", "text/event-stream")
		for name, value := range header {
			q.Header.Set(name, value)
		}
		resp, err := r.http.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	if resp := req(nil); resp.StatusCode != http.StatusServiceUnavailable && resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("too many streams: status %d", resp.StatusCode)
	}
	if resp := req(map[string]string{"Authorization": "Bearer " + store.Secret()}); resp.StatusCode != http.StatusServiceUnavailable && resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("too many streams for the operator: status %d", resp.StatusCode)
	}
	r.eventStreams.Store(maxEventStreams - ownEventStreams)
	if resp := req(nil); resp.StatusCode == http.StatusOK {
		t.Error("a caller without a token has the last streams")
	}
	held := req(map[string]string{"Authorization": "Bearer " + store.Secret()})
	if held.StatusCode != http.StatusOK {
		t.Errorf("the operator: status %d", held.StatusCode)
	}
	held.Body.Close()
	poll.Until(t, "the end of the stream of the operator", func() bool { return r.eventStreams.Load() == maxEventStreams-ownEventStreams })
	r.eventStreams.Store(0)
	last := func(resp *http.Response) (last error) {
		for _, err := range problem.Events(resp.Body, 1<<16) {
			last = err
		}
		return last
	}
	revoked, drained := req(grant(t, store, "ci", "find")), req(nil)
	if !r.journal.IsRead() {
		t.Error("there is no reader")
	}
	if err := dial(t, r.o.Socket, "").RevokeToken(t.Context(), "ci"); err != nil {
		t.Fatal(err)
	}
	if e := interact.AsError(last(revoked)); e == nil || e.Code != interact.TokenRejected {
		t.Errorf("a revoked token: the stream ends with %v", e)
	}
	r.cancelStreams()
	if e := interact.AsError(last(drained)); e == nil || e.Code != interact.ShuttingDown {
		t.Errorf("a node that stops: the stream ends with %v", e)
	}
	r.end()
	if r.journal.IsRead() || r.eventStreams.Load() != 0 {
		t.Error("a reader is left")
	}
}

// A client continues after the last event that it received when its connection was lost.
func TestWatchEventsContinues(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	r := startActive(t, serving(marked(newFake()), Options{Metrics: m}))
	lossy := &lossyTransport{RoundTripper: r.http.Transport}
	next := watching(t, api.NewClient("the node", "", lossy), m.Journal().Mark(), "peer")
	for i := range 3 {
		m.Journal().Add(api.NodeEvent{Kind: api.EventPeerConnected, Text: fmt.Sprint("first ", i)})
		if e, err := next(); err != nil || e.Text != fmt.Sprint("first ", i) {
			t.Fatalf("got %+v, %v", e, err)
		}
		lossy.lose()
		m.Journal().Add(api.NodeEvent{Kind: api.EventPeerConnected, Text: fmt.Sprint("second ", i)}) // while it is away
		if e, err := next(); err != nil || e.Text != fmt.Sprint("second ", i) {
			t.Fatalf("got %+v, %v", e, err)
		}
	}
}

// A lossyTransport ends responses on demand.
type lossyTransport struct {
	http.RoundTripper
	mu   sync.Mutex
	last io.Closer // owned by mu
}

func (l *lossyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(r)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.last = resp.Body
	}
	return resp, err
}

func (l *lossyTransport) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.last.Close()
}

// Warnings, relays and equivocations are compared; what is there at the start is new, except equivocations.
func TestComparedState(t *testing.T) {
	t.Parallel()
	n := newFake()
	g, err := New(serving(n, Options{Listen: None}))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	w := func(titles ...string) (all []api.Warning) {
		for _, title := range titles {
			all = append(all, api.Warning{Code: "LMOS-W0", Title: title, Text: "text of " + title})
		}
		return all
	}
	m := &monitor{g: g}
	begin := g.journal.Mark()
	m.compareWarnings(w("a", "b", "b"))
	m.compareWarnings(w("b", "c"))
	m.compareWarnings(w("b", "c"))
	m.compareWarnings(nil)
	m.compareEquivocations([]api.Equivocation{{ID: "urn:x:1", Owner: owner1, Seq: 3}})
	m.compareEquivocations([]api.Equivocation{{ID: "urn:x:1", Owner: owner1, Seq: 3}, {ID: "urn:x:1", Owner: owner1, Seq: 4}})
	m.compareRelays([]api.NetRelay{{DID: owner1}})
	m.compareRelays(nil)
	at := func(state, reason string) []api.BootstrapState {
		return []api.BootstrapState{{Addr: "/dnsaddr/x", State: state, Reason: reason}}
	}
	m.compareBootstrap(at(api.BootstrapWaiting, ""))
	m.compareBootstrap(at(api.BootstrapUnreachable, "no answer"))
	m.compareBootstrap(at(api.BootstrapUnreachable, "no answer"))
	m.compareBootstrap(at(api.BootstrapReached, ""))
	found, _ := g.journal.Events(begin, g.journal.Mark(), 100)
	var got []string
	for _, e := range found {
		if strings.HasPrefix(e.Kind, "warning") && e.Text != "text of "+e.Name {
			t.Errorf("got %+v", e)
		}
		got = append(got, e.Kind+" "+e.Name)
	}
	text := strings.Join(got, ", ")
	if !strings.HasPrefix(text, "warning.raised a, warning.raised b, warning.raised c, warning.cleared a, warning.cleared ") ||
		!strings.HasSuffix(text, "equivocation , relay.found , relay.lost , bootstrap.failed /dnsaddr/x, bootstrap.reached /dnsaddr/x") || len(found) != 11 {
		t.Errorf("got %s", text)
	}
}

// The monitor samples the load while the gateway listens.
func TestSampledLoad(t *testing.T) {
	t.Parallel()
	n := newFake()
	n.status = goldenStatus
	g, err := New(serving(n, Options{Listen: None}))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	m := &monitor{g: g, sampled: time.Now().Add(-10 * time.Second)}
	for i := range 20 {
		g.metrics.total.Add(1)
		g.metrics.recent.add(time.Duration(i) * time.Millisecond)
	}
	g.metrics.failed.Add(5)
	m.sample(t.Context(), g.o.Status.Status(t.Context()))
	m.sample(t.Context(), g.o.Status.Status(t.Context()))
	all, _ := g.journal.Series(2)
	if x := all[0]; x.Calls < 1.9 || x.Calls > 2 || x.Errors < 0.4 || x.Errors > 0.5 || x.P50 != 10 || x.P99 != 19 || x.Peers != 14 || x.Agents != 212 || x.Open != 212 || x.RSS < 1<<20 {
		t.Errorf("got %+v", x)
	}
	if x := all[1]; x.Calls != 0 || x.P50 != -1 || x.P99 != -1 {
		t.Errorf("without calls: got %+v", x)
	}
}

func FuzzParseEvents(f *testing.F) {
	for _, q := range []string{"", "types=peer,agent.added&since=5&limit=3", "types=%2C,,&cursor=9", "since=18446744073709551616", "types=call", "limit=x&since=1&since=2", "%zz"} {
		f.Add(q, true)
		f.Add(q, false)
	}
	f.Fuzz(func(t *testing.T, query string, full bool) {
		r := httptest.NewRequest(http.MethodGet, "/v1/events", nil)
		r.URL.RawQuery = query
		refused := errors.New("refused")
		q, err := parseEvents(r, func() error {
			if full {
				return nil
			}
			return refused
		})
		if err != nil {
			if e := (*interact.Error)(nil); !errors.As(err, &e) && err != refused {
				t.Fatalf("%v is no error for a client", err)
			}
			return
		}
		if q.since > maxSince || q.limit < 1 || q.limit > maxEventList || q.full != full {
			t.Fatalf("got %+v", q)
		}
		for kind, secret := range eventKinds {
			if secret && !full && q.wants(kind) {
				t.Fatalf("%s for a caller without rights: %+v", kind, q)
			}
		}
	})
}

// An event is one JSON document, which names its kind.
func TestEventJSON(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]api.NodeEvent{
		`{"kind":"gap","from":1,"to":2}`: {Kind: api.EventGap, From: 1, To: 2},
		`{"seq":7,"at":"2026-11-29T12:00:00Z","kind":"peer.connected","did":"did:key:z"}`: {Seq: 7, At: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC),
			Kind: api.EventPeerConnected, DID: "did:key:z"},
	} {
		if got, err := json.Marshal(e); err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}
