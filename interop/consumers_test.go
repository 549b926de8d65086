package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/eclipse/paho.golang/paho"
	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/message/pool"
	"github.com/plgd-dev/go-coap/v3/options"
	"github.com/plgd-dev/go-coap/v3/pkg/runner/periodic"
	"github.com/plgd-dev/go-coap/v3/udp"

	"github.com/lmosd/lmosd/interact"
)

// errNot says that a protocol has no such operation.
var errNot = errors.New("not in that protocol")

// A talk is what a consumer does with one thing in its protocol. What is nil does not exist there. Values are JSON.
type talk struct {
	read      func(name string) (string, error)
	write     func(name, value string) error
	readAll   func() (map[string]json.RawMessage, error)
	readSome  func(names ...string) (map[string]json.RawMessage, error)
	writeSome func(values map[string]any) error
	writeAll  func(values map[string]any) error
	invoke    func(name, input string) (string, error)
	// listen begins to observe a property, or to subscribe to an event; an empty name means all. next waits for a value.
	observe   func(name string) (next func() (string, error), stop func() error, err error)
	subscribe func(name string) (next func() (string, error), stop func() error, err error)
	// start begins a task, query tells its state and output, cancel ends it, list tells the ids of those of an action.
	start  func(name, input string) (id string, err error)
	query  func(name, id string) (state, output string, err error)
	cancel func(name, id string) error
	list   func(name string) ([]string, error)
	close  func()
}

// A consumerBinding is one way to ask a node.
type consumerBinding struct {
	name string
	open func(t *testing.T, m *mesh, thing string) *talk
}

var consumerBindings = []consumerBinding{
	{"Go, CLI", openGo},
	{"HTTP", openHTTP},
	{"HTTP SSE", openSSE},
	{"HTTP long poll", openLongPoll},
	{"HTTP webhook", openWebhook},
	{"ws doc", func(t *testing.T, m *mesh, thing string) *talk { return openSocket(t, m, thing, "doc") }},
	{"ws kotlin", func(t *testing.T, m *mesh, thing string) *talk { return openSocket(t, m, thing, "kotlin") }},
	{"ws wtp", func(t *testing.T, m *mesh, thing string) *talk { return openSocket(t, m, thing, "wtp") }},
	{"MQTT", openMQTT},
	{"CoAP", openCoAP},
}

// patience is how long one step may take.
const patience = 20 * time.Second

