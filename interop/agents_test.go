package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/eclipse/paho.golang/paho"
	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/message/pool"
	"github.com/plgd-dev/go-coap/v3/mux"
	coapnet "github.com/plgd-dev/go-coap/v3/net"
	"github.com/plgd-dev/go-coap/v3/options"
	"github.com/plgd-dev/go-coap/v3/pkg/runner/periodic"
	"github.com/plgd-dev/go-coap/v3/udp"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/command"
	"github.com/lmosd/lmosd/interop/testmesh"
)

// An agentBinding is a protocol between an agent and its node.
type agentBinding struct {
	name string
	// start starts a lamp with a name, and returns the function that opens its gate.
	start func(t *testing.T, m *testmesh.Mesh, name string) (open func())
}

var agentBindings = []agentBinding{
	{"in process", startInside},
	{"attached (ws)", startDialIn},
	{"http", startHTTP},
	{"ws (kotlin)", startKotlin},
	{"mqtt", startMQTT},
	{"coap", startCoAP},
	{"command", startCommand},
}

func startInside(t *testing.T, m *testmesh.Mesh, name string) (open func()) {
	l, raw, thing := newLamp(t, name)
	m.Offer(t, raw, thing)
	return l.open
}

func startDialIn(t *testing.T, m *testmesh.Mesh, name string) (open func()) {
	l := bareLamp()
	ctx, cancel := context.WithCancel(context.Background())
	done, ready := make(chan error, 1), make(chan struct{}, 1)
	a := agent.Agent{Name: name, Node: m.Socket, Token: m.Token, Log: testmesh.Logger(), Ready: func(string) { ready <- struct{}{} }}
	go func() { done <- agent.Serve(ctx, a, l.parts()...) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	return l.open
}

// An httpLamp is an agent of the WoT Profiles, with server-sent events for observations and chunked bodies for streams.
type httpLamp struct {
	*state
	ended context.Context
}

func startHTTP(t *testing.T, m *testmesh.Mesh, name string) (open func()) {
	ended, end := context.WithCancel(context.Background())
	l := &httpLamp{newState(), ended}
	mux := http.NewServeMux()
	mux.HandleFunc("/properties/{name}", l.property)
	mux.HandleFunc("GET /events/{name}", l.stream)
	mux.HandleFunc("POST /actions/{name}", l.action)
	server := httptest.NewServer(mux)
	t.Cleanup(func() { end(); server.Close() })
	m.Offer(t, describe(name, func(kind, affordance string, ops ...string) map[string]any {
		f := form(server.URL+"/"+kind+"/"+affordance, affordance, ops)
		if strings.Contains(ops[0], "observe") || strings.Contains(ops[0], "subscribe") {
			f["subprotocol"] = "sse"
		}
		if affordance == "count" {
			f["response"] = map[string]any{"contentType": "text/plain"}
		}
		return f
	}), nil)
	return l.open
}

func (l *httpLamp) property(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	switch {
	case strings.Contains(r.Header.Get("Accept"), "text/event-stream"):
		l.stream(w, r)
	case r.Method == http.MethodPut:
		raw, _ := io.ReadAll(r.Body)
		if err := l.set(name, raw); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Content-Type", interact.JSON)
		w.Write(l.get(name))
	}
}

// stream writes the observations of an affordance as server-sent events.
func (l *httpLamp) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(l.ended, cancel)()
	var work sync.WaitGroup
	n := 0
	l.follow(ctx, &work, func(what string, value []byte) bool {
		if what == r.PathValue("name") {
			n++
			fmt.Fprintf(w, "event: %s\nid: %d\ndata: %s\n\n", what, n, value)
		}
		return http.NewResponseController(w).Flush() == nil
	})
	work.Wait()
}

func (l *httpLamp) action(w http.ResponseWriter, r *http.Request) {
	switch name := r.PathValue("name"); name {
	case "echo":
		l.echo(w, r)
		return
	case "count":
		w.Header().Set("Content-Type", "text/plain")
		_ = l.act(r.Context(), name, nil, func(part []byte, _ bool) {
			var text string
			_ = json.Unmarshal(part, &text) // it is JSON
			io.WriteString(w, text)
			http.NewResponseController(w).Flush()
		})
		return
	}
	raw, _ := io.ReadAll(r.Body)
	out, err := l.whole(r.Context(), r.PathValue("name"), raw)
	switch {
	case err != nil:
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusInternalServerError)
		w.Write(problem(err))
	case out == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Content-Type", interact.JSON)
		w.Write(out)
	}
}

// echo streams the body back.
func (l *httpLamp) echo(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	_ = control.EnableFullDuplex() // HTTP/1.1 supports it
	w.Header().Set("Content-Type", octets)
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Body.Read(buf)
		if _, werr := w.Write(buf[:n]); err != nil || werr != nil {
			return
		}
		control.Flush()
	}
}

