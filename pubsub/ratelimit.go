package pubsub

import (
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	gossip "github.com/libp2p/go-libp2p-pubsub"

	"github.com/lmosd/lmosd/internal/ratelimit"
)

// Rate limits for one forwarder, and for all. A mesh of any size publishes about 10 messages per second, because the announcement
// interval grows with the number of Things; the bursts allow for thousands of Things that are published at once. The verification
// of a message takes 0.05 to a few milliseconds.
//
// Each forwarder has a share of its own. Messages above it are charged to a pool of all forwarders. All floods together thus cost a
// tenth of a core, and a forwarder within its share is never limited by others.
const (
	shareRate     = 20 // messages per second
	shareBurst    = 128
	forwardRate   = 100 // share and pool together
	forwardBurst  = 8192
	poolRate      = 1000
	poolBurst     = 4 * forwardBurst
	byteRate      = 1 << 20 // bytes per second read from one forwarder
	byteBurst     = 16 << 20
	maxForwarders = 4096 // forwarders with state
)

// Limits of messages that wait for verification. A forwarder begins with a small window, which each valid message widens by one. A
// few slots are reserved per forwarder; the rest of its window comes from a pool of all.
const (
	slotsEach  = 32
	slotsPool  = 4096
	slots      = slotsPool + 256*slotsEach // of gossipsub's queue, for 256 peers
	windowMin  = 64
	windowMax  = 256
	openAtMost = 10 * time.Second // after this a message is not counted: gossipsub may drop it without a trace
)

// A message that no honest node forwards is an offense. Nodes validate before they forward, so the offender made the message. Each
// new key gets at most windowMin verifications before its connection is closed.
const (
	maxOffenses = 3
	offenseFor  = 30 * time.Minute // after the last one; then all are cleared
	banFor      = 10 * time.Minute
)

// A limiter limits the cost of each forwarder. It is safe for concurrent use.
//
// It runs before the validator. A validator can only ignore a message, and gossipsub then treats it as seen for 10 minutes: a
// forwarder over its limit could suppress a record by forwarding it first.
type limiter struct {
	share, each, pool ratelimit.Limit // of messages
	bytes             ratelimit.Limit

	mu     sync.Mutex
	peers  map[peer.ID]*forwarder // at most maxForwarders; owned by mu
	pooled ratelimit.Bucket       // of pool; owned by mu
	extra  int                    // slots in use of slotsPool; owned by mu
}

func newLimiter() *limiter {
	return &limiter{
		share: ratelimit.Limit{Rate: shareRate, Burst: shareBurst},
		each:  ratelimit.Limit{Rate: forwardRate, Burst: forwardBurst},
		pool:  ratelimit.Limit{Rate: poolRate, Burst: poolBurst},
		bytes: ratelimit.Limit{Rate: byteRate, Burst: byteBurst},
	}
}

// A forwarder is the state of a peer.
type forwarder struct {
	share, each, bytes ratelimit.Bucket
	open               int       // messages that wait for verification
	moved              time.Time // when open last changed
	good               int       // valid messages, up to windowMax
	offenses           int
	offended           time.Time // time of the last offense
	banned             time.Time // end of the ban
}

// inspect refuses the RPCs of refused peers at no cost, and removes the messages over the limit from others. Control messages stay.
func (p *PubSub) inspect(from peer.ID, rpc *gossip.RPC) error {
	if p.refuses(from) {
		p.counts.refused.Add(uint64(len(rpc.GetPublish())))
		if len(rpc.GetPublish()) > 0 && p.limiter.hasOffended(from) {
			p.addOffense(from) // the low score would hide further offenses: count them until the ban
		}
		return errRefused
	}
	if most := p.limiter.take(from, len(rpc.GetPublish()), time.Now()); most < len(rpc.GetPublish()) {
		p.counts.limited.Add(uint64(len(rpc.Publish) - most))
		rpc.Publish = rpc.Publish[:most]
	}
	return nil
}

