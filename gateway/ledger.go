package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/td"
)

// LedgerTasks are the tasks that consumers of this node started, here or at other hosts. It implements [Tasks]: the ledger has the hosts of
// the tasks, and the hosts have their states.
type LedgerTasks struct {
	Ledger *task.Ledger
	Mesh   interact.Thing
	// Directory has the descriptions of the Things; no method sends a request.
	Directory interface {
		FindLocal(ctx context.Context, q td.Query) iter.Seq[*td.Description]
		IsDown(node did.DID) bool
	}
	Hosted func(d *td.Description) bool // reports whether this node hosts a Thing
}

// Known returns the content of the ledger; it sends no request.
func (l LedgerTasks) Known(ctx context.Context) []api.Task {
	var all []api.Task
	for _, e := range l.Ledger.List() {
		if l.IsVisible(ctx, e.Thing) {
			all = append(all, l.taskOf(ctx, e))
		}
	}
	return all
}

// IsVisible reports whether the caller of ctx may see the Thing of a task. A Thing that is not known any more is visible to consumers of this
// node.
func (l LedgerTasks) IsVisible(ctx context.Context, thing string) bool {
	if l.find(ctx, thing) != nil {
		return true
	}
	p := did.PrincipalOf(ctx)
	return p != nil && p.Relation == did.Local && l.find(did.AsProcess(ctx), thing) == nil
}

// OnChange implements [Tasks].
func (l LedgerTasks) OnChange(f func(e task.Entry, started bool)) { l.Ledger.OnChange(f) }

// find returns the description of a Thing, if the caller of ctx sees it; or nil.
func (l LedgerTasks) find(ctx context.Context, thing string) (found *td.Description) {
	ref := td.ParseRef(thing)
	for d := range l.Directory.FindLocal(ctx, td.Query{ID: ref.Name, Limit: 8}) {
		if ref.Match(d) {
			found = d
		}
	}
	return found
}

// Limits of requests for the states of tasks.
const (
	listTimeout   = 3 * time.Second // in all
	maxConcurrent = 16
	maxListed     = 256 // of those that have not ended, the newest
)

// List requests the states of tasks that have not ended from their hosts, concurrently.
func (l LedgerTasks) List(ctx context.Context) []api.Task {
	all := l.Known(ctx)
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var g sync.WaitGroup
	defer g.Wait()
	slots, unfinished := make(chan struct{}, maxConcurrent), 0
	for i := range all {
		if all[i].Final() {
			continue
		}
		if unfinished++; unfinished > maxListed {
			all[i].MarkUnknown(errors.New("too many tasks: no request was sent to its host"))
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			all[i].MarkUnknown(interact.AsError(ctx.Err()))
			continue
		}
		g.Go(func() {
			defer func() { <-slots }()
			l.update(ctx, &all[i])
		})
	}
	return all
}

// update updates a task of the ledger. It sends no request to a host that is known to be unreachable.
func (l LedgerTasks) update(ctx context.Context, t *api.Task) {
	ref := td.ParseRef(t.Thing)
	for d := range l.Directory.FindLocal(ctx, td.Query{ID: ref.Name, Limit: 8}) {
		if ref.Match(d) && !l.Hosted(d) && !slices.ContainsFunc(d.Record.Hosts, func(h td.Host) bool { return !l.Directory.IsDown(h.Node) }) {
			t.MarkUnknown(errors.New("no host of " + t.Name + " can be reached"))
			return
		}
	}
	fresh, err := l.Get(ctx, t.ID)
	if err != nil {
		t.MarkUnknown(err)
		return
	}
	fresh.Output = nil // lists have no output
	*t = *fresh
}

// Get requests the state of a task from its host.
func (l LedgerTasks) Get(ctx context.Context, id string) (*api.Task, error) {
	return l.request(ctx, interact.QueryAction, id)
}

// Cancel has the host cancel a task.
func (l LedgerTasks) Cancel(ctx context.Context, id string) (*api.Task, error) {
	return l.request(ctx, interact.CancelAction, id)
}

func (l LedgerTasks) request(ctx context.Context, typ interact.Type, id string) (*api.Task, error) {
	e, ok := l.Ledger.Get(id)
	if !ok || !l.IsVisible(ctx, e.Thing) {
		return nil, interact.Errorf(interact.NoTask, "see the tasks of this node", "this node has not started a task %q", id).
			Then(interact.StepTasks)
	}
	r, err := interact.Call(ctx, l.Mesh, &interact.Message{Type: typ, From: e.By, Thing: e.Thing, Name: e.Action, ActionID: id})
	if err != nil {
		return nil, err
	}
	t := l.taskOf(ctx, e)
	t.LastSeen = time.Time{}
	if t.Status = r.Status.String(); !r.Began.IsZero() {
		t.Requested = r.Began
	}
	if r.Status.Final() {
		t.Ended = r.Time
	}
	switch {
	case len(r.Data) == 0:
	case r.Status == interact.StatusFailed:
		t.Error = outputOf(r)
	case r.Status == interact.StatusInputRequired:
		t.Inputs = requiredInputs(r)
	default:
		t.Output = outputOf(r)
	}
	return &t, nil
}

// requiredInputs returns the inputs that a task requires; none if they are unreadable.
func requiredInputs(r *interact.Message) (in interact.Inputs) {
	if data, _, err := interact.Transcode(r.Data, r.Media(), interact.JSON); err == nil {
		_ = json.Unmarshal(data, &in)
	}
	return in
}

// outputOf returns the data of r as JSON, and other data as a JSON string.
func outputOf(r *interact.Message) json.RawMessage {
	data, media, err := interact.Transcode(r.Data, r.Media(), interact.JSON)
	if err == nil && td.IsJSON(media) && json.Valid(data) {
		return data
	}
	text, _ := json.Marshal(string(r.Data)) // strings always encode
	return text
}

// taskOf returns the task of an entry of the ledger.
func (l LedgerTasks) taskOf(ctx context.Context, e task.Entry) api.Task {
	t := api.Task{ID: e.ActionID, Thing: e.Thing, Name: e.Thing, Action: e.Action, Status: e.State.String(), Requested: e.Began, Ended: e.Ended}
	if !e.State.Final() {
		t.LastSeen = e.LastSeen
	}
	if d := l.find(ctx, e.Thing); d != nil {
		t.Name = d.Name()
	}
	return t
}
