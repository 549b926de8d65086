package node

import (
	"context"
	"io"
	"iter"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/td"
)

// looking is a bridge that checks the messages in the tunnels of one Thing.
type looking struct{ bridge.Bridge }

func (looking) Name() string { return "looking" }

func (looking) Guard(d *td.Thing, judge bridge.PolicyCheck) interact.Middleware {
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
	o.Policy = anyoneCalls(policy.Rules{PerPeer: 1e-6, Burst: 2})
	n := start(t, o)
	stranger := didtest.NewKey().DID()
	for name, refusedFrom := range map[string]int{"tunnel": 2, "plain": 9} {
		draft, err := td.Draft([]byte(`{"id":"urn:x:` + name + `","title":"x","actions":{"` + name + `":{}}}`))
		if err != nil {
			t.Fatal(err)
		}
		p, err := n.Offer(t.Context(), draft, interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return interact.One(m.Reply(interact.ActionStatus, "", nil))
		}))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			_, err := interact.Call(t.Context(), n.mesh.index.Get(p.ID).Agent, &interact.Message{Type: interact.InvokeAction, Thing: p.ID, Name: name, From: did.NodePrincipal(stranger, "")})
			if got := interact.AsError(err); (got != nil) != (i >= refusedFrom) || got != nil && got.Code != interact.RateLimited {
				t.Errorf("%s, message %d: %v", name, i, err)
			}
		}
	}
}

// passing is a bridge that looks at nothing that comes through the tunnel of a thing.
type passing struct{ bridge.Bridge }

func (passing) Name() string { return "passing" }

func (passing) Guard(d *td.Thing, _ bridge.PolicyCheck) interact.Middleware {
	if d.Actions["tunnel"] == nil {
		return nil
	}
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if m.Chunks == nil {
				return t.Do(ctx, m)
			}
			return bridge.Accept(ctx, m, func(ctx context.Context, stream io.ReadWriteCloser) error {
				inside := bridge.Dial(ctx, t, m)
				defer inside.Close()
				_, err := io.Copy(stream, inside)
				return err
			})
		})
	}
}

// A panic of an in-process agent fails only the call that caused it, also for a call over the mesh and behind a guard of its tunnel.
func TestAgentsThatPanic(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Bridges = []bridge.Bridge{passing{}}
	host, consumer := start(t, o), start(t, quiet())
	connect(t, consumer, host)
	draft, err := td.Draft([]byte(`{"id":"urn:x:shaky","title":"Shaky","actions":{"now":{"synchronous":true},"later":{},"tunnel":{}},
		"properties":{"is":{"type":"string","observable":true}},"events":{"said":{}}}`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := host.Offer(t.Context(), draft, interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(func(*interact.Message, error) bool) { panic("broken") }
	}))
	if err != nil {
		t.Fatal(err)
	}
	knows(t, consumer, p.Ref)
	for name, kind := range map[string]interact.Type{"now": interact.InvokeAction, "later": interact.InvokeAction, "is": interact.ReadProperty,
		"is, observed": interact.ObserveProperty, "said": interact.SubscribeEvent} {
		name, _, _ = strings.Cut(name, ",")
		var last error
		for _, err := range asConsumer(consumer).Do(t.Context(), &interact.Message{Type: kind, Thing: p.Ref, Name: name}) {
			if last = err; err != nil {
				break
			}
		}
		if codeOf(last) != interact.Internal {
			t.Errorf("%v of %s: %v", kind, name, last)
		}
	}
	tunnel := bridge.Dial(t.Context(), asConsumer(consumer), &interact.Message{Thing: p.Ref, Name: "tunnel"})
	defer tunnel.Close()
	if _, err := tunnel.Read(make([]byte, 1)); codeOf(err) != interact.Internal {
		t.Errorf("the tunnel: %v", err)
	}
}
