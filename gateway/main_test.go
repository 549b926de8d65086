package gateway

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"io"
	"iter"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/choice"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) {
	flag.Parse()
	testmain.Run(m)
}

const (
	owner1 = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")
	owner2 = did.DID("did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp")
	token  = "a-token-of-the-node"
)

// A fakeNode has a map of Things, and functions that tests may replace.
type fakeNode struct {
	mu          sync.Mutex
	things      map[string]*td.Description // owned by mu
	unknownRefs chan<- string              // receives unknown references; may be nil

	mesh     interact.Func
	find     func(ctx context.Context, q td.Query) iter.Seq2[*td.Description, error]
	publish  func(ctx context.Context, raw []byte) (*api.Publication, error)
	connect  func(ctx context.Context, addr string) error
	status   func() *api.Status
	peers    []api.Peer
	warnings []api.Warning
	notReady error
	changes  []directory.Change
	mark     func() uint64   // nil: 7
	more     <-chan struct{} // of changes

	onConnection func(node did.DID, connected bool)

	affiliations map[string]directory.AffiliationState // by title
	hostings     []publication.Hosted
}

func newFake(ds ...*td.Description) *fakeNode {
	n := &fakeNode{things: map[string]*td.Description{}}
	for _, d := range ds {
		n.things[d.ID] = d
	}
	return n
}

// A testNode is all parts of a node.
type testNode interface {
	Directory
	Router
	Presence
	Publisher
	Status
	Peers
	Mesh() interact.Thing
	Description() []byte
}

// serving returns o for the parts of n.
func serving(n testNode, o Options) Options {
	o.Mesh, o.Directory, o.Router, o.Presence, o.Publisher, o.Status, o.Peers = n.Mesh(), n, n, n, n, n, n
	o.Describe = func(map[string]any) ([]byte, error) { return n.Description(), nil }
	if k, ok := n.(interface{ Tasks() Tasks }); ok {
		o.Tasks = k.Tasks()
	}
	return o
}

func (n *fakeNode) Mesh() interact.Thing {
	if n.mesh == nil {
		return interact.Unary(echo)
	}
	return n.mesh
}

// echo replies to an action with its input, and to a property with its name.
func echo(_ context.Context, m *interact.Message) (*interact.Message, error) {
	switch m.Type {
	case interact.InvokeAction:
		r := m.Reply(interact.ActionStatus, m.ContentType, m.Data)
		r.Status = interact.StatusCompleted
		return r, nil
	case interact.ReadProperty:
		return m.Reply(interact.PropertyReading, "", []byte(`"`+m.Name+`"`)), nil
	case interact.WriteProperty:
		return m.Reply(interact.Acknowledgement, "", nil), nil
	}
	return nil, interact.Errorf(interact.NotAllowed, "send another type", "the fake does not support type %d", m.Type)
}

func (n *fakeNode) Find(ctx context.Context, q td.Query) iter.Seq2[*td.Description, error] {
	if n.find != nil {
		return n.find(ctx, q)
	}
	return func(yield func(*td.Description, error) bool) {
		q.Counter.CountAsked(1)
		q.Counter.CountAnswer()
		for d := range n.Known() {
			q.Counter.CountMatches(1)
			if !yield(d, nil) {
				return
			}
		}
	}
}

func (n *fakeNode) Page(_ context.Context, _ tdd.Scope, offset, limit int) tdd.Page {
	all := slices.SortedFunc(n.Known(), func(a, b *td.Description) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Record.Owner, b.Record.Owner))
	})
	p := tdd.Page{Total: len(all), Tag: "a-state"}
	all = all[min(offset, len(all)):]
	if limit > 0 {
		all = all[:min(limit, len(all))]
	}
	for _, d := range all {
		p.Items = append(p.Items, itemOf(d))
	}
	return p
}

func (n *fakeNode) After(ctx context.Context, _ td.Query, after directory.Place, limit int) (p directory.Page, err error) {
	for _, item := range n.Page(ctx, "", 0, 0).Items {
		if p.Total++; cmp.Or(cmp.Compare(item.Record.Thing, after.Thing), cmp.Compare(item.Record.Owner, after.Owner)) > 0 && len(p.Items) < limit {
			p.Items = append(p.Items, directory.ItemOf(item.Describe()))
		}
	}
	return p, nil
}

