package ws

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/interact/ws/frame"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/td"
)

func newClient(t testing.TB, o Options) *Client {
	t.Helper()
	c := NewClient(o)
	t.Cleanup(c.Close)
	return c
}

// formOf is the beginning of a form at url.
func formOf(url, subprotocol string) string {
	if subprotocol == "" {
		return fmt.Sprintf(`"href": %q`, url)
	}
	return fmt.Sprintf(`"href": %q, "subprotocol": %q`, url, subprotocol)
}

// ask sends one message and returns all replies.
func ask(t testing.TB, thing interact.Thing, m *interact.Message) (all []*interact.Message, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), askWait)
	defer cancel()
	for r, err := range thing.Do(ctx, m) {
		if err != nil {
			return all, err
		}
		all = append(all, r)
	}
	return all, nil
}

func message(typ interact.Type, name, data string) *interact.Message {
	m := &interact.Message{Type: typ, Thing: "lab", ID: "m1", Correlation: "c1", Name: name}
	if data != "" {
		m.Data = []byte(data)
	}
	return m
}

// TestClientAsksServer calls all operations in each dialect, over one connection.
func TestClientAsksServer(t *testing.T) {
	t.Parallel()
	all := []string{"", "lmosprotocol", "webthingprotocol"}
	for _, sub := range all {
		t.Run(sub, func(t *testing.T) {
			t.Parallel()
			l := newLab()
			s, url := serve(t, l, ServerOptions{})
			thing := newClient(t, Options{}).Thing(describe(t, formOf(url, sub)).Thing)
			for _, c := range []struct {
				typ              interact.Type
				name, data, want string // of the replies: type, status, data
				lacks            string // the dialect that has no such message
				code             interact.Code
			}{
				{interact.ReadProperty, "level", "", "propertyReading 42", "", 0},
				{interact.WriteProperty, "level", "7", map[string]string{"webthingprotocol": "acknowledgement "}[sub], "", 0},
				{interact.ReadProperty, "level", "", "propertyReading 7", "", 0},
				{interact.ReadAllProperties, "", "", `propertyReadings {"level":7,"on":true}`, "", 0},
				{interact.ReadMultipleProperties, "", `["level","on"]`, `propertyReadings {"level":7,"on":true}`, "", 0},
				{interact.WriteMultipleProperties, "", `{"level":8}`, `propertyReadings {"level":8}`, "", 0},
				{interact.WriteAllProperties, "", `{"level":8}`, `propertyReadings {"level":8}`, "", 0},
				{interact.InvokeAction, "chat", `{"q":1}`, `actionStatus completed {"q":1}`, "", 0},
				{interact.InvokeAction, "chat", ``, `actionStatus completed `, "", 0},
				{interact.InvokeAction, "work", ``, map[string]string{"": `actionStatus completed "done"`,
					"lmosprotocol":     `actionStatus pending , actionStatus running , actionStatus completed "done"`,
					"webthingprotocol": `actionStatus pending , actionStatus completed "done"`}[sub], "", 0},
				{interact.InvokeAction, "speak", ``, map[string]string{"": `actionStatus completed sunny`,
					"lmosprotocol":     `actionStatus running sun, actionStatus running ny, actionStatus completed `,
					"webthingprotocol": `actionStatus completed sunny`}[sub], "", 0},
				{interact.QueryAllActions, "", "", `actionStatuses {"work":[{"actionID":"a1","state":"running"}]}`, "", 0},
				{interact.QueryAction, "work", "", `actionStatus completed "done"`, "", 0},
				{interact.CancelAction, "work", "", `actionStatus cancelled `, "", 0},
				{interact.ReadProperty, "secret", "", "", "", interact.NotAllowed},
				{interact.InvokeAction, "fail", "", "", "", interact.AgentFailed},
				{interact.InvokeAction, "break", "", "", "", interact.AgentFailed},
				{interact.InvokeAction, "panic", "", "", "", interact.Internal},
				{interact.UnobserveProperty, "level", "", "", "", interact.NotAllowed},
			} {
				if c.typ == interact.WriteProperty && c.want == "" {
					c.want = "propertyReading 7"
				}
				kotlinLacks := c.typ == interact.QueryAction || c.typ == interact.CancelAction || c.typ == interact.QueryAllActions
				if kotlinLacks && sub == "" {
					c.want, c.code = "", interact.NotAllowed
				}
				m := message(c.typ, c.name, c.data)
				if m.Type == interact.QueryAction || m.Type == interact.CancelAction {
					m.ActionID = "a-work"
				}
				replies, err := ask(t, thing, m)
				if c.code != 0 {
					if e := wantError(t, err, c.code); e.Remote != (c.typ == interact.InvokeAction) {
						t.Errorf("%s %s: Remote is %v", c.typ.Op(), c.name, e.Remote)
					}
					continue
				}
				if got := texts(replies); err != nil || got != c.want {
					t.Errorf("%s %s: got %q, %v, want %q", c.typ.Op(), c.name, got, err, c.want)
				}
				for _, r := range replies {
					if r.Correlation != "c1" || r.Thing != "lab" {
						t.Errorf("%s: the reply is not correlated: %+v", c.typ.Op(), r)
					}
				}
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.conns) != 1 {
				t.Errorf("%d connections, want 1", len(s.conns))
			}
		})
	}
}

