package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
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
	"github.com/plgd-dev/go-coap/v3/mux"
	coapnet "github.com/plgd-dev/go-coap/v3/net"
	"github.com/plgd-dev/go-coap/v3/options"
	"github.com/plgd-dev/go-coap/v3/pkg/runner/periodic"
	"github.com/plgd-dev/go-coap/v3/udp"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/interact/command"
)

// An agentBinding is one way for an agent to answer its node.
type agentBinding struct {
	name string
	// lacks are the kinds of affordances, and the operations, that the protocol does not have.
	lacks []string
	start func(t *testing.T, m *mesh, name string)
}

var agentBindings = []agentBinding{
	{name: "in process", start: func(t *testing.T, m *mesh, name string) {
		_, raw, thing := newLamp(t, name)
		m.offer(t, raw, thing)
	}},
	{name: "dial-in (ws)", start: startDialIn},
	{name: "http", start: startHTTP},
	{name: "ws (kotlin)", start: startKotlin},
	{name: "mqtt", lacks: []string{"invokeaction that fails"}, start: startMQTT}, // a failure is silence there
	{name: "coap", start: startCoAP},
	{name: "command", lacks: []string{"properties", "events"}, start: startCommand},
}

func startDialIn(t *testing.T, m *mesh, name string) {
	l := &lamp{units: agent.NewState("units", "celsius", nil), level: agent.NewState("level", 0, nil), alarm: agent.NewEvent[string]("alarm")}
	ctx, cancel := context.WithCancel(context.Background())
	done, ready := make(chan error, 1), make(chan struct{}, 1)
	go func() {
		done <- agent.Serve(ctx, agent.Agent{Name: name, Node: m.wsHost, Token: m.token, Log: logger(), Ready: func(string) { ready <- struct{}{} }}, l.parts()...)
	}()
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
}

// startHTTP is an agent by the WoT Profiles: HTTP Basic and SSE.
func startHTTP(t *testing.T, m *mesh, name string) {
	s := newState()
	mux := http.NewServeMux()
	ended := make(chan struct{})
	mux.HandleFunc("/properties/{name}", func(w http.ResponseWriter, r *http.Request) {
		n := r.PathValue("name")
		switch {
		case strings.Contains(r.Header.Get("Accept"), "text/event-stream"):
			stream(w, r, s, n, ended)
		case r.Method == http.MethodPut:
			raw, _ := io.ReadAll(r.Body)
			if err := s.set(n, raw); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		default:
			w.Header().Set("Content-Type", "application/json")
			w.Write(s.get(n))
		}
	})
	mux.HandleFunc("GET /events/{name}", func(w http.ResponseWriter, r *http.Request) { stream(w, r, s, r.PathValue("name"), ended) })
	mux.HandleFunc("POST /actions/{name}", func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		out, err := s.act(r.Context(), r.PathValue("name"), raw)
		if err != nil {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusInternalServerError)
			w.Write(asJSON(map[string]any{"title": "It failed", "status": 500, "detail": err.Error()}))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if out == nil {
			w.WriteHeader(http.StatusNoContent)
		}
		w.Write(out)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(func() { close(ended); server.Close() })
	m.offer(t, describe(name, func(kind, affordance string, ops ...string) []map[string]any {
		f := map[string]any{"href": server.URL + "/" + kind + "/" + affordance, "contentType": "application/json", "op": ops}
		if strings.Contains(ops[0], "observe") || strings.Contains(ops[0], "subscribe") {
			f["subprotocol"] = "sse"
		}
		return []map[string]any{f}
	}), nil)
}

// stream writes what is told about n as server-sent events.
func stream(w http.ResponseWriter, r *http.Request, s *state, n string, ended chan struct{}) {
	w.Header().Set("Content-Type", "text/event-stream")
	told := make(chan any, 100)
	stop := s.listen(func(what string, value any) {
		if what == n {
			told <- value
		}
	})
	defer stop()
	http.NewResponseController(w).Flush()
	for i := 1; ; i++ {
		select {
		case v := <-told:
			fmt.Fprintf(w, "event: %s\nid: %d\ndata: %s\n\n", n, i, asJSON(v))
			http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			return
		case <-ended:
			return
		}
	}
}

// startKotlin is a WebSocket server as the Kotlin SDK's: no subprotocol, its spellings, one frame after the other.
func startKotlin(t *testing.T, m *mesh, name string) {
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
		serveKotlin(ctx, c, s)
	}))
	t.Cleanup(func() { cancel(); server.Close(); work.Wait() })
	m.offer(t, describe(name, func(_, _ string, ops ...string) []map[string]any {
		return []map[string]any{{"href": "ws" + strings.TrimPrefix(server.URL, "http") + "/ws", "contentType": "application/json", "subprotocol": "lmosprotocol", "op": ops}}
	}), nil)
}

