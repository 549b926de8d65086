package facade

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/td"
)

// owner is whose things they all are.
const owner = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")

// A hamlet is a mesh of a few things in memory, by reference. Those without a thing are away.
type hamlet struct {
	runner *task.Runner

	mu     sync.Mutex
	seq    uint64
	descs  []*td.Description
	things map[string]interact.Thing
	asked  []*interact.Message // of all things
}

func newHamlet(t testing.TB) *hamlet {
	h := &hamlet{runner: task.New(task.Options{}), things: map[string]interact.Thing{}}
	t.Cleanup(h.runner.Close)
	return h
}

// settle describes a thing; nil is away.
func (h *hamlet) settle(t testing.TB, id, doc string, thing interact.Thing) string {
	t.Helper()
	var draft map[string]any
	if err := json.Unmarshal([]byte(doc), &draft); err != nil {
		t.Fatal(err)
	}
	draft["id"] = id
	d := verified(t, written(draft))
	if d == nil {
		t.Fatalf("%s is no description", doc)
		return ""
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	d.Record.Thing, d.Record.Hash = id, [32]byte{byte(h.seq)}
	h.descs = append(h.descs, d)
	if thing != nil {
		h.things[d.Ref()] = h.runner.Wrap(d.Thing)(thing)
	}
	return d.Ref()
}

// verified makes a description of a TD, as a node would have it; nil if it is none.
func verified(t testing.TB, raw []byte) *td.Description {
	t.Helper()
	raw, err := td.Draft(raw)
	if err != nil {
		return nil
	}
	parsed, err := td.Parse(raw)
	if err != nil {
		return nil
	}
	return &td.Description{Thing: parsed, Record: &td.Record{Owner: owner, Thing: parsed.ID, Title: parsed.Title}}
}

// leave makes a thing go.
func (h *hamlet) leave(ref string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	for i, d := range h.descs {
		if d.Ref() == ref {
			h.descs = append(h.descs[:i:i], h.descs[i+1:]...)
			return
		}
	}
}

func (h *hamlet) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	h.mu.Lock()
	thing := h.things[m.Thing]
	h.asked = append(h.asked, m)
	h.mu.Unlock()
	if thing == nil {
		return interact.Fail(interact.Errorf(interact.Unreachable, "wait for it", "%s is away", m.Thing))
	}
	return thing.Do(ctx, m)
}

func (h *hamlet) Get(_ context.Context, ref string) (*td.Description, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := td.ParseRef(ref)
	for _, d := range h.descs {
		if d.Ref() == ref || r.Match(d) {
			return d, nil
		}
	}
	return nil, interact.Errorf(interact.NotFound, "lmosd find", "no agent matches %q", ref)
}

func (h *hamlet) Find(context.Context, td.Query) iter.Seq2[*td.Description, error] {
	return func(yield func(*td.Description, error) bool) {
		h.mu.Lock()
		all := append([]*td.Description(nil), h.descs...)
		h.mu.Unlock()
		for _, d := range all {
			if !yield(d, nil) {
				return
			}
		}
	}
}

func (h *hamlet) Rank(_ context.Context, _ td.Query, found []*td.Description) (all []directory.Ranked) {
	for _, d := range found {
		all = append(all, directory.Ranked{Description: d})
	}
	return all
}

func (h *hamlet) Latest() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seq
}

// Watch says nothing: nothing changes while somebody watches.
func (h *hamlet) Watch(ctx context.Context, _ td.Query, _ uint64) iter.Seq2[directory.Change, error] {
	return func(yield func(directory.Change, error) bool) {
		<-ctx.Done()
		yield(directory.Change{}, ctx.Err())
	}
}

// at serves a hamlet at a node of that name.
func at(t testing.TB, m Mesh, node string, pins ...string) string {
	t.Helper()
	h := New(Options{Mesh: m, Pins: pins, Node: node})
	mux := http.NewServeMux()
	for _, path := range h.Paths() {
		mux.Handle(path, h)
	}
	s := httptest.NewServer(mux)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		h.Close()
	})
	return s.URL
}

// clerkTD has an action that asks something, and one that takes long.
const clerkTD = `{"title":"Desk","actions":{"confirm":{"input":{"type":"string"},"output":{"type":"string"}},"dig":{"synchronous":false}}}`

// A clerk answers as clerkTD says.
type clerk struct{ park interact.Parking }

func (c *clerk) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		switch {
		case m.Type == interact.ContinueAction:
			yield(c.park.Continue(m))
		case m.Name == "dig":
			<-ctx.Done()
			yield(nil, ctx.Err())
		default:
			answers, left, err := c.park.Ask(ctx, m, interact.Inputs{"sure": {Kind: interact.InputForm, Message: "Sure?",
				Schema: json.RawMessage(`{"type":"object","properties":{"yes":{"type":"boolean"}}}`)}}, yield)
			if left || err != nil {
				return
			}
			r := m.Reply(interact.ActionStatus, "", written(answers["sure"].Action))
			r.Status = interact.StatusCompleted
			yield(r, nil)
		}
	}
}

// inert is a thing that answers nothing.
var inert = interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return interact.Fail(interact.Errorf(interact.NoAffordance, "", "it has no %s", m.Name))
})
