package suspicion

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
)

// Limits of probing.
const (
	probeJitter  = time.Second     // random wait before a probe, so that the nodes of a mesh do not dial at the same time
	probeTimeout = 3 * time.Second // per probe
	maxProbes    = 32
	probePause   = time.Minute     // minimum between probes of one host
	maxReported  = 1024            // hosts that peers reported and that are to be probed or were within probePause
	maxSuspects  = 2 * maxReported // with those that this node reports itself
	maxReporters = 128             // of one host
	sweepPause   = time.Second     // between removals of expired suspects
)

// A suspect is a host that was reported, by a peer or by this node.
type suspect struct {
	reporters []peer.ID // since the last probe or report
	report    bool      // to be sent to the peers
	probeAt   time.Time // when to probe; zero: never
	probing   bool
	probedAt  time.Time // the last probe
}

// expired reports whether s is the same as a new suspect.
func (s *suspect) expired(now time.Time) bool {
	return !s.report && !s.probing && s.probeAt.IsZero() && now.Sub(s.probedAt) >= probePause
}

// suspectLocked returns the suspect of a host, or nil if there are limit others.
func (d *Detector) suspectLocked(host did.DID, limit int, now time.Time) *suspect {
	s := d.suspects[host]
	if s != nil {
		return s
	}
	if len(d.suspects) >= limit && now.Sub(d.swept) >= sweepPause {
		d.swept = now
		for h, old := range d.suspects {
			if old.expired(now) {
				delete(d.suspects, h)
			}
		}
	}
	if len(d.suspects) >= limit {
		return nil
	}
	s = &suspect{}
	d.suspects[host] = s
	return s
}

// receive processes the report of a peer.
func (d *Detector) receive(from peer.ID, hosts []did.DID, now time.Time) {
	d.counts.received.Add(uint64(len(hosts)))
	for _, host := range hosts {
		d.add(from, host, now)
	}
}

// add queues a probe of a host if this node must probe it. from is the reporter, or empty.
func (d *Detector) add(from peer.ID, host did.DID, now time.Time) {
	concerns := d.mustProbe(host)
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.suspects[host]
	if s == nil && concerns {
		s = d.suspectLocked(host, maxReported, now)
	}
	if s == nil || !concerns && !s.report {
		return
	}
	s.addReporter(from)
	if concerns && s.probeAt.IsZero() && !s.probing {
		s.probeAt = now.Add(rand.N(probeJitter))
		if soonest := s.probedAt.Add(probePause); soonest.After(s.probeAt) {
			s.probeAt = soonest
		}
		d.toProbe.Wake()
	}
}

func (s *suspect) addReporter(from peer.ID) {
	if from != "" && len(s.reporters) < maxReporters && !slices.Contains(s.reporters, from) {
		s.reporters = append(s.reporters, from)
	}
}

// mustProbe reports whether a host is to be probed: its Things are listed as reachable, and there is no connection to it.
func (d *Detector) mustProbe(host did.DID) bool {
	raw, err := host.Peer()
	if err != nil || peer.ID(raw) == d.host.ID() {
		return false
	}
	switch d.host.Network().Connectedness(peer.ID(raw)) {
	case network.Connected, network.Limited:
		return false
	}
	return d.o.Tracks(host)
}

// probeLoop probes hosts when they are due, until ctx ends.
func (d *Detector) probeLoop(ctx context.Context) {
	var g sync.WaitGroup
	defer g.Wait()
	slots := make(chan struct{}, maxProbes)
	d.toProbe.Loop(ctx, func() time.Duration {
		for {
			host, wait := d.next(time.Now())
			if host == "" {
				return wait
			}
			select {
			case <-ctx.Done():
				return 0
			case slots <- struct{}{}:
			}
			g.Go(func() {
				defer func() { <-slots }()
				d.probe(ctx, host)
			})
		}
	})
}

// next returns a host whose probe is due and marks it as being probed, or the time until the next one is due.
func (d *Detector) next(now time.Time) (host did.DID, wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	first := now.Add(probePause)
	for h, s := range d.suspects {
		if !s.probeAt.IsZero() && s.probeAt.Before(first) {
			host, first = h, s.probeAt
		}
	}
	if host == "" || first.After(now) {
		return "", first.Sub(now)
	}
	s := d.suspects[host]
	s.probeAt, s.probing = time.Time{}, true
	return host, 0
}

// probe dials a host, and penalizes or rewards its reporters.
func (d *Detector) probe(ctx context.Context, host did.DID) {
	if !d.mustProbe(host) { // The host connected after the report.
		d.finish(host, false)
		return
	}
	limited, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	d.counts.probed.Add(1)
	reached, err := d.o.Probe(limited, host)
	inconclusive := ctx.Err() != nil || err != nil
	if !inconclusive && !reached {
		d.o.OnFailed(host)
	}
	reporters := d.finish(host, true)
	switch {
	case inconclusive:
		d.log.Debug("probe without result", "host", host.Short(), "err", err)
	case reached:
		d.counts.refuted.Add(1)
		d.penalize(reporters, host)
	default:
		d.counts.confirmed.Add(1)
		d.peers.reward(reporters)
	}
}

// finish ends the probe of a host and returns its reporters. It keeps them if a report is queued, which is not sent to them.
func (d *Detector) finish(host did.DID, tried bool) (reporters []peer.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.suspects[host]
	reporters = slices.Clone(s.reporters)
	s.probing = false
	if tried {
		s.probedAt = time.Now()
	}
	if !s.report {
		s.reporters = nil
	}
	return reporters
}

// penalize adds a penalty to each reporter of a reachable host. If that bans a reporter, the hosts that only it reported are not
// probed.
func (d *Detector) penalize(reporters []peer.ID, host did.DID) {
	for _, p := range reporters {
		if !d.peers.penalize(p, time.Now()) {
			continue
		}
		d.log.Warn("peer banned: too many false failure reports", "peer", did.ShortPeer(p), "host", host.Short())
		d.mu.Lock()
		for _, s := range d.suspects {
			if i := slices.Index(s.reporters, p); i >= 0 {
				if s.reporters = slices.Delete(s.reporters, i, i+1); len(s.reporters) == 0 {
					s.probeAt = time.Time{}
				}
			}
		}
		d.mu.Unlock()
	}
}
