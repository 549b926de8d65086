package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func dial(t *testing.T, target, token string) *api.Client {
	t.Helper()
	c, err := api.Dial(target, token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestClient(t *testing.T) {
	t.Parallel()
	node := newFake(describe("urn:x:weather", "Weather", owner1))
	node.peers = []api.Peer{{DID: owner2, Direction: "outbound"}}
	r := start(t, serving(node, Options{}))
	for name, c := range map[string]*api.Client{
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

func testClient(t *testing.T, c *api.Client) {
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
	net, err := c.Net(ctx)
	if err != nil || net.Kind != "Net" || len(net.Relays) != 1 || len(net.Serving.Circuits) != 1 {
		t.Errorf("Net: %+v, %v", net, err)
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

func testClientCalls(t *testing.T, c *api.Client) {
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
		t.Errorf("unknown Thing: %v", err)
	}
	_, _, err = c.Call(ctx, "weathr", "ask", "", nil)
	if e := interact.AsError(err); e == nil || e.Code != interact.NotFound || e.Hint != "lmosd find weathr" ||
		e.Title != `no agent matches "weathr"` {
		t.Errorf("call of an unknown Thing: %#v", e)
	}
}

func TestClientPublishes(t *testing.T) {
	t.Parallel()
	r := start(t, serving(newFake(), Options{}))
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
		t.Errorf("Move to an unknown owner: %#v", e)
	}
	_, err = c.Publish(t.Context(), []byte(`{"id":"urn:x:1"}`))
	if e := interact.AsError(err); e.Code != interact.BadTD || len(e.Issues) == 0 {
		t.Errorf("Publish of something else than a TD: %#v", e)
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