func itemOf(d *td.Description) tdd.Item {
	return tdd.Item{Record: d.Record, TD: d.Raw, Describe: func() *td.Description { return d }}
}

func (n *fakeNode) Lookup(_ context.Context, id string) (found []tdd.Item) {
	for d := range n.Known() {
		if d.ID == id {
			found = append(found, itemOf(d))
		}
	}
	return found
}

func (n *fakeNode) Watch(ctx context.Context, _ td.Query, after uint64) iter.Seq2[directory.Change, error] {
	return func(yield func(directory.Change, error) bool) {
		for _, c := range n.changes {
			if c.Seq > after && !yield(c, nil) {
				return
			}
		}
		<-ctx.Done()
		yield(directory.Change{}, ctx.Err())
	}
}

func (n *fakeNode) Enter(ctx context.Context, raw []byte, _ publication.Registration) (*api.Publication, error) {
	return n.Publish(ctx, raw)
}

func (n *fakeNode) Extend(context.Context, string, publication.Registration) error { return nil }

func (n *fakeNode) AwaitLoad(context.Context) error { return nil }

func (n *fakeNode) Offered() (all []*publication.Publication) {
	for d := range n.Known() {
		if d.Record.Owner == owner1 {
			all = append(all, &publication.Publication{Thing: d.ID, Description: d})
		}
	}
	slices.SortFunc(all, func(a, b *publication.Publication) int { return cmp.Compare(a.Thing, b.Thing) })
	return all
}

func (n *fakeNode) Registered(r *td.Record) (publication.Registration, bool) {
	return publication.Registration{}, r.Owner == owner1
}

func (n *fakeNode) Paths(context.Context, string) ([]api.Path, error) { return nil, nil }

func (n *fakeNode) Ping(context.Context, string, int) (*api.Ping, error) { return new(api.Ping), nil }

func (n *fakeNode) Known() iter.Seq[*td.Description] {
	return func(yield func(*td.Description) bool) {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, d := range n.things {
			if !yield(d) {
				return
			}
		}
	}
}

func (n *fakeNode) Get(_ context.Context, ref string) (*td.Description, error) {
	n.mu.Lock()
	d := n.things[ref]
	n.mu.Unlock()
	if d != nil {
		return d, nil
	}
	select {
	case n.unknownRefs <- ref:
	default:
	}
	return nil, interact.Errorf(interact.NotFound, "lmosd find "+ref, "no agent matches %q", ref)
}

func (n *fakeNode) Presence(d *td.Description) reachability.Presence {
	return reachability.Presence{State: reachability.Reachable, LastSeen: d.Record.Issued.Add(time.Minute)}
}

// Resembles matches names that begin with a Cyrillic letter.
func (n *fakeNode) Resembles(r *td.Record) string {
	if rest, ok := strings.CutPrefix(strings.ToLower(r.Title), "\u0435"); ok {
		return "e" + rest
	}
	return ""
}

// Affiliation returns that of the title, or what a description claims.
func (n *fakeNode) Affiliation(_ context.Context, d *td.Description) *directory.Affiliation {
	if state, ok := n.affiliations[d.Title]; ok {
		return &directory.Affiliation{Name: "an organization", State: state}
	}
	return directory.Claim(d)
}

func (n *fakeNode) VerifyMembers(context.Context, ...*td.Description) {}

// Choose orders by title.
func (n *fakeNode) Choose(things ...*td.Description) (all []choice.Choice) {
	for _, d := range slices.SortedFunc(slices.Values(things), func(a, b *td.Description) int { return strings.Compare(a.Title, b.Title) }) {
		all = append(all, choice.Choice{Index: slices.Index(things, d), Reason: "12 ms on average", Cost: 12 * time.Millisecond, Running: 2})
	}
	return all
}

func (n *fakeNode) Look(context.Context, ...*td.Description) {}