func serveKotlin(ctx context.Context, c *websocket.Conn, s *state) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	send := func(in map[string]any, kind string, members map[string]any) {
		out := map[string]any{"messageType": kind, "thingId": in["thingId"], "messageId": fmt.Sprint(time.Now().UnixNano()), "correlationId": in["messageId"]}
		for k, v := range members {
			out[k] = v
		}
		mu.Lock()
		defer mu.Unlock()
		_ = c.Write(ctx, websocket.MessageText, asJSON(out))
	}
	for {
		_, raw, err := c.Read(ctx)
		if err != nil {
			return
		}
		var in map[string]any
		if json.Unmarshal(raw, &in) != nil || in["thingId"] == nil || in["messageId"] == nil {
			c.Close(websocket.StatusUnsupportedData, "Failed to read message")
			return
		}
		p, _ := in["property"].(string)
		reading := func(kind map[string]any, name string, value json.RawMessage) {
			send(kind, "propertyReading", map[string]any{"property": name, "data": value, "timestamp": float64(time.Now().UnixMilli()) / 1000})
		}
		switch in["messageType"] {
		case "readProperty":
			reading(in, p, s.get(p))
		case "writeProperty":
			if s.set(p, asJSON(in["data"])) == nil {
				reading(in, p, asJSON(in["data"]))
			}
		case "observeProperty":
			reading(in, p, s.get(p))
			defer s.listen(func(what string, value any) {
				if what == p {
					reading(map[string]any{"thingId": in["thingId"]}, p, asJSON(value))
				}
			})()
		case "subscribeevent":
			e, _ := in["event"].(string)
			send(in, "acknowledgement", map[string]any{"message": "subscribeevent"})
			defer s.listen(func(what string, value any) {
				if what == e {
					send(in, "event", map[string]any{"event": e, "data": value, "timestamp": float64(time.Now().UnixMilli()) / 1000})
				}
			})()
		case "unobserveProperty", "unsubscribeEvent":
			send(in, "acknowledgement", map[string]any{"message": in["messageType"]})
		case "invokeAction":
			a, _ := in["action"].(string)
			go func() { // the real one blocks here, and nothing else is answered meanwhile
				out, err := s.act(ctx, a, asJSON(in["input"]))
				if err != nil {
					send(in, "error", map[string]any{"type": "https://eclipse.dev/lmos/protocol/v1/errors#internal-server-error", "title": "Internal Server Error",
						"status": "500", "detail": err.Error(), "instance": "https://eclipse.dev/lmos/protocol/v1/errors/1"})
					return
				}
				status := map[string]any{"action": a, "status": "completed"}
				if out != nil {
					status["output"] = json.RawMessage(out)
				}
				send(in, "actionStatus", status)
			}()
		default:
			c.Close(websocket.StatusUnsupportedData, "Failed to read message")
			return
		}
	}
}

// startMQTT is an agent behind a broker, with the topics of the Kotlin SDK.
func startMQTT(t *testing.T, m *mesh, name string) {
	s := newState()
	broker := mochi.New(&mochi.Options{Logger: slog.New(slog.DiscardHandler)})
	if err := broker.AddHook(new(auth.AllowHook), nil); err != nil {
		t.Fatal(err)
	}
	l := listeners.NewTCP(listeners.Config{ID: "t", Address: "127.0.0.1:0"})
	if err := broker.AddListener(l); err != nil {
		t.Fatal(err)
	}
	if err := broker.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { broker.Close() })
	conn, err := net.Dial("tcp", l.Address())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	var client *paho.Client
	answer := func(p *paho.Publish) {
		kind, affordance, _ := strings.Cut(strings.TrimPrefix(p.Topic, name+"/"), "/")
		var out []byte
		var err error
		switch {
		case kind == "actions":
			out, err = s.act(ctx, affordance, p.Payload)
		case len(p.Payload) == 0:
			out = s.get(affordance)
		default:
			err, out = s.set(affordance, p.Payload), p.Payload
		}
		if err == nil && p.Properties != nil && p.Properties.ResponseTopic != "" {
			client.Publish(ctx, &paho.Publish{Topic: p.Properties.ResponseTopic, QoS: 1, Payload: out, Properties: &paho.PublishProperties{
				ContentType: "application/json", CorrelationData: p.Properties.CorrelationData}})
		}
	}
	client = paho.NewClient(paho.ClientConfig{Conn: conn, ClientID: "agent", OnPublishReceived: []func(paho.PublishReceived) (bool, error){
		func(p paho.PublishReceived) (bool, error) {
			work.Go(func() { answer(p.Packet) })
			return true, nil
		}}})
	if _, err := client.Connect(ctx, &paho.Connect{ClientID: "agent", CleanStart: true, KeepAlive: 30}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: name + "/properties/+", QoS: 1}, {Topic: name + "/actions/+", QoS: 1}}}); err != nil {
		t.Fatal(err)
	}
	stop := s.listen(func(what string, value any) {
		topic := name + "/events/" + what
		if what == "level" {
			topic = name + "/properties/level/observable"
		}
		client.Publish(ctx, &paho.Publish{Topic: topic, QoS: 1, Payload: asJSON(value), Properties: &paho.PublishProperties{ContentType: "application/json"}})
	})
	t.Cleanup(func() { stop(); cancel(); work.Wait(); client.Disconnect(&paho.Disconnect{}); <-client.Done() })
	m.offer(t, describe(name, func(kind, affordance string, ops ...string) []map[string]any {
		href := "mqtt://" + l.Address() + "/" + name + "/" + kind + "/" + affordance
		if strings.Contains(ops[0], "observe") {
			href += "/observable"
		}
		return []map[string]any{{"href": href, "contentType": "application/json", "op": ops}}
	}), nil)
}