// openGo asks as a program in Go does, and `lmosd call`: messages to the node's mesh.
func openGo(t *testing.T, m *mesh, thing string) *talk {
	ctx := t.Context()
	ask := func(msg *interact.Message) (*interact.Message, error) {
		msg.Thing = thing
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return interact.Ask(ctx, m.consumer.Mesh(), msg)
	}
	object := func(msg *interact.Message) (map[string]json.RawMessage, error) {
		r, err := ask(msg)
		if err != nil {
			return nil, err
		}
		var values map[string]json.RawMessage
		return values, json.Unmarshal(r.Data, &values)
	}
	listen := func(one, all interact.Type) func(string) (func() (string, error), func() error, error) {
		return func(name string) (func() (string, error), func() error, error) {
			msg := &interact.Message{Type: one, Thing: thing, Name: name}
			if name == "" {
				msg.Type = all
			}
			return pull(ctx, func(ctx context.Context, give func(string, error) bool) {
				for r, err := range m.consumer.Mesh().Do(ctx, msg) {
					if err != nil {
						give("", err)
						return
					}
					if !give(string(r.Data), nil) {
						return
					}
				}
			})
		}
	}
	return &talk{
		read: func(name string) (string, error) {
			r, err := ask(&interact.Message{Type: interact.ReadProperty, Name: name})
			if err != nil {
				return "", err
			}
			return string(r.Data), nil
		},
		write: func(name, value string) error {
			_, err := ask(&interact.Message{Type: interact.WriteProperty, Name: name, Data: []byte(value)})
			return err
		},
		readAll: func() (map[string]json.RawMessage, error) {
			return object(&interact.Message{Type: interact.ReadAllProperties})
		},
		readSome: func(names ...string) (map[string]json.RawMessage, error) {
			return object(&interact.Message{Type: interact.ReadMultipleProperties, Data: asJSON(names)})
		},
		writeSome: func(values map[string]any) error {
			_, err := ask(&interact.Message{Type: interact.WriteMultipleProperties, Data: asJSON(values)})
			return err
		},
		writeAll: func(values map[string]any) error {
			_, err := ask(&interact.Message{Type: interact.WriteAllProperties, Data: asJSON(values)})
			return err
		},
		invoke: func(name, input string) (string, error) {
			r, err := ask(&interact.Message{Type: interact.InvokeAction, Name: name, Data: []byte(input)})
			if err != nil {
				return "", err
			}
			return string(r.Data), nil
		},
		observe:   listen(interact.ObserveProperty, interact.ObserveAllProperties),
		subscribe: listen(interact.SubscribeEvent, interact.SubscribeAllEvents),
		start: func(name, input string) (string, error) {
			for r, err := range m.consumer.Mesh().Do(ctx, &interact.Message{Type: interact.InvokeAction, Thing: thing, Name: name, Data: []byte(input), Detach: true}) {
				if err != nil {
					return "", err
				}
				return r.ActionID, nil
			}
			return "", errors.New("no answer")
		},
		query: func(name, id string) (string, string, error) {
			r, err := ask(&interact.Message{Type: interact.QueryAction, Name: name, ActionID: id})
			if err != nil {
				return "", "", err
			}
			return r.Status.String(), string(r.Data), nil
		},
		cancel: func(name, id string) error {
			_, err := ask(&interact.Message{Type: interact.CancelAction, Name: name, ActionID: id})
			return err
		},
		list: func(name string) ([]string, error) {
			r, err := ask(&interact.Message{Type: interact.QueryAllActions})
			if err != nil {
				return nil, err
			}
			return taskIDs(r.Data, name)
		},
	}
}

// taskIDs reads the ids of an action's runs from what queryallactions gives in JSON.
func taskIDs(raw []byte, name string) ([]string, error) {
	var all map[string][]struct {
		ActionID string `json:"actionID"`
		Href     string `json:"href"`
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, fmt.Errorf("%w: %s", err, raw)
	}
	var ids []string
	for _, t := range all[name] {
		if t.ActionID == "" {
			t.ActionID = t.Href
		}
		ids = append(ids, t.ActionID)
	}
	return ids, nil
}

// pull turns what give is called with into a next and a stop.
func pull(ctx context.Context, run func(ctx context.Context, give func(string, error) bool)) (next func() (string, error), stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	type value struct {
		text string
		err  error
	}
	values := make(chan value, 1000)
	var work sync.WaitGroup
	work.Go(func() {
		run(ctx, func(text string, err error) bool {
			select {
			case values <- value{text, err}:
				return true
			case <-ctx.Done():
				return false
			}
		})
	})
	next = func() (string, error) {
		select {
		case v := <-values:
			return v.text, v.err
		case <-time.After(patience):
			return "", errors.New("nothing came")
		}
	}
	return next, func() error { cancel(); work.Wait(); return nil }, nil
}

// An httpTalk asks by the WoT Profile for HTTP.
type httpTalk struct {
	t      *testing.T
	base   string // of the thing
	client *http.Client
}

func newHTTPTalk(t *testing.T, m *mesh, thing string) *httpTalk {
	h := &httpTalk{t: t, base: m.api + "/things/" + url.PathEscape(thing), client: &http.Client{Transport: &http.Transport{}}}
	return h
}

func (h *httpTalk) do(method, path, body string, header ...string) (int, http.Header, []byte, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	if !strings.HasPrefix(path, "http") {
		path = h.base + path
	}
	req, err := http.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 400 {
		err = fmt.Errorf("%s: %s", resp.Status, raw)
	}
	return resp.StatusCode, resp.Header, raw, err
}

func (h *httpTalk) object(path string) (map[string]json.RawMessage, error) {
	_, _, raw, err := h.do("GET", path, "")
	if err != nil {
		return nil, err
	}
	var values map[string]json.RawMessage
	return values, json.Unmarshal(raw, &values)
}

