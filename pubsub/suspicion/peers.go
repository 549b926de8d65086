package suspicion

import (
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/internal/ratelimit"
)

// What peers may do.
const (
	maxCredit = 8                      // false rumours within lieTime, more than true ones
	lieTime   = 10 * time.Minute       // that nothing is heard from a peer without credit
	eachTime  = 500 * time.Millisecond // between messages of one peer, on average; no more than tellPause
	maxBurst  = 32                     // messages at once
	maxKnown  = 1024                   // peers that are remembered
)

// messageLimit is the rate of the messages of one peer.
var messageLimit = ratelimit.Every(maxBurst, eachTime)

// peers remembers what peers told. It is safe for concurrent use; the zero value is ready.
type peers struct {
	mu  sync.Mutex
	all map[peer.ID]*standing // owned by mu
}

// A standing is what is remembered of one peer.
type standing struct {
	spent int              // credit that false rumours took
	last  time.Time        // when the last one did
	shun  time.Time        // until when nothing is heard
	rate  ratelimit.Bucket // of its messages
	met   time.Time        // when it was told what is gone
}

// idle reports whether nothing would be lost if s were forgotten.
func (s *standing) idle(now time.Time) bool {
	return now.Sub(s.last) >= lieTime && !now.Before(s.shun) && s.rate.IsFull(now) && now.Sub(s.met) >= meetTime
}

// ofLocked returns the standing of a peer. If there are too many, those that matter no more go, and then any.
func (p *peers) ofLocked(id peer.ID, now time.Time) *standing {
	if s := p.all[id]; s != nil {
		return s
	}
	if p.all == nil {
		p.all = map[peer.ID]*standing{}
	}
	if len(p.all) >= maxKnown {
		for old, s := range p.all {
			if s.idle(now) {
				delete(p.all, old)
			}
		}
	}
	for old := range p.all {
		if len(p.all) < maxKnown {
			break
		}
		delete(p.all, old)
	}
	s := &standing{}
	p.all[id] = s
	return s
}

// may reports whether a message of a peer is heard, and counts it.
func (p *peers) may(id peer.ID, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.ofLocked(id, now)
	return !now.Before(s.shun) && s.rate.Take(messageLimit, 1, now)
}

// trust gives credit back to those who told the truth.
func (p *peers) trust(ids []peer.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		if s := p.all[id]; s != nil && s.spent > 0 {
			s.spent--
		}
	}
}

// doubt takes credit from a peer, and reports whether none is left: then it is not listened to for a while.
func (p *peers) doubt(id peer.ID, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.ofLocked(id, now)
	if now.Sub(s.last) >= lieTime {
		s.spent = 0
	}
	s.last = now
	if s.spent++; s.spent < maxCredit {
		return false
	}
	s.spent, s.shun = 0, now.Add(lieTime)
	return true
}

// shun does not listen to a peer for a while.
func (p *peers) shun(id peer.ID, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ofLocked(id, now).shun = now.Add(lieTime)
}

// meets reports whether a peer is to be told what is gone, and notes that it is.
func (p *peers) meets(id peer.ID, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.ofLocked(id, now)
	if now.Sub(s.met) < meetTime {
		return false
	}
	s.met = now
	return true
}
