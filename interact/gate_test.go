package interact

import (
	"context"
	"iter"
	"testing"
)

func TestGate(t *testing.T) {
	t.Parallel()
	var g Gate
	for range 2 {
		if !g.Enter() || g.Closed() {
			t.Fatal("an open gate is closed")
		}
	}
	idle := g.Close()
	if g.Enter() || !g.Closed() {
		t.Error("a closed gate is open")
	}
	g.Leave()
	select {
	case <-idle:
		t.Error("idle while one runs")
	default:
	}
	g.Leave()
	<-idle
	var unused Gate
	<-unused.Close()
}

// A running call is waited for, and may be queried and cancelled; a subscription is not waited for; new ones are refused.
func TestGateOfAThing(t *testing.T) {
	t.Parallel()
	var g Gate
	thing := Chain(Func(func(_ context.Context, m *Message) iter.Seq2[*Message, error] {
		return One(m.Reply(Acknowledgement, "", nil))
	}), g.Middleware())
	do := func(typ Type) error {
		for _, err := range thing.Do(t.Context(), &Message{Type: typ, Thing: "urn:x:a"}) {
			return err
		}
		return nil
	}
	var idle <-chan struct{}
	for range thing.Do(t.Context(), &Message{Type: SubscribeEvent}) { // goes on while the gate closes
		for _, err := range thing.Do(t.Context(), &Message{Type: InvokeAction}) {
			if err != nil {
				t.Fatal(err)
			}
			idle = g.Close()
			for typ, refused := range map[Type]bool{InvokeAction: true, ReadProperty: true, SubscribeEvent: true, ObserveProperty: true,
				QueryAction: false, CancelAction: false, ContinueAction: false} {
				if err := do(typ); (err != nil) != refused || refused && AsError(err).Code != ShuttingDown {
					t.Errorf("%s after the gate was closed: %v", typ.Op(), err)
				}
			}
			select {
			case <-idle:
				t.Error("idle while a call runs")
			default:
			}
		}
		<-idle
	}
}