// startCoAP is an agent on a CoAP server, with Observe.
func startCoAP(t *testing.T, m *mesh, name string) {
	s := newState()
	router := mux.NewRouter()
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	var mu sync.Mutex
	observers := map[string]context.CancelFunc{} // by token
	handle := func(w mux.ResponseWriter, r *mux.Message) {
		path, _ := r.Options().Path()
		kind, affordance, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		body, _ := r.ReadBody()
		reply := func(code codes.Code, b []byte) {
			if err := w.SetResponse(code, message.AppJSON, bytes.NewReader(b)); err != nil {
				t.Error(err)
			}
		}
		observe, err := r.Options().Observe()
		if err == nil && observe == 1 { // deregistered (RFC 7641 §3.6)
			mu.Lock()
			if stop := observers[string(r.Token())]; stop != nil {
				stop()
			}
			mu.Unlock()
		}
		switch {
		case err == nil && observe == 0 && r.Code() == codes.GET:
			conn, token := w.Conn(), r.Token()
			first := []byte(`""`)
			if kind == "properties" {
				first = s.get(affordance)
			}
			reply(codes.Content, first)
			w.Message().SetObserve(2)
			n := uint32(2)
			told := make(chan any, 100)
			ctx, cancel := context.WithCancel(ctx)
			mu.Lock()
			observers[string(token)] = cancel
			mu.Unlock()
			stop := s.listen(func(what string, value any) {
				if what == affordance {
					select {
					case told <- value:
					case <-ctx.Done():
					}
				}
			})
			work.Go(func() {
				defer stop()
				defer cancel()
				for {
					select {
					case v := <-told:
						n++
						note := conn.AcquireMessage(ctx)
						note.SetCode(codes.Content)
						note.SetToken(token)
						note.SetContentFormat(message.AppJSON)
						note.SetObserve(n)
						note.SetBody(bytes.NewReader(asJSON(v)))
						err := conn.WriteMessage(note)
						conn.ReleaseMessage(note)
						if err != nil {
							return
						}
					case <-conn.Done():
						return
					case <-ctx.Done():
						return
					}
				}
			})
		case kind == "actions":
			// One request of a connection after the other, and nobody can tell this server that an answer is not waited for.
			ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			out, err := s.act(ctx, affordance, body)
			if err != nil {
				reply(codes.InternalServerError, []byte(err.Error()))
				return
			}
			reply(codes.Changed, out)
		case r.Code() == codes.PUT:
			if err := s.set(affordance, body); err != nil {
				reply(codes.BadRequest, nil)
				return
			}
			reply(codes.Changed, nil)
		default:
			reply(codes.Content, s.get(affordance))
		}
	}
	router.DefaultHandle(mux.HandlerFunc(func(w mux.ResponseWriter, r *mux.Message) { handle(w, r) }))
	addr, stop := serveCoAP(t, router)
	t.Cleanup(func() { cancel(); stop(); work.Wait() })
	m.offer(t, describe(name, func(kind, affordance string, ops ...string) []map[string]any {
		return []map[string]any{{"href": "coap://" + addr + "/" + kind + "/" + affordance, "contentType": "application/json", "op": ops}}
	}), nil)
}

// startCommand is a shell script that answers each action.
func startCommand(t *testing.T, m *mesh, name string) {
	dir := t.TempDir()
	script := filepath.Join(dir, name+".sh")
	if err := os.WriteFile(script, []byte(`case $LMOSD_ACTION in
add) sed -E 's/[^0-9]+([0-9]+)[^0-9]+([0-9]+).*/\1 + \2/' | xargs expr ;;
wait) read ms || true; sleep "$(printf '%d.%03d' $((ms / 1000)) $((ms % 1000)))"; printf '"done"' ;;
*) echo out of order >&2; exit 1 ;;
esac
`), 0o700); err != nil {
		t.Fatal(err)
	}
	a, err := command.New(command.Options{Command: "exec sh " + script, Agent: name, Log: logger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	var doc map[string]any
	if err := json.Unmarshal(describe(name, func(string, string, ...string) []map[string]any { return nil }), &doc); err != nil {
		t.Fatal(err)
	}
	delete(doc, "properties")
	delete(doc, "events")
	for _, a := range doc["actions"].(map[string]any) {
		delete(a.(map[string]any), "forms") // the node is the only way to it
	}
	m.offer(t, asJSON(doc), a)
}

func serveCoAP(t *testing.T, router *mux.Router) (addr string, stop func()) {
	t.Helper()
	l, err := coapnet.NewListenUDP("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	server := udp.NewServer(options.WithMux(router), options.WithErrors(func(error) {}), options.WithPeriodicRunner(periodic.New(over, time.Second)))
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	return l.LocalAddr().String(), func() {
		close(over)
		server.Stop()
		<-done
		l.Close()
	}
}
