package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// Tasks are the runs of actions that this node's agents, or its consumers, have under way, and the last ones that ended.
type Tasks interface {
	// List returns them newest first, and asks their hosts how those stand that have not ended, for some seconds at most. Of one whose
	// host does not say, the state is unknown. Known returns the state that was heard of last, and asks nobody.
	List(ctx context.Context) []Task
	Known() []Task
	// Get returns the state of one now. Cancel ends one, and returns what has become of it. The error of both is an
	// [*interact.Error] of code NoTask, or what the thing that was asked said.
	Get(ctx context.Context, id string) (*Task, error)
	Cancel(ctx context.Context, id string) (*Task, error)
}

// A TaskKeeper is a [Node] that keeps tasks.
type TaskKeeper interface{ Tasks() Tasks }

// A PathFinder is a [Node] that tells how a thing is reached: its ways, best first. The error is that of Directory.Get.
type PathFinder interface {
	Paths(ctx context.Context, ref string) ([]Path, error)
}

// A Pinger is a [Node] that measures how far away the host of a thing is, n times. The error is that of Directory.Get, or
// Unreachable.
type Pinger interface {
	Ping(ctx context.Context, ref string, n int) (*Ping, error)
}

// Task is one run of an action: GET /v1/tasks/{id}.
type Task struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"` // Task; both are left out in lists
	ID         string `json:"id"`             // the actionID
	Thing      string `json:"thing"`          // exact reference
	Name       string `json:"name"`           // of the thing
	Action     string `json:"action"`
	Status     string `json:"status"` // pending, running, input-required, completed, failed, cancelled, or unknown: its host does not say
	// LastStatus is the state that was heard of last, of one whose state is unknown; Reason is why it is. LastHeard is when a state was
	// heard of that is not final and was not asked for now.
	LastStatus string          `json:"last_status,omitempty"`
	LastHeard  time.Time       `json:"last_heard,omitzero"`
	Reason     string          `json:"reason,omitempty"`
	Output     json.RawMessage `json:"output,omitempty"`
	Error      json.RawMessage `json:"error,omitempty"`  // RFC 9457
	Inputs     interact.Inputs `json:"inputs,omitempty"` // what it wants to know, of one that is input-required
	Requested  time.Time       `json:"requested,omitzero"`
	Ended      time.Time       `json:"ended,omitzero"`
}

// UnknownTask is the Status of a task whose host does not say how it stands.
const UnknownTask = "unknown"

// maxReason bounds why the state of a task is not known, in bytes.
const maxReason = 300

// Doubt makes the state of t unknown: what was heard of last is its last status.
func (t *Task) Doubt(why error) {
	t.LastStatus, t.Status = t.Status, UnknownTask
	t.Reason = interact.Clip(interact.Readable(why.Error()), maxReason)
	if interact.AsError(why).Code == interact.NoTask {
		t.Reason = "its host does not know it any more: it has ended ten minutes ago or more, or the host was started anew"
	}
}

// Final reports whether the run has ended.
func (t *Task) Final() bool { return interact.StatusOf(t.Status).Final() }

// TaskList is GET /v1/tasks.
type TaskList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // TaskList
	Items      []Task `json:"items"`
}

// Path is one way to a thing; PathList is GET /v1/paths/{ref}.
type Path struct {
	Name string  `json:"name"` // "mesh", or scheme and subprotocol: "https", "ws lmosprotocol"
	Href string  `json:"href,omitempty"`
	Down bool    `json:"down"`              // it failed lately
	Took float64 `json:"took_ms,omitempty"` // on average; 0: not known
}

// PathList is GET /v1/paths/{ref}: the ways to a thing, best first.
type PathList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // PathList
	Ref        string `json:"ref"`  // as it was asked for
	Items      []Path `json:"items"`
}

// Ping is POST /v1/ping/{ref}: how far away the host of a thing is.
type Ping struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"` // Ping
	Ref        string    `json:"ref"`  // exact
	Node       did.DID   `json:"node"` // the host
	Path       string    `json:"path"` // "local", "mesh quic-v1"
	RTT        []float64 `json:"rtt_ms"`
}

