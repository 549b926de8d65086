package aggregator

import (
	"context"
	"iter"
	"testing"

	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// A lateMesh returns the id of an invocation only after its consumer has disconnected.
type lateMesh struct {
	*bridgetest.Mesh
	cancelled chan string // receives the ids of cancelled invocations
}

func (l lateMesh) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		switch m.Type {
		case interact.InvokeAction:
			<-ctx.Done()
			pending := m.ReplyStatus(interact.StatusPending, "", nil)
			pending.ActionID = "late"
			yield(pending, nil)
		case interact.CancelAction:
			l.cancelled <- m.ActionID
			yield(m.Reply(interact.Acknowledgement, "", nil), nil)
		}
	}
}

// A detached action is cancelled even if its client disconnects before the id of the action arrives.
func TestCancelBeforeTheIDArrives(t *testing.T) {
	t.Parallel()
	m, _ := newScriptedMesh(t)
	mesh := lateMesh{m, make(chan string, 1)}
	h := New(Options{Mesh: mesh})
	t.Cleanup(h.Close)
	found, err := m.Get(t.Context(), "desk")
	if err != nil {
		t.Fatal(err)
	}
	thing := newThing(h, found.Ref())
	t.Cleanup(thing.close)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := thing.Call(ctx, protocol.Request("1", protocol.CallTool, map[string]any{"name": "dig"}), protocol.Ignore); err == nil {
		t.Error("a cancelled call has a result")
	}
	if id := <-mesh.cancelled; id != "late" {
		t.Errorf("got %q cancelled, want late", id)
	}
}
