package node

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/td"
)

// Tasks are the long actions that consumers of this node began, here or elsewhere. It implements gateway.TaskKeeper.
func (n *Node) Tasks() gateway.Tasks { return begun{n} }

// begun are the tasks of a node's consumers: their places are in its ledger, their states at the things' hosts.
type begun struct{ *Node }

// Known returns what the ledger says: it sends no request.
func (b begun) Known() []api.Task {
	var all []api.Task
	for _, e := range b.ledger.List() {
		all = append(all, b.noted(e))
	}
	return all
}

// Bounds of asking how tasks stand.
const (
	listTime   = 3 * time.Second // in all
	listAtOnce = 16
	maxListed  = 256 // of those that have not ended, the newest
)

// List asks the hosts of tasks that have not ended how they stand, many at once.
func (b begun) List(ctx context.Context) []api.Task {
	all := b.Known()
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	var g sync.WaitGroup
	defer g.Wait()
	places, open := make(chan struct{}, listAtOnce), 0
	for i := range all {
		if all[i].Final() {
			continue
		}
		if open++; open > maxListed {
			all[i].Doubt(errors.New("there are too many to ask after all"))
			continue
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			all[i].Doubt(interact.AsError(ctx.Err()))
			continue
		}
		g.Go(func() {
			defer func() { <-places }()
			b.now(ctx, &all[i])
		})
	}
	return all
}

// now brings a task of the ledger up to date. A host that is known to be unreachable is not waited for.
func (b begun) now(ctx context.Context, t *api.Task) {
	ref := td.ParseRef(t.Thing)
	for d := range b.dir.FindLocal(td.Query{ID: ref.Name, Limit: 8}) {
		if ref.Match(d) && !b.Hosted(d) && !slices.ContainsFunc(d.Record.Hosts, func(h td.Host) bool { return !b.dir.IsDown(h.Node) }) {
			t.Doubt(errors.New("no host of " + t.Name + " can be reached"))
			return
		}
	}
	fresh, err := b.Get(ctx, t.ID)
	if err != nil {
		t.Doubt(err)
		return
	}
	fresh.Output = nil // a list shows none
	*t = *fresh
}

// Get asks the thing's host.
func (b begun) Get(ctx context.Context, id string) (*api.Task, error) {
	return b.ask(ctx, interact.QueryAction, id)
}

// Cancel asks the thing's host to end the run.
func (b begun) Cancel(ctx context.Context, id string) (*api.Task, error) {
	return b.ask(ctx, interact.CancelAction, id)
}

func (b begun) ask(ctx context.Context, typ interact.Type, id string) (*api.Task, error) {
	e, ok := b.ledger.Get(id)
	if !ok {
		return nil, interact.Errorf(interact.NoTask, "see the tasks of this node", "no task %q was begun here", id).Then(interact.StepTasks)
	}
	r, err := interact.Call(ctx, b.mesh, &interact.Message{Type: typ, From: e.By, Thing: e.Thing, Name: e.Action, ActionID: id})
	if err != nil {
		return nil, err
	}
	t := b.noted(e)
	t.LastHeard = time.Time{}
	if t.Status = r.Status.String(); !r.Began.IsZero() {
		t.Requested = r.Began
	}
	if r.Status.Final() {
		t.Ended = r.Time
	}
	switch {
	case len(r.Data) == 0:
	case r.Status == interact.StatusFailed:
		t.Error = r.Data
	case r.Status == interact.StatusInputRequired:
		t.Inputs = asked(r)
	default:
		t.Output = asOutput(r)
	}
	return &t, nil
}

// asked is what a run wants to know. What cannot be read is not shown: nobody could answer it.
func asked(r *interact.Message) (in interact.Inputs) {
	if data, _, err := interact.Transcode(r.Data, r.Media(), interact.JSON); err == nil {
		_ = json.Unmarshal(data, &in)
	}
	return in
}

// asOutput returns the data of r as JSON: what is no JSON is a string.
func asOutput(r *interact.Message) json.RawMessage {
	data, media, err := interact.Transcode(r.Data, r.Media(), interact.JSON)
	if err == nil && td.IsJSON(media) && json.Valid(data) {
		return data
	}
	text, _ := json.Marshal(string(r.Data)) // a string always has a JSON form
	return text
}

// noted is what the ledger says of a task.
func (b begun) noted(e task.Entry) api.Task {
	t := api.Task{ID: e.ActionID, Thing: e.Thing, Name: e.Thing, Action: e.Action, Status: e.State.String(), Requested: e.Began, Ended: e.Ended}
	if !e.State.Final() {
		t.LastHeard = e.Heard
	}
	r := td.ParseRef(e.Thing)
	for d := range b.dir.FindLocal(td.Query{ID: r.Name, Limit: 8}) {
		if r.Match(d) {
			t.Name = d.Name()
		}
	}
	return t
}

// Paths returns the ways to a thing, best first. It implements gateway.PathFinder.
func (n *Node) Paths(ctx context.Context, ref string) ([]api.Path, error) {
	t, err := n.dir.Locate(ctx, ref)
	if err != nil {
		return nil, err
	}
	far, ok := t.(*servient.Consumed)
	if !ok {
		return []api.Path{{Name: "local"}}, nil
	}
	var all []api.Path
	for _, s := range far.Paths.States(time.Now()) {
		all = append(all, api.Path{Name: s.Name, Down: s.Down, Took: ms(s.Took)})
	}
	return all, nil
}

// Ping measures the way to the host of a thing, times times. It implements gateway.Pinger.
func (n *Node) Ping(ctx context.Context, ref string, times int) (*api.Ping, error) {
	d, err := n.dir.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	p := &api.Ping{Ref: d.Ref(), Node: n.DID(), Path: "local", RTT: make([]float64, 0, times)}
	if n.offered.Has(d) {
		for range times {
			p.RTT = append(p.RTT, 0)
		}
		return p, nil
	}
	for _, h := range d.Record.Hosts {
		transport, all, failed := n.peers.Ping(ctx, h.Node, times)
		if err = failed; err == nil {
			p.Node, p.Path = h.Node, "mesh "+transport
			for _, rtt := range all {
				p.RTT = append(p.RTT, float64(rtt)/float64(time.Millisecond))
			}
			return p, nil
		}
	}
	return nil, &interact.Error{Code: interact.Unreachable, Title: "no host of " + d.Name() + " answers a ping", Err: err,
		Hint: "see where it is", Next: interact.Next(interact.StepShow, ref)}
}