// problem writes the error of an agent (RFC 9457 §3).
func problem(err error) []byte {
	return asJSON(map[string]any{"title": "It failed", "status": 500, "detail": err.Error()})
}

// A kotlinLamp is a WebSocket server like that of the Kotlin SDK: no subprotocol, its spellings, one response to each request.
type kotlinLamp struct {
	*state
	c  *websocket.Conn
	mu sync.Mutex // of writes
}

func startKotlin(t *testing.T, m *testmesh.Mesh, name string) (open func()) {
	s := newState()
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		work.Add(1)
		defer work.Done()
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		(&kotlinLamp{state: s, c: c}).serve(ctx)
	}))
	t.Cleanup(func() { cancel(); server.Close(); work.Wait() })
	m.Offer(t, describe(name, func(_, affordance string, ops ...string) map[string]any {
		f := form("ws"+strings.TrimPrefix(server.URL, "http")+"/ws", affordance, ops)
		f["subprotocol"] = "lmosprotocol"
		return f
	}), nil)
	return s.open
}

// send sends a response to in, or a notification if in has no messageId.
func (l *kotlinLamp) send(ctx context.Context, in fields, kind string, members fields) {
	out := fields{"messageType": kind, "thingId": in["thingId"], "messageId": interact.NewID(), "correlationId": in["messageId"]}
	maps.Copy(out, members)
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.c.Write(ctx, websocket.MessageText, asJSON(out)) // the connection ends if it fails
}

func (l *kotlinLamp) serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	for {
		_, raw, err := l.c.Read(ctx)
		if err != nil {
			return
		}
		var in fields
		if json.Unmarshal(raw, &in) != nil || in["thingId"] == nil || in["messageId"] == nil || !l.answer(ctx, &work, in) {
			l.c.Close(websocket.StatusUnsupportedData, "Failed to read message")
			return
		}
	}
}

// answer answers a request; false means that it has no class for it.
func (l *kotlinLamp) answer(ctx context.Context, work *sync.WaitGroup, in fields) bool {
	now := float64(time.Now().UnixMilli()) / 1000
	kind, event, p := in.text("messageType"), in.text("event"), in.text("property")
	reading := func(to fields, value []byte) {
		l.send(ctx, to, "propertyReading", fields{"property": p, "data": json.RawMessage(value), "timestamp": now})
	}
	switch kind {
	case "readProperty":
		reading(in, l.get(p))
	case "writeProperty":
		if l.set(p, in.data("data")) == nil {
			reading(in, in.data("data"))
		}
	case "observeProperty":
		reading(in, l.get(p))
		l.follow(ctx, work, func(what string, value []byte) bool {
			if what == p {
				reading(fields{"thingId": in["thingId"]}, value)
			}
			return true
		})
	case "subscribeevent":
		l.send(ctx, in, "acknowledgement", fields{"message": kind})
		l.follow(ctx, work, func(what string, value []byte) bool {
			if what == event {
				l.send(ctx, in, "event", fields{"event": event, "data": json.RawMessage(value), "timestamp": now})
			}
			return true
		})
	case "unobserveProperty", "unsubscribeEvent":
		l.send(ctx, in, "acknowledgement", fields{"message": kind})
	case "invokeAction":
		work.Go(func() { l.invoke(ctx, in) }) // the Kotlin SDK blocks here and answers no other request
	default:
		return false
	}
	return true
}

func (l *kotlinLamp) invoke(ctx context.Context, in fields) {
	out, err := l.whole(ctx, in.text("action"), in.data("input"))
	if err != nil {
		const errors = "https://eclipse.dev/lmos/protocol/v1/errors"
		l.send(ctx, in, "error", fields{"type": errors + "#internal-server-error", "title": "Internal Server Error", "status": "500",
			"detail": err.Error(), "instance": errors + "/1"})
		return
	}
	status := fields{"action": in["action"], "status": "completed"}
	if out != nil {
		status["output"] = json.RawMessage(out)
	}
	l.send(ctx, in, "actionStatus", status)
}

// An mqttLamp is an agent behind a broker, with the topics of the Kotlin SDK. Unlike the SDK, it reports failures, and sends partial
// outputs to subscribers.
type mqttLamp struct {
	*state
	name   string
	client *paho.Client
}