func openHTTP(t *testing.T, m *mesh, thing string) *talk {
	h := newHTTPTalk(t, m, thing)
	return &talk{
		close: h.client.CloseIdleConnections,
		read: func(name string) (string, error) {
			_, _, raw, err := h.do("GET", "/properties/"+name, "")
			return string(raw), err
		},
		write: func(name, value string) error {
			_, _, _, err := h.do("PUT", "/properties/"+name, value)
			return err
		},
		readAll: func() (map[string]json.RawMessage, error) { return h.object("/properties") },
		readSome: func(names ...string) (map[string]json.RawMessage, error) {
			return h.object("/properties?names=" + strings.Join(names, ","))
		},
		writeSome: func(values map[string]any) error {
			_, _, _, err := h.do("PUT", "/properties", string(asJSON(values)))
			return err
		},
		writeAll: func(values map[string]any) error {
			_, _, _, err := h.do("PUT", "/properties?all=true", string(asJSON(values)))
			return err
		},
		invoke: func(name, input string) (string, error) {
			_, _, raw, err := h.do("POST", "/actions/"+name, input)
			return string(raw), err
		},
		start: func(name, input string) (string, error) {
			status, header, raw, err := h.do("POST", "/actions/"+name, input, "Prefer", "respond-async")
			if err == nil && status != http.StatusCreated {
				err = fmt.Errorf("%d %s", status, raw)
			}
			to, _ := url.Parse(m.api)
			if err == nil {
				to, err = to.Parse(header.Get("Location"))
			}
			if err != nil {
				return "", err
			}
			return to.String(), nil
		},
		query: func(_, id string) (string, string, error) {
			_, _, raw, err := h.do("GET", id, "")
			var s struct {
				Status string
				Output json.RawMessage
			}
			if err == nil {
				err = json.Unmarshal(raw, &s)
			}
			return s.Status, string(s.Output), err
		},
		cancel: func(_, id string) error {
			status, _, raw, err := h.do("DELETE", id, "")
			if err == nil && status != http.StatusNoContent {
				err = fmt.Errorf("%d %s", status, raw)
			}
			return err
		},
		list: func(name string) ([]string, error) {
			_, _, raw, err := h.do("GET", "/actions", "")
			if err != nil {
				return nil, err
			}
			hrefs, err := taskIDs(raw, name)
			for i, href := range hrefs {
				to, _ := url.Parse(m.api)
				if to, err = to.Parse(href); err == nil {
					hrefs[i] = to.String()
				}
			}
			return hrefs, err
		},
	}
}

func openSSE(t *testing.T, m *mesh, thing string) *talk {
	h := newHTTPTalk(t, m, thing)
	listen := func(kind string) func(string) (func() (string, error), func() error, error) {
		return func(name string) (func() (string, error), func() error, error) {
			path := h.base + "/" + kind
			if name != "" {
				path += "/" + name
			}
			return pull(t.Context(), func(ctx context.Context, give func(string, error) bool) {
				req, _ := http.NewRequestWithContext(ctx, "GET", path, nil)
				req.Header.Set("Accept", "text/event-stream")
				resp, err := h.client.Do(req)
				if err != nil {
					give("", err)
					return
				}
				defer resp.Body.Close()
				if resp.StatusCode != 200 {
					give("", errors.New(resp.Status))
					return
				}
				event := ""
				for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
					line := lines.Text()
					if e, ok := strings.CutPrefix(line, "event: "); ok {
						event = e
					}
					if data, ok := strings.CutPrefix(line, "data: "); ok {
						var err error
						if name != "" && event != name {
							err = fmt.Errorf("an event is called %q", event)
						}
						if !give(data, err) {
							return
						}
					}
				}
			})
		}
	}
	return &talk{observe: listen("properties"), subscribe: listen("events"), close: h.client.CloseIdleConnections}
}

