package mqtt

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"github.com/mochi-mqtt/server/v2/hooks/auth"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
	"github.com/lmosd/lmosd/internal/tlstest"
)

func TestSilenceIsATimeout(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	newPeer(t, b.addr, func(*peer, *paho.Publish) {}).sub(t, "urn:example:lamp/#")
	c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, kotlin)
	for _, m := range []*interact.Message{invoke("fade", "{}"), read("level"), write("level", "1")} {
		_, err := ask(t, c, thing, within1(m, 150*time.Millisecond))
		if e := wantError(t, err, interact.Timeout); !e.Started || e.Remote || !strings.Contains(e.Title, m.Name+" of Lamp") {
			t.Errorf("%s: %+v", m.Name, e)
		}
	}
	until(t, "response topics are left", func() bool { return b.filters() == 0 })
}

func TestCancel(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	asked := make(chan struct{}, 1)
	newPeer(t, b.addr, func(*peer, *paho.Publish) { asked <- struct{}{} }).sub(t, "urn:example:lamp/#")
	c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, kotlin)
	r := observe(t, c.Thing(thing), invoke("fade", "{}"))
	<-asked
	r.leave()
	if e := wantError(t, r.err(t), interact.Cancelled); !e.Started {
		t.Errorf("got %+v", e)
	}
	until(t, "the response topic is left", func() bool { return b.filters() == 0 })
}

func TestNoBroker(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	refusing := errors.New("the dialer looks at addresses")
	tests := []struct {
		name string
		o    Options
		says string
	}{
		{"no listener", Options{}, "refused"},
		{"the dialer refuses", Options{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, refusing }},
			"looks at addresses"},
	}
	for _, tt := range tests {
		c, thing := newClient(t, tt.o), describe(t, "mqtt://"+addr, w3c)
		for _, m := range []*interact.Message{read("level"), write("level", "1"), invoke("fade", "{}"),
			{Type: interact.ObserveProperty, Name: "level"}} {
			_, err := ask(t, c, thing, m)
			if e := wantError(t, err, interact.Unreachable); e.Started || e.Remote || !strings.Contains(e.Title, tt.says) {
				t.Errorf("%s: %+v", tt.name, e)
			}
		}
	}
}

func TestSomethingElseThanABroker(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]string{
		"HTTP/1.1 400 Bad Request\r\n\r\n": "not an MQTT broker", "": "before it said a word", "\x20\x03\x00\x97\x00": "quota exceeded",
		"\x20\x03\x00": "cannot be reached", "\x20\x02\x00\x03": "server unavailable", "\x20\xff\xff\x7f": "too large",
	} {
		addr, _ := accept(t, func(conn net.Conn) {
			_, _ = conn.Read(make([]byte, 1024))
			_, _ = conn.Write([]byte(name))
		})
		_, err := ask(t, newClient(t, Options{}), describe(t, "mqtt://"+addr, w3c), write("level", "1"))
		if e := wantError(t, err, interact.Unreachable); e.Started || !strings.Contains(e.Title, says) {
			t.Errorf("%.10q: %s", name, e)
		}
	}
}

func TestBrokerStopsDuringACall(t *testing.T) {
	t.Parallel()
	for _, version := range []byte{5, 4} {
		b := startBroker(t, "127.0.0.1:0")
		m, forms := invoke("fade", "{}"), kotlin
		if version == 4 {
			b.old()
			m, forms = read("level"), w3c // there is nothing to wait for but a retained value
		} else {
			newPeer(t, b.addr, func(*peer, *paho.Publish) { b.cut("lmosd") }).sub(t, "urn:example:lamp/#")
		}
		r := observe(t, newClient(t, Options{}).Thing(describe(t, "mqtt://"+b.addr, forms)), m)
		if version == 4 {
			until(t, "subscribed", func() bool { return b.filters() == 1 })
			b.cut("lmosd")
		}
		e := wantError(t, r.err(t), interact.Unreachable)
		if e.Started != (version == 5) || !strings.Contains(e.Title, "broke") {
			t.Errorf("version %d: %+v", version, e)
		}
		if interact.Repeatable(nil, m) == e.Started {
			t.Errorf("version %d: a reading has not begun anything, an action has", version)
		}
	}
}

