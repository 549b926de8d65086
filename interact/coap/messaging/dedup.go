package messaging

import (
	"container/list"
	"net/netip"
	"sync"
	"time"
)

const (
	maxReplays  = 8192    // stored requests
	replayBytes = 8 << 20 // of their responses
	// lifetime is EXCHANGE_LIFETIME: after it a message ID may be reused (RFC 7252 §4.8.2).
	lifetime = 247 * time.Second
)

// Replays are the requests of the last minutes, to detect duplicates (RFC 7252 §4.5). Beyond the
// limits the oldest are dropped. The zero value works. It is safe for concurrent use.
type Replays struct {
	mu    sync.Mutex // guards the rest, and every replay
	byKey map[replayKey]*Replay
	order list.List // of *replay, oldest first
	bytes int
}

type replayKey struct {
	from netip.AddrPort
	mid  uint16
}

// A Replay is one request and the datagram for its duplicates; nil while it is executed.
type Replay struct {
	key   replayKey
	at    time.Time
	reply []byte
	place *list.Element // nil: dropped
}

// Begin records a request. again means that it is a duplicate, with the reply to the first one.
func (s *Replays) Begin(from netip.AddrPort, mid uint16, now time.Time) (r *Replay, reply []byte, again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := replayKey{from, mid}
	if s.byKey == nil {
		s.byKey = make(map[replayKey]*Replay)
	}
	if r := s.byKey[key]; r != nil && now.Sub(r.at) < lifetime {
		return r, r.reply, true
	}
	s.removeLocked(s.byKey[key])
	r = &Replay{key: key, at: now}
	r.place = s.order.PushBack(r)
	s.byKey[key] = r
	s.trimLocked(now)
	return r, nil, false
}

// Keep stores the reply to a request.
func (s *Replays) Keep(r *Replay, reply []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.place == nil {
		return
	}
	s.bytes += len(reply) - len(r.reply)
	r.reply = reply
	s.trimLocked(r.at)
}

// Forget drops r: the next copy is a new request.
func (s *Replays) Forget(r *Replay) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(r)
}

func (s *Replays) removeLocked(r *Replay) {
	if r == nil || r.place == nil {
		return
	}
	s.order.Remove(r.place)
	r.place = nil
	delete(s.byKey, r.key)
	s.bytes -= len(r.reply)
}

func (s *Replays) trimLocked(now time.Time) {
	for e := s.order.Front(); e != nil; e = s.order.Front() {
		r := e.Value.(*Replay)
		if s.order.Len() <= maxReplays && s.bytes <= replayBytes && now.Sub(r.at) < lifetime {
			return
		}
		s.removeLocked(r)
	}
}