// Rank orders by title, descending.
func (n *fakeNode) Rank(_ context.Context, _ td.Query, found []*td.Description) (all []directory.Ranked) {
	for _, d := range found {
		all = append(all, directory.Ranked{Description: d, Score: 0.5, Factors: []directory.Factor{
			{Signal: directory.SignalWord, Amount: 0.4, Asked: "asked", Found: "found", Field: td.FieldTitle},
			{Signal: directory.SignalReach, Amount: 0.1}}})
	}
	slices.SortFunc(all, func(a, b directory.Ranked) int { return strings.Compare(b.Title, a.Title) })
	return all
}

func (n *fakeNode) Namesakes(context.Context, string, *td.Description, int) []string { return nil }

func (n *fakeNode) Equivocation(r *td.Record) (f directory.Equivocation, ok bool) {
	f.Owner, f.Thing, f.Seq, f.Records = r.Owner, r.Thing, 7, [2][]byte{{1}, {2}}
	return f, strings.HasSuffix(r.Thing, "forked")
}

func (n *fakeNode) Mark() uint64 {
	if n.mark != nil {
		return n.mark()
	}
	return 7
}

func (n *fakeNode) Before(int) uint64 { return 0 }

func (n *fakeNode) More(uint64) <-chan struct{} { return n.more }

func (n *fakeNode) OnConnection(f func(node did.DID, connected bool)) (stop func()) {
	n.onConnection = f
	return func() {}
}

func (n *fakeNode) Hosted(d *td.Description) bool { return d.Record.Owner == owner1 }

func (n *fakeNode) Publish(ctx context.Context, raw []byte) (*api.Publication, error) {
	if n.publish != nil {
		return n.publish(ctx, raw)
	}
	t, err := td.Parse(raw)
	if err != nil {
		return nil, err
	}
	id := t.ID
	if id == "" {
		id = "urn:lmos:" + string(owner1) + ":" + t.Name()
	}
	d := describe(id, t.Title, owner1)
	n.mu.Lock()
	defer n.mu.Unlock()
	_, known := n.things[id]
	n.things[id] = d
	return &api.Publication{APIVersion: api.APIVersion, Kind: "Publication", ID: id, Ref: id, Name: t.Name(), Owner: owner1, Seq: 1,
		Created: !known, Replicas: 2, Wanted: 3, GossipPeers: 2, RecordSize: 700, TDSize: len(raw)}, nil
}

func (n *fakeNode) Move(ctx context.Context, ref, to string) (*api.Publication, error) {
	p, err := n.Unpublish(ctx, ref)
	if err == nil {
		p.Withdrawn, p.MovedTo = false, did.DID(to)
	}
	return p, err
}

func (n *fakeNode) Unpublish(ctx context.Context, ref string) (*api.Publication, error) {
	d, err := n.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.things, ref)
	return &api.Publication{APIVersion: api.APIVersion, Kind: "Publication", ID: d.ID, Ref: d.ID, Owner: d.Record.Owner, Seq: 2,
		Withdrawn: true}, nil
}

func (n *fakeNode) Status(context.Context) *api.Status {
	if n.status != nil {
		return n.status()
	}
	return &api.Status{State: "ready", DID: owner1, PeerID: "12D3KooW", Version: "0.1.0"}
}

func (n *fakeNode) ResultWarnings() []api.Warning { return n.warnings }

func (n *fakeNode) List() []api.Peer { return n.peers }

func (n *fakeNode) Connect(ctx context.Context, addr string) error {
	if n.connect != nil {
		return n.connect(ctx, addr)
	}
	return nil
}

