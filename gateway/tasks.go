package gateway

import (
	"context"
	"net/http"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/task"
)

// Tasks are the runs of actions of this node's agents or consumers: those that run and those that ended recently. A task of a Thing that the
// caller of ctx may not see is unknown.
type Tasks interface {
	// List returns the tasks, newest first, with the states that their hosts report within some seconds; a state that is not reported is
	// unknown. Known returns the tasks with the last reported states and sends no request.
	List(ctx context.Context) []api.Task
	Known(ctx context.Context) []api.Task
	// Get returns the current state of a task. Cancel cancels one and returns its state. The error of both is an [*interact.Error] of code
	// NoTask, or that of the Thing.
	Get(ctx context.Context, id string) (*api.Task, error)
	Cancel(ctx context.Context, id string) (*api.Task, error)
	// IsVisible reports whether the caller of ctx may see the tasks of a Thing. It sends no request.
	IsVisible(ctx context.Context, thing string) bool
	// OnChange sets the function that is called after a task has started or its state has changed (task.Ledger.OnChange).
	OnChange(f func(e task.Entry, started bool))
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
		list.Items = append(list.Items, t.Known(r.Context())...)
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
