package node

import (
	"context"
	"net/http"
	"strings"

	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest"
)

// callbacks are the addresses at this node's own API: they are known once it listens, long after the bindings were made.
type callbacks struct{ *Node }

// Receive implements rest.Receiver.
func (c callbacks) Receive(ctx context.Context) (string, <-chan rest.Delivery, func(), error) {
	if c.Node.callbacks == nil {
		return "", nil, nil, interact.Errorf(interact.NotAllowed, "give the agent a form with sse or longpoll", "this node serves no HTTP at which an agent could call back")
	}
	return c.Node.callbacks.Receive(ctx)
}

// ServeHTTP takes what agents send.
func (c callbacks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c.Node.callbacks == nil {
		http.NotFound(w, r)
		return
	}
	c.Node.callbacks.ServeHTTP(w, r)
}

// openCallbacks begins to take callbacks, once the API has an address. Agents of this host call back, so that is the one to tell
// them.
func (n *Node) openCallbacks() {
	if api := n.API(); api != "" {
		n.callbacks = rest.NewCallbacks(api + strings.TrimSuffix(gateway.CallbacksPath, "/"))
	}
}
