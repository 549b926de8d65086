package node

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// Run works until ctx ends, and then drains: new calls are refused with ShuttingDown, running calls have 8 s to finish, and publications stay
// in force. It returns after its last goroutine, within about 10 s; [Node.Close] then cancels the remaining calls. It is called once.
func (n *Node) Run(ctx context.Context) error { return n.life.run(ctx, n.serve) }

// serve serves until ctx or parts ends, and then waits for running calls.
func (n *Node) serve(ctx, parts context.Context) error {
	var g errgroup.Group
	until, enough := context.WithCancel(ctx)
	defer enough()
	defer context.AfterFunc(parts, enough)()
	g.Go(func() error {
		defer enough() // A node without its API does not run on.
		return ignoreEnd(n.gateway.Run(until))
	})
	<-until.Done()
	idle := n.gate.Close()
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.opts.Drain)
	defer cancel()
	g.Go(func() error { n.servient.Drain(patient); return nil })
	n.mesh.publisher.Drain(patient) // other hosts get the next calls
	n.mesh.streams.Drain(patient)
	select { // Calls over HTTP end with the gateway; this waits for those over WebSocket, MQTT and CoAP.
	case <-idle:
	case <-patient.Done():
	}
	return g.Wait()
}

// Close releases what New opened, in reverse order.
func (n *Node) Close() error { return n.life.close() }