// texts returns replies as text.
func texts(replies []*interact.Message) string {
	var all []string
	for _, r := range replies {
		text := frame.Name(r.Type) + " "
		if r.Status != 0 {
			text += r.Status.String() + " "
		}
		all = append(all, text+string(r.Data))
	}
	return strings.Join(all, ", ")
}

// TestClientWatches observes and subscribes in each dialect, twice concurrently, and leaves.
func TestClientWatches(t *testing.T) {
	t.Parallel()
	for _, sub := range []string{"", "lmosprotocol", "webthingprotocol"} {
		for _, typ := range []interact.Type{interact.ObserveProperty, interact.SubscribeEvent, interact.SubscribeAllEvents,
			interact.ObserveAllProperties} {
			t.Run(sub+" "+typ.Op(), func(t *testing.T) {
				t.Parallel()
				if sub == "" && typ != interact.ObserveProperty && typ != interact.SubscribeEvent {
					t.Skip("Kotlin has no such message")
				}
				l := newLab()
				_, url := serve(t, l, ServerOptions{})
				thing := newClient(t, Options{}).Thing(describe(t, formOf(url, sub)).Thing)
				watch(t, l, thing, typ)
			})
		}
	}
}

// watch has two consumers that watch the same; one leaves after its first, the other after its second.
func watch(t *testing.T, l *lab, thing interact.Thing, typ interact.Type) {
	m, reply, name := message(typ, "alarm", ""), interact.Event, "alarm"
	if typ == interact.ObserveProperty || typ == interact.ObserveAllProperties {
		reply, name = interact.PropertyReading, "level"
	}
	if m.Name = name; typ == interact.SubscribeAllEvents || typ == interact.ObserveAllProperties {
		m.Name = ""
	}
	one := newReader(t, thing, m)
	l.watched(t, 1)
	two := newReader(t, thing, m)
	watched(t, thing, 2)
	for i, reads := range [][]*reader{{one, two}, {two}} {
		want := fmt.Sprint(i + 100)
		l.emit(reply, name, "n"+want, `"`+want+`"`)
		for _, r := range reads {
			for {
				got := r.next(t)
				if string(got.Data) == "42" {
					continue // the current reading
				}
				if string(got.Data) != `"`+want+`"` || got.ID != "n"+want || got.Name != name || got.Type != reply {
					t.Fatalf("got %+v, want %s", got, want)
				}
				break
			}
		}
		if i == 0 {
			one.leave()
			l.watched(t, 1) // the other still watches
		}
	}
	two.leave()
	l.watched(t, 0)
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := 0
	for _, m := range l.asked {
		if m.Type == typ {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("the agent received %d requests, want once", asked)
	}
}

// lineOf is the connection to a thing.
func lineOf(thing interact.Thing) (c *conn) {
	switch thing := thing.(type) {
	case *registered:
		return thing.c
	case *form.Agent:
		client := thing.Consumer.Transport.(*Client)
		client.mu.Lock()
		defer client.mu.Unlock()
		for _, l := range client.lines {
			c = l.conn
		}
	}
	return c
}

var eventually = poll.Until

// watched waits until n consumers watch a thing that is connected.
func watched(t *testing.T, thing interact.Thing, n int) {
	t.Helper()
	a := &lineOf(thing).asking
	eventually(t, fmt.Sprintf("%d watch", n), func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		all := 0
		for _, list := range a.watchers {
			all += len(list)
		}
		return all == n
	})
}

