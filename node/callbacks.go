package node

import (
	"context"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest"
)

// callbacksPath is where agents of this host call back (WoT Profile §7.3).
const callbacksPath = "/callbacks/"

// callbacks are the addresses at this node's own API: they are known once it listens, long after the bindings were made.
type callbacks struct{ *Node }

// Receive implements rest.Receiver.
func (c callbacks) Receive(ctx context.Context) (string, <-chan rest.Delivery, func(), error) {
	if c.Node.callbacks == nil {
		return "", nil, nil, interact.Errorf(interact.NotAllowed, "give the agent a form with sse or longpoll", "this node serves no HTTP at which an agent could call back")
	}
	return c.Node.callbacks.Receive(ctx)
}
