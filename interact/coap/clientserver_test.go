package coap

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/pool"
	"github.com/plgd-dev/go-coap/v3/net/blockwise"
	"github.com/plgd-dev/go-coap/v3/options"
	"github.com/plgd-dev/go-coap/v3/udp"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
)

// TestGoCoapClient calls the server with the client of go-coap.
func TestGoCoapClient(t *testing.T) {
	t.Parallel()
	thing := describe(t, "coap://127.0.0.1", lampTD)
	mesh := newStore()
	mesh.set("level", []byte("7"))
	addr := startServer(t, ServerOptions{Mesh: interact.Checked(thing)(mesh)}, thing)
	c, err := udp.Dial(addr.String(), ticking(t), options.WithMaxMessageSize(8<<20), options.WithBlockwise(true,
		blockwise.SZX1024, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); <-c.Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	props := "/things/urn:example:thing/properties/"
	said := func(m *pool.Message, err error) string {
		if err != nil {
			return err.Error()
		}
		format, _ := m.ContentFormat()
		return fmt.Sprintf("%s %d %s", messaging.Dotted(m.Code()), format, bodyOf(m))
	}
	if got := said(c.Get(ctx, props+"level")); got != "2.05 50 7" {
		t.Errorf("get: %s", got)
	}
	if got := said(c.Get(ctx, props+"level", message.Option{ID: message.Accept, Value: []byte{60}})); got != "2.05 60 \x07" {
		t.Errorf("get CBOR: %s", got)
	}
	if got := said(c.Put(ctx, props+"level", message.AppCBOR, strings.NewReader("\x18\x2a"))); got != "2.04 0 " ||
		mesh.get("level") != "42" {
		t.Errorf("put CBOR: %s, %s", got, mesh.get("level"))
	}
	if got := said(c.Put(ctx, props+"level", message.AppJSON, strings.NewReader(`"x"`))); !strings.HasPrefix(got,
		"4.00 0 LMOS-1400") {
		t.Errorf("put what is no integer: %s", got)
	}
	text := big(100 << 10)
	if got := said(c.Put(ctx, props+"text", message.AppJSON, strings.NewReader(text))); got != "2.04 0 " ||
		mesh.get("text") != text {
		t.Errorf("put 100 KiB: %s, %d bytes came", got, len(mesh.get("text")))
	}
	if got := said(c.Get(ctx, props+"text")); got != "2.05 50 "+text {
		t.Errorf("get 100 KiB: %s", clip(got, 100))
	}
	if got := said(c.Post(ctx, "/things/urn:example:thing/actions/echo", message.AppJSON,
		strings.NewReader(text))); got != "2.05 50 "+text {
		t.Errorf("post 100 KiB: %s", clip(got, 100))
	}

	received := make(chan string, 100)
	watch, err := c.Observe(ctx, props+"level", func(m *pool.Message) { received <- bodyOf(m) })
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the mesh is observed", mesh.isWatched)
	var got []string
	for n := 42; n < 46; n++ {
		mesh.set("level", fmt.Appendf(nil, "%d", n))
		for want := fmt.Sprint(n); len(got) == 0 || got[len(got)-1] != want; {
			select {
			case s := <-received:
				got = append(got, s)
			case <-ctx.Done():
				t.Fatalf("received %q", got)
			}
		}
	}
	if err := watch.Cancel(ctx); err != nil {
		t.Errorf("cancel: %v", err)
	}
	if !slices.IsSorted(got) {
		t.Errorf("received %q", got)
	}
}

// TestBothSides calls the server with the client of this package: all operations, and both kinds of actions.
func TestBothSides(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	states := []interact.Status{interact.StatusPending, interact.StatusRunning, interact.StatusCompleted}
	var cancelled bool
	mesh := fakeMesh(func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		mu.Lock()
		defer mu.Unlock()
		r := m.Reply(interact.ActionStatus, "", nil)
		switch {
		case m.Type.Long():
			for n := 0; n < 3 && yield(m.Reply(interact.Event, "", fmt.Appendf(nil, `{"n":%d}`, n)), nil); n++ {
			}
			yield(nil, interact.Errorf(interact.Withdrawn, "look for another", "it is over"))
			return
		case m.Type == interact.InvokeAction && m.Detach:
			r.Status, r.ActionID = interact.StatusPending, "7"
		case m.Type == interact.InvokeAction:
			r.Status, r.ContentType, r.Data = interact.StatusCompleted, m.ContentType, m.Data
		case m.Type == interact.QueryAction:
			if r.Status, states = states[0], states[1:]; r.Status == interact.StatusCompleted {
				r.Data = []byte(`"done"`)
			}
		case m.Type == interact.CancelAction:
			cancelled = true
		case m.Type == interact.ReadAllProperties:
			r.Data = []byte(`{"p":1}`)
		case m.Name == "none":
			yield(nil, interact.Errorf(interact.NoPeer, "see the peers", "nobody knows"))
			return
		case m.Type == interact.ReadProperty:
			r.Data = []byte("21")
		}
		yield(r, nil)
	})
	thing := describe(t, "", serveTD)
	addr := startServer(t, ServerOptions{Mesh: mesh}, thing)
	base := "coap://" + addr.String() + "/things/urn%3Aexample%3Athing"
	agent := newClient(t, Options{}).Thing(describe(t, base,
		`"properties": {"p": {"observable": true, "forms": [{"href": "BASE/properties/p"}]},
			"none": {"forms": [{"href": "BASE/properties/none"}]}},
		"actions": {"go": {"input": {}, "forms": [{"href": "BASE/actions/go", "contentType": "application/cbor"}]},
			"slow": {"forms": [{"href": "BASE/actions/slow"}]}},
		"events": {"e": {"forms": [{"href": "BASE/events/e"}]}},
		"forms": [{"href": "BASE/properties", "op": ["readallproperties", "writemultipleproperties"]}]`))
	if r := must(t, agent, read("p")); string(r.Data) != "21" {
		t.Errorf("read %s", r.Data)
	}
	if r := must(t, agent, write("p", "22")); r.Type != interact.Acknowledgement {
		t.Errorf("written: %+v", r)
	}
	if r := must(t, agent, &interact.Message{Type: interact.ReadAllProperties}); string(r.Data) != `{"p":1}` {
		t.Errorf("all: %s", r.Data)
	}
	must(t, agent, withData(&interact.Message{Type: interact.WriteMultipleProperties}, `{"p":1}`))
	text := big(300 << 10)
	if r := must(t, agent, invoke("go", text)); r.Media() != interact.CBOR || len(r.Data) < len(text) {
		t.Errorf("output %s of %d bytes", r.Media(), len(r.Data))
	}
	if r := must(t, agent, invoke("slow", "")); r.Status != interact.StatusCompleted || string(r.Data) != `"done"` || cancelled {
		t.Errorf("a slow action ended %s %s", r.Status, r.Data)
	}
	_, err := ask(t, agent, read("none"))
	if e := wantError(t, err, interact.NoPeer); !e.Remote || !strings.Contains(e.Title, "nobody knows (see the peers)") {
		t.Errorf("%+v", e)
	}
	got, err := first(t.Context(), agent, subscribe("e"), 10)
	if e := interact.AsError(err); !slices.Equal(got, []string{`e={"n":0}`, `e={"n":1}`, `e={"n":2}`}) || e == nil ||
		e.Code != interact.Withdrawn {
		t.Errorf("received %q, %v", got, err)
	}
}