func startMQTT(t *testing.T, m *testmesh.Mesh, name string) (open func()) {
	address := startBroker(t)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	l := &mqttLamp{state: newState(), name: name}
	l.client = paho.NewClient(paho.ClientConfig{Conn: conn, OnPublishReceived: []func(paho.PublishReceived) (bool, error){
		func(p paho.PublishReceived) (bool, error) {
			work.Go(func() { l.answer(ctx, p.Packet) })
			return true, nil
		}}})
	if _, err := l.client.Connect(ctx, &paho.Connect{ClientID: "agent", CleanStart: true, KeepAlive: 30}); err != nil {
		t.Fatal(err)
	}
	asked := []paho.SubscribeOptions{{Topic: name + "/properties/+", QoS: 1}, {Topic: name + "/actions/+", QoS: 1}}
	if _, err := l.client.Subscribe(ctx, &paho.Subscribe{Subscriptions: asked}); err != nil {
		t.Fatal(err)
	}
	l.follow(ctx, &work, func(what string, value []byte) bool {
		topic := name + "/events/" + what
		if what == "level" {
			topic = name + "/properties/level/observable"
		}
		l.publish(ctx, topic, value, &paho.PublishProperties{ContentType: interact.JSON})
		return true
	})
	t.Cleanup(func() { cancel(); work.Wait(); l.client.Disconnect(&paho.Disconnect{}); <-l.client.Done() })
	m.Offer(t, describe(name, func(kind, affordance string, ops ...string) map[string]any {
		href := "mqtt://" + address + "/" + name + "/" + kind + "/" + affordance
		if strings.Contains(ops[0], "observe") {
			href += "/observable"
		}
		return form(href, affordance, ops)
	}), nil)
	return l.open
}

// startBroker starts a broker that accepts all clients, except as hooks decide.
func startBroker(t *testing.T, hooks ...mochi.Hook) (address string) {
	t.Helper()
	broker := mochi.New(&mochi.Options{Logger: slog.New(slog.DiscardHandler)})
	for _, h := range hooks {
		if err := broker.AddHook(h, nil); err != nil {
			t.Fatal(err)
		}
	}
	l := listeners.NewTCP(listeners.Config{ID: "t", Address: "127.0.0.1:0"})
	if err := errors.Join(broker.AddHook(new(auth.AllowHook), nil), broker.AddListener(l), broker.Serve()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { broker.Close() })
	return l.Address()
}

func (l *mqttLamp) publish(ctx context.Context, topic string, data []byte, p *paho.PublishProperties) {
	_, _ = l.client.Publish(ctx, &paho.Publish{Topic: topic, QoS: 1, Payload: data, Properties: p}) // the waiting client detects a failure
}

func (l *mqttLamp) answer(ctx context.Context, p *paho.Publish) {
	kind, affordance, _ := strings.Cut(strings.TrimPrefix(p.Topic, l.name+"/"), "/")
	reply := func(media string, data []byte, status string) {
		props := &paho.PublishProperties{ContentType: media, CorrelationData: p.Properties.CorrelationData}
		if status != "" {
			props.User.Add("lmos-status", status)
		}
		if p.Properties.ResponseTopic != "" {
			l.publish(ctx, p.Properties.ResponseTopic, data, props)
		}
	}
	var err error
	switch {
	case kind == "actions":
		err = l.act(ctx, affordance, p.Payload, func(part []byte, last bool) {
			status := "running"
			if last {
				status = "completed"
			}
			reply(interact.JSON, part, status)
		})
	case len(p.Payload) == 0:
		reply(interact.JSON, l.get(affordance), "")
	default:
		if err = l.set(affordance, p.Payload); err == nil {
			reply(interact.JSON, p.Payload, "")
		}
	}
	if err != nil {
		reply("application/problem+json", problem(err), "")
	}
}

// A coapLamp is an agent on a CoAP server, with Observe.
type coapLamp struct {
	*state
	ctx  context.Context
	work *sync.WaitGroup

	observing sync.Mutex
	observers map[string]context.CancelFunc // by token; owned by observing
}

func startCoAP(t *testing.T, m *testmesh.Mesh, name string) (open func()) {
	ctx, cancel := context.WithCancel(context.Background())
	l := &coapLamp{state: newState(), ctx: ctx, work: &sync.WaitGroup{}, observers: map[string]context.CancelFunc{}}
	router := mux.NewRouter()
	router.DefaultHandle(mux.HandlerFunc(l.handle))
	address, stop := serveCoAP(t, router)
	t.Cleanup(func() { cancel(); stop(); l.work.Wait() })
	m.Offer(t, describe(name, func(kind, affordance string, ops ...string) map[string]any {
		return form("coap://"+address+"/"+kind+"/"+affordance, affordance, ops)
	}), nil)
	return l.open
}