// A reader is a consumer that watches.
type reader struct {
	got    chan *interact.Message
	err    chan error
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func newReader(t *testing.T, thing interact.Thing, m *interact.Message) *reader {
	ctx, cancel := context.WithCancel(t.Context())
	r := &reader{got: make(chan *interact.Message, 100), err: make(chan error, 1), cancel: cancel}
	r.done.Go(func() {
		for got, err := range thing.Do(ctx, m) {
			if err != nil {
				r.err <- err
				return
			}
			r.got <- got
		}
	})
	t.Cleanup(r.leave)
	return r
}

func (r *reader) next(t *testing.T) *interact.Message {
	t.Helper()
	select {
	case m := <-r.got:
		return m
	case err := <-r.err:
		t.Fatalf("it ended: %v", err)
	case <-t.Context().Done():
	}
	return nil
}

func (r *reader) leave() {
	r.cancel()
	r.done.Wait()
}

// TestLeavingCancels: an agent receives a cancellation when the caller of its action leaves.
func TestLeavingCancels(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{})
	thing := newClient(t, Options{}).Thing(describe(t, formOf(url, "lmosprotocol")).Thing)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		l.saw(t, interact.InvokeAction)
		cancel()
	}()
	_, err := interact.Call(ctx, thing, message(interact.InvokeAction, "hang", ""))
	wantError(t, err, interact.Cancelled)
	l.until(t, "the action was cancelled", func() bool { return l.state["left hang"] != 0 })
}

// TestNoHeadOfLineBlocking: requests next to a blocked action get responses.
func TestNoHeadOfLineBlocking(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{})
	thing := newClient(t, Options{}).Thing(describe(t, formOf(url, "")).Thing)
	slow := newReader(t, thing, message(interact.InvokeAction, "hang", ""))
	l.saw(t, interact.InvokeAction)
	for range 10 {
		if _, err := ask(t, thing, message(interact.ReadProperty, "level", "")); err != nil {
			t.Fatal(err)
		}
	}
	l.unblock.Do(func() { close(l.release) })
	if m := slow.next(t); m.Status != interact.StatusCompleted {
		t.Errorf("got %+v", m)
	}
}

// TestConsumersMayShareIds: those of the wire are the client's own.
func TestConsumersMayShareIds(t *testing.T) {
	t.Parallel()
	_, url := serve(t, newLab(), ServerOptions{})
	thing := newClient(t, Options{}).Thing(describe(t, formOf(url, "lmosprotocol")).Thing)
	var work sync.WaitGroup
	for i := range 200 {
		work.Go(func() {
			want := fmt.Sprint(i)
			r, err := interact.Call(t.Context(), thing, message(interact.InvokeAction, "chat", want))
			if err != nil || string(r.Data) != want {
				t.Errorf("got %+v, %v, want %s", r, err, want)
			}
		})
	}
	work.Wait()
}

// TestClientDialsAgain after the agent was gone.
func TestClientDialsAgain(t *testing.T) {
	t.Parallel()
	l := newLab()
	s, url := serve(t, l, ServerOptions{})
	thing := newClient(t, Options{}).Thing(describe(t, formOf(url, "lmosprotocol")).Thing)
	watching := newReader(t, thing, message(interact.SubscribeEvent, "alarm", ""))
	hanging := newReader(t, thing, message(interact.InvokeAction, "hang", ""))
	l.watched(t, 1)
	l.saw(t, interact.InvokeAction)
	s.mu.Lock()
	for c := range s.conns {
		c.end(goingAway)
	}
	s.mu.Unlock()
	for name, r := range map[string]*reader{"watching": watching, "hanging": hanging} {
		if e := wantError(t, <-r.err, interact.Unreachable); !e.Started || e.Remote || !strings.Contains(e.Error(), "shutting down") {
			t.Errorf("%s ended with %+v, want Started and the reason of the peer", name, e)
		}
	}
	if _, err := ask(t, thing, message(interact.ReadProperty, "level", "")); err != nil {
		t.Fatal(err)
	}
}