func TestObservationSurvivesALostConnection(t *testing.T) {
	t.Parallel()
	for _, version := range []byte{5, 4} {
		b := startBroker(t, "127.0.0.1:0")
		if version == 4 {
			b.old()
		}
		if err := b.Publish("lamp/level", []byte("-1"), true, 1); err != nil {
			t.Fatal(err)
		}
		c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, w3c)
		level := observe(t, c.Thing(thing), &interact.Message{Type: interact.ObserveProperty, Name: "level"})
		told := observe(t, c.Thing(thing), &interact.Message{Type: interact.SubscribeAllEvents})
		for i := range 3 {
			until(t, "subscribed", func() bool { return b.filters() == 2 })
			// What is retained comes again after a loss, as it may have changed.
			if got := level.next(t); string(got.Data) != strconv.Itoa(i-1) {
				t.Errorf("version %d: %s after the loss", version, got.Data)
			}
			data := strconv.Itoa(i)
			first, second := b.Publish("lamp/level", []byte(data), true, 1), b.Publish("lamp/told/broken", []byte(data), false, 1)
			if err := errors.Join(first, second); err != nil {
				t.Fatal(err)
			}
			if a, e := level.next(t), told.next(t); string(a.Data) != data || string(e.Data) != data {
				t.Errorf("version %d: got %s and %s, want %s", version, a.Data, e.Data, data)
			}
			b.cut("lmosd")
			until(t, "a new connection", func() bool { return b.connects() == i+2 })
		}
	}
}

func TestBrokerRestarts(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, w3c)
	level := observe(t, c.Thing(thing), &interact.Message{Type: interact.ObserveProperty, Name: "level"})
	until(t, "subscribed", func() bool { return b.filters() == 1 })
	b.stop()
	again := startBroker(t, b.addr)
	until(t, "subscribed again", func() bool { return again.filters() == 1 })
	if err := again.Publish("lamp/level", []byte("1"), false, 1); err != nil {
		t.Fatal(err)
	}
	if got := level.next(t); string(got.Data) != "1" {
		t.Errorf("got %s", got.Data)
	}
}

// scripted answers as a broker of MQTT 5 that accepts CONNECT and SUBSCRIBE, and ends a second after the first subscription.
func scripted(conn net.Conn) {
	defer conn.Close()
	eachPacket(conn, func(first byte, body []byte) bool {
		switch first >> 4 {
		case packet.Connect:
			_, _ = conn.Write(connack5)
		case packet.Subscribe:
			_, _ = conn.Write(packetOf(0x90, string(body[:2])+"\x00\x01"))
			time.Sleep(time.Second) // of the bubble's time
			return false
		case packet.Pingreq:
			_, _ = conn.Write(packetOf(0xd0, ""))
		}
		return true
	})
}

func TestObservationEndsAfterRetries(t *testing.T) {
	t.Parallel()
	thing := describe(t, "mqtt://broker.example", w3c)
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int64
		var broker sync.WaitGroup
		c := NewClient(Options{Dial: func(context.Context, string, string) (net.Conn, error) {
			if dials.Add(1) > 1 {
				return nil, errors.New("gone")
			}
			here, there := net.Pipe()
			broker.Go(func() { scripted(there) })
			return here, nil
		}})
		begun := time.Now()
		_, err := interact.Call(t.Context(), c.Thing(thing), &interact.Message{Type: interact.ObserveProperty, Name: "level"})
		e := wantError(t, err, interact.Unreachable)
		took := time.Since(begun)
		if took < reconnectTime || took > reconnectTime+2*maxPause || !strings.Contains(e.Title, "could not be opened again") {
			t.Errorf("after %v: %s", took, e)
		}
		if n := dials.Load(); n < 10 || n > 40 {
			t.Errorf("%d dials in %v", n, reconnectTime)
		}
		c.Close()
		broker.Wait()
	})
}