// TestAServerUnderFire: a server responds to a peer while another peer sends invalid messages.
func TestAServerUnderFire(t *testing.T) {
	t.Parallel()
	thing := describe(t, "coap://127.0.0.1", lampTD)
	mesh := newStore()
	mesh.set("level", []byte("7"))
	addr := startServer(t, ServerOptions{Mesh: mesh, Rate: -1}, thing)
	stop := make(chan struct{})
	var work sync.WaitGroup
	for seed := range uint64(2) {
		c, err := net.Dial("udp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		work.Go(func() {
			r := rand.New(rand.NewPCG(seed, 0))
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				b := make([]byte, r.IntN(200))
				for i := range b {
					b[i] = byte(r.Uint32())
				}
				if len(b) > 4 && n%2 == 0 { // a header that looks good
					b[0], b[1] = 0x40|b[0]&0x13, b[1]%8
				}
				_, _ = c.Write(b)
				if n%10 == 0 {
					time.Sleep(time.Millisecond) // not to fill the socket of the server all the time
				}
			}
		})
	}
	client := newClient(t, Options{}).Thing(describe(t, "coap://"+addr.String()+"/things/urn:example:thing",
		strings.ReplaceAll(lampTD, "BASE/level", "BASE/properties/level")))
	for range 20 {
		if r := must(t, client, read("level")); string(r.Data) != "7" {
			t.Errorf("read %s", r.Data)
		}
	}
	close(stop)
	work.Wait()
}

