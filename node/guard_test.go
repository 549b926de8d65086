package node

import (
	"context"
	"iter"
	"testing"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/td"
)

// looking is a bridge that has what comes through the tunnels of one thing judged.
type looking struct{ bridge.Bridge }

func (looking) Name() string { return "looking" }

func (looking) Guard(d *td.Thing, judge bridge.Judge) interact.Wrap {
	if d.Actions["tunnel"] == nil {
		return nil
	}
	return func(interact.Thing) interact.Thing {
		return interact.Unary(func(ctx context.Context, m *interact.Message) (*interact.Message, error) {
			return m.Reply(interact.ActionStatus, "", nil), judge(ctx, &interact.Message{Type: interact.InvokeAction, Thing: d.ID, Name: "say", From: m.From})
		})
	}
}

// The policy of a node holds for each message in the tunnels of its agents.
func TestGuards(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Bridges = []bridge.Bridge{looking{}}
	o.Policy = policy.Rules{PerPeer: 1e-6, Burst: 2}
	n := start(t, o)
	stranger := newKey(t).DID()
	for name, refusedFrom := range map[string]int{"tunnel": 2, "plain": 9} {
		draft, err := td.Draft([]byte(`{"id":"urn:x:` + name + `","title":"x","actions":{"` + name + `":{}}}`))
		if err != nil {
			t.Fatal(err)
		}
		of, _, err := n.offers.publish(t.Context(), draft, interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return interact.One(m.Reply(interact.ActionStatus, "", nil))
		}), tdd.Registration{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			_, err := interact.Ask(t.Context(), of.bound, &interact.Message{Type: interact.InvokeAction, Thing: of.Thing, Name: name, From: stranger})
			if got := interact.AsError(err); (got != nil) != (i >= refusedFrom) || got != nil && got.Code != interact.RateLimited {
				t.Errorf("%s, message %d: %v", name, i, err)
			}
		}
	}
}