func (n *fakeNode) Net() *api.Net {
	at := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	net := &api.Net{Reachability: api.ReachablePrivate, Since: at,
		Addrs: []api.NetAddr{
			{Addr: "/ip4/192.168.1.4/udp/4667/quic-v1", Source: api.SourceInterface, Announced: true},
			{Addr: "/ip4/203.0.113.7/udp/4667/quic-v1", Source: api.SourceMapping, Checked: api.CheckedUnreachable, Proof: api.SourceMapping}},
		PortMapping: api.PortMapping{State: api.MappingMapped, Mappings: []api.Mapping{{Local: "/ip4/0.0.0.0/udp/4667/quic-v1",
			External: "/ip4/203.0.113.7/udp/4667/quic-v1"}}},
		Relays: []api.NetRelay{{DID: owner2, Addr: "/ip4/192.0.2.8/tcp/4667/p2p/12D3KooWOther/p2p-circuit", RTT: 12.5, Since: at, Until: at.Add(time.Hour),
			Seconds: 1800, Bytes: 64 << 20}},
		RelayFailures: []api.RelayFailure{{DID: owner1, Reason: "its policy refuses this node", At: at, Until: at.Add(time.Minute)}},
		Serving: &api.Serving{Reservations: []api.Reservation{{DID: owner2, Terms: "long"}}, Bytes: 4096, Today: 4096, Limit: 16 << 30,
			Circuits: []api.Circuit{{From: owner1, To: owner2, Terms: "long", Since: at, Bytes: 4096}}, Refused: map[string]uint64{"PERMISSION_DENIED": 3}}}
	net.NAT.UDP, net.NAT.TCP = api.NATIndependent, api.NATUnknown
	net.Punches.PunchCounts = api.PunchCounts{Tried: 2, Won: 1, Failed: 1}
	net.Punches.Last = []api.Punch{{DID: owner2, At: at, Result: api.PunchFailed, Took: 5000, Reason: "timeout"}}
	net.Peers.Total, net.Peers.Direct, net.Peers.Relayed = 14, 12, 2
	return net
}

func (n *fakeNode) Description() []byte { return []byte(`{"title":"a node"}`) }

func (n *fakeNode) Ready() error { return n.notReady }

// describe returns a description without verification.
func describe(id, title string, owner did.DID) *td.Description {
	raw := []byte(`{"id":"` + id + `","title":"` + title + `"}`)
	issued := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	return &td.Description{
		Signed: &td.Signed{Record: []byte("a signed record"), TD: []byte("{}")},
		Thing: &td.Thing{Raw: raw, ID: id, Title: title, Description: "About " + title,
			Actions:      map[string]*td.Action{"getWeather": {}, "ask": {}},
			Properties:   map[string]*td.Property{"unit": {}},
			Capabilities: []td.Capability{{ID: "urn:example:weather:forecast"}}},
		Record: &td.Record{Owner: owner, Thing: id, Title: title, Seq: 7, Issued: issued,
			Expires: issued.Add(24 * time.Hour),
			Hash:    [32]byte{1, 2, byte(len(title))}, Size: len(raw), Hosts: []td.Host{{Node: owner2}}},
		ProofMethod:  string(owner) + "#" + owner.Multibase(),
		ProofCreated: issued,
	}
}

// running is a gateway with its TCP URL and clients that keep no idle connections.
type running struct {
	*Gateway
	t    *testing.T
	url  string
	http *http.Client // over TCP
	unix *http.Client // over the socket; the host of the URL is ignored
	stop context.CancelFunc
	done chan error // receives the result of Run
	end  func()     // stops, waits and checks; tests may call it early
}

// start runs a gateway on a free port and a socket until the test ends; prepare may change it first.
func start(t *testing.T, o Options, prepare ...func(*Gateway)) *running {
	t.Helper()
	if o.Mesh == nil {
		o = serving(newFake(describe("urn:x:weather", "Weather", owner1)), o)
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if o.Socket == "" {
		o.Socket = socketFile(t)
	}
	if o.Tokens == nil {
		o.Tokens, o.TokenFile = tokens.New(token), "/data/api.token"
	}
	if strings.HasPrefix(o.Listen, "0.0.0.0:") {
		o.Proxy = true // tokens over plain HTTP
	}
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range prepare {
		p(g)
	}
	r := &running{Gateway: g, t: t, url: g.URL(), done: make(chan error, 1)}
	r.http, r.unix = client(t, "tcp", g.Addr().String()), client(t, "unix", o.Socket)
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	go func() { r.done <- g.Run(ctx) }()
	r.end = sync.OnceFunc(r.wait)
	t.Cleanup(r.end)
	return r
}

// wait stops the gateway and waits for it.
func (r *running) wait() {
	r.stop()
	if err := <-r.done; err != nil {
		r.t.Errorf("Run: %v", err)
	}
	if err := r.Close(); err != nil {
		r.t.Errorf("Close: %v", err)
	}
}

// client returns an HTTP client that connects to addr for every URL.
func client(t *testing.T, network, addr string) *http.Client {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("the gateway redirects")
	}}
}