func TestSlowConsumer(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	c, thing := newClient(t, Options{Queue: 8}), describe(t, "mqtt://"+b.addr, w3c)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	other := observe(t, c.Thing(thing), &interact.Message{Type: interact.SubscribeAllEvents})
	until(t, "subscribed", func() bool { return b.filters() == 1 })
	if err := b.Publish("lamp/level", []byte("0"), true, 1); err != nil {
		t.Fatal(err)
	}
	var last error
	n := 0
	for _, err := range c.Thing(thing).Do(ctx, &interact.Message{Type: interact.ObserveProperty, Name: "level"}) {
		if last = err; n == 0 { // the consumer sleeps while a hundred values come
			for i := range 100 {
				if err := b.Publish("lamp/level", []byte(strconv.Itoa(i)), false, 1); err != nil {
					t.Fatal(err)
				}
			}
			until(t, "the queue is full", func() bool { return queueFull(c, "lamp/level") })
		}
		n++
	}
	wantError(t, last, interact.Overloaded)
	if n < 8 || n > 12 {
		t.Errorf("%d values were read before the error", n)
	}
	// Who shares the connection has not suffered.
	if err := b.Publish("lamp/told/broken", []byte("1"), false, 1); err != nil {
		t.Fatal(err)
	}
	other.next(t)
}

// listening counts the acknowledged subscriptions.
func listening(c *Client) (n int) {
	eachSubscription(c, func(sub *subscription) {
		if sub.on != nil && sub.busy == nil {
			n += len(sub.listeners)
		}
	})
	return n
}

// queueFull reports whether a subscriber of filter has failed.
func queueFull(c *Client, filter string) (full bool) {
	eachSubscription(c, func(sub *subscription) {
		for l := range sub.listeners {
			l.mu.Lock()
			full = full || l.err != nil && sub.filter == filter
			l.mu.Unlock()
		}
	})
	return full
}

// eachSubscription calls f with the filters of all connections, those that are being left included, under their locks.
func eachSubscription(c *Client, f func(*subscription)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sessions {
		s.mu.Lock()
		for _, sub := range s.subs {
			f(sub)
		}
		s.mu.Unlock()
	}
}

