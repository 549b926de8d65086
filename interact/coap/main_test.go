package coap

import (
	"context"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/message/pool"
	"github.com/plgd-dev/go-coap/v3/mux"
	coapnet "github.com/plgd-dev/go-coap/v3/net"
	"github.com/plgd-dev/go-coap/v3/net/blockwise"
	"github.com/plgd-dev/go-coap/v3/options"
	"github.com/plgd-dev/go-coap/v3/tcp"
	"github.com/plgd-dev/go-coap/v3/udp"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/interact/interacttest"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/tdtest"
)

func TestMain(m *testing.M) { testmain.Run(m) }

var describe = tdtest.Thing

// newClient returns a client that is closed with the test.
func newClient(t testing.TB, o Options) *Client {
	t.Helper()
	c := NewClient(o)
	t.Cleanup(c.Close)
	return c
}

// ask sends one message and returns the last reply, within a time that is long for each test.
func ask(t testing.TB, thing interact.Thing, m *interact.Message) (*interact.Message, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return interact.Call(ctx, thing, m)
}

// must is ask that fails the test on an error.
func must(t testing.TB, thing interact.Thing, m *interact.Message) *interact.Message {
	t.Helper()
	r, err := ask(t, thing, m)
	if err != nil {
		t.Fatalf("%s %s: %v", m.Type.Op(), m.Name, err)
	}
	return r
}

// ticking runs the periodic functions of go-coap until the end of the test.
func ticking(t testing.TB) options.PeriodicRunnerOpt {
	stop := make(chan struct{})
	var work sync.WaitGroup
	t.Cleanup(func() { close(stop); work.Wait() })
	return options.WithPeriodicRunner(func(f func(now time.Time) bool) {
		work.Go(func() {
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for f(time.Now()) {
				select {
				case <-tick.C:
				case <-stop:
					return
				}
			}
		})
	})
}

// udpAgent is an agent made with go-coap's own server. It returns the base of its addresses.
func udpAgent(t testing.TB, handle func(w mux.ResponseWriter, r *mux.Message)) string {
	t.Helper()
	l, err := coapnet.NewListenUDP("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := udp.NewServer(ticking(t), options.WithMux(mux.HandlerFunc(handle)), options.WithErrors(func(error) {}),
		options.WithMaxMessageSize(8<<20), options.WithBlockwise(true, blockwise.SZX1024, time.Minute))
	serve(t, func() error { return s.Serve(l) }, s.Stop)
	return "coap://" + l.LocalAddr().String()
}

// tcpAgent is the same over TCP.
func tcpAgent(t testing.TB, handle func(w mux.ResponseWriter, r *mux.Message)) string {
	t.Helper()
	l, err := coapnet.NewTCPListener("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := tcp.NewServer(ticking(t), options.WithMux(mux.HandlerFunc(handle)), options.WithErrors(func(error) {}),
		options.WithMaxMessageSize(8<<20), options.WithBlockwise(true, blockwise.SZX1024, time.Minute))
	serve(t, func() error { return s.Serve(l) }, func() { s.Stop(); _ = l.Close() })
	return "coap+tcp://" + l.Addr().String()
}

// serve runs a server until the test ends.
func serve(t testing.TB, run func() error, stop func()) {
	done := make(chan error, 1)
	go func() { done <- run() }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Logf("server: %v", err)
		}
	})
}

// says responds with a payload.
func says(w mux.ResponseWriter, code codes.Code, format message.MediaType, text string, opts ...message.Option) {
	_ = w.SetResponse(code, format, strings.NewReader(text), opts...)
}

// bodyOf returns the body of a message of go-coap.
func bodyOf(m *pool.Message) string {
	b, _ := m.ReadBody()
	return string(b)
}

// A puppet is an agent that is a bare socket: the test sets its response to each message.
type puppet struct {
	net.PacketConn
	base string
}

// newPuppet returns an agent that calls react with each message, in one goroutine, until the test ends.
func newPuppet(t testing.TB, react func(p *puppet, q *messaging.Packet, from net.Addr)) *puppet {
	t.Helper()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &puppet{l, "coap://" + l.LocalAddr().String()}
	serve(t, func() error {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := l.ReadFrom(buf)
			if err != nil {
				return nil
			}
			q, err := messaging.ParseDatagram(append([]byte(nil), buf[:n]...))
			if err != nil {
				t.Errorf("the client sent no message: %x", buf[:n])
				continue
			}
			react(p, q, from)
		}
	}, func() { _ = l.Close() })
	return p
}

// A fakeMesh is the mesh of a server: a function.
type fakeMesh func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool)

// Do implements [interact.Thing].
func (f fakeMesh) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) { f(ctx, m, yield) }
}

// described is a description as it comes from the mesh.
func described(thing *td.Thing) *td.Description {
	return &td.Description{Thing: thing,
		Record: &td.Record{Owner: did.DID("did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"), Thing: thing.ID,
			Title: thing.Title}}
}

// startServer runs a server for the things, which are found by id, until the test ends.
func startServer(t testing.TB, o ServerOptions, things ...*td.Thing) netip.AddrPort {
	t.Helper()
	return startServerWith(t, o, defaultAckDelay, things...)
}

// startServerWith is startServer with another delay of acknowledgements.
func startServerWith(t testing.TB, o ServerOptions, ackDelay time.Duration, things ...*td.Thing) netip.AddrPort {
	t.Helper()
	o.Find = func(_ context.Context, ref string) (*td.Description, error) {
		for _, thing := range things {
			if thing.ID == ref {
				return described(thing), nil
			}
		}
		return nil, interact.Errorf(interact.NotFound, "see what there is", "no agent matches %q", ref).Then(interact.StepFind)
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	s, err := NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.ackDelay = ackDelay
	serve(t, func() error { return s.Run(context.Background()) }, func() { _ = s.Close() })
	return s.Addr()
}

var eventually = poll.Until

// big is JSON text of n bytes that is not the same anywhere.
func big(n int) string {
	var b strings.Builder
	b.WriteString(`"`)
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%07d ", i)
	}
	return b.String()[:n-1] + `"`
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

var (
	read      = interacttest.Read
	write     = interacttest.Write
	invoke    = interacttest.Invoke
	wantError = interacttest.WantError
)