// refuses reports whether a peer is banned, or its score is below the graylist threshold, where gossipsub would drop its messages
// after they were charged.
func (p *PubSub) refuses(id peer.ID) bool {
	if p.limiter.isBanned(id, time.Now()) {
		return true
	}
	score, ok := p.score(id)
	return ok && score < thresholds().GraylistThreshold
}

// take returns how many of n messages of a forwarder may be verified now. Each must be released by done.
func (p *limiter) take(from peer.ID, n int, now time.Time) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.getLocked(from, now)
	if f.open > 0 && now.Sub(f.moved) > openAtMost {
		p.openLocked(f, -f.open, now)
	}
	if n == 0 {
		return 0
	}
	window := min(windowMin+f.good, windowMax)
	n = max(0, min(n, f.each.Left(p.each, now), window-f.open, max(0, slotsEach-f.open)+slotsPool-p.extra))
	own := min(n, f.share.Left(p.share, now))
	n = own + min(n-own, p.pooled.Left(p.pool, now))
	f.share.Charge(p.share, float64(own), now)
	p.pooled.Charge(p.pool, float64(n-own), now)
	f.each.Charge(p.each, float64(n), now)
	p.openLocked(f, n, now)
	return n
}

// done releases the slot of a message that take admitted.
func (p *limiter) done(from peer.ID, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.peers[from]; f != nil && f.open > 0 {
		p.openLocked(f, -1, now)
	}
}

// widen widens the window of a forwarder for a valid message.
func (p *limiter) widen(from peer.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.peers[from]; f != nil {
		f.good = min(f.good+1, windowMax)
	}
}

// addOffense counts an offense. It returns true if this starts a ban.
func (p *limiter) addOffense(from peer.ID, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.getLocked(from, now)
	if now.Sub(f.offended) > offenseFor {
		f.offenses = 0
	}
	f.offenses, f.offended = f.offenses+1, now
	if f.offenses < maxOffenses || now.Before(f.banned) {
		return false
	}
	f.banned = now.Add(banFor)
	return true
}

// hasOffended reports whether a forwarder has committed an offense.
func (p *limiter) hasOffended(id peer.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.peers[id]
	return f != nil && f.offenses > 0
}

func (p *limiter) isBanned(id peer.ID, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.peers[id]
	return f != nil && now.Before(f.banned)
}

// read charges bytes read from a forwarder, and returns the pause before the next read.
func (p *limiter) read(from peer.ID, n int, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.getLocked(from, now)
	f.bytes.Charge(p.bytes, float64(n), now)
	return f.bytes.Wait(p.bytes, 0, now)
}

// leave releases the slots of a disconnected peer. Its debts stay.
func (p *limiter) leave(id peer.ID, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.peers[id]; f != nil {
		p.openLocked(f, -f.open, now)
	}
}

func (p *limiter) openLocked(f *forwarder, n int, now time.Time) {
	if n == 0 {
		return // f.moved stays, so that the slots of dropped messages time out although the peer keeps sending
	}
	p.extra += max(0, f.open+n-slotsEach) - max(0, f.open-slotsEach)
	f.open, f.moved = f.open+n, now
}

func (p *limiter) getLocked(id peer.ID, now time.Time) *forwarder {
	f := p.peers[id]
	if f != nil {
		return f
	}
	if p.peers == nil {
		p.peers = map[peer.ID]*forwarder{}
	}
	if len(p.peers) >= maxForwarders {
		p.sweepLocked(now)
	}
	f = &forwarder{}
	p.peers[id] = f
	return f
}

// sweepLocked removes forwarders without debts, then those that are not banned, then any, until a quarter is free. The pool still
// limits them.
func (p *limiter) sweepLocked(now time.Time) {
	for _, forgets := range []func(*forwarder) bool{
		func(f *forwarder) bool {
			return f.open == 0 && f.offenses == 0 && f.each.IsFull(now) && f.bytes.IsFull(now)
		},
		func(f *forwarder) bool { return !f.banned.After(now) },
		func(*forwarder) bool { return true },
	} {
		for id, f := range p.peers {
			if len(p.peers) <= maxForwarders*3/4 {
				return
			}
			if forgets(f) {
				p.openLocked(f, -f.open, now)
				delete(p.peers, id)
			}
		}
	}
}
