package reconcile

import (
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/internal/ratelimit"
)

// Durations for which peers are avoided, and the rate limit of their sessions.
const (
	violationPause  = 10 * time.Minute // after a violation
	failurePause    = 5 * time.Second  // after a session that failed: the peer may be busy
	sessionInterval = 2 * time.Second  // between sessions of one peer, on average
	maxKnown        = 1024             // remembered peers
)

// sessionLimit is the rate of the sessions that one peer begins.
var sessionLimit = ratelimit.Every(maxConsecutive+1, sessionInterval)

// peers records the peers to avoid and the sessions that each peer began. It is safe for concurrent use; the zero value is ready.
type peers struct {
	mu          sync.Mutex
	avoidUntil  map[peer.ID]time.Time // these maps are owned by mu; a past time has no effect
	bannedUntil map[peer.ID]time.Time
	sessions    map[peer.ID]ratelimit.Bucket
}

// ban pauses sessions with a peer. After a violation it also rejects the requests of the peer.
func (p *peers) ban(id peer.ID, violation bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause := failurePause
	if violation {
		pause = violationPause
		setEnd(&p.bannedUntil, id, now.Add(pause), now)
	}
	if end := now.Add(pause); end.After(p.avoidUntil[id]) {
		setEnd(&p.avoidUntil, id, end, now)
	}
}

// avoids reports whether this node must not begin sessions with a peer.
func (p *peers) avoids(id peer.ID, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Before(p.avoidUntil[id])
}

// isBanned reports whether requests of a peer are rejected.
func (p *peers) isBanned(id peer.ID, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Before(p.bannedUntil[id])
}

// allow reports whether a peer may begin a session, and counts the session.
func (p *peers) allow(id peer.ID, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.sessions[id]
	if !b.Take(sessionLimit, 1, now) {
		return false
	}
	boundedmap.Put(&p.sessions, id, b, maxKnown, func(b ratelimit.Bucket) bool { return b.IsFull(now) })
	return true
}

// setEnd sets the end of a pause. If the bound removes a peer, its pause ends early.
func setEnd(m *map[peer.ID]time.Time, id peer.ID, end, now time.Time) {
	boundedmap.Put(m, id, end, maxKnown, func(end time.Time) bool { return !now.Before(end) })
}

// Limits of recent.
const (
	recentTime = 2 * time.Minute // of a generation
	maxRecent  = 1 << 15         // items of a generation, about 100 bytes each
)

// recent records received items, because some never reach the set: a TD may still be loading, or the directory is full. An item is
// requested again after two to four minutes. It is safe for concurrent use; the zero value is ready.
type recent struct {
	mu           sync.Mutex
	current, old map[[32]byte]uint64 // all of these are owned by mu
	began        time.Time
}

func (r *recent) add(it item, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ageLocked(now)
	if len(r.current) >= maxRecent {
		r.old, r.current, r.began = r.current, nil, now
	}
	if r.current == nil {
		r.current = map[[32]byte]uint64{}
	}
	r.current[it.key] = max(it.seq, r.current[it.key])
}

// has reports whether an item, or a newer one of its Thing, was received recently.
func (r *recent) has(it item, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ageLocked(now)
	for _, m := range []map[[32]byte]uint64{r.current, r.old} {
		if seq, ok := m[it.key]; ok && seq >= it.seq {
			return true
		}
	}
	return false
}

// ageLocked replaces the old generation by the current one after its time.
func (r *recent) ageLocked(now time.Time) {
	switch age := now.Sub(r.began); {
	case age >= 2*recentTime:
		r.old, r.current, r.began = nil, nil, now
	case age >= recentTime:
		r.old, r.current, r.began = r.current, nil, now
	}
}