const (
	maxPings = 100
	pingTime = time.Minute // for all of one request
)

// named returns the methods of routes that end with a name, by what stands before it.
func (g *Gateway) named() map[string]map[string]http.Handler {
	return map[string]map[string]http.Handler{
		"/v1/agents/": g.agentMethods(),
		"/v1/tasks/":  {http.MethodGet: g.guarded(read, g.getTask), http.MethodDelete: g.guarded(admin, g.cancelTask)},
		"/v1/move/":   {http.MethodPost: g.guarded(admin, g.postMove)},
		"/v1/paths/":  {http.MethodGet: g.guarded(read, g.paths)},
		"/v1/ping/":   {http.MethodPost: g.guarded(call, g.ping)},
	}
}

// lacks says that this node does not have something.
func lacks(what string) error {
	return interact.Errorf(interact.NoAffordance, "lmosd status", "this node keeps no %s", what)
}

func (g *Gateway) tasks() (Tasks, error) {
	if k, ok := g.o.Node.(TaskKeeper); ok {
		return k.Tasks(), nil
	}
	return nil, lacks("tasks")
}

// listTasks lists nothing for a node that keeps nothing.
func (g *Gateway) listTasks(w http.ResponseWriter, r *http.Request) error {
	q, err := params(r, "known")
	if err != nil {
		return err
	}
	known, err := yes(q, "known")
	if err != nil {
		return err
	}
	list := TaskList{APIVersion: APIVersion, Kind: "TaskList", Items: []Task{}}
	switch t, err := g.tasks(); {
	case err != nil:
	case known:
		list.Items = append(list.Items, t.Known()...)
	default:
		list.Items = append(list.Items, t.List(r.Context())...)
	}
	return writeJSON(w, http.StatusOK, list)
}

func (g *Gateway) getTask(w http.ResponseWriter, r *http.Request) error {
	t, err := g.tasks()
	if err != nil {
		return err
	}
	task, err := t.Get(r.Context(), r.PathValue("ref"))
	return writeTask(w, task, err)
}

func (g *Gateway) cancelTask(w http.ResponseWriter, r *http.Request) error {
	t, err := g.tasks()
	if err != nil {
		return err
	}
	task, err := t.Cancel(r.Context(), r.PathValue("ref"))
	return writeTask(w, task, err)
}

func writeTask(w http.ResponseWriter, task *Task, err error) error {
	if err != nil {
		return err
	}
	shown := *task
	shown.APIVersion, shown.Kind = APIVersion, "Task"
	return writeJSON(w, http.StatusOK, shown)
}

func (g *Gateway) paths(w http.ResponseWriter, r *http.Request) error {
	f, ok := g.o.Node.(PathFinder)
	if !ok {
		return lacks("paths")
	}
	ref := r.PathValue("ref")
	paths, err := f.Paths(r.Context(), ref)
	if err != nil {
		return err
	}
	list := PathList{APIVersion: APIVersion, Kind: "PathList", Ref: ref, Items: paths}
	if list.Items == nil {
		list.Items = []Path{}
	}
	return writeJSON(w, http.StatusOK, list)
}

func (g *Gateway) ping(w http.ResponseWriter, r *http.Request) error {
	p, ok := g.o.Node.(Pinger)
	if !ok {
		return lacks("measure of distance")
	}
	q, err := params(r, "n", "timeout")
	if err != nil {
		return err
	}
	n, err := whole(q, "n", 1, maxPings, 1)
	if err != nil {
		return err
	}
	wait, err := duration(q, "timeout", pingTime, pingTime)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	found, err := p.Ping(ctx, r.PathValue("ref"), n)
	if err != nil {
		return err
	}
	shown := *found
	shown.APIVersion, shown.Kind = APIVersion, "Ping"
	if shown.RTT == nil {
		shown.RTT = []float64{}
	}
	return writeJSON(w, http.StatusOK, shown)
}
