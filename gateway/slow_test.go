package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/pipenet"
)

// inBubble runs a gateway on pipes in a bubble. prepare may change it first.
func inBubble(t *testing.T, o Options, prepare func(*Gateway), test func(t *testing.T, r *running, p *pipenet.Listener)) {
	synctest.Test(t, func(t *testing.T) {
		o.Listen, o.Tokens = None, tokens.New(token)
		if o.Mesh == nil {
			o = serving(newFake(describe("urn:x:weather", "Weather", owner1)), o)
		}
		g, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if prepare != nil {
			prepare(g)
		}
		p := pipenet.Listen()
		g.addServer(p, listenerPrincipal(true), nil)
		transport := &http.Transport{DialContext: p.Dial}
		r := &running{Gateway: g, t: t, url: "http://localhost", done: make(chan error, 1), http: &http.Client{Transport: transport}}
		ctx, stop := context.WithCancel(t.Context())
		r.stop = stop
		go func() { r.done <- g.Run(ctx) }()
		test(t, r, p)
		transport.CloseIdleConnections()
		r.wait()
	})
}

// A client that sends its headers or body too slowly is disconnected; others are served.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	const post = "POST /things/urn:x:weather/actions/ask HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token +
		"\r\nContent-Type: application/json\r\n"
	for name, tt := range map[string]struct {
		sent string
		most time.Duration
	}{
		"nothing": {"", defaultTimeouts.header},
		"headers": {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", defaultTimeouts.header},
		"body": {"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/td+json\r\nAuthorization: Bearer " + token +
			"\r\nContent-Length: 1000\r\n\r\n{", defaultTimeouts.body},
		"body of a call":             {post + "Content-Length: 1000\r\n\r\n{", defaultTimeouts.body},
		"body that no handler reads": {"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{", defaultTimeouts.body},
		"body of a rejected request": {"POST /v1/publish HTTP/1.1\r\nHost: evil\r\nContent-Length: 1000\r\n\r\n{", defaultTimeouts.body},
		"body of a preflight": {"OPTIONS /v1/publish HTTP/1.1\r\nHost: localhost\r\nOrigin: https://app.example\r\n" +
			"Access-Control-Request-Method: POST\r\nContent-Length: 1000\r\n\r\n{", defaultTimeouts.body},
		"chunked body": {post + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", defaultTimeouts.body},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{Operation: Operation{Origins: []string{"https://app.example"}}}, nil, func(t *testing.T, r *running, p *pipenet.Listener) {
				c, err := p.Dial(t.Context(), "", "")
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				begin := time.Now()
				if _, err := io.WriteString(c, tt.sent); err != nil {
					t.Fatal(err)
				}
				r.check(t, exchange{path: "/healthz", status: 200})
				_, _ = io.Copy(io.Discard, c) // the server may respond or reset the connection
				if took := time.Since(begin); took < tt.most || took > tt.most+time.Second {
					t.Errorf("cut off after %v, want %v", took, tt.most)
				}
			})
		})
	}
}

// The timeout of a body that arrived does not end the call.
func TestSlowResponseAfterABody(t *testing.T) {
	t.Parallel()
	node := newFake(describe("urn:x:weather", "Weather", owner1))
	node.mesh = afterTime(2 * defaultTimeouts.body)
	inBubble(t, serving(node, Options{}), nil, func(t *testing.T, r *running, _ *pipenet.Listener) {
		r.check(t, exchange{method: "POST", path: "/things/urn:x:weather/actions/ask",
			header: merge(asAdmin, "Content-Type", "application/json", "Prefer", "wait=300"), body: `{"n":1}`, status: 200, contain: `{"n":1}`})
	})
}

// A peer that receives nothing is disconnected; one that receives slowly is not.
func TestSlowReceivers(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	for name, tt := range map[string]struct {
		part  int // bytes received per pause
		pause time.Duration
		whole bool
	}{
		"nothing":             {0, time.Hour, false},
		"a little":            {writeBlock / 4, defaultTimeouts.write/4 - time.Second, true},
		"less than a little":  {writeBlock / 8, defaultTimeouts.write / 4, false},
		"all, after a while":  {size + 1024, defaultTimeouts.write - time.Second, true},
		"all, after too long": {size + 1024, defaultTimeouts.write + time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broken := make(chan error, 1)
			inBubble(t, Options{}, func(g *Gateway) {
				g.routes = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					_, err := io.WriteString(w, strings.Repeat("x", size))
					broken <- err
				})
			}, func(t *testing.T, _ *running, p *pipenet.Listener) {
				c, err := p.Dial(t.Context(), "", "")
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if _, err := fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				here, there := io.Pipe()
				defer here.Close()
				go func() {
					for err == nil {
						time.Sleep(tt.pause)
						_, err = io.CopyN(there, c, int64(tt.part))
						if tt.part == 0 && len(broken) > 0 {
							err = io.EOF
						}
					}
					there.CloseWithError(err)
				}()
				resp, err := http.ReadResponse(bufio.NewReader(here), nil)
				n := int64(0)
				if err == nil {
					n, err = io.Copy(io.Discard, resp.Body)
				}
				if whole := err == nil && n == size; whole != tt.whole {
					t.Errorf("%d bytes came, %v", n, err)
				}
				if err := <-broken; (err == nil) != tt.whole {
					t.Errorf("the write ended with %v", err)
				}
			})
		})
	}
}

// The timeout of the client applies at the node, too.
func TestClientSendsItsTimeout(t *testing.T) {
	t.Parallel()
	received := make(chan time.Duration, 1)
	node := newFake(describe("urn:x:weather", "Weather", owner1))
	node.mesh = func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		received <- time.Until(m.Deadline)
		return interact.Unary(echo).Do(ctx, m)
	}
	for timeout, want := range map[time.Duration]time.Duration{100 * time.Millisecond: time.Second, 90*time.Second - 1: 90 * time.Second,
		24 * time.Hour: interact.MaxWait} {
		inBubble(t, serving(node, Options{}), nil, func(t *testing.T, r *running, _ *pipenet.Listener) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			c := api.NewClient(r.url, token, r.http.Transport)
			if _, _, err := c.Read(ctx, "urn:x:weather", "unit"); err != nil {
				t.Error(err)
			}
			if got := <-received; got != want {
				t.Errorf("with %v, the node waits %v, want %v", timeout, got, want)
			}
		})
	}
}

func TestClientTimesOut(t *testing.T) {
	t.Parallel()
	for name, inside := range map[string]bool{"over a connection": false, "inside": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := newFake(describe("urn:x:weather", "Weather", owner1))
			ended := make(chan error, 1)
			node.mesh = func(ctx context.Context, _ *interact.Message) iter.Seq2[*interact.Message, error] {
				<-ctx.Done()
				ended <- ctx.Err()
				return interact.Fail(ctx.Err())
			}
			inBubble(t, serving(node, Options{}), nil, func(t *testing.T, r *running, _ *pipenet.Listener) {
				c := api.NewClient(r.url, token, r.http.Transport)
				if inside {
					c = r.InProcess()
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
				defer cancel()
				_, _, err := c.Call(ctx, "urn:x:weather", "ask", "", []byte(`1`))
				if interact.AsError(err).Code != interact.Timeout || !inside && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err) // in process, both sides end at once
				}
				if err := <-ended; err == nil {
					t.Error("the call was not cancelled")
				}
			})
		})
	}
}