func openLongPoll(t *testing.T, m *mesh, thing string) *talk {
	h := newHTTPTalk(t, m, thing)
	poll := func(path string) func(string) (func() (string, error), func() error, error) {
		return func(name string) (func() (string, error), func() error, error) {
			if name == "" {
				return nil, nil, errNot
			}
			at := h.base + fmt.Sprintf(path, name)
			return pull(t.Context(), func(ctx context.Context, give func(string, error) bool) {
				after := ""
				for ctx.Err() == nil {
					req, _ := http.NewRequestWithContext(ctx, "GET", at+after, nil)
					resp, err := h.client.Do(req)
					if err != nil {
						give("", err)
						return
					}
					raw, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					if err == nil && resp.StatusCode != 200 {
						err = fmt.Errorf("%s %s", resp.Status, raw)
					}
					if id := resp.Header.Get("Lmos-Event-Id"); id != "" {
						after = "?after=" + url.QueryEscape(id)
					}
					if !give(string(raw), err) {
						return
					}
				}
			})
		}
	}
	return &talk{observe: poll("/properties/%s/observable"), subscribe: poll("/events/%s"), close: h.client.CloseIdleConnections}
}

func openWebhook(t *testing.T, m *mesh, thing string) *talk {
	h := newHTTPTalk(t, m, thing)
	listen := func(kind string) func(string) (func() (string, error), func() error, error) {
		return func(name string) (func() (string, error), func() error, error) {
			came := make(chan string, 1000)
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				raw, _ := io.ReadAll(r.Body)
				came <- string(raw)
			}))
			path := "/" + kind
			if name != "" {
				path += "/" + name
			}
			status, header, raw, err := h.do("POST", path, string(asJSON(map[string]string{"callbackURL": server.URL})))
			if err == nil && status != http.StatusCreated {
				err = fmt.Errorf("%d %s", status, raw)
			}
			if err != nil {
				server.Close()
				return nil, nil, err
			}
			next := func() (string, error) {
				select {
				case v := <-came:
					return v, nil
				case <-time.After(patience):
					return "", errors.New("nothing came")
				}
			}
			return next, func() error {
				defer server.Close()
				to, _ := url.Parse(m.api)
				to, err := to.Parse(header.Get("Location"))
				if err != nil {
					return err
				}
				_, _, _, err = h.do("DELETE", to.String(), "")
				return err
			}, nil
		}
	}
	return &talk{observe: listen("properties"), subscribe: listen("events"), close: h.client.CloseIdleConnections}
}

// A socketTalk speaks one dialect of the WebSocket subprotocol.
type socketTalk struct {
	t       *testing.T
	c       *websocket.Conn
	dialect string
	thing   string
	mu      sync.Mutex
	waiting map[string]chan map[string]any // by correlation
	others  []chan map[string]any
	n       int
}

