package ws

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/interacttest"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/ws/frame"
	"github.com/lmosd/lmosd/td"
)

const owner = "z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"

// labText is the description of the lab. FORM is the beginning of a form. TDs of Kotlin have the nested member optionalProperties.
const labText = `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "id": "urn:x", "title": "Lab",
	"securityDefinitions": {"nosec_sc": {"scheme": "nosec"}, "key": {"scheme": "bearer"}}, "security": ["nosec_sc"],
	"forms": [{FORM, "op": ["readallproperties", "readmultipleproperties", "writemultipleproperties", "writeallproperties",
		"observeallproperties", "unobserveallproperties", "subscribeallevents", "unsubscribeallevents", "queryallactions"]}],
	"properties": {
		"level":  {"type": "integer", "observable": true, "forms": [{FORM, "op": ["readproperty", "writeproperty", "observeproperty"]}]},
		"on":     {"type": "boolean", "observable": true, "forms": [{FORM, "op": ["readproperty", "writeproperty", "observeproperty"]}]},
		"serial": {"type": "string", "readOnly": true, "forms": [{FORM}]},
		"secret": {"type": "string", "writeOnly": true, "forms": [{FORM}]},
		"blind":  {"type": "integer", "observable": true, "forms": [{FORM, "op": ["observeproperty"]}]}
	},
	"actions": {
		"chat":   {"synchronous": true, "forms": [{FORM}]},
		"work":   {"forms": [{FORM, "op": ["invokeaction", "queryaction", "cancelaction"]}]},
		"long":   {"forms": [{FORM, "op": ["invokeaction", "queryaction", "cancelaction"]}]},
		"speak":  {"synchronous": true, "forms": [{FORM}]},
		"hang":   {"synchronous": true, "forms": [{FORM, "op": ["invokeaction", "queryaction", "cancelaction"]}]},
		"fail":   {"synchronous": true, "forms": [{FORM}]},
		"break":  {"forms": [{FORM}]},
		"panic":  {"synchronous": true, "forms": [{FORM}]}
	},
	"events": {
		"alarm": {"data": {"type": "string"}, "forms": [{FORM}]},
		"other": {"data": {"type": "string"}, "forms": [{FORM}]}
	}}`

// describe returns the description of the lab with forms that begin with form, e.g. "href": "ws://…".
func describe(t testing.TB, form string) *td.Description {
	t.Helper()
	thing, err := td.Parse([]byte(strings.ReplaceAll(labText, "FORM", form)))
	if err != nil {
		t.Fatalf("the test's TD: %v", err)
	}
	return &td.Description{Thing: thing, Record: &td.Record{Owner: "did:key:" + owner, Thing: thing.ID, Title: thing.Title}}
}

// A lab is a thing for tests, with a small task layer as a host has it.
type lab struct {
	mu       sync.Mutex
	level    string
	asked    []*interact.Message
	watchers map[chan *interact.Message]*interact.Message
	changed  chan struct{} // closed and replaced at each change of the above
	state    map[string]interact.Status
	release  chan struct{} // ends "hang" and "long"
	unblock  sync.Once
	late     time.Duration // for until
}

func newLab() *lab {
	return &lab{level: "42", watchers: map[chan *interact.Message]*interact.Message{}, changed: make(chan struct{}),
		state: map[string]interact.Status{}, release: make(chan struct{}), late: 20 * time.Second}
}

func (l *lab) changeLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// until waits for a condition of the lab.
func (l *lab) until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	late := time.After(l.late)
	for {
		l.mu.Lock()
		fits, changed := ok(), l.changed
		l.mu.Unlock()
		if fits {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("waited too long until %s", what)
		}
	}
}

// watched waits until n observations and subscriptions go on.
func (l *lab) watched(t testing.TB, n int) {
	t.Helper()
	l.until(t, fmt.Sprintf("%d watch", n), func() bool { return len(l.watchers) == n })
}

// saw waits for a message of a type, and returns the last.
func (l *lab) saw(t testing.TB, typ interact.Type) (m *interact.Message) {
	t.Helper()
	l.until(t, "a message of type "+typ.Op(), func() bool {
		for _, a := range l.asked {
			if a.Type == typ {
				m = a
			}
		}
		return m != nil
	})
	return m
}

// emit sends an event to the observers of name.
func (l *lab) emit(typ interact.Type, name, id, data string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ch, m := range l.watchers {
		if fits := m.Name == name || m.Name == ""; !fits || (typ == interact.Event) != strings.Contains(m.Type.Op(), "event") {
			continue
		}
		r := m.Reply(typ, "", []byte(data))
		r.Name, r.ID = name, id
		ch <- r
	}
}

