package reconcile

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/boundedmap"
)

const (
	maxClockVotes     = 64               // peers whose clocks are remembered
	minClockVotes     = 3                // with fewer it is undecided which clock is wrong
	clockVoteLifetime = 10 * time.Minute // after the last session with the peer
)

// clocks compares the clock of this node with those of the peers of its sessions.
//
// Each peer has one vote. Only peers that this node chose at random among its neighbors have one, so that a peer gains no weight by many
// sessions. An adversary with more keys among the neighbors than honest peers still decides the median. Therefore a skew only
// leads to warnings: it sets no clock and affects no record.
type clocks struct {
	mu    sync.Mutex
	votes map[did.DID]clockVote // at most maxClockVotes; owned by mu
}

type clockVote struct {
	ahead time.Duration // lead of the peer's clock
	at    time.Time
}

func (v clockVote) isExpired(now time.Time) bool { return now.Sub(v.at) > clockVoteLifetime }

// vote records the clock of a peer.
func (c *clocks) vote(id did.DID, ahead time.Duration, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	boundedmap.Put(&c.votes, id, clockVote{ahead, now}, maxClockVotes, func(v clockVote) bool { return v.isExpired(now) })
}

// skew returns the skew by the votes that have not expired.
func (c *clocks) skew(now time.Time) Skew {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []time.Duration
	for _, v := range c.votes {
		if !v.isExpired(now) {
			all = append(all, -v.ahead)
		}
	}
	if len(all) == 0 {
		return Skew{}
	}
	slices.Sort(all)
	// Of two medians the smaller one counts: half of the peers is not a majority.
	low, high := all[(len(all)-1)/2], all[len(all)/2]
	if high.Abs() < low.Abs() {
		low = high
	}
	return Skew{low, len(all)}
}

// A Skew is the difference between the clock of this node and those of its peers.
type Skew struct {
	Ahead time.Duration // of this node's clock before the median of the peers'; negative: it is behind
	Peers int           // the number of compared peers
}

// Skew returns the skew by the sessions that this node began in the last 10 minutes.
func (r *Reconciler) Skew() Skew { return r.clocks.skew(time.Now()) }

// IsOurs reports whether this node's clock differs from those of enough peers by more than a tolerance.
func (s Skew) IsOurs(tolerance time.Duration) bool {
	return s.Peers >= minClockVotes && s.Ahead.Abs() > tolerance
}

// IsUndecided reports whether the clocks differ by more than a tolerance, and too few peers were compared to decide which clock is wrong.
func (s Skew) IsUndecided(tolerance time.Duration) bool {
	return s.Peers < minClockVotes && s.Ahead.Abs() > tolerance
}

// String returns the skew with its sign: "+10m0s (ahead)".
func (s Skew) String() string {
	d := s.Ahead.Round(time.Second)
	if d < 0 {
		return fmt.Sprintf("%v (behind)", d)
	}
	return fmt.Sprintf("+%v (ahead)", d)
}