func openSocket(t *testing.T, m *mesh, thing, dialect string) *talk {
	var o websocket.DialOptions
	switch dialect {
	case "doc":
		o.Subprotocols = []string{"lmosprotocol"}
	case "wtp":
		o.Subprotocols = []string{"webthingprotocol"}
	}
	c, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(m.api, "http")+"/ws", &o)
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadLimit(8 << 20)
	s := &socketTalk{t: t, c: c, dialect: dialect, thing: thing, waiting: map[string]chan map[string]any{}}
	var work sync.WaitGroup
	work.Go(s.receive)
	k := &talk{
		close: func() { c.CloseNow(); work.Wait() },
		read: func(name string) (string, error) {
			r, err := s.ask("readProperty", map[string]any{"property": name}, map[string]any{"name": name}, nil)
			return text(value(r)), err
		},
		write: func(name, v string) error {
			_, err := s.ask("writeProperty", map[string]any{"property": name, "data": json.RawMessage(v)}, map[string]any{"name": name, "data": json.RawMessage(v)},
				map[string]any{"name": name, "value": json.RawMessage(v)})
			return err
		},
		readAll: func() (map[string]json.RawMessage, error) { return values(s.ask("readAllProperties", nil, nil, nil)) },
		readSome: func(names ...string) (map[string]json.RawMessage, error) {
			return values(s.ask("readMultipleProperties", map[string]any{"properties": names}, map[string]any{"data": names}, map[string]any{"names": names}))
		},
		writeSome: func(v map[string]any) error {
			_, err := s.ask("writeMultipleProperties", map[string]any{"data": v}, map[string]any{"data": v}, map[string]any{"values": v})
			return err
		},
		writeAll: func(v map[string]any) error {
			_, err := s.ask("writeAllProperties", map[string]any{"data": v}, map[string]any{"data": v}, map[string]any{"values": v})
			return err
		},
		invoke: func(name, input string) (string, error) {
			members := map[string]any{"action": name, "input": json.RawMessage(input)}
			r, err := s.ask("invokeAction", members, members, map[string]any{"name": name, "input": json.RawMessage(input)})
			return text(r["output"]), err
		},
		observe: func(name string) (func() (string, error), func() error, error) {
			members := map[string]any{"property": name}
			if name == "" && dialect == "kotlin" {
				return nil, nil, errNot
			}
			if name == "" {
				return s.listen("observeAllProperties", "unobserveAllProperties", nil, nil, "")
			}
			return s.listen("observeProperty", "unobserveProperty", members, map[string]any{"name": name}, name)
		},
		subscribe: func(name string) (func() (string, error), func() error, error) {
			if name == "" && dialect == "kotlin" {
				return nil, nil, errNot
			}
			if name == "" {
				return s.listen("subscribeAllEvents", "unsubscribeAllEvents", nil, nil, "")
			}
			return s.listen("subscribeEvent", "unsubscribeEvent", map[string]any{"event": name}, map[string]any{"name": name, "event": name}, name)
		},
	}
	if dialect == "kotlin" {
		return k // its SDK has no classes for tasks
	}
	k.start = func(name, input string) (string, error) {
		members := map[string]any{"action": name, "input": json.RawMessage(input)}
		first, _, err := s.begin("invokeAction", members, map[string]any{"name": name, "input": json.RawMessage(input)})
		if err != nil {
			return "", err
		}
		id := text(first["actionID"])
		if st, ok := first["status"].(map[string]any); ok {
			id = text(st["actionID"])
		}
		return strings.Trim(id, `"`), nil
	}
	k.query = func(name, id string) (string, string, error) {
		r, err := s.ask("queryAction", nil, map[string]any{"action": name, "actionID": id}, map[string]any{"name": name, "actionID": id})
		if err != nil {
			return "", "", err
		}
		if st, ok := r["status"].(map[string]any); ok {
			return strings.Trim(text(st["state"]), `"`), text(st["output"]), nil
		}
		return strings.Trim(text(r["status"]), `"`), text(r["output"]), nil
	}
	k.cancel = func(name, id string) error {
		_, err := s.ask("cancelAction", nil, map[string]any{"action": name, "actionID": id}, map[string]any{"name": name, "actionID": id})
		return err
	}
	k.list = func(name string) ([]string, error) {
		r, err := s.ask("queryAllActions", nil, nil, nil)
		if err != nil {
			return nil, err
		}
		return taskIDs(asJSON(r["statuses"]), name)
	}
	return k
}

func text(v any) string {
	if v == nil {
		return ""
	}
	return string(asJSON(v))
}

func value(r map[string]any) any {
	if v, ok := r["value"]; ok {
		return v
	}
	return r["data"]
}

func values(r map[string]any, err error) (map[string]json.RawMessage, error) {
	if err != nil {
		return nil, err
	}
	v := r["values"]
	if v == nil {
		v = r["data"]
	}
	var all map[string]json.RawMessage
	return all, json.Unmarshal(asJSON(v), &all)
}

func member(m map[string]any, name string) string {
	for _, spelling := range []string{name + "ID", name + "Id"} {
		if v, ok := m[spelling].(string); ok {
			return v
		}
	}
	return ""
}

func (s *socketTalk) receive() {
	for {
		_, raw, err := s.c.Read(context.Background())
		if err != nil {
			return
		}
		var m map[string]any
		if err := json.Unmarshal(raw, &m); err != nil {
			s.t.Errorf("%s: %v", raw, err)
			return
		}
		s.mu.Lock()
		if c := s.waiting[member(m, "correlation")]; c != nil {
			c <- m
		}
		for _, c := range s.others {
			c <- m
		}
		s.mu.Unlock()
	}
}

