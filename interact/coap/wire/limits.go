package wire

import (
	"math"
	"net/netip"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// maxHosts is how many hosts are counted each for itself; those beyond share one count.
const maxHosts = 4096

// HostOf is what one owner of addresses is counted by: an IPv4 address, or the network of an IPv6 address.
func HostOf(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if p, err := a.Prefix(64); a.Is6() && err == nil {
		return p.Addr()
	}
	return a
}

// A Gate limits how many requests are answered at once and how many begin in a second, for each host. It is safe for concurrent
// use.
type Gate struct {
	rate, burst float64 // requests in a second and at once that may begin; 0: no limit
	all, each   int     // requests that are answered at once: of all hosts, of one

	mu    sync.Mutex // guards the rest
	busy  int
	hosts map[netip.Addr]*Caller
	swept time.Time // when hosts were last forgotten
}

// NewGate returns a gate through which each host may begin rate requests in a second, and twice as many at once; of all of them
// requests may be answered at once, and half of that of one host. A rate that is not positive is no limit.
func NewGate(rate float64, all int) *Gate {
	return &Gate{rate: rate, burst: 2 * rate, all: all, each: max(1, all/2), hosts: make(map[netip.Addr]*Caller)}
}

// A Caller is what is counted of one host.
type Caller struct {
	busy   int
	tokens float64
	at     time.Time // when tokens was right
}

// Enter begins to answer a request of host (see [HostOf]); Leave ends it. The error is RateLimited if the host asks too much at
// once, Overloaded if all do.
func (g *Gate) Enter(host netip.Addr, now time.Time) (*Caller, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.callerLocked(host, now)
	switch {
	case c.busy >= g.each:
		return nil, interact.Errorf(interact.RateLimited, "wait for the answers", "%d requests of this host are being answered", c.busy)
	case g.busy >= g.all:
		return nil, interact.Errorf(interact.Overloaded, "try again in a while", "%d requests are being answered", g.busy)
	}
	c.busy++
	g.busy++
	return c, nil
}

// Leave ends what Enter began.
func (g *Gate) Leave(c *Caller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy--
	c.busy--
}

// Spend takes one from what host may begin; wait is how long until it may, if it may not now.
func (g *Gate) Spend(host netip.Addr, now time.Time) (wait time.Duration, ok bool) {
	if g.rate <= 0 {
		return 0, true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.callerLocked(host, now)
	c.tokens = min(g.burst, c.tokens+now.Sub(c.at).Seconds()*g.rate)
	c.at = now
	if c.tokens < 1 {
		return time.Duration((1 - c.tokens) / g.rate * float64(time.Second)), false
	}
	c.tokens--
	return 0, true
}

func (g *Gate) callerLocked(host netip.Addr, now time.Time) *Caller {
	if c := g.hosts[host]; c != nil {
		return c
	}
	if len(g.hosts) >= maxHosts && now.Sub(g.swept) >= time.Second { // not for each of many new hosts
		g.sweepLocked(now)
	}
	if len(g.hosts) >= maxHosts {
		host = netip.Addr{}
		if c := g.hosts[host]; c != nil {
			return c
		}
	}
	c := &Caller{tokens: g.burst, at: now}
	g.hosts[host] = c
	return c
}

// sweepLocked forgets the hosts that are as if they had never come.
func (g *Gate) sweepLocked(now time.Time) {
	g.swept = now
	full := time.Duration(math.MaxInt64)
	if g.rate > 0 {
		full = time.Duration(g.burst / g.rate * float64(time.Second))
	}
	for host, c := range g.hosts {
		if c.busy == 0 && (g.rate <= 0 || now.Sub(c.at) >= full) {
			delete(g.hosts, host)
		}
	}
}
