package nat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/testnet"
)

// Times of a pair.
const (
	joinFor   = 60 * time.Second // until a node has two relays, on a machine that others use
	answerMax = 30 * time.Second // the time-out of an interaction
)

// Run measures the pairs, then the scenarios. The error is that of a machine on which this is not possible, of a router that is not of its kind,
// or of nodes that do not start; what was measured and is not as it must be is in the report ([Report.OK]).
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := Missing(); err != nil {
		return nil, err
	}
	o.Delay, o.Seed, o.Jobs, o.Punch = cmp.Or(o.Delay, 10*time.Millisecond), cmp.Or(o.Seed, 1), cmp.Or(o.Jobs, 1), cmp.Or(o.Punch, 20*time.Second)
	r := &Report{Seed: o.Seed, Delay: milliseconds(o.Delay), Pairs: []Result{}, Steps: []Step{}}
	for _, t := range []Transport{QUIC, TCP} {
		pairs := slices.DeleteFunc(slices.Clone(o.Pairs), func(p Pair) bool { return p.Transport != t })
		if err := r.measure(ctx, o, t, pairs); err != nil {
			return r, err
		}
	}
	for _, name := range o.Scenarios {
		if err := r.play(ctx, o, name); err != nil {
			return r, err
		}
	}
	return r, ctx.Err()
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// measure adds the rows of pairs over one transport, in their order.
func (r *Report) measure(ctx context.Context, o Options, t Transport, pairs []Pair) (err error) {
	if len(pairs) == 0 {
		return nil
	}
	w, err := newWorld(ctx, o, worldSpec{name: string(t), transports: []Transport{t}, port: p2pPort})
	if err != nil {
		return err
	}
	defer func() {
		r.Routers += int(w.verified.Load())
		err = errors.Join(err, w.close())
	}()
	results := make([]Result, len(pairs))
	var shown sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.Jobs)
	for i, p := range pairs {
		g.Go(func() (err error) {
			if results[i], err = w.pair(ctx, p); err == nil && o.OnResult != nil {
				shown.Lock()
				defer shown.Unlock()
				o.OnResult(results[i])
			}
			return err
		})
	}
	err = g.Wait()
	r.Pairs = append(r.Pairs, results...)
	return err
}

// A couple is a node that calls and one that is called, both new, with two relays each.
type couple struct {
	caller, called *node
	agent          *agent
}

// meet starts two nodes on two machines, and waits until they have two relays each and the first knows the agent of the second one.
func (w *world) meet(ctx context.Context, caller, called func() (*Machine, error)) (c *couple, err error) {
	c = &couple{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	g, start := errgroup.WithContext(ctx)
	for _, side := range []struct {
		machine func() (*Machine, error)
		node    **node
	}{{caller, &c.caller}, {called, &c.called}} {
		g.Go(func() error {
			m, err := side.machine()
			if err != nil {
				return err
			}
			n, err := w.start(start, m, "--mesh.dht.mode=client") // servers connect to each other before a call
			if *side.node = n; err != nil {
				return err
			}
			return w.join(start, n)
		})
	}
	if err := g.Wait(); err != nil {
		return c, err
	}
	if c.agent, err = c.called.publish(ctx); err != nil {
		return c, err
	}
	return c, c.caller.until(ctx, joinFor, "it knows the agent", func(ctx context.Context) bool {
		s, err := c.caller.Status(ctx)
		return err == nil && s.Agents.Known > 0
	})
}

// join makes a node a member, and waits until it has two relays.
func (w *world) join(ctx context.Context, n *node) error {
	if err := w.admit(ctx, n); err != nil {
		return err
	}
	return w.reserve(ctx, n)
}

// reserve waits until a node has two relays.
func (w *world) reserve(ctx context.Context, n *node) error {
	err := n.until(ctx, joinFor, "it has two relays", func(ctx context.Context) bool { return len(n.circuits(ctx)) >= 2 })
	n.reserved = time.Since(n.started)
	return err
}

// close stops both nodes and the agent.
func (c *couple) close() error {
	var err error
	if c.agent != nil {
		err = c.agent.server.Close()
	}
	for _, n := range []*node{c.caller, c.called} {
		if n != nil {
			err = errors.Join(err, n.close())
		}
	}
	return err
}

// pair measures one pair with new nodes behind new routers.
func (w *world) pair(ctx context.Context, p Pair) (r Result, err error) {
	c, err := w.meet(ctx, func() (*Machine, error) { return w.behindNew(p.Caller) }, func() (*Machine, error) { return w.behindNew(p.Called) })
	if err != nil {
		return r, fmt.Errorf("%s calls %s over %s: %w", p.Caller, p.Called, p.Transport, err)
	}
	r = Result{Pair: p, Path: None, Reserved: milliseconds(c.called.reserved)}
	if before := c.caller.path(ctx, c.called.DID); before != None {
		r.Before = before
	}
	c.measure(ctx, &r, w.o.Punch)
	return r, c.close()
}

// measure makes the interactions of a row, and waits for a direct connection.
func (c *couple) measure(ctx context.Context, r *Result, punch time.Duration) {
	fail := func(what string, err error) bool {
		if err != nil {
			r.Err = what + ": " + err.Error()
		}
		return err == nil
	}
	call, cancel := context.WithTimeout(ctx, answerMax)
	defer cancel()
	start := time.Now()
	took, err := c.caller.ping(call, c.agent)
	if r.Unary = fail("call", err); !r.Unary {
		return
	}
	r.First, r.Path = milliseconds(took), c.caller.path(ctx, c.called.DID)
	if r.Path == Direct {
		r.Direct = r.First
	}
	direct := make(chan time.Duration, 1)
	go func() {
		wait, stop := context.WithTimeout(ctx, punch)
		defer stop()
		_ = testnet.Until(wait, "direct", func() bool { return c.caller.path(wait, c.called.DID) == Direct }) // else its time is not used
		direct <- time.Since(start)
	}()
	r.Stream = fail("stream", c.caller.download(call, c.agent))
	r.Events = fail("subscription", c.caller.listen(call, c.agent, 3))
	took = <-direct
	if r.Path != Direct && c.caller.path(ctx, c.called.DID) == Direct {
		r.Path, r.Direct = Punched, milliseconds(took)
	}
}
