package mqtt

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	paho3 "github.com/eclipse/paho.mqtt.golang"
	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/interacttest"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/tdtest"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// soon is longer than anything takes that works.
const soon = 20 * time.Second

// A plainBroker is an ordinary broker between agents and this node.
type plainBroker struct {
	*mochi.Server
	addr     string
	listener net.Listener

	mu      sync.Mutex
	refuse5 func(c net.Conn) // rejects an MQTT 5 CONNECT; nil accepts it
	logins  []string         // user:password of each CONNECT
	conns   map[string]net.Conn
}

// brokerHook counts clients and refuses versions.
type brokerHook struct {
	mochi.HookBase
	b *plainBroker
}

func (*brokerHook) ID() string           { return "test" }
func (*brokerHook) Provides(b byte) bool { return b == mochi.OnPacketRead || b == mochi.OnConnect }

func (h *brokerHook) OnPacketRead(cl *mochi.Client, pk packets.Packet) (packets.Packet, error) {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	if pk.FixedHeader.Type == packets.Connect && pk.ProtocolVersion == 5 && h.b.refuse5 != nil {
		h.b.refuse5(cl.Net.Conn)
		cl.Stop(errors.New("no MQTT 5 here")) // mochi ignores the error of a hook
	}
	return pk, nil
}

func (h *brokerHook) OnConnect(cl *mochi.Client, pk packets.Packet) error {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	if cl.Closed() || h.b.conns == nil {
		return nil
	}
	// Mochi looks for messages to send under a read lock that it takes twice, and hangs now and then. Without a quota it does not.
	cl.State.Inflight.ResetSendQuota(0)
	h.b.logins = append(h.b.logins, string(pk.Connect.Username)+":"+string(pk.Connect.Password))
	h.b.conns[cl.ID] = cl.Net.Conn
	return nil
}

// startBroker runs a plain broker on addr, "127.0.0.1:0" for a free port, until the test ends or it is stopped.
func startBroker(t testing.TB, addr string, hooks ...mochi.Hook) *plainBroker {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return serveBroker(t, l, hooks...)
}

func serveBroker(t testing.TB, l net.Listener, hooks ...mochi.Hook) *plainBroker {
	t.Helper()
	caps := mochi.NewDefaultServerCapabilities()
	caps.MaximumClientWritesPending = 4096
	b := &plainBroker{addr: l.Addr().String(), listener: l, conns: map[string]net.Conn{}}
	b.Server = mochi.New(&mochi.Options{Capabilities: caps, Logger: slog.New(slog.DiscardHandler), InlineClient: true,
		SysTopicResendInterval: math.MaxInt32})
	if len(hooks) == 0 {
		hooks = append(hooks, new(auth.AllowHook))
	}
	for _, h := range append(hooks, &brokerHook{b: b}) {
		if err := b.AddHook(h, nil); err != nil {
			t.Fatal(err)
		}
	}
	o := BrokerOptions{MaxConnections: 1000, MaxPacket: 8 << 20, Log: slog.New(slog.DiscardHandler)}
	if err := b.AddListener(newListener(l, o, func() {}, func(net.Conn) {})); err != nil {
		t.Fatal(err)
	}
	if err := b.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.stop)
	return b
}

// old makes the broker one of MQTT 3.1.1: it refuses the CONNECT of MQTT 5 as such brokers do.
func (b *plainBroker) old() *plainBroker {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuse5 = func(c net.Conn) { _, _ = c.Write([]byte{0x20, 2, 0, 1}) }
	return b
}

// stop ends the broker; stopping twice is once.
func (b *plainBroker) stop() {
	b.mu.Lock()
	first := b.conns != nil
	b.conns = nil
	b.mu.Unlock()
	if first {
		_ = b.Server.Close()
	}
}

// cut closes the connections of all clients whose id begins with prefix, without DISCONNECT.
func (b *plainBroker) cut(prefix string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, c := range b.conns {
		if strings.HasPrefix(id, prefix) {
			c.Close()
			delete(b.conns, id)
			n++
		}
	}
	return n
}

// connects returns the number of connections.
func (b *plainBroker) connects() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.logins)
}

// filters returns how many filters the clients of this package have subscribed to at the broker.
func (b *plainBroker) filters() (n int) {
	for id, cl := range b.Clients.GetAll() {
		if strings.HasPrefix(id, "lmosd") {
			n += cl.State.Subscriptions.Len()
		}
	}
	return n
}

// accept serves each connection to a port of loopback with handle. end accepts no more and waits for the others; the test calls it at its
// end, too.
func accept(t testing.TB, handle func(net.Conn)) (addr string, end func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer conn.Close()
				handle(conn)
			})
		}
	})
	end = func() {
		l.Close()
		work.Wait()
	}
	t.Cleanup(end)
	return l.Addr().String(), end
}

// eachPacket calls f with the first byte and the rest of each packet of a connection, until f returns false.
func eachPacket(conn net.Conn, f func(first byte, body []byte) bool) {
	in := bufio.NewReader(conn)
	for {
		first, err := in.ReadByte()
		if err != nil {
			return
		}
		length, _, err := packet.ReadLength(in)
		if err != nil {
			return
		}
		body := make([]byte, length)
		if _, err := io.ReadFull(in, body); err != nil || !f(first, body) {
			return
		}
	}
}

// A peer is an agent or a consumer, of MQTT 5.
type peer struct {
	*paho.Client
	messages chan *paho.Publish
}

