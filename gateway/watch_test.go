package gateway

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/td"
)

// station returns the TD of a Thing with observable affordances.
func station(t *testing.T) *td.Description {
	t.Helper()
	thing, err := td.Parse([]byte(`{"@context":"https://www.w3.org/2022/wot/td/v1.1","id":"urn:x:station","title":"Station",
		"securityDefinitions":{"nosec_sc":{"scheme":"nosec"}},"security":["nosec_sc"],
		"properties":{"wind":{"type":"number","observable":true,"forms":[{"href":"http://127.0.0.1:9/w","op":["readproperty","observeproperty"]}]}},
		"actions":{"scan":{"synchronous":false,"forms":[{"href":"http://127.0.0.1:9/s"}]},"listen":{"forms":[{"href":"http://127.0.0.1:9/l",
			"contentType":"audio/wav"}]}},
		"events":{"storm":{"data":{"type":"number"},"forms":[{"href":"http://127.0.0.1:9/e"}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	d := describe(thing.ID, thing.Title, owner1)
	d.Thing = thing
	return d
}

// stationNode serves the station over a mesh.
func stationNode(t *testing.T, mesh func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool)) *fakeNode {
	node := newFake(station(t))
	node.mesh = func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) { mesh(ctx, m, yield) }
	}
	return node
}

// counting yields the events after m.After up to end, then waits.
func counting(end int) func(context.Context, *interact.Message, func(*interact.Message, error) bool) {
	return func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		after := 0
		fmt.Sscan(m.After, &after)
		for i := after + 1; i <= end; i++ {
			r := m.Reply(interact.Event, "", fmt.Append(nil, i*10))
			if r.ID = fmt.Sprint(i); m.Name == "" {
				r.Name = "storm"
			}
			if !yield(r, nil) {
				return
			}
		}
		<-ctx.Done()
		yield(nil, ctx.Err())
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	event := func(name string, n int) api.Event {
		return api.Event{Name: name, ID: fmt.Sprint(n), Data: fmt.Append(nil, n*10)}
	}
	r := start(t, serving(stationNode(t, counting(3)), Options{}))
	for name, c := range map[string]*api.Client{"url": dial(t, r.url, ""), "socket": dial(t, r.o.Socket, ""), "inside": r.InProcess()} {
		for _, tt := range []struct {
			kind, name, after string
			want              []api.Event
		}{
			{"events", "storm", "", []api.Event{event("storm", 1), event("storm", 2)}},
			{"events", "", "1", []api.Event{event("storm", 2), event("storm", 3)}},
			{"properties", "wind", "2", []api.Event{event("wind", 3)}},
		} {
			t.Run(name+" "+tt.kind+tt.name, func(t *testing.T) {
				t.Parallel()
				var got []api.Event
				for e, err := range c.Watch(t.Context(), "urn:x:station", tt.kind, tt.name, tt.after) {
					if err != nil {
						t.Fatal(err)
					}
					if got = append(got, e); len(got) == len(tt.want) {
						break
					}
				}
				if fmt.Sprintf("%s", got) != fmt.Sprintf("%s", tt.want) {
					t.Errorf("got %s, want %s", got, tt.want)
				}
			})
		}
	}
}

func TestWatchErrors(t *testing.T) {
	t.Parallel()
	r := start(t, serving(stationNode(t, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		_ = yield(m.Reply(interact.Event, "", []byte("1")), nil) && yield(nil, interact.Errorf(interact.Withdrawn, "find another", "it is gone"))
	}), Options{}))
	c := dial(t, r.url, "")
	for _, tt := range []struct {
		ref, kind, name string
		events          int
		code            interact.Code
	}{
		{"urn:x:station", "events", "storm", 1, interact.Withdrawn},
		{"urn:x:station", "events", "sun", 0, interact.NoAffordance},
		{"urn:x:unknown", "events", "storm", 0, interact.NotFound},
		{"urn:x:station", "nonsense", "x", 0, interact.NotFound},
	} {
		n := 0
		for _, err := range c.Watch(t.Context(), tt.ref, tt.kind, tt.name, "") {
			if n++; err != nil {
				n--
				if e := interact.AsError(err); e.Code != tt.code || e.Hint == "" && e.Next == nil {
					t.Errorf("%+v: %v", tt, err)
				}
			}
		}
		if n != tt.events {
			t.Errorf("%+v: %d events", tt, n)
		}
	}
	for _, err := range dial(t, "http://127.0.0.1:1", "").Watch(t.Context(), "x", "events", "", "") {
		if interact.AsError(err).Code != interact.NotRunning {
			t.Errorf("without a node: %v", err)
		}
	}
}

// A node that restarts may answer before its agents are registered.
func TestWatchAfterNodeRestart(t *testing.T) {
	t.Parallel()
	first := start(t, serving(stationNode(t, counting(1)), Options{}))
	addr := first.Addr().String()
	dialer := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	c := api.NewClient("the node", "", &http.Transport{DisableKeepAlives: true, DialContext: dialer})
	requests := make(chan string, 1)
	var second *running
	var got []string
	for e, err := range c.Watch(t.Context(), "urn:x:station", "events", "storm", "0") {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, e.ID); len(got) == 2 {
			break
		}
		first.end()
		node := stationNode(t, counting(2))
		all := node.things
		node.things, node.unknownRefs = map[string]*td.Description{}, requests
		second = start(t, serving(node, Options{Listen: addr, Explicit: true}))
		go func() {
			<-requests // the agent is unknown
			node.mu.Lock()
			defer node.mu.Unlock()
			node.things = all
		}()
	}
	if !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("got %v", got)
	}
	second.end()
}

// A watch continues while an agent is absent, up to a limit.
func TestWatchOfARemovedThing(t *testing.T) {
	t.Parallel()
	lost := interact.Errorf(interact.Unreachable, "lmosd status", "it broke")
	for name, tt := range map[string]struct {
		back   time.Duration // when it is registered again; 0: never
		then   error         // error of its host from the second request on
		code   interact.Code // at the end
		most   time.Duration // maximal duration
		events int
	}{
		"it returns": {back: 50 * time.Second, code: interact.Withdrawn, most: 56 * time.Second, events: 2,
			then: interact.Errorf(interact.Withdrawn, "", "gone")},
		"it does not return": {code: interact.NotFound, most: 66 * time.Second, events: 1},
		"its host has no such Thing": {back: time.Nanosecond, code: interact.NotFound, most: 66 * time.Second, events: 1,
			then: interact.Errorf(interact.NotFound, "", "no")},
		"its host is overloaded": {back: time.Nanosecond, code: interact.Overloaded, most: 66 * time.Second, events: 1,
			then: interact.Errorf(interact.Overloaded, "", "no")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var times int
				var node *fakeNode
				node = stationNode(t, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
					times++
					if times > 1 && tt.events == 1 {
						time.Sleep(2 * time.Second) // the stream has begun
						yield(nil, tt.then)
						return
					}
					node.mu.Lock()
					all := node.things
					node.things = map[string]*td.Description{}
					node.mu.Unlock()
					if tt.back > 0 {
						time.AfterFunc(tt.back, func() {
							node.mu.Lock()
							defer node.mu.Unlock()
							node.things = all
						})
					}
					if times == 1 {
						_ = yield(m.Reply(interact.Event, "", []byte("1")), nil) && yield(nil, lost)
						return
					}
					_ = yield(m.Reply(interact.Event, "", []byte("2")), nil) && yield(nil, tt.then)
				})
				g, err := New(serving(node, Options{Listen: None}))
				if err != nil {
					t.Fatal(err)
				}
				defer g.Close()
				begin, n := time.Now(), 0
				for _, err = range g.InProcess().Watch(t.Context(), "urn:x:station", "events", "storm", "") {
					if err == nil {
						n++
					}
				}
				took := time.Since(begin)
				if interact.AsError(err).Code != tt.code || n != tt.events || took < tt.back || took > tt.most ||
					tt.events == 1 && took < time.Minute {
					t.Errorf("%d events, then %v after %v", n, err, took)
				}
			})
		})
	}
}

func TestWatchEndsWithTheCaller(t *testing.T) {
	t.Parallel()
	r := start(t, serving(stationNode(t, counting(1)), Options{}))
	for name, c := range map[string]*api.Client{"url": dial(t, r.url, ""), "inside": r.InProcess()} {
		ctx, cancel := context.WithCancel(t.Context())
		var last error
		for _, err := range c.Watch(ctx, "urn:x:station", "events", "storm", "") {
			last = err
			cancel()
		}
		if !errors.Is(last, context.Canceled) {
			t.Errorf("%s: ended with %v", name, last)
		}
		cancel()
	}
}

// A drain ends streams and polls at once, and the watcher receives the reason.
func TestDrainEndsWatchers(t *testing.T) {
	t.Parallel()
	r := start(t, serving(stationNode(t, counting(1)), Options{}))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/things/urn:x:station/events/storm", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	begin := time.Now()
	var last error
	for _, last = range problem.Events(resp.Body, 1<<20) {
		r.stop()
	}
	if e := interact.AsError(last); e == nil || e.Code != interact.ShuttingDown || !e.Code.Retryable() {
		t.Errorf("ended with %v", last)
	}
	r.end()
	if took := time.Since(begin); took > defaultTimeouts.drain/2 {
		t.Errorf("the drain took %v", took)
	}
}

func TestWaitTask(t *testing.T) {
	t.Parallel()
	var looks atomic.Int32
	node := stationNode(t, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		r := m.Reply(interact.ActionStatus, "", nil)
		r.Began = requested
		switch {
		case m.Type == interact.InvokeAction && !m.Detach:
			yield(nil, interact.Errorf(interact.Internal, "", "not detached"))
			return
		case m.Type == interact.InvokeAction:
			r.Status, r.ActionID = interact.StatusPending, "run/1"
		case m.ActionID != "run/1":
			yield(nil, interact.Errorf(interact.NoTask, "begin again", "no run %q", m.ActionID))
			return
		case looks.Add(1) < 3:
			r.Status = interact.StatusRunning
		default:
			r.Status, r.Data, r.Time = interact.StatusCompleted, []byte(`7`), requested.Add(time.Minute)
		}
		yield(r, nil)
	})
	r := start(t, serving(node, Options{}))
	c := dial(t, r.url, "")
	result, err := c.Invoke(t.Context(), "urn:x:station", "scan", api.CallOptions{Async: true})
	if err != nil || result.Task == nil || result.Output != nil {
		t.Fatalf("Invoke: %+v, %v", result, err)
	}
	if task := result.Task; task.ID != "run/1" || task.Status != "pending" || task.Action != "scan" || !task.Requested.Equal(requested) {
		t.Errorf("task %+v", task)
	}
	task, err := c.WaitTask(t.Context(), result.Task)
	if err != nil || !task.Final() || string(task.Output) != "7" || !task.Ended.Equal(requested.Add(time.Minute)) || task.ID != "run/1" {
		t.Errorf("WaitTask: %+v, %v", task, err)
	}
	_, err = c.WaitTask(t.Context(), &api.Task{Thing: "urn:x:station", Action: "scan", ID: "2"})
	if interact.AsError(err).Code != interact.NoTask {
		t.Errorf("WaitTask of an unknown task: %v", err)
	}
}
