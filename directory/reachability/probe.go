package reachability

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
)

// Limits of probing.
const (
	probeFirst   = 5 * time.Second
	probeLast    = 5 * time.Minute
	probesAtOnce = 8
	probeTimeout = 10 * time.Second
	// probeInterval is the shortest interval at which new records bring a probe of their host forward.
	probeInterval = time.Minute
)

// probeAll probes nodes that are down, until ctx ends.
func (t *Tracker) probeAll(ctx context.Context) {
	var g sync.WaitGroup
	defer g.Wait()
	slots := make(chan struct{}, probesAtOnce)
	t.prober.Loop(ctx, func() time.Duration {
		for {
			node, wait := t.next(time.Now())
			if node == "" {
				return wait
			}
			select {
			case <-ctx.Done():
				return 0
			case slots <- struct{}{}:
			}
			g.Go(func() {
				defer func() { <-slots }()
				t.probe(ctx, node)
			})
		}
	})
}

// probe probes one node. A node without Things is dropped.
func (t *Tracker) probe(ctx context.Context, node did.DID) {
	if !t.o.Hosts(node) {
		t.setReachable(node, true, time.Now())
		return
	}
	limited, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	t.probes.Add(1)
	if err := t.o.Probe(limited, node); err != nil {
		t.probeFailed(node, time.Now())
		return
	}
	t.SetReachable(node, true)
}

// pause returns the pause until the next probe, less up to a fifth at random, which spreads nodes that went down together.
func (o *outage) pause() time.Duration {
	wait := o.pauses.Next() * 4 / 5
	return wait + rand.N(wait/4)
}

// next returns a node that is due for a probe, or the time until the next one.
func (t *Tracker) next(now time.Time) (node did.DID, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := now.Add(probeLast)
	for n, o := range t.down {
		if !o.probing && o.next.Before(first) {
			node, first = n, o.next
		}
	}
	if node == "" || first.After(now) {
		return "", first.Sub(now)
	}
	t.down[node].probing = true
	return node, 0
}

// Retry probes all nodes that are down within seconds, after this node itself was disconnected.
func (t *Tracker) Retry() {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.down {
		o.pauses.Reset()
		if soon := now.Add(rand.N(o.pauses.Next())); soon.Before(o.next) {
			o.next = soon
		}
	}
	t.prober.Wake()
}

// probeFailed records a failed probe.
func (t *Tracker) probeFailed(node did.DID, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.down[node]; o != nil {
		o.probing, o.next = false, now.Add(o.pause())
		t.prober.Wake()
	}
}