// Do implements [interact.Thing].
func (l *lab) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		l.mu.Lock()
		l.asked = append(l.asked, m)
		l.changeLocked()
		l.mu.Unlock()
		switch {
		case m.Type.Long():
			l.watch(ctx, m, yield)
		case m.Type == interact.InvokeAction:
			l.invoke(ctx, m, yield)
		default:
			yield(l.one(m))
		}
	}
}

func (l *lab) watch(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
	ch := make(chan *interact.Message, 100_000)
	l.mu.Lock()
	l.watchers[ch] = m
	l.changeLocked()
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.watchers, ch)
		l.changeLocked()
	}()
	for {
		select {
		case r := <-ch:
			if !yield(r, nil) {
				return
			}
		case <-ctx.Done():
			yield(nil, ctx.Err())
			return
		}
	}
}

// one handles messages with one reply.
func (l *lab) one(m *interact.Message) (*interact.Message, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch m.Type {
	case interact.ReadProperty:
		switch m.Name {
		case "level":
			return m.Reply(interact.PropertyReading, "", []byte(l.level)), nil
		case "serial":
			return m.Reply(interact.PropertyReading, "application/cbor", []byte("\x63abc")), nil
		case "secret", "blind":
			return nil, interact.Errorf(interact.NotAllowed, "write it", "property %s is write-only", m.Name)
		}
		return nil, interact.Errorf(interact.NoAffordance, "", "no property %q", m.Name).Then(interact.StepShow, "lab")
	case interact.ReadAllProperties, interact.ReadMultipleProperties:
		return m.Reply(interact.PropertyReadings, "", []byte(`{"level":`+l.level+`,"on":true}`)), nil
	case interact.WriteProperty:
		if m.Name == "serial" {
			return nil, interact.Errorf(interact.NotAllowed, "read it", "property serial is read-only")
		}
		l.level = string(m.Data)
		return m.Reply(interact.Acknowledgement, "", nil), nil
	case interact.WriteMultipleProperties, interact.WriteAllProperties:
		return m.Reply(interact.Acknowledgement, "", nil), nil
	case interact.QueryAllActions:
		return m.Reply(interact.ActionStatuses, "", []byte(`{"work":[{"actionID":"a1","state":"running"}]}`)), nil
	case interact.QueryAction, interact.CancelAction:
		return l.task(m)
	}
	return nil, interact.Errorf(interact.NotAllowed, "use another operation", "unsupported operation")
}

func (l *lab) task(m *interact.Message) (*interact.Message, error) {
	state, ok := l.state[m.ActionID]
	if !ok {
		return nil, interact.Errorf(interact.NoTask, "invoke it", "no run %q", m.ActionID)
	}
	r := m.Reply(interact.ActionStatus, "", nil)
	if m.Type == interact.CancelAction {
		l.unblock.Do(func() { close(l.release) })
		state = interact.StatusCancelled
	}
	if r.Status = state; state == interact.StatusCompleted {
		r.Data = []byte(`"done"`)
	}
	if state == interact.StatusFailed {
		r.Data, r.ContentType = []byte(`{"title":"it broke"}`), problem.MediaType
	}
	return r, nil
}

// invoke runs an action. "work", "long" and "break" are tasks if m is detached.
func (l *lab) invoke(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
	say := func(s interact.Status, media, data string) bool {
		r := m.Reply(interact.ActionStatus, media, []byte(data))
		if r.Status = s; m.Detach {
			r.ActionID = "a-" + m.Name
			l.mu.Lock()
			l.state[r.ActionID] = s
			l.changeLocked()
			l.mu.Unlock()
		}
		return yield(r, nil)
	}
	switch {
	case m.Name == "panic":
		panic("as it was asked")
	case m.Name == "fail":
		yield(nil, &interact.Error{Code: interact.AgentFailed, Remote: true, Title: "the model is out of memory", Hint: "give it more"})
	case m.Name == "chat":
		say(interact.StatusCompleted, m.ContentType, string(m.Data))
	case m.Name == "speak":
		_ = say(interact.StatusRunning, "text/plain", "sun") && say(interact.StatusRunning, "text/plain", "ny") && say(interact.StatusCompleted, "", "")
	case m.Detach && !say(interact.StatusPending, "", ""):
		if m.Name != "long" {
			l.finish(m.Name)
		}
	case m.Name == "break":
		yield(nil, interact.Errorf(interact.AgentFailed, "repair it", "it broke"))
	case m.Name == "work":
		_ = say(interact.StatusRunning, "", "") && say(interact.StatusCompleted, "", `"done"`)
	default:
		select {
		case <-l.release:
			say(interact.StatusCompleted, "", `"done"`)
		case <-ctx.Done():
			l.mu.Lock()
			l.state["left "+m.Name] = interact.StatusCancelled
			l.changeLocked()
			l.mu.Unlock()
			yield(nil, ctx.Err())
		}
	}
}

