package pubsub

import (
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	gossip "github.com/libp2p/go-libp2p-pubsub"

	"github.com/lmosd/lmosd/internal/ratelimit"
)

// How much is taken of one forwarder, and of all together. A mesh of any size speaks about ten messages a second, because things
// are announced more rarely the more there are; the bursts are for thousands of things that are published at once. To verify a
// message costs a twentieth of a millisecond or a few, for the signature and the TD inside.
//
// Each forwarder has a share of its own that nobody else can use up. What it sends beyond that comes out of a pool of all, so that
// floods take a tenth of a core together, and whoever sends as much as a mesh does is heard whatever the others send.
const (
	shareRate    = 20 // messages per second
	shareBurst   = 128
	forwardRate  = 100 // share and pool together
	forwardBurst = 8192
	poolRate     = 1000
	poolBurst    = 4 * forwardBurst
	byteRate     = 1 << 20 // bytes per second that are read of one forwarder
	byteBurst    = 16 << 20
	maxPaced     = 4096 // forwarders that are remembered
)

// How many messages may wait for their verification. A forwarder begins with a small window, which each message that proves
// valid widens by one. A few places are its own; the rest of its window must fit into what all have together.
const (
	placesEach = 32
	placesPool = 4096
	places     = placesPool + 256*placesEach // of gossipsub's queue: 256 is more peers than a node has
	windowMin  = 64
	windowMax  = 256
	openAtMost = 10 * time.Second // gossipsub may drop a message without a word: after this it is no longer counted
)

// A message that no honest node forwards is an offense. Gossip is validated before it is forwarded, so who commits one made the
// message. A fresh key is cheap: it buys windowMin verifications, then its connection is closed.
const (
	maxOffenses = 3
	offenseFor  = 30 * time.Minute // after the last one all are forgotten
	banFor      = 10 * time.Minute
)

// A pace bounds what each forwarder may cost. It is safe for concurrent use.
//
// It stands before everything else that looks at a message. A validator could only ignore one, and gossipsub would then take it
// for known for ten minutes: who has used up its share could make a record unheard by forwarding it first.
type pace struct {
	share, each, pool ratelimit.Limit // of messages
	bytes             ratelimit.Limit

	mu     sync.Mutex
	peers  map[peer.ID]*forwarder // at most maxPaced; owned by mu
	pooled ratelimit.Bucket       // of pool; owned by mu
	extra  int                    // places that are taken of placesPool; owned by mu
}

func newPace() *pace {
	return &pace{
		share: ratelimit.Limit{Rate: shareRate, Burst: shareBurst},
		each:  ratelimit.Limit{Rate: forwardRate, Burst: forwardBurst},
		pool:  ratelimit.Limit{Rate: poolRate, Burst: poolBurst},
		bytes: ratelimit.Limit{Rate: byteRate, Burst: byteBurst},
	}
}

// A forwarder is what is remembered of a peer.
type forwarder struct {
	share, each, bytes ratelimit.Bucket
	open               int       // messages that wait for their verification
	moved              time.Time // when open last changed
	good               int       // messages that were valid, up to windowMax
	offenses           int
	offended           time.Time // when the last one was
	banned             time.Time // until when
}

// inspect refuses the RPCs of peers that are not heard, before they cost anything, and takes the messages out of others that are
// too many. Their control messages stay.
func (p *PubSub) inspect(from peer.ID, rpc *gossip.RPC) error {
	if p.refuses(from) {
		p.counts.refused.Add(uint64(len(rpc.GetPublish())))
		if len(rpc.GetPublish()) > 0 && p.pace.hasOffended(from) {
			p.offended(from) // its score fell before it was banned: a peer that forged goes on, and would stay connected
		}
		return errUnseen
	}
	if most := p.pace.take(from, len(rpc.GetPublish()), time.Now()); most < len(rpc.GetPublish()) {
		p.counts.limited.Add(uint64(len(rpc.Publish) - most))
		rpc.Publish = rpc.Publish[:most]
	}
	return nil
}