func TestClientErrors(t *testing.T) {
	t.Parallel()
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/secret":
			w.WriteHeader(http.StatusUnauthorized)
		case "/moved":
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(refuses.Close)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	at := "ws" + strings.TrimPrefix(refuses.URL, "http")
	for _, c := range []struct {
		name, form string
		code       interact.Code
	}{
		{"no listener", formOf("ws://"+gone.Addr().String()+"/ws", ""), interact.Unreachable},
		{"no WebSocket", formOf(at, ""), interact.Unreachable},
		{"a redirect", formOf(at+"/moved", ""), interact.Unreachable},
		{"refused", formOf(at+"/secret", ""), interact.Unauthenticated},
		{"another binding", formOf("mqtt://127.0.0.1/x", ""), interact.NotAllowed},
		{"another subprotocol", formOf(at, "graphql-ws"), interact.NotAllowed},
		{"HTTP", formOf(refuses.URL, ""), interact.NotAllowed},
		{"HTTP upgraded", formOf(refuses.URL, "lmosprotocol"), interact.Unreachable},
		{"no credentials", formOf(at, "") + `, "security": ["key"]`, interact.Unauthenticated},
		{"undefined security", formOf(at, "") + `, "security": ["none"]`, interact.BadTD},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			text := strings.ReplaceAll(labText, "FORM", c.form)
			thing, err := td.Parse([]byte(text))
			if err != nil && c.code == interact.BadTD {
				t.Skip("the parser refuses it already")
			} else if err != nil {
				t.Fatal(err)
			}
			_, err = ask(t, newClient(t, Options{}).Thing(thing), message(interact.ReadProperty, "level", ""))
			if e := wantError(t, err, c.code); e.Started || e.Remote {
				t.Errorf("%+v: nothing was sent, and another path may be tried", e)
			}
		})
	}
}

// TestDialIsGuarded: the node decides which addresses may be dialled.
func TestDialIsGuarded(t *testing.T) {
	t.Parallel()
	var asked atomic.Value
	guard := func(_ context.Context, _, addr string) (net.Conn, error) {
		asked.Store(addr)
		return nil, interact.Errorf(interact.Forbidden, "allow it", "the address is blocked")
	}
	thing := newClient(t, Options{Dial: guard}).Thing(describe(t, formOf("wss://10.0.0.1/ws", "lmos")).Thing)
	_, err := ask(t, thing, message(interact.ReadProperty, "level", ""))
	if e := wantError(t, err, interact.Unreachable); asked.Load() != "10.0.0.1:443" || !strings.Contains(e.Title, "the address is blocked") {
		t.Errorf("received %v, and the error is %v", asked.Load(), err)
	}
}

// TestCredentialsGoToTheUpgrade, and a connection with them is not shared.
func TestCredentialsGoToTheUpgrade(t *testing.T) {
	t.Parallel()
	var headers sync.Map
	l := newLab()
	s := NewServer(ServerOptions{Mesh: l, Find: find(describe(t, `"href": "ws://unused.example"`))})
	h := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers.Store(r.Header.Get("Authorization"), true)
		s.Serve(w, r, false)
	}))
	t.Cleanup(h.Close)
	t.Cleanup(s.Close)
	url := "wss" + strings.TrimPrefix(h.URL, "https")
	file := filepath.Join(t.TempDir(), "credentials.json")
	text := fmt.Sprintf(`{"urn:x": {"key": {"origin": %q, "token": "s3cret"}}}`, url)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := credentials.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(h.Certificate())
	client := newClient(t, Options{Credentials: store, TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})
	with := client.Thing(describe(t, formOf(url, "lmos")+`, "security": ["key"]`).Thing)
	without := client.Thing(describe(t, formOf(url, "lmos")).Thing)
	for _, thing := range []interact.Thing{with, without, with} {
		if _, err := ask(t, thing, message(interact.ReadProperty, "level", "")); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"Bearer s3cret", ""} {
		if _, ok := headers.Load(want); !ok {
			t.Errorf("no connection was opened with %q", want)
		}
	}
	if s.mu.Lock(); len(s.conns) != 2 {
		t.Errorf("%d connections, want 2", len(s.conns))
	}
	s.mu.Unlock()
}

func TestUpgradeRequest(t *testing.T) {
	t.Parallel()
	l := login{header: http.Header{"User-Agent": {"lmosd"}}}
	h, got, err := l.request(&td.Form{Href: "ws://user:pass@h/ws?x=1#f"})
	if err != nil || got != "ws://h/ws?x=1" || h.Get("User-Agent") != "lmosd" {
		t.Errorf("got %q, %v, %v", got, h, err)
	}
	if _, _, err := l.request(&td.Form{Href: "/ws"}); err == nil {
		t.Error("an address without a host was taken")
	}
}