// TestALargeFleetOfObservers has many observers: each receives the last value.
func TestALargeFleetOfObservers(t *testing.T) {
	t.Parallel()
	const fleet, changes = 200, 50
	thing := describe(t, "coap://127.0.0.1", lampTD)
	mesh := newStore()
	mesh.set("level", []byte("0"))
	addr := startServer(t, ServerOptions{Mesh: mesh, Rate: -1, MaxRequests: 2 * fleet}, thing)
	agent := newClient(t, Options{}).Thing(describe(t, "coap://"+addr.String()+"/things/urn:example:thing",
		strings.ReplaceAll(lampTD, `"forms": [{"href": "BASE/level"}]`,
			`"forms": [{"href": "BASE/properties/level", "op": ["observeproperty"]}]`)))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var work, ready sync.WaitGroup
	ready.Add(fleet)
	for range fleet {
		work.Go(func() {
			first := true
			for r, err := range agent.Do(ctx, observe("level")) {
				if first {
					first = false
					ready.Done()
				}
				if err != nil {
					t.Error(err)
					return
				}
				if bytes.Equal(r.Data, fmt.Append(nil, changes)) {
					return
				}
			}
		})
	}
	ready.Wait()
	eventually(t, "the mesh is observed", mesh.isWatched)
	for n := 1; n <= changes; n++ {
		mesh.set("level", fmt.Append(nil, n))
	}
	work.Wait()
}

// BenchmarkRead is one reading by the client of this package from its server.
func BenchmarkRead(b *testing.B) {
	thing := describe(b, "coap://127.0.0.1", lampTD)
	mesh := newStore()
	mesh.set("level", []byte("7"))
	addr := startServer(b, ServerOptions{Mesh: mesh, Rate: -1}, thing)
	client := newClient(b, Options{}).Thing(describe(b, "coap://"+addr.String()+"/things/urn:example:thing",
		strings.ReplaceAll(lampTD, "BASE/level", "BASE/properties/level")))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := interact.Call(b.Context(), client, read("level")); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBlocks writes and reads 100 KiB.
func BenchmarkBlocks(b *testing.B) {
	thing := describe(b, "coap://127.0.0.1", lampTD)
	mesh := newStore()
	addr := startServer(b, ServerOptions{Mesh: mesh, Rate: -1}, thing)
	client := newClient(b, Options{}).Thing(describe(b, "coap://"+addr.String()+"/things/urn:example:thing",
		strings.ReplaceAll(lampTD, "BASE/echo", "BASE/actions/echo")))
	text := big(100 << 10)
	b.SetBytes(int64(2 * len(text)))
	for b.Loop() {
		if _, err := interact.Call(b.Context(), client, invoke("echo", text)); err != nil {
			b.Fatal(err)
		}
	}
}