// refuses reports whether a peer is not heard: it is banned, or its score is below the graylist threshold, where gossipsub
// would drop its messages after they were charged.
func (p *PubSub) refuses(id peer.ID) bool {
	if p.pace.isBanned(id, time.Now()) {
		return true
	}
	score, ok := p.Score(id)
	return ok && score < thresholds().GraylistThreshold
}

// take returns how many of n messages of a forwarder may be verified now. Each must be given back by done.
func (p *pace) take(from peer.ID, n int, now time.Time) int {
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
	n = max(0, min(n, f.each.Left(p.each, now), window-f.open, max(0, placesEach-f.open)+placesPool-p.extra))
	own := min(n, f.share.Left(p.share, now))
	n = own + min(n-own, p.pooled.Left(p.pool, now))
	f.share.Charge(p.share, float64(own), now)
	p.pooled.Charge(p.pool, float64(n-own), now)
	f.each.Charge(p.each, float64(n), now)
	p.openLocked(f, n, now)
	return n
}

// done gives back the place of a message that take let in.
func (p *pace) done(from peer.ID, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.peers[from]; f != nil && f.open > 0 {
		p.openLocked(f, -1, now)
	}
}

// praise widens the window of a forwarder for a valid message.
func (p *pace) praise(from peer.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.peers[from]; f != nil {
		f.good = min(f.good+1, windowMax)
	}
}

// offend counts an offense. It returns true if the forwarder is banned from now on, and was not before.
func (p *pace) offend(from peer.ID, now time.Time) bool {
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

// hasOffended reports whether a forwarder has sent what no honest node forwards.
func (p *pace) hasOffended(id peer.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.peers[id]
	return f != nil && f.offenses > 0
}

func (p *pace) isBanned(id peer.ID, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.peers[id]
	return f != nil && now.Before(f.banned)
}

// read charges bytes that came from a forwarder, and returns how long nothing more is to be read of it.
func (p *pace) read(from peer.ID, n int, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.getLocked(from, now)
	f.bytes.Charge(p.bytes, float64(n), now)
	return f.bytes.Wait(p.bytes, 0, now)
}

// leave gives back what a peer held that is gone. What it owes stays.
func (p *pace) leave(id peer.ID, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.peers[id]; f != nil {
		p.openLocked(f, -f.open, now)
	}
}

func (p *pace) openLocked(f *forwarder, n int, now time.Time) {
	if n == 0 {
		return // else who goes on sending would be held to what was dropped for ever
	}
	p.extra += max(0, f.open+n-placesEach) - max(0, f.open-placesEach)
	f.open, f.moved = f.open+n, now
}

func (p *pace) getLocked(id peer.ID, now time.Time) *forwarder {
	f := p.peers[id]
	if f != nil {
		return f
	}
	if p.peers == nil {
		p.peers = map[peer.ID]*forwarder{}
	}
	if len(p.peers) >= maxPaced {
		p.sweepLocked(now)
	}
	f = &forwarder{}
	p.peers[id] = f
	return f
}

// sweepLocked forgets who owes nothing, then who is not banned, then anybody, until a quarter is free: the pool still bounds them.
func (p *pace) sweepLocked(now time.Time) {
	for _, forgets := range []func(*forwarder) bool{
		func(f *forwarder) bool {
			return f.open == 0 && f.offenses == 0 && f.each.IsFull(now) && f.bytes.IsFull(now)
		},
		func(f *forwarder) bool { return !f.banned.After(now) },
		func(*forwarder) bool { return true },
	} {
		for id, f := range p.peers {
			if len(p.peers) <= maxPaced*3/4 {
				return
			}
			if forgets(f) {
				p.openLocked(f, -f.open, now)
				delete(p.peers, id)
			}
		}
	}
}
