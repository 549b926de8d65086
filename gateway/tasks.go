package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
)

// Tasks are the runs of actions of this node's agents or consumers: those that run and those that ended recently.
type Tasks interface {
	// List returns the tasks, newest first, with the states that their hosts report within some seconds; a state that is not reported is
	// unknown. Known returns the tasks with the last reported states and sends no request.
	List(ctx context.Context) []api.Task
	Known() []api.Task
	// Get returns the current state of a task. Cancel cancels one and returns its state. The error of both is an [*interact.Error] of code
	// NoTask, or that of the Thing.
	Get(ctx context.Context, id string) (*api.Task, error)
	Cancel(ctx context.Context, id string) (*api.Task, error)
}

const (
	maxPings = 100
	pingTime = time.Minute // for all pings of a request
)

// refRoutes returns the methods of the routes that end with a reference or an id, by the prefix of the path.
func (g *Gateway) refRoutes() map[string]map[string]http.Handler {
	return map[string]map[string]http.Handler{
		"/v1/agents/": g.agentMethods(),
		"/v1/tasks/":  {http.MethodGet: g.protect(read, g.getTask), http.MethodDelete: g.protect(admin, g.cancelTask)},
		"/v1/move/":   {http.MethodPost: g.protect(admin, g.postMove)},
		"/v1/paths/":  {http.MethodGet: g.protect(read, g.paths)},
		"/v1/ping/":   {http.MethodPost: g.protect(call, g.ping)},
	}
}

func (g *Gateway) tasks() (Tasks, error) {
	if g.o.Tasks == nil {
		return nil, interact.Errorf(interact.NoAffordance, "", "this node has no tasks").Then(interact.StepStatus)
	}
	return g.o.Tasks, nil
}

// listTasks returns an empty list for a node without tasks.
func (g *Gateway) listTasks(w http.ResponseWriter, r *http.Request) error {
	q, err := tdd.Params(r, "known")
	if err != nil {
		return err
	}
	known, err := tdd.Flag(q, "known", false)
	if err != nil {
		return err
	}
	list := api.TaskList{APIVersion: api.APIVersion, Kind: "TaskList", Items: []api.Task{}}
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

func writeTask(w http.ResponseWriter, task *api.Task, err error) error {
	if err != nil {
		return err
	}
	shown := *task
	shown.APIVersion, shown.Kind = api.APIVersion, "Task"
	return writeJSON(w, http.StatusOK, shown)
}

func (g *Gateway) paths(w http.ResponseWriter, r *http.Request) error {
	ref := r.PathValue("ref")
	paths, err := g.o.Presence.Paths(r.Context(), ref)
	if err != nil {
		return err
	}
	list := api.PathList{APIVersion: api.APIVersion, Kind: "PathList", Ref: ref, Items: paths}
	if list.Items == nil {
		list.Items = []api.Path{}
	}
	return writeJSON(w, http.StatusOK, list)
}

func (g *Gateway) ping(w http.ResponseWriter, r *http.Request) error {
	q, err := tdd.Params(r, "n", "timeout")
	if err != nil {
		return err
	}
	n, err := tdd.Integer(q, "n", 1, maxPings, 1)
	if err != nil {
		return err
	}
	wait, err := duration(q, "timeout", pingTime, pingTime)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	found, err := g.o.Presence.Ping(ctx, r.PathValue("ref"), n)
	if err != nil {
		return err
	}
	shown := *found
	shown.APIVersion, shown.Kind = api.APIVersion, "Ping"
	if shown.RTT == nil {
		shown.RTT = []float64{}
	}
	return writeJSON(w, http.StatusOK, shown)
}
