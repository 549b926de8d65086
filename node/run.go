package node

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/internal/storage"
)

// Run works until ctx ends, then drains: new calls are refused with ShuttingDown, running ones have eight seconds to finish,
// nothing that should live on is withdrawn. It returns after its last goroutine has, within about ten seconds; [Node.Close]
// then cuts the calls that are left. It is called once.
func (n *Node) Run(ctx context.Context) error {
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, work := errgroup.WithContext(base)
	for _, run := range []func(context.Context) error{
		n.dht.Run, n.gossip.Run, n.sync.Run, n.suspicion.Run, n.dir.Run, n.streams.Run, n.servient.Run, n.runListeners,
		n.publisher.Run, n.presence.Run, n.bootstrap.Run, n.runMDNS, n.runLocal,
		n.awaitRoom,
	} {
		g.Go(func() error { return n.ended(work, run(work)) })
	}
	g.Go(func() error {
		defer stop() // Only now: what runs below is what draining calls still need.
		return n.serve(ctx, work)
	})
	return g.Wait()
}

// drainFor bounds how long running calls are waited for.
const drainFor = 8 * time.Second

// serve answers until ctx ends, or something here failed, and then waits for what still runs.
func (n *Node) serve(ctx, work context.Context) error {
	var g errgroup.Group
	until, enough := context.WithCancel(ctx)
	defer enough()
	defer context.AfterFunc(work, enough)()
	g.Go(func() error {
		defer enough() // A node that nobody can ask is not left running.
		return ignoreEnd(n.gateway.Run(until))
	})
	<-until.Done()
	idle := n.gate.Close()
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.drainFor)
	defer cancel()
	g.Go(func() error { n.servient.Drain(patient); return nil })
	n.streams.Drain(patient)
	select { // Calls over HTTP have ended with the gateway; others come by WebSocket, MQTT and CoAP.
	case <-idle:
	case <-patient.Done():
	}
	return g.Wait()
}

// Close releases what New opened, in reverse order.
func (n *Node) Close() error {
	n.beginning.Lock()
	n.end()
	n.beginning.Unlock()
	n.work.Wait()
	var errs []error
	for i := len(n.closers) - 1; i >= 0; i-- {
		err := n.closers[i]()
		errs = append(errs, n.ended(n.life, err))
	}
	n.closers = nil
	return errors.Join(errs...)
}

// ended returns what went wrong with what ran until ctx ended. That the last of a cache could not be stored is nothing of that: what must
// survive is on the disk since it was acknowledged.
func (n *Node) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && storage.Full(err) {
		n.log.Warn("the disk is full: caches are not stored", "err", err)
		return nil
	}
	return ignoreEnd(err)
}

// awaitRoom has a store that was opened on a full disk take changes again, and offers then what had to be signed anew for that.
func (n *Node) awaitRoom(ctx context.Context) error {
	if n.stores.Run(ctx) {
		return n.openPublications()
	}
	return nil
}

func ignoreEnd(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (n *Node) runMDNS(ctx context.Context) error {
	if !n.opts.MDNS {
		return nil
	}
	return n.bootstrap.RunMDNS(ctx, n.opts.Network)
}

// later runs f beside everything else; its context ends with the node. Once the node ends nothing is begun, and later reports so.
func (n *Node) later(f func(ctx context.Context)) bool {
	n.beginning.Lock()
	defer n.beginning.Unlock()
	if n.life.Err() != nil {
		return false
	}
	n.work.Go(func() { f(n.life) })
	return true
}
