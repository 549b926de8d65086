package gateway

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
)

// Many clients read, call and change concurrently over TCP and the socket; all requests are counted.
func TestManyClients(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	node := newFake(describe("urn:x:weather", "Weather", owner1))
	node.mesh = m.Middleware("mesh")(interact.Unary(echo)).Do
	r := start(t, serving(node, Options{Metrics: m}))
	clients := []*api.Client{dial(t, r.url, token), dial(t, r.o.Socket, "")}
	const callers, rounds = 16, 20
	var g errgroup.Group
	for i := range callers {
		g.Go(func() error {
			for n := range rounds {
				if err := round(t.Context(), clients[i%2], i, n); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	var s api.Status
	m.FillCalls(&s)
	if s.Calls.Total != callers*rounds || s.Calls.Errors != 0 {
		t.Errorf("calls %+v", s.Calls)
	}
}

func round(ctx context.Context, c *api.Client, caller, n int) error {
	input := fmt.Sprintf(`{"caller":%d,"n":%d}`, caller, n)
	out, _, err := c.Call(ctx, "urn:x:weather", "ask", "", []byte(input))
	if err != nil || string(out) != input {
		return fmt.Errorf("call %s: %s, %w", input, out, err)
	}
	id := fmt.Sprintf("urn:x:%d", caller)
	if _, err := c.Publish(ctx, []byte(thingTD(id, "One of many"))); err != nil {
		return err
	}
	if _, err := c.Agent(ctx, id); err != nil {
		return err
	}
	_, err = c.Unpublish(ctx, id)
	return err
}

// Both routes to publish return the error of the node.
func TestRefusedPublications(t *testing.T) {
	t.Parallel()
	node := newFake()
	node.publish = func(context.Context, []byte) (*api.Publication, error) {
		return nil, interact.Errorf(interact.DiskFull, "free some space", "the disk is full")
	}
	r := start(t, serving(node, Options{}))
	for _, x := range []exchange{
		{method: "POST", path: "/things", body: thingTD("", "A")},
		{method: "PUT", path: "/things/urn:x:a", body: thingTD("urn:x:a", "A")},
		{method: "POST", path: "/v1/publish", body: thingTD("", "A")},
	} {
		x.header, x.status, x.code, x.contain = tdBody, 507, "LMOS-3021", "free some space"
		r.check(t, x)
	}
	_, body := r.do(t, exchange{path: "/metrics"})
	if got := samples(t, body)[`lmosd_td_publish_total{result="disk-full"}`]; got != "3" {
		t.Errorf("counted %q", got)
	}
}

// A publication that no other node has yet is reported and counted as pending.
func TestPendingPublication(t *testing.T) {
	t.Parallel()
	node := newFake()
	node.publish = func(context.Context, []byte) (*api.Publication, error) {
		return &api.Publication{ID: "urn:x:a", Pending: true}, nil
	}
	r := start(t, serving(node, Options{}))
	r.check(t, exchange{method: "POST", path: "/v1/publish", header: tdBody, body: "{}", status: 200,
		contain: `"pending":true`})
	_, body := r.do(t, exchange{path: "/metrics"})
	if got := samples(t, body)[`lmosd_td_publish_total{result="pending"}`]; got != "1" {
		t.Errorf("counted %q", got)
	}
}

// A malformed request ends only its own connection.
func TestMalformedRequest(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	for _, garbage := range []string{"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "GET / HTTP/9.9\r\n\r\n",
		"\r\n\r\n\r\n", strings.Repeat("A", 1000) + "\r\n\r\n",
		"GET /v1/status HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
		"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nzz"} {
		line := rawLine(t, r, garbage)
		if line != "" && !strings.HasPrefix(line, "HTTP/1.1 4") && !strings.HasPrefix(line, "HTTP/1.1 505") {
			t.Errorf("%q: got %q", garbage, line)
		}
		r.check(t, exchange{path: "/healthz", status: 200})
	}
}

func BenchmarkCall(b *testing.B) {
	o := serving(newFake(describe("urn:x:weather", "Weather", owner1)), Options{Listen: "127.0.0.1:0"})
	g, err := New(o)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	c, err := api.Dial(g.URL(), "")
	if err != nil {
		b.Fatal(err)
	}
	input := []byte(`{"question":"` + strings.Repeat("x", 240) + `"}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := c.Call(ctx, "urn:x:weather", "ask", "", input); err != nil {
			b.Fatal(err)
		}
	}
	c.Close()
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