// frame makes a request in the dialect.
func (s *socketTalk) frame(kind string, kotlin, doc, wtp map[string]any) (string, map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	id := fmt.Sprintf("%s-%d", s.dialect, s.n)
	out := map[string]any{"messageType": kind}
	switch s.dialect {
	case "kotlin":
		out["thingId"], out["messageId"] = s.thing, id
		if kind == "subscribeEvent" {
			out["messageType"] = "subscribeevent"
		}
		maps.Copy(out, kotlin)
	case "doc":
		out["thingID"], out["messageID"], out["correlationID"] = s.thing, id, id
		maps.Copy(out, doc)
	case "wtp":
		out["thingID"], out["messageID"], out["correlationID"] = s.thing, id, id
		out["messageType"], out["operation"] = "request", strings.ToLower(kind)
		if wtp == nil {
			wtp = doc
		}
		maps.Copy(out, wtp)
	}
	return id, out
}

// begin sends a request and returns the first answer, and where others come.
func (s *socketTalk) begin(kind string, doc, wtp map[string]any) (map[string]any, chan map[string]any, error) {
	return s.send(kind, doc, doc, wtp)
}

func (s *socketTalk) send(kind string, kotlin, doc, wtp map[string]any) (map[string]any, chan map[string]any, error) {
	id, out := s.frame(kind, kotlin, doc, wtp)
	came := make(chan map[string]any, 1000)
	s.mu.Lock()
	s.waiting[id] = came
	s.mu.Unlock()
	if err := s.c.Write(s.t.Context(), websocket.MessageText, asJSON(out)); err != nil {
		return nil, nil, err
	}
	m, err := s.next(came)
	return m, came, err
}

func (s *socketTalk) next(came chan map[string]any) (map[string]any, error) {
	select {
	case m := <-came:
		if m["messageType"] == "error" || m["error"] != nil {
			return m, fmt.Errorf("%s", asJSON(m))
		}
		return m, nil
	case <-time.After(patience):
		return nil, errors.New("nothing came")
	}
}

// ask sends a request and waits for the final answer.
func (s *socketTalk) ask(kind string, kotlin, doc, wtp map[string]any) (map[string]any, error) {
	m, came, err := s.send(kind, kotlin, doc, wtp)
	for err == nil && kind == "invokeAction" {
		st := m["status"]
		if o, ok := st.(map[string]any); ok {
			// An asynchronous response is the only one: the state is asked for.
			id := o["actionID"]
			for err == nil && (o["state"] == "pending" || o["state"] == "running") {
				time.Sleep(10 * time.Millisecond)
				var r map[string]any
				if r, err = s.ask("queryAction", nil, nil, map[string]any{"actionID": id, "name": wtp["name"]}); err == nil {
					o, _ = r["status"].(map[string]any)
				}
			}
			if err == nil && o["state"] != "completed" {
				err = fmt.Errorf("%s", asJSON(o))
			}
			return map[string]any{"output": o["output"]}, err
		}
		if st == "pending" || st == "running" {
			m, err = s.next(came)
			continue
		}
		if st == "failed" {
			err = fmt.Errorf("%s", asJSON(m))
		}
		break
	}
	return m, err
}

// listen subscribes. What comes are messages of the affordance that answer nothing else.
func (s *socketTalk) listen(kind, un string, kotlin, doc map[string]any, name string) (func() (string, error), func() error, error) {
	others := make(chan map[string]any, 1000)
	s.mu.Lock()
	s.others = append(s.others, others)
	s.mu.Unlock()
	id, out := s.frame(kind, kotlin, doc, doc)
	if err := s.c.Write(s.t.Context(), websocket.MessageText, asJSON(out)); err != nil {
		return nil, nil, err
	}
	next := func() (string, error) {
		for end := time.After(patience); ; {
			select {
			case m := <-others:
				switch m["messageType"] {
				case "error":
					if member(m, "correlation") == id {
						return "", fmt.Errorf("%s", asJSON(m))
					}
				case "event", "propertyReading", "notification":
					got, _ := m["name"].(string)
					if e, ok := m["event"].(string); ok {
						got = e
					}
					if name == "" || got == name {
						return text(value(m)), nil
					}
				}
			case <-end:
				return "", errors.New("nothing came")
			}
		}
	}
	return next, func() error {
		defer func() {
			s.mu.Lock()
			s.others = slices.DeleteFunc(s.others, func(c chan map[string]any) bool { return c == others })
			s.mu.Unlock()
		}()
		if s.dialect != "doc" {
			_, err := s.ask(un, kotlin, doc, doc)
			return err
		}
		_, out := s.frame(un, kotlin, doc, doc) // the documents have no answer to it
		return s.c.Write(s.t.Context(), websocket.MessageText, asJSON(out))
	}, nil
}