// socketFile returns a socket path that is short enough for every system.
func socketFile(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "lmosd.sock")
}

// An exchange is a request with its expected response.
type exchange struct {
	name    string
	method  string // GET if empty
	path    string
	header  map[string]string // Host sets the host
	body    string
	socket  bool // sent over the unix socket
	status  int
	code    string            // of the problem document
	want    map[string]string // headers of the response; "" means absent
	contain string            // in the body
}

// check sends x. An error must be a problem document.
func (r *running) check(t *testing.T, x exchange) {
	t.Helper()
	resp, body := r.do(t, x)
	if resp.StatusCode != x.status {
		t.Errorf("status %d, want %d; body %s", resp.StatusCode, x.status, body)
	}
	if !strings.Contains(body, x.contain) {
		t.Errorf("body %s, want %q in it", body, x.contain)
	}
	for name, want := range x.want {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("header %s: %q, want %q", name, got, want)
		}
	}
	if resp.StatusCode >= 400 && x.method != http.MethodHead {
		checkProblem(t, resp, body, x.code)
	}
}

func checkProblem(t *testing.T, resp *http.Response, body, code string) {
	t.Helper()
	if got := resp.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("content type %q of status %d", got, resp.StatusCode)
	}
	for _, member := range []string{`"type":`, `"title":`, `"status":`, `"detail":`} {
		// A caller that cancelled needs no hint.
		if resp.StatusCode != 499 && !strings.Contains(body, member) {
			t.Errorf("problem without %s: %s", member, body)
		}
	}
	if resp.StatusCode != 499 && !strings.Contains(body, `"hint":`) && !strings.Contains(body, `"next":`) {
		t.Errorf("problem without a hint and steps: %s", body)
	}
	if code != "" && !strings.Contains(body, `"code":"`+code+`"`) {
		t.Errorf("problem %s, want code %s", body, code)
	}
}

func (r *running) do(t *testing.T, x exchange) (*http.Response, string) {
	t.Helper()
	if x.method == "" {
		x.method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(t.Context(), x.method, r.url+x.path, strings.NewReader(x.body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range x.header {
		if name == "Host" {
			req.Host = value
			continue
		}
		req.Header.Set(name, value)
	}
	by := r.http
	if x.socket {
		by = r.unix
	}
	resp, err := by.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// merge returns h with further pairs.
func merge(h map[string]string, pairs ...string) map[string]string {
	out := map[string]string{}
	for k, v := range h {
		out[k] = v
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}

var (
	asAdmin = map[string]string{"Authorization": "Bearer " + token}
	tdBody  = merge(asAdmin, "Content-Type", tdJSON)
)

// thingTD returns a valid TD; an empty id makes it anonymous.
func thingTD(id, title string) string {
	member := ""
	if id != "" {
		member = `"id":"` + id + `",`
	}
	return `{"@context":"https://www.w3.org/2022/wot/td/v1.1",` + member + `"title":"` + title + `",` +
		`"securityDefinitions":{"nosec_sc":{"scheme":"nosec"}},"security":["nosec_sc"],` +
		`"actions":{"getWeather":{"forms":[{"href":"http://127.0.0.1:9/weather"}]}}}`
}

// afterTime echoes after d, unless the call is cancelled.
func afterTime(d time.Duration) interact.Func {
	return func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		select {
		case <-time.After(d):
			return interact.Unary(echo).Do(ctx, m)
		case <-ctx.Done():
			return interact.Fail(ctx.Err())
		}
	}
}

// rawLine sends bytes on its own connection and returns the first line of the response, or "".
func rawLine(t *testing.T, r *running, send string) string {
	t.Helper()
	c, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, send); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(c).ReadString('\n') // the connection may break
	return line
}
