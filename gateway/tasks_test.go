package gateway

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/task"
)

// A busyNode has tasks, paths and round trips.
type busyNode struct {
	*fakeNode
	tasks fakeTasks
}

func (n *busyNode) Tasks() Tasks { return n.tasks }

func (n *busyNode) Paths(ctx context.Context, ref string) ([]api.Path, error) {
	if _, err := n.Get(ctx, ref); err != nil {
		return nil, err
	}
	return []api.Path{{Name: "mesh", Took: 2.5}, {Name: "https", Href: "https://a.example/", Down: true}}, nil
}

func (n *busyNode) Ping(ctx context.Context, ref string, times int) (*api.Ping, error) {
	d, err := n.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		return nil, interact.Errorf(interact.Internal, "set a deadline", "a ping without a deadline")
	}
	return &api.Ping{Ref: d.Ref(), Node: owner2, Path: "mesh quic-v1", RTT: make([]float64, times)}, nil
}

// fakeTasks are tasks by id.
type fakeTasks map[string]api.Task

func (f fakeTasks) List(ctx context.Context) []api.Task {
	all := f.Known(ctx)
	if len(all) > 0 && all[0].Status == "running" { // its host does not answer
		all[0].Status, all[0].LastStatus, all[0].LastSeen, all[0].Reason = api.UnknownTask, all[0].Status, requested, "away"
	}
	return all
}

func (f fakeTasks) Known(context.Context) (all []api.Task) {
	for _, id := range []string{"2", "1"} {
		if t, ok := f[id]; ok {
			all = append(all, t)
		}
	}
	return all
}

func (f fakeTasks) IsVisible(_ context.Context, thing string) bool {
	return !strings.Contains(thing, "hidden")
}

func (f fakeTasks) OnChange(func(task.Entry, bool)) {}

func (f fakeTasks) Get(_ context.Context, id string) (*api.Task, error) {
	if t, ok := f[id]; ok {
		return &t, nil
	}
	return nil, interact.Errorf(interact.NoTask, "lmosd tasks", "there is no task %q", id)
}

func (f fakeTasks) Cancel(ctx context.Context, id string) (*api.Task, error) {
	t, err := f.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	t.Status = "cancelled"
	return t, nil
}

var requested = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

func newBusy() *busyNode {
	return &busyNode{fakeNode: newFake(describe("urn:x:weather", "Weather", owner1)), tasks: fakeTasks{
		"1": {ID: "1", Thing: "urn:x:weather", Name: "weather", Action: "ask", Status: "completed", Output: json.RawMessage(`{"a":1}`),
			Requested: requested, Ended: requested.Add(time.Second)},
		"2": {ID: "2", Thing: "urn:x:weather", Name: "weather", Action: "ask", Status: "running", Requested: requested},
	}}
}