func TestQueueCountsBytes(t *testing.T) {
	t.Parallel()
	l := newInbox(100)
	l.push(&delivery{topic: "a", data: make([]byte, maxQueued+1)}) // alone it may pass
	if d, err := l.next(t.Context(), nil); err != nil || len(d.data) != maxQueued+1 {
		t.Fatal(err)
	}
	for range 3 {
		l.push(&delivery{topic: "a", data: make([]byte, maxQueued/2-2*overhead)})
	}
	for range 2 {
		if _, err := l.next(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	_, err := l.next(t.Context(), nil)
	wantError(t, err, interact.Overloaded)

	// What a broker packs around an empty payload counts, or is not kept.
	var got *delivery
	take := received(func(d *delivery) { got = d })
	user := paho.UserProperties{{Key: propID, Value: "7"}, {Key: propID, Value: "8"}, {Key: "other", Value: "x"},
		{Key: propTime, Value: strings.Repeat("x", maxProperty+1)}}
	long := strings.Repeat("y", 60_000)
	if _, err := take(paho.PublishReceived{Packet: &paho.Publish{Topic: "a", Properties: &paho.PublishProperties{User: user,
		ContentType: long, ResponseTopic: long, CorrelationData: []byte(long)}}}); err != nil {
		t.Fatal(err)
	}
	kept := len(got.media) + len(got.responseTopic) + cap(got.correlation)
	if len(got.props) != 1 || got.prop(propID) != "7" || kept > 3*packet.MaxTopic {
		t.Errorf("%d bytes and the properties %v of a message are kept", kept, got.props)
	}
}

// A broker may send a message once for each filter that covers it. With one connection per filter each consumer receives it once.
func TestOverlappingFilters(t *testing.T) {
	t.Parallel()
	for _, version := range []byte{5, 4} {
		b := startBroker(t, "127.0.0.1:0")
		if version == 4 {
			b.old()
		}
		thing := describe(t, "mqtt://"+b.addr, `"events": {
			"all": {"forms": [{"href": "BASE", "mqv:filter": "a/#"}]}, "one": {"forms": [{"href": "BASE", "mqv:filter": "a/b"}]},
			"any": {"forms": [{"href": "BASE", "mqv:filter": "+/b"}]}, "other": {"forms": [{"href": "BASE", "mqv:filter": "c"}]}}`)
		c := newClient(t, Options{})
		var readers []*reader
		for _, name := range []string{"all", "one", "any", "other", "all"} {
			readers = append(readers, observe(t, c.Thing(thing), &interact.Message{Type: interact.SubscribeEvent, Name: name}))
			until(t, "subscribed", func() bool { return listening(c) == len(readers) })
		}
		if n := b.connects(); n != 3 {
			t.Errorf("version %d: %d connections, want 3", version, n)
		}
		for _, data := range []string{"1", "2"} {
			if err := errors.Join(b.Publish("a/b", []byte(data), false, 1), b.Publish("c", []byte(data), false, 1)); err != nil {
				t.Fatal(err)
			}
			for i, r := range readers {
				if got := r.next(t); string(got.Data) != data {
					t.Errorf("version %d, reader %d: got %s, want %s", version, i, got.Data, data)
				}
			}
		}
	}
}

func TestTooManyOverlaps(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	var events []string
	for i := range maxConns + 1 {
		filter := "a" + strings.Repeat("/+", i) + "/#"
		events = append(events, `"e`+strconv.Itoa(i)+`": {"forms": [{"href": "BASE", "mqv:filter": "`+filter+`"}]}`)
	}
	c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, `"events": {`+strings.Join(events, ",")+`}`)
	for i := range maxConns {
		observe(t, c.Thing(thing), &interact.Message{Type: interact.SubscribeEvent, Name: "e" + strconv.Itoa(i)})
		until(t, "subscribed", func() bool { return b.filters() == i+1 })
	}
	_, err := ask(t, c, thing, &interact.Message{Type: interact.SubscribeEvent, Name: "e" + strconv.Itoa(maxConns)})
	wantError(t, err, interact.Overloaded)
}

func TestTooManyBrokers(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, w3c)
	var held []*session
	for i := range maxSessions {
		s, err := c.acquire(&plan{host: "h" + strconv.Itoa(i) + ":1"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, s)
	}
	_, err := ask(t, c, thing, write("level", "1"))
	wantError(t, err, interact.Overloaded)
	c.release(held[0]) // an idle one makes room
	if _, err := ask(t, c, thing, write("level", "1")); err != nil {
		t.Error(err)
	}
}

func TestLargeMessages(t *testing.T) {
	t.Parallel()
	large := []byte(`"` + strings.Repeat("x", 100_000) + `"`)
	for _, version := range []byte{5, 4} {
		b := startBroker(t, "127.0.0.1:0")
		if version == 4 {
			b.old()
		}
		if err := b.Publish("lamp/level", large, true, 1); err != nil {
			t.Fatal(err)
		}
		c, thing := newClient(t, Options{MaxPacket: 10_000}), describe(t, "mqtt://"+b.addr, w3c)
		other := observe(t, c.Thing(thing), &interact.Message{Type: interact.SubscribeAllEvents})
		until(t, "subscribed", func() bool { return b.filters() == 1 })
		_, err := ask(t, c, thing, within1(read("level"), 300*time.Millisecond))
		// A broker of MQTT 5 has received the limit and sends nothing.
		wantError(t, err, map[byte]interact.Code{5: interact.Timeout, 4: interact.TooLarge}[version])
		if err := b.Publish("lamp/told/broken", []byte("1"), false, 1); err != nil {
			t.Fatal(err)
		}
		other.next(t)
		if n := b.connects(); n != 1 {
			t.Errorf("version %d: %d connections: another user of the connection is affected", version, n)
		}
	}
}

func TestIdleConnectionIsClosed(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	c, thing := newClient(t, Options{Idle: 20 * time.Millisecond}), describe(t, "mqtt://"+b.addr, w3c)
	for i := range 2 {
		if _, err := ask(t, c, thing, write("level", "1")); err != nil {
			t.Fatal(err)
		}
		until(t, "the connection is closed", func() bool { return b.Clients.Len() == 1 }) // the inline client
		if n := b.connects(); n != i+1 {
			t.Errorf("%d connections", n)
		}
	}
}

func TestCloseEndsRunningCalls(t *testing.T) {
	t.Parallel()
	for _, version := range []byte{5, 4} {
		b := startBroker(t, "127.0.0.1:0")
		if version == 4 {
			b.old()
		}
		c, thing := NewClient(Options{}), describe(t, "mqtt://"+b.addr, w3c)
		o := observe(t, c.Thing(thing), &interact.Message{Type: interact.ObserveProperty, Name: "level"})
		r := observe(t, c.Thing(thing), read("level"))
		until(t, "subscribed", func() bool { return b.filters() == 1 })
		c.Close()
		wantError(t, o.err(t), interact.ShuttingDown)
		wantError(t, r.err(t), interact.ShuttingDown)
		_, err := ask(t, c, thing, write("level", "1"))
		wantError(t, err, interact.ShuttingDown)
		c.Close()
	}
}

// secured is a lamp that requires a user name and a password.
const secured = `"securityDefinitions": {"basic_sc": {"scheme": "basic"}, "nosec_sc": {"scheme": "nosec"},
	"psk_sc": {"scheme": "psk"},
	"either": {"scheme": "combo", "oneOf": ["psk_sc", "basic_sc"]}, "both": {"scheme": "combo",
		"allOf": ["basic_sc", "nosec_sc"]}},
	"security": ["basic_sc"], "actions": {
		"own":    {"forms": [{"href": "BASE", "mqv:topic": "a"}]},
		"either": {"forms": [{"href": "BASE", "mqv:topic": "a", "security": ["either"]}]},
		"both":   {"forms": [{"href": "BASE", "mqv:topic": "a", "security": ["both"]}]},
		"psk":    {"forms": [{"href": "BASE", "mqv:topic": "a", "security": ["psk_sc"]}]},
		"free":   {"forms": [{"href": "BASE", "mqv:topic": "a", "security": ["nosec_sc"]}]}}`

func TestCredentials(t *testing.T) {
	t.Parallel()
	ledger := &auth.Ledger{Auth: auth.AuthRules{{Username: "lmosd", Password: "geheim-7", Allow: true}}}
	for _, version := range []byte{5, 4} {
		hook := new(auth.Hook)
		b := startBroker(t, "127.0.0.1:0", &withConfig{Hook: hook, options: &auth.Options{Ledger: ledger}})
		if version == 4 {
			b.old()
		}
		thing := describe(t, "mqtt://"+b.addr, secured)
		good := newClient(t, Options{Credentials: store(t, "mqtt://"+b.addr, "lmosd", "geheim-7")})
		for _, name := range []string{"own", "either", "both"} {
			if _, err := ask(t, good, thing, invoke(name, "")); err != nil {
				t.Errorf("version %d, %s: %v", version, name, err)
			}
		}
		var log strings.Builder
		bad := newClient(t, Options{Credentials: store(t, "mqtt://"+b.addr, "lmosd", "falsch-8"), Log: logTo(&log)})
		none := newClient(t, Options{Log: logTo(&log)})
		tests := []struct {
			name string
			c    *Client
			says string
		}{{"own", bad, "refused this node"}, {"free", bad, "refused this node"}, {"psk", good, "psk"},
			{"own", none, "no credentials file"}}
		for _, tt := range tests {
			_, err := ask(t, tt.c, thing, invoke(tt.name, ""))
			e := wantError(t, err, interact.Unauthenticated)
			if e.Started || !strings.Contains(e.Title, tt.says) || strings.Contains(everything(e), "falsch-8") {
				t.Errorf("version %d, %s: %s", version, tt.name, everything(e))
			}
		}
		if strings.Contains(log.String(), "falsch-8") || strings.Contains(log.String(), "geheim-7") {
			t.Errorf("the log holds a secret: %s", log.String())
		}
	}
}

// withConfig is a hook that gets its options wherever hooks are added without.
type withConfig struct {
	*auth.Hook
	options any
}

func (h *withConfig) Init(any) error { return h.Hook.Init(h.options) }

// store writes a credentials file for the lamp and loads it.
func store(t testing.TB, origin, user, password string) credentials.Store {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credentials.json")
	text := `{"urn:example:lamp": {"basic_sc": {"origin": "` + origin + `", "username": "` + user + `", "password": "` + password +
		`"}}}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := credentials.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Two agents with different credentials do not share a connection.
func TestOneConnectionPerLogin(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	c := newClient(t, Options{Credentials: store(t, "mqtt://"+b.addr, "lmosd", "geheim-7")})
	thing := describe(t, "mqtt://"+b.addr, secured)
	for range 2 {
		for _, name := range []string{"own", "free", "both"} {
			if _, err := ask(t, c, thing, invoke(name, "")); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if got := strings.Join(b.logins, " "); got != "lmosd:geheim-7 :" {
		t.Errorf("logins %q", got)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	cert, pool := certificate(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := serveBroker(t, tls.NewListener(l, tlsOf(cert)))
	lampAgentTLS(t, b.addr, pool)
	thing := describe(t, "mqtts://"+b.addr, kotlin)
	var dialed atomic.Int64
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialed.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	c := newClient(t, Options{TLS: trusting(pool), Dial: dial})
	if got, err := ask(t, c, thing, read("level")); err != nil || string(got.Data) != "42" || dialed.Load() != 1 {
		t.Errorf("got %v, %v, %d dials", got, err, dialed.Load())
	}
	_, err = ask(t, newClient(t, Options{Dial: dial}), thing, read("level"))
	if e := wantError(t, err, interact.Unreachable); !strings.Contains(e.Title, "certificate") {
		t.Errorf("an unknown authority: %s", e)
	}
	_, err = ask(t, c, describe(t, "mqtt://"+b.addr, kotlin), read("level"))
	wantError(t, err, interact.Unreachable)
}

// lampAgentTLS answers one reading over TLS.
func lampAgentTLS(t testing.TB, addr string, pool *x509.CertPool) {
	t.Helper()
	c := newClient(t, Options{TLS: trusting(pool)})
	s, err := c.acquire(&plan{host: addr, secure: true}, 0)
	if err != nil {
		t.Fatal(err)
	}
	l := newInbox(8)
	w, err := s.listen(t.Context(), "urn:example:lamp/properties/level", 1, l, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		for {
			d, err := l.next(ctx, nil)
			if err != nil {
				return
			}
			_ = w.publish(ctx, &publication{topic: d.responseTopic, qos: 1, data: []byte("42")})
		}
	})
	t.Cleanup(func() {
		cancel()
		work.Wait()
	})
}

func tlsOf(cert tls.Certificate) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{cert}}
}

func trusting(pool *x509.CertPool) *tls.Config { return &tls.Config{RootCAs: pool} }

// certificate returns a self-signed certificate for 127.0.0.1, and a pool with it.
func certificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	dir, pool := t.TempDir(), x509.NewCertPool()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pool.AddCert(tlstest.Write(t, certFile, keyFile))
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	return cert, pool
}

// Concurrent requests over one connection get their own responses.
func TestManyRequestsAtOnce(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	p := newPeer(t, b.addr, func(p *peer, m *paho.Publish) { p.answer(m, "application/json", string(m.Payload)) })
	p.sub(t, "urn:example:lamp/actions/+")
	c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, kotlin)
	var work sync.WaitGroup
	for i := range 50 {
		work.Go(func() {
			want := `{"n":` + strconv.Itoa(i) + `}`
			if got, err := ask(t, c, thing, invoke("fade", want)); err != nil || string(got.Data) != want {
				t.Errorf("%d: %v, %v", i, got, err)
			}
		})
	}
	work.Wait()
	if n := b.connects(); n != 2 {
		t.Errorf("%d connections", n)
	}
}