// finish ends a task without observers.
func (l *lab) finish(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state["a-"+name] = interact.StatusCompleted; name == "break" {
		l.state["a-"+name] = interact.StatusFailed
	}
	l.changeLocked()
}

// find finds the lab by three names.
func find(d *td.Description) func(context.Context, string) (*td.Description, error) {
	return func(_ context.Context, ref string) (*td.Description, error) {
		if ref == "urn:x" || ref == "chatagent" || ref == "lab" {
			return d, nil
		}
		return nil, interact.Errorf(interact.NotFound, "list the agents", "no agent matches %q", ref).Then(interact.StepFind)
	}
}

// serve starts a server for the lab and returns its address.
func serve(t testing.TB, l *lab, o ServerOptions) (*Server, string) {
	t.Helper()
	o.Mesh, o.Find = l, find(describe(t, `"href": "ws://unused.example"`))
	s := NewServer(o)
	return s, listen(t, s)
}

// listen returns the address of s.
func listen(t testing.TB, s *Server) string {
	t.Helper()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.Serve(w, r, r.Header.Get("Authorization") == "Bearer token")
	}))
	t.Cleanup(h.Close)
	t.Cleanup(s.Close)
	return "ws" + strings.TrimPrefix(h.URL, "http")
}

// A wire is the test as a peer: it sends and receives single frames.
type wire struct {
	t    testing.TB
	ws   *websocket.Conn
	kept [][]byte // frames of text that came while unpack waited for another
}

// dial opens a wire. It offers the subprotocols.
func dial(t testing.TB, url string, offer ...string) *wire {
	t.Helper()
	ws, _, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{Subprotocols: offer})
	if err != nil {
		t.Fatal(err)
	}
	return newWire(t, ws)
}

func newWire(t testing.TB, ws *websocket.Conn) *wire {
	ws.SetReadLimit(64 << 20)
	t.Cleanup(func() { _ = ws.CloseNow() })
	return &wire{t: t, ws: ws}
}

func (w *wire) say(frame string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := w.ws.Write(ctx, websocket.MessageText, []byte(frame)); err != nil {
		w.t.Fatalf("%s cannot be sent: %v", frame, err)
	}
}

func (w *wire) read() (map[string]any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var data []byte
	if len(w.kept) > 0 {
		data, w.kept = w.kept[0], w.kept[1:]
	}
	for kind, err := websocket.MessageBinary, error(nil); data == nil; {
		if kind, data, err = w.ws.Read(ctx); err != nil {
			return nil, err
		}
		if kind == websocket.MessageBinary { // see unpack
			data = nil
		}
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("%s: %w", data, err)
	}
	return m, nil
}

func (w *wire) hear() map[string]any {
	w.t.Helper()
	m, err := w.read()
	if err != nil {
		w.t.Fatalf("no frame came: %v", err)
	}
	return m
}

// talk plays a script: "> frame" is sent, and for "< members" a frame with these members must arrive; null is one that must not
// be there.
func (w *wire) talk(script string) {
	w.t.Helper()
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if said, ok := strings.CutPrefix(line, "> "); ok {
			w.say(said)
		} else if want, ok := strings.CutPrefix(line, "< "); ok {
			w.expect(want)
		} else if line != "" {
			w.t.Fatalf("invalid line %q", line)
		}
	}
}

func (w *wire) expect(want string) {
	w.t.Helper()
	var members map[string]any
	if err := json.Unmarshal([]byte(want), &members); err != nil {
		w.t.Fatalf("%s: %v", want, err)
	}
	got := w.hear()
	if diff := missing(members, got); diff != "" {
		text, _ := json.Marshal(got)
		w.t.Fatalf("%s:\ngot  %s\nwant %s", diff, text, want)
	}
}

// missing returns the member of want that differs in got.
func missing(want, got map[string]any) string {
	for name, v := range want {
		inner, isObject := v.(map[string]any)
		have, hasObject := got[name].(map[string]any)
		if isObject && hasObject {
			if diff := missing(inner, have); diff != "" {
				return name + "." + diff
			}
		} else if !reflect.DeepEqual(got[name], v) {
			return name
		}
	}
	return ""
}

// quiet fails if a frame came before the answer to a question.
func (w *wire) quiet() {
	w.t.Helper()
	w.talk(`
		> {"messageType":"readProperty","thingID":"urn:x","messageID":"quiet","name":"level"}
		< {"messageType":"propertyReading","correlationID":"quiet"}`)
}

var wantError = interacttest.WantError

// unrun returns a connection whose goroutines are not started.
func unrun(t *testing.T) *conn {
	t.Helper()
	_, url := serve(t, newLab(), ServerOptions{})
	k, _, err := dialer{}.open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.ws.CloseNow() })
	return newConn(t.Context(), k, "agent", settings{}.withDefaults(), frame.Doc, nil)
}