// openMQTT is a client of the broker of the consumer's node.
func openMQTT(t *testing.T, m *mesh, thing string) *talk {
	conn, err := net.Dial("tcp", m.mqtt)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	waiting := map[string]chan *paho.Publish{}
	ctx := context.WithoutCancel(t.Context())
	client := paho.NewClient(paho.ClientConfig{Conn: conn, ClientID: "consumer-" + thing, OnPublishReceived: []func(paho.PublishReceived) (bool, error){
		func(p paho.PublishReceived) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			if c := waiting[p.Packet.Topic]; c != nil {
				c <- p.Packet
			}
			return true, nil
		}}})
	if _, err := client.Connect(ctx, &paho.Connect{ClientID: "consumer-" + thing, CleanStart: true, KeepAlive: 30}); err != nil {
		t.Fatal(err)
	}
	listen := func(topic string) (chan *paho.Publish, error) {
		c := make(chan *paho.Publish, 1000)
		mu.Lock()
		waiting[topic] = c
		mu.Unlock()
		_, err := client.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topic, QoS: 1}}})
		return c, err
	}
	n := 0
	ask := func(topic, payload string) (string, error) {
		n++
		reply := fmt.Sprintf("%s/reply/%d", topic, n)
		c, err := listen(reply)
		if err != nil {
			return "", err
		}
		defer client.Unsubscribe(ctx, &paho.Unsubscribe{Topics: []string{reply}})
		if _, err := client.Publish(ctx, &paho.Publish{Topic: topic, QoS: 1, Payload: []byte(payload), Properties: &paho.PublishProperties{ResponseTopic: reply,
			ContentType: "application/json", CorrelationData: []byte{1, 2}}}); err != nil {
			return "", err
		}
		select {
		case p := <-c:
			if p.Properties.ContentType == "application/problem+json" {
				return "", fmt.Errorf("%s", p.Payload)
			}
			if !bytes.Equal(p.Properties.CorrelationData, []byte{1, 2}) {
				return "", errors.New("the answer has other correlation data")
			}
			return string(p.Payload), nil
		case <-time.After(patience):
			return "", errors.New("nothing came")
		}
	}
	base := url.PathEscape(thing)
	follow := func(topic string) (func() (string, error), func() error, error) {
		c, err := listen(topic)
		if err != nil {
			return nil, nil, err
		}
		return func() (string, error) {
				select {
				case p := <-c:
					return string(p.Payload), nil
				case <-time.After(patience):
					return "", errors.New("nothing came")
				}
			}, func() error {
				_, err := client.Unsubscribe(ctx, &paho.Unsubscribe{Topics: []string{topic}})
				return err
			}, nil
	}
	return &talk{
		read:   func(name string) (string, error) { return ask(base+"/properties/"+name, "") },
		write:  func(name, v string) error { _, err := ask(base+"/properties/"+name, v); return err },
		invoke: func(name, input string) (string, error) { return ask(base+"/actions/"+name, input) },
		observe: func(name string) (func() (string, error), func() error, error) {
			if name == "" {
				return nil, nil, errNot
			}
			return follow(base + "/properties/" + name + "/observable")
		},
		subscribe: func(name string) (func() (string, error), func() error, error) {
			if name == "" {
				return nil, nil, errNot
			}
			return follow(base + "/events/" + name)
		},
		close: func() { client.Disconnect(&paho.Disconnect{}); <-client.Done() },
	}
}

