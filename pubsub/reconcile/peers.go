package reconcile

import (
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

// How long peers are left alone, and how often they may come.
const (
	lieTime   = 10 * time.Minute // after a lie
	failTime  = 5 * time.Second  // after a session that failed: the peer may be busy
	eachTime  = 2 * time.Second  // between sessions of one peer, on average
	burstTime = maxInARow * eachTime
	maxKnown  = 1024 // peers that are remembered
)

// peers remembers which peers are left alone, and which come too often. It is safe for concurrent use; the zero value is ready.
type peers struct {
	mu     sync.Mutex
	until  map[peer.ID]time.Time // all of these are owned by mu; a time that has passed is as good as none
	banned map[peer.ID]time.Time
	paid   map[peer.ID]time.Time // until when the sessions that a peer has had are its share
}

// ban ends sessions with a peer for a while. Its requests are rejected, too.
func (p *peers) ban(id peer.ID, violation bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause := failTime
	if violation {
		pause = lieTime
		note(&p.banned, id, now.Add(pause), now)
	}
	if end := now.Add(pause); end.After(p.until[id]) {
		note(&p.until, id, end, now)
	}
}

// shuns reports whether a peer is to be left alone.
func (p *peers) shuns(id peer.ID, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Before(p.until[id])
}

// isBanned reports whether a peer is not to be listened to.
func (p *peers) isBanned(id peer.ID, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Before(p.banned[id])
}

// may reports whether a peer may begin a session, and counts it.
func (p *peers) may(id peer.ID, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.paid[id]
	if t.Before(now) {
		t = now
	}
	if t.Sub(now) > burstTime {
		return false
	}
	note(&p.paid, id, t.Add(eachTime), now)
	return true
}

// note sets a time. If there are too many, those that have passed go, and then any: to forget one is to try it once more.
func note(m *map[peer.ID]time.Time, id peer.ID, t, now time.Time) {
	if *m == nil {
		*m = map[peer.ID]time.Time{}
	}
	if len(*m) >= maxKnown {
		for old, end := range *m {
			if !now.Before(end) {
				delete(*m, old)
			}
		}
	}
	for old := range *m {
		if len(*m) < maxKnown {
			break
		}
		delete(*m, old)
	}
	(*m)[id] = t
}

// Memory of what came lately.
const (
	recentTime = 2 * time.Minute
	maxRecent  = 1 << 15 // items of a generation, about 100 bytes each
)

// recent remembers what came lately, because not all of it gets into the set: a TD may still be fetched, a directory be full. It
// is asked for again after two to four minutes. It is safe for concurrent use; the zero value is ready.
type recent struct {
	mu           sync.Mutex
	current, old map[[32]byte]uint64 // all of these are owned by mu
	turned       time.Time
}

func (r *recent) add(it item, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turnLocked(now)
	if len(r.current) >= maxRecent {
		r.old, r.current, r.turned = r.current, nil, now
	}
	if r.current == nil {
		r.current = map[[32]byte]uint64{}
	}
	r.current[it.key] = max(it.seq, r.current[it.key])
}

// has reports whether it, or something newer of its thing, came lately.
func (r *recent) has(it item, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turnLocked(now)
	for _, m := range []map[[32]byte]uint64{r.current, r.old} {
		if seq, ok := m[it.key]; ok && seq >= it.seq {
			return true
		}
	}
	return false
}

// turnLocked makes the young the old when their time has come.
func (r *recent) turnLocked(now time.Time) {
	switch age := now.Sub(r.turned); {
	case age >= 2*recentTime:
		r.old, r.current, r.turned = nil, nil, now
	case age >= recentTime:
		r.old, r.current, r.turned = r.current, nil, now
	}
}