// newPeer connects a client of MQTT 5. handle gets each message in a goroutine of its own; nil puts them into messages.
func newPeer(t testing.TB, addr string, handle func(p *peer, m *paho.Publish), change ...func(*paho.Connect)) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{messages: make(chan *paho.Publish, 4096)}
	var work sync.WaitGroup
	p.Client = paho.NewClient(paho.ClientConfig{Conn: packet.NewConn(conn, packet.FromBroker, 8<<20), Session: &safeSession{State: newState()},
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){
			func(r paho.PublishReceived) (bool, error) {
				if handle == nil {
					p.messages <- r.Packet
				} else {
					work.Go(func() { handle(p, r.Packet) })
				}
				return true, nil
			}}})
	connect := &paho.Connect{ClientID: "peer" + interact.NewID(), CleanStart: true, KeepAlive: 30}
	for _, f := range change {
		f(connect)
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if _, err := p.Connect(ctx, connect); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Disconnect(&paho.Disconnect{})
		work.Wait()
	})
	return p
}

// sub subscribes and fails the test if the broker refuses.
func (p *peer) sub(t testing.TB, filters ...string) {
	t.Helper()
	for _, f := range filters {
		if err := p.trySub(t, f, 1); err != nil {
			t.Fatalf("subscribe to %s: %v", f, err)
		}
	}
}

func (p *peer) trySub(t testing.TB, filter string, qos byte) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	_, err := p.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: filter, QoS: qos}}})
	return err
}

// pub publishes and returns the reason code of the acknowledgement.
func (p *peer) pub(t testing.TB, m *paho.Publish) byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	resp, err := p.Publish(ctx, m)
	if resp == nil {
		t.Errorf("publish to %s: %v", m.Topic, err)
		return 0xff
	}
	return resp.ReasonCode
}

// next waits for a message.
func (p *peer) next(t testing.TB) *paho.Publish {
	t.Helper()
	select {
	case m := <-p.messages:
		return m
	case <-time.After(soon):
		t.Fatal("no message came")
		return nil
	}
}

// answer responds like an agent of kotlin-wot: to the response topic, without correlation data.
func (p *peer) answer(m *paho.Publish, media, data string) {
	if m.Properties == nil || m.Properties.ResponseTopic == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	_, _ = p.Publish(ctx, &paho.Publish{Topic: m.Properties.ResponseTopic, QoS: 1, Payload: []byte(data),
		Properties: &paho.PublishProperties{ContentType: media}})
}

// newPeer3 connects a client of MQTT 3.1.1 that subscribes to filters.
func newPeer3(t testing.TB, addr string, handle paho3.MessageHandler, filters ...string) paho3.Client {
	t.Helper()
	o := paho3.NewClientOptions().AddBroker("tcp://" + addr).SetProtocolVersion(4).SetClientID("old" + interact.NewID()[:8]).
		SetAutoReconnect(false).SetDefaultPublishHandler(handle).SetOrderMatters(true)
	c := paho3.NewClient(o)
	done(t, c.Connect())
	t.Cleanup(func() { c.Disconnect(100) })
	for _, f := range filters {
		done(t, c.Subscribe(f, 1, nil))
	}
	return c
}

func done(t testing.TB, token paho3.Token) {
	t.Helper()
	if !token.WaitTimeout(soon) || token.Error() != nil {
		t.Fatalf("mqtt 3.1.1: %v", token.Error())
	}
}

// describe parses the TD of a lamp with the members, in which BASE is replaced.
func describe(t testing.TB, base, members string) *td.Thing {
	t.Helper()
	return tdtest.Named(t, "urn:example:lamp", "Lamp", base, members)
}

// newClient returns a client that is closed with the test.
func newClient(t testing.TB, o Options) *Client {
	t.Helper()
	c := NewClient(o)
	t.Cleanup(c.Close)
	return c
}

// ask sends one message and returns the last reply, within a time that is long for each test.
func ask(t testing.TB, c *Client, thing *td.Thing, m *interact.Message) (*interact.Message, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	return interact.Call(ctx, c.Thing(thing), m)
}

func within1(m *interact.Message, d time.Duration) *interact.Message {
	m.Deadline = time.Now().Add(d)
	return m
}

// A reader is an observation that runs concurrently with the test.
type reader struct {
	replies chan *interact.Message
	failed  chan error
	leave   context.CancelFunc
}

// observe begins an observation; it ends with the test at the latest.
func observe(t testing.TB, thing interact.Thing, m *interact.Message) *reader {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &reader{replies: make(chan *interact.Message, 4096), failed: make(chan error, 1), leave: cancel}
	var work sync.WaitGroup
	work.Go(func() {
		var last error
		for m, err := range thing.Do(ctx, m) {
			if err == nil {
				r.replies <- m
			}
			last = err
		}
		r.failed <- last
	})
	t.Cleanup(func() {
		cancel()
		work.Wait()
	})
	return r
}

func (r *reader) next(t testing.TB) *interact.Message {
	t.Helper()
	select {
	case m := <-r.replies:
		return m
	case err := <-r.failed:
		if len(r.replies) > 0 {
			r.failed <- err
			return <-r.replies
		}
		t.Fatalf("the observation ended: %v", err)
	case <-time.After(soon):
		t.Fatal("nothing was observed")
	}
	return nil
}

func (r *reader) err(t testing.TB) error {
	t.Helper()
	select {
	case err := <-r.failed:
		return err
	case <-time.After(soon):
		t.Fatal("the observation did not end")
		return nil
	}
}

var until = poll.Until

// logTo returns a logger that writes to w.
func logTo(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

var (
	read       = interacttest.Read
	write      = interacttest.Write
	invoke     = interacttest.Invoke
	wantError  = interacttest.WantError
	everything = interacttest.Text
)
