package gateway

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func dial(t *testing.T, target, token string) *Client {
	t.Helper()
	c, err := Dial(target, token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestClient(t *testing.T) {
	t.Parallel()
	node := newFake(describe("urn:x:weather", "Weather", owner1))
	node.peers = []Peer{{DID: owner2, Direction: "outbound"}}
	r := start(t, Options{Node: node})
	for name, c := range map[string]*Client{
		"url":           dial(t, r.url+"/", token),
		"socket":        dial(t, r.o.Socket, ""),
		"socket prefix": dial(t, "unix:"+r.o.Socket, ""),
		"socket url":    dial(t, "unix://"+r.o.Socket, ""),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testClient(t, c)
		})
	}
}

func testClient(t *testing.T, c *Client) {
	ctx := t.Context()
	status, err := c.Status(ctx)
	if err != nil || status.State != "ready" || status.DID != owner1 {
		t.Errorf("Status: %+v, %v", status, err)
	}
	id, err := c.Identity(ctx)
	if err != nil || id.DID != owner1 || len(id.Document) == 0 {
		t.Errorf("Identity: %+v, %v", id, err)
	}
	version, err := c.Version(ctx)
	if err != nil || version.Version != "0.1.0" {
		t.Errorf("Version: %+v, %v", version, err)
	}
	peers, err := c.Peers(ctx)
	if err != nil || len(peers.Items) != 1 || peers.Items[0].DID != owner2 {
		t.Errorf("Peers: %+v, %v", peers, err)
	}
	if err := c.Connect(ctx, "/ip4/127.0.0.1/tcp/1/p2p/x"); err != nil {
		t.Errorf("Connect: %v", err)
	}
	agent, err := c.Agent(ctx, "urn:x:weather")
	if err != nil || agent.Agent.ID != "urn:x:weather" || !agent.Signature.Verified {
		t.Errorf("Agent: %+v, %v", agent, err)
	}
	raw, err := c.Thing(ctx, "urn:x:weather")
	if err != nil || string(raw) != `{"id":"urn:x:weather","title":"Weather"}` {
		t.Errorf("Thing: %s, %v", raw, err)
	}
	list, err := c.Find(ctx, td.Query{Capability: []string{"a", "b"}, ID: "x", Owner: owner1, Action: "ask",
		Type: "agent", Text: "two words",
		Limit: 3}, time.Second)
	if err != nil || len(list.Items) == 0 || list.Coverage.Asked != 1 {
		t.Errorf("Find: %+v, %v", list, err)
	}
	testClientCalls(t, c)
}

func testClientCalls(t *testing.T, c *Client) {
	ctx := t.Context()
	out, media, err := c.Call(ctx, "urn:x:weather", "ask", "", []byte(`{"a":1}`))
	if err != nil || string(out) != `{"a":1}` || media != "application/json" {
		t.Errorf("Call: %s %s, %v", out, media, err)
	}
	if _, _, err := c.Call(ctx, "urn:x:weather", "ask", "", nil); err != nil {
		t.Errorf("Call without input: %v", err)
	}
	value, _, err := c.Read(ctx, "urn:x:weather", "unit")
	if err != nil || string(value) != `"unit"` {
		t.Errorf("Read: %s, %v", value, err)
	}
	if err := c.Write(ctx, "urn:x:weather", "unit", "", []byte(`"K"`)); err != nil {
		t.Errorf("Write: %v", err)
	}
	if _, err := c.Thing(ctx, "weathr"); interact.AsError(err).Code != interact.NotFound {
		t.Errorf("Thing of nobody: %v", err)
	}
	_, _, err = c.Call(ctx, "weathr", "ask", "", nil)
	if e := interact.AsError(err); e == nil || e.Code != interact.NotFound || e.Hint != "lmosd find weathr" ||
		e.Title != `no agent matches "weathr"` {
		t.Errorf("Call of nobody: %#v", e)
	}
}

func TestClientPublishes(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Node: newFake()})
	c := dial(t, r.url, token)
	p, err := c.Publish(t.Context(), []byte(thingTD("urn:x:new//a", "New")))
	if err != nil || !p.Created || p.ID != "urn:x:new//a" {
		t.Fatalf("Publish: %+v, %v", p, err)
	}
	if p, err = c.Unpublish(t.Context(), "urn:x:new//a"); err != nil || !p.Withdrawn {
		t.Errorf("Unpublish: %+v, %v", p, err)
	}
	if _, err = c.Publish(t.Context(), []byte(thingTD("urn:x:new//a", "New"))); err != nil {
		t.Fatal(err)
	}
	if p, err = c.Move(t.Context(), "urn:x:new//a", string(owner2)); err != nil || p.MovedTo != owner2 || p.Kind != "Publication" {
		t.Errorf("Move: %+v, %v", p, err)
	}
	_, err = c.Move(t.Context(), "urn:x:new//a", "")
	if e := interact.AsError(err); e.Code != interact.Invalid {
		t.Errorf("Move to nobody: %#v", e)
	}
	_, err = c.Publish(t.Context(), []byte(`{"id":"urn:x:1"}`))
	if e := interact.AsError(err); e.Code != interact.BadTD || len(e.Issues) == 0 {
		t.Errorf("Publish of no TD: %#v", e)
	}
	_, err = dial(t, r.url, "").Publish(t.Context(), nil)
	if e := interact.AsError(err); e.Code != interact.Unauthenticated || !strings.Contains(e.Hint, "/data/api.token") {
		t.Errorf("without a token: %#v", e)
	}
	_, err = dial(t, r.url, "x").Unpublish(t.Context(), "x")
	if e := interact.AsError(err); e.Code != interact.TokenRejected {
		t.Errorf("with another token: %#v", e)
	}
}

func TestClientOfNobody(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := l.Addr().String()
	l.Close()
	for _, target := range []string{"http://" + free, socketFile(t)} {
		_, err := dial(t, target, "").Status(t.Context())
		e := interact.AsError(err)
		if e == nil || e.Code != interact.NotRunning || !strings.Contains(e.Error(), target) || e.Hint != "lmosd run" {
			t.Errorf("%s: %v", target, err)
		}
	}
	for _, target := range []string{"", "127.0.0.1:4668", "ftp://x", "http://", "://", "lmosd.sock"} {
		if _, err := Dial(target, ""); interact.AsError(err) == nil || interact.AsError(err).Code != interact.Usage {
			t.Errorf("Dial(%q): %v", target, err)
		}
	}
}

// What answers may be another program, or break off.
func TestClientOfAnotherServer(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/status", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<html>")) })
	mux.HandleFunc("/v1/peers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/v1/status")
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("/v1/id", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.Write([]byte("{"))
	})
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, maxAnswer+1)) })
	server := httptest.NewServer(mux)
	defer server.Close()
	c := dial(t, server.URL, "")
	ask := map[string]func() error{
		"no JSON":    func() error { _, err := c.Status(t.Context()); return err },
		"broken off": func() error { _, err := c.Identity(t.Context()); return err },
		"endless":    func() error { _, err := c.Version(t.Context()); return err },
		"redirect":   func() error { _, err := c.Peers(t.Context()); return err },
		"not found":  func() error { _, err := c.Agent(t.Context(), "x"); return err },
	}
	for name, want := range map[string]interact.Code{"no JSON": interact.NodeLost, "broken off": interact.NodeLost,
		"endless": interact.TooLarge, "redirect": interact.Internal, "not found": interact.NotFound} {
		if e := interact.AsError(ask[name]()); e == nil || e.Code != want || e.Hint == "" {
			t.Errorf("%s: %v, want code %v", name, e, want)
		}
	}
}