func TestTaskRoutes(t *testing.T) {
	t.Parallel()
	r := start(t, serving(newBusy(), Options{}))
	for _, x := range []exchange{
		{name: "list", path: "/v1/tasks", status: 200, contain: `{"id":"2","thing":"urn:x:weather","name":"weather","action":"ask",` +
			`"status":"unknown","last_status":"running","last_seen":"2026-11-20T10:00:00Z","reason":"away","requested":"2026-11-20T10:00:00Z"}`},
		{name: "list with more", path: "/v1/tasks?x=1", status: 400, code: "LMOS-2000"},
		{name: "list of what is known", path: "/v1/tasks?known=true", status: 200, contain: `{"apiVersion":"lmosd/v1","kind":"TaskList","items":[` +
			`{"id":"2","thing":"urn:x:weather","name":"weather","action":"ask","status":"running","requested":"2026-11-20T10:00:00Z"},` +
			`{"id":"1","thing":"urn:x:weather","name":"weather","action":"ask","status":"completed","output":{"a":1},` +
			`"requested":"2026-11-20T10:00:00Z","ended":"2026-11-20T10:00:01Z"}]}`},
		{name: "one", path: "/v1/tasks/2", status: 200, contain: `{"apiVersion":"lmosd/v1","kind":"Task","id":"2",`},
		{name: "none", path: "/v1/tasks/3", status: 404, code: "LMOS-1410"},
		{name: "an id with a slash", path: "/v1/tasks/a%2Fb", status: 404, code: "LMOS-1410", contain: "a/b"},
		{name: "cancel", method: "DELETE", path: "/v1/tasks/2", header: asAdmin, status: 200, contain: `"status":"cancelled"`},
		{name: "cancel without a token", method: "DELETE", path: "/v1/tasks/2", status: 401},
		{name: "cancel none", method: "DELETE", path: "/v1/tasks/3", header: asAdmin, status: 404, code: "LMOS-1410"},
		{name: "other method", method: "PUT", path: "/v1/tasks/2", status: 405, want: map[string]string{"Allow": "DELETE, GET, HEAD"}},
		{name: "other method of the list", method: "POST", path: "/v1/tasks", status: 405},
		{name: "paths", path: "/v1/paths/urn:x:weather", status: 200, contain: `{"apiVersion":"lmosd/v1","kind":"PathList",` +
			`"ref":"urn:x:weather","items":[{"name":"mesh","down":false,"took_ms":2.5},{"name":"https","href":"https://a.example/","down":true}]}`},
		{name: "paths to an unknown agent", path: "/v1/paths/none", status: 404, code: "LMOS-1404"},
		{name: "ping", method: "POST", path: "/v1/ping/urn:x:weather?n=2", status: 200,
			contain: `"kind":"Ping","ref":"urn:x:weather@` + owner1.Multibase() + `","node":"` + string(owner2) +
				`","path":"mesh quic-v1","rtt_ms":[0,0]}`},
		{name: "ping once", method: "POST", path: "/v1/ping/urn:x:weather", status: 200, contain: `"rtt_ms":[0]`},
		{name: "ping an unknown agent", method: "POST", path: "/v1/ping/none", status: 404, code: "LMOS-1404"},
		{name: "ping too often", method: "POST", path: "/v1/ping/urn:x:weather?n=101", status: 400, code: "LMOS-2000"},
		{name: "ping with a long timeout", method: "POST", path: "/v1/ping/urn:x:weather?timeout=1h", status: 400, code: "LMOS-2000"},
		{name: "ping with more", method: "POST", path: "/v1/ping/urn:x:weather?x=1", status: 400, code: "LMOS-2000"},
		{name: "ping by GET", path: "/v1/ping/urn:x:weather", status: 405, want: map[string]string{"Allow": "POST"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			r.check(t, x)
		})
	}
	for _, path := range []string{"/v1/tasks", "/v1/tasks/2", "/v1/paths/urn:x:weather"} {
		if head, body := r.do(t, exchange{method: "HEAD", path: path}); head.StatusCode != 200 || body != "" {
			t.Errorf("HEAD %s: %d %q", path, head.StatusCode, body)
		}
	}
}

// A node without tasks returns errors.
func TestNodeWithoutTasks(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	r.check(t, exchange{path: "/v1/tasks", status: 200, contain: `"items":[]`})
	r.check(t, exchange{path: "/v1/tasks/1", status: 404, code: "LMOS-1405"})
	r.check(t, exchange{method: "DELETE", path: "/v1/tasks/1", header: asAdmin, status: 404, code: "LMOS-1405"})
}

func TestClientOfTasks(t *testing.T) {
	t.Parallel()
	r := start(t, serving(newBusy(), Options{}))
	c := dial(t, r.url, token)
	list, err := c.Tasks(t.Context())
	if err != nil || len(list.Items) != 2 || list.Items[0].ID != "2" || list.Items[0].Final() || !list.Items[1].Final() {
		t.Errorf("Tasks: %+v, %v", list, err)
	}
	task, err := c.Task(t.Context(), "1")
	want := &api.Task{APIVersion: api.APIVersion, Kind: "Task", ID: "1", Thing: "urn:x:weather", Name: "weather", Action: "ask",
		Status: "completed", Output: json.RawMessage(`{"a":1}`), Requested: requested, Ended: requested.Add(time.Second)}
	if d := cmp.Diff(want, task); err != nil || d != "" {
		t.Errorf("Task: %v %s", err, d)
	}
	if task, err = c.CancelTask(t.Context(), "2"); err != nil || task.Status != "cancelled" {
		t.Errorf("CancelTask: %+v, %v", task, err)
	}
	if _, err := c.Task(t.Context(), "3"); interact.AsError(err).Code != interact.NoTask {
		t.Errorf("Task that is not there: %v", err)
	}
	paths, err := c.Paths(t.Context(), "urn:x:weather")
	if err != nil || len(paths.Items) != 2 || !paths.Items[1].Down || paths.Items[0].Took != 2.5 {
		t.Errorf("Paths: %+v, %v", paths, err)
	}
	ping, err := c.Ping(t.Context(), "urn:x:weather", 3)
	if err != nil || len(ping.RTT) != 3 || ping.Node != owner2 {
		t.Errorf("Ping: %+v, %v", ping, err)
	}
	values, media, err := c.ReadMultiple(t.Context(), "urn:x:weather", "unit")
	if e := interact.AsError(err); e == nil || e.Code != interact.NotAllowed { // the fake does not support it
		t.Errorf("ReadMultiple: %s %s %v", values, media, err)
	}
}