// openCoAP is a client of the endpoint of the consumer's node.
func openCoAP(t *testing.T, m *mesh, thing string) *talk {
	over := make(chan struct{})
	conn, err := udp.Dial(m.coap, options.WithPeriodicRunner(periodic.New(over, time.Second)))
	if err != nil {
		t.Fatal(err)
	}
	base := "/things/" + thing
	result := func(r *pool.Message, err error) (string, error) {
		if err != nil {
			return "", err
		}
		body, err := r.ReadBody()
		if err == nil && r.Code() >= codes.BadRequest {
			err = fmt.Errorf("%v %s", r.Code(), body)
		}
		return string(body), err
	}
	with := func() (context.Context, context.CancelFunc) { return context.WithTimeout(t.Context(), patience) }
	get := func(path string, options ...message.Option) (string, error) {
		ctx, cancel := with()
		defer cancel()
		return result(conn.Get(ctx, path, options...))
	}
	put := func(path string, v []byte, options ...message.Option) error {
		ctx, cancel := with()
		defer cancel()
		_, err := result(conn.Put(ctx, path, message.AppJSON, bytes.NewReader(v), options...))
		return err
	}
	listen := func(kind string) func(string) (func() (string, error), func() error, error) {
		return func(name string) (func() (string, error), func() error, error) {
			path := base + "/" + kind
			if name != "" {
				path += "/" + name
			}
			came := make(chan string, 1000)
			ctx, cancel := with()
			defer cancel()
			o, err := conn.Observe(ctx, path, func(r *pool.Message) {
				body, err := result(r, nil)
				if err != nil {
					body = err.Error()
				}
				var all map[string]json.RawMessage
				if name == "" && json.Unmarshal([]byte(body), &all) == nil { // an object of what changed
					for _, what := range []string{"level", "alarm"} {
						if v, ok := all[what]; ok {
							body = string(v)
						}
					}
				}
				came <- body
			})
			if err != nil {
				return nil, nil, err
			}
			return func() (string, error) {
					select {
					case v := <-came:
						return v, nil
					case <-time.After(patience):
						return "", errors.New("nothing came")
					}
				}, func() error {
					ctx, cancel := with()
					defer cancel()
					return o.Cancel(ctx)
				}, nil
		}
	}
	object := func(path string, options ...message.Option) (map[string]json.RawMessage, error) {
		raw, err := get(path, options...)
		if err != nil {
			return nil, err
		}
		var v map[string]json.RawMessage
		return v, json.Unmarshal([]byte(raw), &v)
	}
	return &talk{
		read:      func(name string) (string, error) { return get(base + "/properties/" + name) },
		write:     func(name, v string) error { return put(base+"/properties/"+name, []byte(v)) },
		readAll:   func() (map[string]json.RawMessage, error) { return object(base + "/properties") },
		writeSome: func(v map[string]any) error { return put(base+"/properties", asJSON(v)) },
		invoke: func(name, input string) (string, error) {
			ctx, cancel := with()
			defer cancel()
			return result(conn.Post(ctx, base+"/actions/"+name, message.AppJSON, strings.NewReader(input)))
		},
		observe:   listen("properties"),
		subscribe: listen("events"),
		start: func(name, input string) (string, error) {
			ctx, cancel := with()
			defer cancel()
			r, err := conn.Post(ctx, base+"/actions/"+name, message.AppJSON, strings.NewReader(input))
			if err != nil {
				return "", err
			}
			if r.Code() != codes.Created {
				return "", fmt.Errorf("%v", r.Code())
			}
			return r.Options().LocationPath()
		},
		query: func(_, id string) (string, string, error) {
			raw, err := get("/" + strings.TrimPrefix(id, "/"))
			var s struct {
				State  string
				Output json.RawMessage
			}
			if err == nil {
				err = json.Unmarshal([]byte(raw), &s)
			}
			return s.State, string(s.Output), err
		},
		cancel: func(_, id string) error {
			ctx, cancel := with()
			defer cancel()
			_, err := result(conn.Delete(ctx, "/"+strings.TrimPrefix(id, "/")))
			return err
		},
		close: func() { conn.Close(); <-conn.Done(); close(over) },
	}
}
