package interop

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// An attempt is a consumer with a lamp.
type attempt struct {
	*consumer
	again  func() *consumer // another consumer of that protocol
	beside interact.Thing   // calls the same lamp as a Go program does
	open   func()           // opens the gate of the lamp
}

// An operation is one row of the tables: a test of an operation with a Thing.
type operation struct {
	name  string
	needs string // the kind of affordance: "properties", "actions", "events"
	try   func(x *attempt) error
}

// Names of operations that other rows use.
const (
	writeAll     = "writeallproperties"
	allTasks     = "queryallactions"
	detached     = "invokeaction that continues after its consumer disconnects"
	inPieces     = "invokeaction, output in parts"
	upload       = "invokeaction, input as a stream"
	bothWays     = "invokeaction, both streams at once"
	observeAll   = "observeallproperties, unobserveallproperties"
	subscribeAll = "subscribeallevents, unsubscribeallevents"
	replay       = "subscribeevent with the last event id: missed events are replayed"
)

// A group is the operations of one table.
type group struct {
	name       string
	patterns   string // of the LMOS protocol
	operations []operation
}

var groups = []group{
	{"Properties", "Request–reply.", []operation{
		{"readproperty", "properties", func(x *attempt) error {
			return walk(step{x, interact.ReadProperty, "units", "", `"celsius"`})
		}},
		{"writeproperty", "properties", func(x *attempt) error {
			return walk(step{x, interact.WriteProperty, "level", "41", ""}, step{x.beside, interact.ReadProperty, "level", "", "41"})
		}},
		{"readallproperties", "properties", func(x *attempt) error {
			return walk(step{x.beside, interact.WriteProperty, "level", "5", ""},
				step{x, interact.ReadAllProperties, "", "", `{"level":5,"units":"celsius"}`})
		}},
		{"readmultipleproperties", "properties", func(x *attempt) error {
			return walk(step{x, interact.ReadMultipleProperties, "", `["units"]`, `{"units":"celsius"}`})
		}},
		{writeAll, "properties", func(x *attempt) error {
			if _, err := ask(x, interact.WriteAllProperties, "", `{"level":9}`); err == nil {
				return errors.New("all but one were written")
			}
			return walk(step{x, interact.WriteAllProperties, "", `{"level":8,"units":"celsius"}`, ""},
				step{x.beside, interact.ReadProperty, "level", "", "8"})
		}},
		{"writemultipleproperties", "properties", func(x *attempt) error {
			return walk(step{x, interact.WriteMultipleProperties, "", `{"level":7}`, ""},
				step{x.beside, interact.ReadProperty, "level", "", "7"})
		}},
	}},
	{"Actions and tasks", "Request–reply; request–many replies (the states of a run).", []operation{
		{"invokeaction", "actions", func(x *attempt) error {
			return walk(step{x, interact.InvokeAction, "add", `{"a":19,"b":23}`, "42"})
		}},
		{"invokeaction that fails", "actions", func(x *attempt) error {
			if got, err := ask(x, interact.InvokeAction, "fail", ""); err == nil || !strings.Contains(err.Error(), "out of order") {
				return fmt.Errorf("got %q, %v, want the agent's own words", got, err)
			}
			return nil
		}},
		{"invokeaction with wrong input", "actions", func(x *attempt) error {
			if got, err := ask(x, interact.InvokeAction, "add", `{"a":"x"}`); err == nil || errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("got %q, %v, want an error", got, err)
			}
			return nil
		}},
		{"queryaction", "actions", func(x *attempt) error {
			id, err := begin(x, "0")
			if err != nil {
				return err
			}
			return completes(x, id, x.open)
		}},
		{"cancelaction", "actions", func(x *attempt) error {
			id, err := begin(x, "60000")
			if err != nil {
				return err
			}
			if _, err := send(x, &interact.Message{Type: interact.CancelAction, Name: "wait", ActionID: id}); err != nil {
				return err
			}
			r, err := send(x, &interact.Message{Type: interact.QueryAction, Name: "wait", ActionID: id})
			if err == nil && r.Status != interact.StatusCancelled && r.Status != interact.StatusFailed {
				err = fmt.Errorf("the state is %v after the cancel", r.Status)
			}
			return err
		}},
		{allTasks, "actions", func(x *attempt) error {
			id, err := begin(x, "1")
			if err != nil {
				return err
			}
			list, err := ask(x, interact.QueryAllActions, "", "")
			if err == nil && !strings.Contains(list, id) {
				err = fmt.Errorf("%q is not in %s", id, list)
			}
			return err
		}},
		{detached, "actions", func(x *attempt) error {
			first := x.again()
			id, err := begin(first, "0")
			if first.hangUp(); err != nil {
				return err
			}
			return completes(x, id, x.open)
		}},
	}},
	{"Streams", "Request–many replies; response streams and request streams.", []operation{
		{inPieces, "actions", func(x *attempt) error {
			return streamed(x, &interact.Message{Name: "count", Accept: inParts}, x.open, "one", "two")
		}},
		{upload, "actions", func(x *attempt) error {
			want := sha256.Sum256([]byte(strings.Join(chunks, "")))
			got, err := send(x, stream("upload"))
			if err == nil && plain(got.Data) != hex.EncodeToString(want[:]) {
				err = fmt.Errorf("other bytes arrived: %s", got.Data)
			}
			return err
		}},
		{bothWays, "actions", func(x *attempt) error {
			held, left := newGate(), newGate()
			defer left.open()
			m := stream("echo")
			m.Chunks = inTurn(m.Chunks, held, left)
			return streamed(x, m, held.open, chunks...)
		}},
	}},
	{"Events and changes", "Event notifications; publish–subscribe.", []operation{
		{"observeproperty, unobserveproperty", "properties", func(x *attempt) error {
			return observed(x, interact.ObserveProperty, "level")
		}},
		{observeAll, "properties", func(x *attempt) error { return observed(x, interact.ObserveAllProperties, "") }},
		{"subscribeevent, unsubscribeevent", "events", func(x *attempt) error { return alarmed(x, interact.SubscribeEvent, "alarm") }},
		{subscribeAll, "events", func(x *attempt) error { return alarmed(x, interact.SubscribeAllEvents, "") }},
		{replay, "events", replayed},
	}},
}

