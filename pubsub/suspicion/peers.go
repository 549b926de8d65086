package suspicion

import (
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/internal/ratelimit"
)

// Limits of peers.
const (
	maxPenalties = 8                      // false reports more than true ones within banTime; then the peer is banned
	banTime      = 10 * time.Minute       // of a ban
	eachTime     = 500 * time.Millisecond // between messages of one peer on average; at most sendPause
	maxBurst     = 32                     // messages at once
	maxPeers     = 1024                   // peers with a score
)

// messageLimit is the rate of the messages of one peer.
var messageLimit = ratelimit.Every(maxBurst, eachTime)

// peers holds the scores of peers. It is safe for concurrent use; the zero value is ready.
type peers struct {
	mu  sync.Mutex
	all map[peer.ID]*score // owned by mu
}

// A score is the state of one peer.
type score struct {
	penalties   int       // false reports, less true ones
	penalizedAt time.Time // the last false report
	bannedUntil time.Time // messages are rejected until then
	messages    ratelimit.Bucket
	syncedAt    time.Time // the last SyncPeer
}

// idle reports whether s is the same as a new score.
func (s *score) idle(now time.Time) bool {
	return now.Sub(s.penalizedAt) >= banTime && !now.Before(s.bannedUntil) && s.messages.IsFull(now) && now.Sub(s.syncedAt) >= syncPause
}

// scoreLocked returns the score of a peer.
func (p *peers) scoreLocked(id peer.ID, now time.Time) *score {
	if s := p.all[id]; s != nil {
		return s
	}
	s := &score{}
	boundedmap.Put(&p.all, id, s, maxPeers, func(s *score) bool { return s.idle(now) })
	return s
}

// allow counts a message of a peer and reports whether to process it.
func (p *peers) allow(id peer.ID, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.scoreLocked(id, now)
	return !now.Before(s.bannedUntil) && s.messages.Take(messageLimit, 1, now)
}

// reward removes one penalty of each peer, for a true report.
func (p *peers) reward(ids []peer.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		if s := p.all[id]; s != nil && s.penalties > 0 {
			s.penalties--
		}
	}
}

// penalize adds a penalty for a false report and returns true if the peer is now banned.
func (p *peers) penalize(id peer.ID, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.scoreLocked(id, now)
	if now.Sub(s.penalizedAt) >= banTime {
		s.penalties = 0
	}
	s.penalizedAt = now
	if s.penalties++; s.penalties < maxPenalties {
		return false
	}
	s.penalties, s.bannedUntil = 0, now.Add(banTime)
	return true
}

// ban rejects the messages of a peer for banTime.
func (p *peers) ban(id peer.ID, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scoreLocked(id, now).bannedUntil = now.Add(banTime)
}

// syncDue reports whether SyncPeer should send to a peer, and records that it does.
func (p *peers) syncDue(id peer.ID, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.scoreLocked(id, now)
	if now.Sub(s.syncedAt) < syncPause {
		return false
	}
	s.syncedAt = now
	return true
}
