package interact_test

import (
	"context"
	"fmt"
	"iter"

	"github.com/lmosd/lmosd/interact"
)

// A Thing with one action, a middleware that logs each message, and one call.
func Example() {
	greeter := interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		if m.Name != "greet" {
			return interact.Fail(interact.Errorf(interact.NoAffordance, "", "no action %q", m.Name))
		}
		return interact.One(&interact.Message{Type: interact.ActionStatus, Status: interact.StatusCompleted, Data: []byte(`"hello"`), ContentType: interact.JSON})
	})
	log := func(next interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			fmt.Println("invoke", m.Name)
			return next.Do(ctx, m)
		})
	}
	thing := interact.Chain(greeter, log)
	for _, name := range []string{"greet", "dance"} {
		reply, err := interact.Call(context.Background(), thing, &interact.Message{Type: interact.InvokeAction, Name: name})
		if err != nil {
			fmt.Println("error:", interact.AsError(err).Title)
			continue
		}
		fmt.Println(reply.Status, string(reply.Data))
	}
	// Output:
	// invoke greet
	// completed "hello"
	// invoke dance
	// error: no action "dance"
}
