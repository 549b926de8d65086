package pubsub

import (
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	gossip "github.com/libp2p/go-libp2p-pubsub"
)

// How many messages are looked at, of one forwarder and of all together. A mesh of any size speaks about ten a second, because
// things are told more rarely the more there are; the bursts are for thousands of things that are published at once. A look costs
// a twentieth of a millisecond or a few, for the signature and the TD inside, so that a flood takes a hundredth of a core, and all
// floods a tenth.
const (
	forwardRate  = 100 // per second
	forwardBurst = 8192
	allRate      = 1000
	allBurst     = 4 * forwardBurst
	maxPaced     = 4096 // forwarders that are remembered while they have something to make good
)

// A pace bounds how many messages come from whom. It is safe for concurrent use.
//
// It stands before everything else that looks at a message. A validator could only ignore one, and gossipsub would then take it
// for known for ten minutes: who has used up its share could make a record unheard by forwarding it first.
type pace struct {
	each, all     time.Duration // what a message costs: a second by its rate
	burst, bursts int           // of one, of all

	mu   sync.Mutex
	debt map[peer.ID]time.Time // when what was forwarded will be made good; owned by mu
	sum  time.Time             // the same of all; owned by mu
}

func newPace() *pace {
	return &pace{each: time.Second / forwardRate, all: time.Second / allRate, burst: forwardBurst, bursts: allBurst}
}

// inspect takes the messages out of an RPC that are too many. Its control messages stay.
func (p *PubSub) inspect(from peer.ID, rpc *gossip.RPC) error {
	if most := p.pace.take(from, len(rpc.GetPublish()), time.Now()); most < len(rpc.GetPublish()) {
		p.counts.limited.Add(uint64(len(rpc.Publish) - most))
		rpc.Publish = rpc.Publish[:most]
	}
	return nil
}

// take returns how many of n messages of a forwarder may be looked at now.
func (p *pace) take(from peer.ID, n int, now time.Time) int {
	if n == 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.debt) >= maxPaced {
		p.sweepLocked(now)
	}
	mine, all := latest(p.debt[from], now), latest(p.sum, now)
	n = min(n, left(mine, now, p.each, p.burst), left(all, now, p.all, p.bursts))
	if p.debt == nil {
		p.debt = map[peer.ID]time.Time{}
	}
	p.debt[from] = mine.Add(time.Duration(n) * p.each)
	p.sum = all.Add(time.Duration(n) * p.all)
	return n
}

// left returns how many messages a debt leaves.
func left(debt, now time.Time, cost time.Duration, burst int) int {
	return max(0, burst-int((debt.Sub(now)+cost-1)/cost))
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// sweepLocked forgets who has made good, and if that are too few, anybody: the sum of all still bounds them.
func (p *pace) sweepLocked(now time.Time) {
	for id, debt := range p.debt {
		if !debt.After(now) {
			delete(p.debt, id)
		}
	}
	for id := range p.debt {
		if len(p.debt) < maxPaced {
			return
		}
		delete(p.debt, id)
	}
}