// TestReadFramesLeaveTheQueue: a consumer that is always one frame behind reads without limit.
func TestReadFramesLeaveTheQueue(t *testing.T) {
	t.Parallel()
	k := &call{bell: make(chan struct{}, 1)}
	k.put(&frame.Frame{}, 64<<10)
	for i := range 1000 {
		k.put(&frame.Frame{}, 64<<10)
		if f, err := k.take(); f == nil || err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
	}
	if len(k.queue) != 1 || k.held != 64<<10 {
		t.Errorf("%d frames of %d bytes wait", len(k.queue), k.held)
	}
}

// TestSlowConsumerLosesItsCallOnly: the agent sends more than one consumer reads.
func TestSlowConsumerLosesItsCallOnly(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{Rate: 1e9})
	thing := newClient(t, Options{}).Thing(describe(t, formOf(url, "lmosprotocol")).Thing)
	first, proceed := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		var last error
		received := 0
		for _, err := range thing.Do(t.Context(), message(interact.SubscribeEvent, "alarm", "")) {
			if last, received = err, received+1; received == 1 {
				close(first)
				<-proceed
			}
		}
		done <- last
	}()
	l.watched(t, 1)
	l.emit(interact.Event, "alarm", "", `"fire"`)
	<-first
	for range 2*maxQueued + 10 {
		l.emit(interact.Event, "alarm", "", `"fire"`)
	}
	for sent := false; ; { // the reader continues: a response after the events is received
		if _, err := ask(t, thing, message(interact.ReadProperty, "level", "")); err != nil {
			t.Fatal(err)
		}
		if sent {
			break
		}
		l.mu.Lock()
		for ch := range l.watchers {
			sent = len(ch) == 0
		}
		l.mu.Unlock()
	}
	close(proceed)
	wantError(t, <-done, interact.Overloaded)
	l.watched(t, 0)
}

func TestClaims(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		href, subprotocol string
		want              bool
	}{
		{"ws://h/ws", "", true}, {"WSS://h/ws", "lmosprotocol", true}, {"ws://h/ws", "webthingprotocol", true}, {"ws://h/ws", "graphql-ws", false},
		{"http://h", "", false}, {"https://h", "v1.lmos", true}, {"http://h", "sse", false}, {"mqtt://h", "lmos", false},
		{"ws://h/{x}", "lmos", false}, {"lmos:/actions/x", "", false}, {"", "", false},
	} {
		if got := Supports(&td.Form{Href: c.href, Subprotocol: c.subprotocol}); got != c.want {
			t.Errorf("%q %q: got %v", c.href, c.subprotocol, got)
		}
	}
}

// TestInvalidCalls is refused before anything is sent.
func TestInvalidCalls(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{})
	thing := newClient(t, Options{MaxMessage: 1 << 10}).Thing(describe(t, formOf(url, "lmos")).Thing)
	stream := message(interact.InvokeAction, "chat", "")
	stream.Chunks = func(func([]byte, error) bool) {}
	far := message(interact.ReadProperty, "level", "")
	far.Hops = interact.MaxHops
	for _, c := range []struct {
		name string
		m    *interact.Message
		code interact.Code
	}{
		{"a request stream", stream, interact.NotAllowed},
		{"relayed too often", far, interact.Loop},
		{"too large", message(interact.InvokeAction, "chat", `"`+strings.Repeat("x", 1<<10)+`"`), interact.TooLarge},
		{"invalid JSON", message(interact.InvokeAction, "chat", `{`), interact.Invalid},
	} {
		if _, err := ask(t, thing, c.m); wantError(t, err, c.code).Started {
			t.Errorf("%s has Started", c.name)
		}
	}
	if _, err := ask(t, thing, message(interact.ReadProperty, "level", "")); err != nil {
		t.Errorf("the connection did not live on: %v", err)
	}
}

// TestUpgradeHasTheTrace, as ARC has it.
func TestUpgradeHasTheTrace(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	seen := make(chan string, 1)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("Traceparent")
		if ws, err := websocket.Accept(w, r, nil); err == nil {
			_ = ws.CloseNow()
		}
	}))
	t.Cleanup(h.Close)
	thing := newClient(t, Options{}).Thing(describe(t, formOf("ws"+strings.TrimPrefix(h.URL, "http"), "")).Thing)
	m := message(interact.InvokeAction, "chat", "")
	m.TraceParent = parent
	_, err := ask(t, thing, m)
	wantError(t, err, interact.Unreachable)
	if got := <-seen; got != parent {
		t.Errorf("got %q", got)
	}
}
