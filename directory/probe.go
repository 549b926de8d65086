package directory

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
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

// probe probes nodes that are down, until ctx ends.
func (d *Directory) probe(ctx context.Context) {
	if d.opts.Probe == nil {
		return
	}
	var g sync.WaitGroup
	defer g.Wait()
	places := make(chan struct{}, probesAtOnce)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		node, wait := d.reach.next(time.Now())
		if node == "" {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			case <-d.reach.wake:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case places <- struct{}{}:
		}
		g.Go(func() {
			defer func() { <-places }()
			d.probeOne(ctx, node)
		})
	}
}

// probeOne probes one node. A node without Things is dropped.
func (d *Directory) probeOne(ctx context.Context, node did.DID) {
	if !d.Hosts(node) {
		d.reach.setReachable(node, true, time.Now())
		return
	}
	limited, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	d.count.probes.Add(1)
	if err := d.opts.Probe(limited, node); err != nil {
		d.reach.failed(node, time.Now())
		return
	}
	d.SetReachable(node, true)
}

// probeAfter returns the pause after a number of failed probes: it doubles, with a random part that spreads nodes which went down together.
func probeAfter(tries int) time.Duration {
	wait := min(probeFirst<<min(tries, 10), probeLast) * 4 / 5
	return wait + rand.N(wait/4)
}

// next returns a node that is due for a probe, or the time until the next one.
func (r *reach) next(now time.Time) (node did.DID, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := now.Add(probeLast)
	for n, o := range r.down {
		if !o.probing && o.next.Before(first) {
			node, first = n, o.next
		}
	}
	if node == "" || first.After(now) {
		return "", first.Sub(now)
	}
	r.down[node].probing = true
	return node, 0
}

// received processes the hosts of a new record: one that went down before the record was issued may be back, and is probed soon.
func (r *reach) recordReceived(hosts []td.Host, issued, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range hosts {
		o := r.down[h.Node]
		if o == nil || !issued.After(o.since) || now.Sub(o.broughtForward) < probeInterval {
			continue
		}
		o.broughtForward = now
		if soon := now.Add(rand.N(time.Second)); soon.Before(o.next) {
			o.next = soon
			r.wakeLocked()
		}
	}
}

// retry brings all probes forward.
func (r *reach) retry(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.down {
		o.tries = 0
		if soon := now.Add(rand.N(probeFirst)); soon.Before(o.next) {
			o.next = soon
		}
	}
	r.wakeLocked()
}

// failed records a failed probe.
func (r *reach) failed(node did.DID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o := r.down[node]; o != nil {
		o.tries++
		o.probing, o.next = false, now.Add(probeAfter(o.tries))
		r.wakeLocked()
	}
}
