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

// Bounds of checking.
const (
	maxWait      = time.Second     // before a check, at random: a mesh that hears at once does not dial at once
	tryTime      = 3 * time.Second // of one check
	triesAtOnce  = 32
	tryPause     = time.Minute  // between checks of one host, whatever is heard
	maxHeard     = 1024         // hosts of which something was heard, and is to be checked or was within tryPause
	maxStories   = 2 * maxHeard // together with those that this node found gone itself
	maxNarrators = 128          // of one story
	sweepPause   = time.Second  // between looks for what can be forgotten
)

// A story is what is said of one host.
type story struct {
	by       []peer.ID // who told it, since it was checked or told
	tell     bool      // the peers are to be told
	check    time.Time // when to try the host; zero: not
	checking bool
	checked  time.Time // when it was tried last
}

// over reports whether nothing would be lost if s were forgotten.
func (s *story) over(now time.Time) bool {
	return !s.tell && !s.checking && s.check.IsZero() && now.Sub(s.checked) >= tryPause
}

// storyLocked returns the story of a host, one of at most so many; nil if there is no room for one more.
func (r *Detector) storyLocked(host did.DID, most int, now time.Time) *story {
	s := r.stories[host]
	if s != nil {
		return s
	}
	if len(r.stories) >= most && now.Sub(r.swept) >= sweepPause {
		r.swept = now
		for h, old := range r.stories {
			if old.over(now) {
				delete(r.stories, h)
			}
		}
	}
	if len(r.stories) >= most {
		return nil
	}
	s = &story{}
	r.stories[host] = s
	return s
}

// hear notes what a peer says: what concerns this node is to be checked.
func (r *Detector) hear(from peer.ID, hosts []did.DID, now time.Time) {
	r.counts.heard.Add(uint64(len(hosts)))
	for _, host := range hosts {
		r.note(from, host, now)
	}
}

// note has a host tried if it concerns this node. from may be empty.
func (r *Detector) note(from peer.ID, host did.DID, now time.Time) {
	concerns := r.concerns(host)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stories[host]
	if s == nil && concerns {
		s = r.storyLocked(host, maxHeard, now)
	}
	if s == nil || !concerns && !s.tell {
		return
	}
	s.heard(from)
	if concerns && s.check.IsZero() && !s.checking {
		s.check = now.Add(rand.N(maxWait))
		if soonest := s.checked.Add(tryPause); soonest.After(s.check) {
			s.check = soonest
		}
		wake(r.due)
	}
}

func (s *story) heard(from peer.ID) {
	if from != "" && len(s.by) < maxNarrators && !slices.Contains(s.by, from) {
		s.by = append(s.by, from)
	}
}

// concerns reports whether a host should be tried: its things are listed as reachable, and there is no connection that would tell.
func (r *Detector) concerns(host did.DID) bool {
	raw, err := host.Peer()
	if err != nil || peer.ID(raw) == r.host.ID() {
		return false
	}
	switch r.host.Network().Connectedness(peer.ID(raw)) {
	case network.Connected, network.Limited:
		return false
	}
	return r.o.Expects(host)
}

// check tries the hosts that are due, until ctx ends.
func (r *Detector) check(ctx context.Context) {
	var g sync.WaitGroup
	defer g.Wait()
	places := make(chan struct{}, triesAtOnce)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		host, wait := r.next(time.Now())
		if host == "" {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			case <-r.due:
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
			r.try(ctx, host)
		})
	}
}

// next returns a host that is due to be tried, and marks it; or how long none is.
func (r *Detector) next(now time.Time) (host did.DID, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := now.Add(tryPause)
	for h, s := range r.stories {
		if !s.check.IsZero() && s.check.Before(first) {
			host, first = h, s.check
		}
	}
	if host == "" || first.After(now) {
		return "", first.Sub(now)
	}
	s := r.stories[host]
	s.check, s.checking = time.Time{}, true
	return host, 0
}

// try sees for itself whether a host is gone.
func (r *Detector) try(ctx context.Context, host did.DID) {
	if !r.concerns(host) { // It did when that was heard.
		r.settle(host, false)
		return
	}
	limited, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	r.counts.checked.Add(1)
	reached, err := r.o.Try(limited, host)
	unknown := ctx.Err() != nil || err != nil
	if !unknown && !reached {
		r.o.Gone(host)
	}
	by := r.settle(host, true)
	switch {
	case unknown:
		r.log.Debug("a rumour cannot be checked", "host", host, "err", err)
	case reached:
		r.counts.wrong.Add(1)
		r.doubt(by, host)
	default:
		r.counts.right.Add(1)
		r.peers.trust(by)
	}
}

// settle ends the check of a host, and returns who told of it. They are remembered if the peers are to be told: all but them.
func (r *Detector) settle(host did.DID, tried bool) (by []peer.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stories[host]
	by = slices.Clone(s.by)
	s.checking = false
	if tried {
		s.checked = time.Now()
	}
	if !s.tell {
		s.by = nil
	}
	return by
}

// doubt takes credit from those who told of a host that is there. What else they alone have told is dropped when none is left.
func (r *Detector) doubt(by []peer.ID, host did.DID) {
	for _, p := range by {
		if !r.peers.doubt(p, time.Now()) {
			continue
		}
		r.log.Warn("peer tells of too many hosts that are not gone", "peer", p, "host", host)
		r.mu.Lock()
		for _, s := range r.stories {
			if i := slices.Index(s.by, p); i >= 0 {
				if s.by = slices.Delete(s.by, i, i+1); len(s.by) == 0 {
					s.check = time.Time{}
				}
			}
		}
		r.mu.Unlock()
	}
}