// send sends a message through k and returns the last reply.
func send(k interact.Thing, m *interact.Message) (*interact.Message, error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	return interact.Call(ctx, k, m)
}

// ask sends a message through k and returns the data of the last reply.
func ask(k interact.Thing, t interact.Type, name, data string) (string, error) {
	r, err := send(k, &interact.Message{Type: t, Name: name, Data: []byte(data)})
	if err != nil {
		return "", err
	}
	return string(r.Data), nil
}

// A step sends a message through k, and expects a JSON value; an empty one means any.
type step struct {
	k          interact.Thing
	asked      interact.Type
	name, data string
	want       string
}

// walk runs steps until one fails.
func walk(steps ...step) error {
	for _, s := range steps {
		got, err := ask(s.k, s.asked, s.name, s.data)
		if err != nil {
			return fmt.Errorf("%s: %w", s.asked.Op(), err)
		}
		if err := alike(s.asked.Op(), got, s.want); err != nil {
			return err
		}
	}
	return nil
}

// errOther reports an unexpected response.
var errOther = errors.New("another answer")

// alike compares JSON values; an empty one equals any.
func alike(what, got, want string) error {
	var g, w any
	bad := json.Unmarshal([]byte(got), &g) != nil || json.Unmarshal([]byte(want), &w) != nil || !reflect.DeepEqual(g, w)
	if want != "" && bad {
		return fmt.Errorf("%w to %s: got %q, want %s", errOther, what, got, want)
	}
	return nil
}

// begin lets k start a run that outlives it, and returns its id.
func begin(k interact.Thing, input string) (id string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	m := &interact.Message{Type: interact.InvokeAction, Name: "wait", Data: []byte(input), Detach: true}
	for r, err := range k.Do(ctx, m) {
		if err != nil || r.ActionID == "" || r.Status.Final() {
			return "", fmt.Errorf("the first state is %+v, %w", r, err)
		}
		return r.ActionID, nil
	}
	return "", errors.New("no answer")
}

// completes checks that a task runs, opens its gate, and waits for its end.
func completes(k interact.Thing, id string, open func()) error {
	query := &interact.Message{Type: interact.QueryAction, Name: "wait", ActionID: id}
	r, err := send(k, query)
	if err == nil && r.Status.Final() {
		err = fmt.Errorf("the state is %v with %q, and its gate is shut", r.Status, r.Data)
	}
	open()
	for end := time.Now().Add(stepTimeout); err == nil && !r.Status.Final() && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
		r, err = send(k, query)
	}
	if err != nil {
		return err
	}
	return alike(r.Status.String(), string(r.Data), `"done"`)
}