func (l *coapLamp) handle(w mux.ResponseWriter, r *mux.Message) {
	path, _ := r.Options().Path()
	kind, affordance, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	body, _ := r.ReadBody()
	reply := func(code codes.Code, data []byte) {
		_ = w.SetResponse(code, message.AppJSON, bytes.NewReader(data)) // the waiting client detects a failure
	}
	observe, err := r.Options().Observe()
	switch {
	case err == nil && observe == 0 && r.Code() == codes.GET:
		first := []byte(`""`)
		if kind == "properties" {
			first = l.get(affordance)
		}
		reply(codes.Content, first)
		w.Message().SetObserve(2)
		l.notify(w.Conn(), r.Token(), affordance)
	case kind == "actions":
		conn, token := w.Conn(), r.Token()
		l.work.Go(func() { l.invoke(conn, token, affordance, body) }) // other requests of the connection are answered concurrently
	case r.Code() == codes.PUT && l.set(affordance, body) == nil:
		reply(codes.Changed, nil)
	case r.Code() == codes.PUT:
		reply(codes.BadRequest, nil)
	default:
		if err == nil { // deregistered (RFC 7641 §3.6)
			l.forget(r.Token())
		}
		reply(codes.Content, l.get(affordance))
	}
}

// invoke responds in a separate message (RFC 7252 §5.2.2).
func (l *coapLamp) invoke(conn mux.Conn, token message.Token, affordance string, in []byte) {
	out, err := l.whole(l.ctx, affordance, in)
	code, format := codes.Changed, message.AppJSON
	if affordance == "echo" {
		format = message.AppOctets
	}
	if err != nil {
		code, out = codes.InternalServerError, []byte(err.Error())
	}
	_ = l.say(conn, token, code, func(m *pool.Message) { // the waiting client detects a failure
		if out != nil {
			m.SetContentFormat(format)
			m.SetBody(bytes.NewReader(out))
		}
	})
}

// say sends a separate message that set completes.
func (l *coapLamp) say(conn mux.Conn, token message.Token, code codes.Code, set func(m *pool.Message)) error {
	m := conn.AcquireMessage(l.ctx)
	defer conn.ReleaseMessage(m)
	m.SetCode(code)
	m.SetToken(token)
	set(m)
	return conn.WriteMessage(m)
}

// notify notifies an observer.
func (l *coapLamp) notify(conn mux.Conn, token message.Token, affordance string) {
	ctx, cancel := context.WithCancel(l.ctx)
	l.forget(token)
	l.observing.Lock()
	l.observers[string(token)] = cancel
	l.observing.Unlock()
	n := uint32(2)
	l.follow(ctx, l.work, func(what string, value []byte) bool {
		if what != affordance {
			return conn.Context().Err() == nil
		}
		n++
		return l.say(conn, token, codes.Content, func(m *pool.Message) {
			m.SetObserve(n)
			m.SetContentFormat(message.AppJSON)
			m.SetBody(bytes.NewReader(value))
		}) == nil
	})
}

func (l *coapLamp) forget(token message.Token) {
	l.observing.Lock()
	defer l.observing.Unlock()
	if cancel := l.observers[string(token)]; cancel != nil {
		cancel()
	}
	delete(l.observers, string(token))
}

func serveCoAP(t *testing.T, router *mux.Router) (address string, stop func()) {
	t.Helper()
	l, err := coapnet.NewListenUDP("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	server := udp.NewServer(options.WithMux(router), options.WithErrors(func(error) {}),
		options.WithPeriodicRunner(periodic.New(over, time.Second)))
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	return l.LocalAddr().String(), func() {
		close(over)
		server.Stop()
		<-done
		l.Close()
	}
}

// script implements the actions. The gate is a file.
const script = `pass() { until rm "$LMOSD_GATE" 2> /dev/null; do sleep 0.01; done; }
case $LMOSD_ACTION in
add) sed -E 's/[^0-9]+([0-9]+)[^0-9]+([0-9]+).*/\1 + \2/' | xargs expr ;;
wait) read ms || true; if [ "$ms" = 0 ]; then pass; else sleep "$ms"; fi; printf '"done"' ;;
count) echo one; pass; echo two ;;
upload) sha256sum | cut -c 1-64 | tr -d '\n' ;;
echo) cat ;;
*) echo out of order >&2; exit 1 ;;
esac
`

// startCommand exposes a shell script that implements the actions, and whose lines are partial outputs of "count".
func startCommand(t *testing.T, m *testmesh.Mesh, name string) (open func()) {
	dir := t.TempDir()
	path, gate := filepath.Join(dir, name+".sh"), filepath.Join(dir, "gate")
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	o := command.Options{Command: "exec sh " + path, Agent: name, Env: []string{"LMOSD_GATE=" + gate}, Log: testmesh.Logger()}
	whole, err := command.New(o)
	if err != nil {
		t.Fatal(err)
	}
	o.Chunk = "\n"
	lines, err := command.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(whole.Close)
	t.Cleanup(lines.Close)
	either := func(ctx context.Context, of *interact.Message) iter.Seq2[*interact.Message, error] {
		if of.Name == "count" {
			return lines.Do(ctx, of)
		}
		return whole.Do(ctx, of)
	}
	m.Offer(t, describe(name, nil), interact.Func(either))
	return func() {
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Error(err)
		}
	}
}