// chunks returns the chunks of a request stream.
var chunks = slices.Collect(func(yield func(string) bool) {
	for i := 0; i < 4 && yield(fmt.Sprintf("chunk %d %s;\n", i, strings.Repeat("x", 2000))); i++ {
	}
})

// stream returns a message with chunks for an action.
func stream(action string) *interact.Message {
	all := func(yield func([]byte, error) bool) {
		for _, chunk := range chunks {
			if !yield([]byte(chunk), nil) {
				return
			}
		}
	}
	return &interact.Message{Type: interact.InvokeAction, Name: action, ContentType: octets, Chunks: all}
}

// inTurn holds all chunks but the first until the consumer has left.
func inTurn(all iter.Seq2[[]byte, error], held, left gate) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		first := true
		for chunk, err := range all {
			if !first {
				select {
				case <-held:
				case <-left:
					yield(nil, errors.New("the consumer left"))
					return
				}
			}
			if first = false; !yield(chunk, err) {
				return
			}
		}
	}
}

// streamed invokes an action and expects partial outputs. It releases the next one when one has arrived, so that buffering fails.
func streamed(x *attempt, m *interact.Message, goOn func(), want ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	m.Type = interact.InvokeAction
	got := ""
	for r, err := range x.Do(ctx, m) {
		if err != nil {
			return fmt.Errorf("after %q: %w", got, err)
		}
		got += plain(r.Data)
		for len(want) > 0 && strings.HasPrefix(got, strings.TrimSpace(want[0])) {
			got, want = strings.TrimLeft(strings.TrimPrefix(got, strings.TrimSpace(want[0])), "\n"), want[1:]
			if len(want) > 0 {
				goOn()
			}
		}
	}
	if len(want) > 0 || got != "" {
		return fmt.Errorf("%q is too much, and %q is missing", got, want)
	}
	return nil
}

// plain returns the text of data: a JSON string, an array or lines of them, or bytes.
func plain(data []byte) string {
	var several []string
	whole := ""
	for line := range strings.Lines(string(data)) {
		var text string
		switch {
		case json.Unmarshal([]byte(line), &text) == nil:
			whole += text
		case json.Unmarshal([]byte(line), &several) == nil:
			whole += strings.Join(several, "")
		default:
			return string(data)
		}
	}
	return whole
}

func observed(x *attempt, t interact.Type, name string) error {
	_, err := hear(x, &interact.Message{Type: t, Name: name}, func() error {
		return walk(step{x.beside, interact.WriteProperty, "level", "99", ""})
	}, "99")
	return err
}

func alarmed(x *attempt, t interact.Type, name string) error {
	_, err := hear(x, &interact.Message{Type: t, Name: name}, func() error { return ring(x, "fire") }, `"fire"`)
	return err
}

func ring(x *attempt, text string) error {
	return walk(step{x.beside, interact.InvokeAction, "ring", string(asJSON(text)), ""})
}

// hear subscribes until want arrives, and repeats the event, because not all protocols acknowledge a subscription.
func hear(k interact.Thing, m *interact.Message, happen func() error, want string) (id string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	heard := make(chan struct{})
	var work sync.WaitGroup
	var made error
	work.Go(func() {
		for made == nil {
			made = happen()
			select {
			case <-time.After(20 * time.Millisecond):
			case <-heard:
				return
			}
		}
	})
	id, err = await(ctx, k, m, want)
	close(heard)
	work.Wait()
	return id, errors.Join(err, made)
}

// await subscribes until want arrives, and returns its id.
func await(ctx context.Context, k interact.Thing, m *interact.Message, want string) (id string, err error) {
	for r, err := range k.Do(ctx, m) {
		if err != nil {
			return "", err
		}
		if alike("", string(r.Data), want) == nil {
			return r.ID, nil
		}
	}
	return "", errors.New("the subscription ended")
}

// replayed subscribes, disconnects, misses an event that another consumer receives, and expects it after reconnecting.
func replayed(x *attempt) error {
	m := interact.Message{Type: interact.SubscribeEvent, Name: "alarm"}
	id, err := hear(x, &m, func() error { return ring(x, "heard") }, `"heard"`)
	if err != nil || id == "" {
		return fmt.Errorf("the event has the id %q: %w", id, err)
	}
	if err := ring(x, "missed"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	m.After = id
	if _, err := await(ctx, x.beside, &m, `"missed"`); err != nil {
		return fmt.Errorf("the other consumer: %w", err)
	}
	_, err = await(ctx, x, &m, `"missed"`)
	return err
}
