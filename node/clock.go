package node

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// How the clock is judged.
const (
	votesMax   = 64               // peers whose clocks are remembered
	votesLeast = 3                // peers of which the middle one counts
	voteFor    = 10 * time.Minute // after the peer was asked last
	skewTold   = 30 * time.Second // from here on there is a warning
	skewBad    = 5 * time.Minute  // from here on records are refused: what package td lets pass
)

// clocks compares this node's clock with those of peers, as these say them when they are asked in reconciliation.
//
// Each peer has one vote, and only peers that this node chose at random among its neighbors are asked, so that nobody votes by
// coming often. Still who has more keys around a node than honest peers decides the median. Therefore nothing follows from it but
// words: no clock is set, and no record is taken or refused for it. Until peers can be told apart by trust every vote counts alike.
type clocks struct {
	mu    sync.Mutex
	votes map[did.DID]vote // at most votesMax; owned by mu
}

type vote struct {
	ahead time.Duration // of the peer's clock before ours
	at    time.Time
}

// note takes the vote of a peer.
func (c *clocks) note(id did.DID, ahead time.Duration, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.votes == nil {
		c.votes = map[did.DID]vote{}
	}
	for other, v := range c.votes {
		if now.Sub(v.at) > voteFor {
			delete(c.votes, other)
		}
	}
	for other := range c.votes {
		if len(c.votes) < votesMax {
			break
		}
		delete(c.votes, other)
	}
	c.votes[id] = vote{ahead, now}
}

// A skew is what peers say of this node's clock.
type skew struct {
	ahead time.Duration // of this node's clock before the median of the peers'; negative: it is behind
	peers int           // that said so
}

// measure returns the skew by the votes that are fresh.
func (c *clocks) measure(now time.Time) skew {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []time.Duration
	for _, v := range c.votes {
		if now.Sub(v.at) <= voteFor {
			all = append(all, -v.ahead)
		}
	}
	if len(all) == 0 {
		return skew{}
	}
	slices.Sort(all)
	// Of two in the middle the one that says less: half of the peers do not convict.
	low, high := all[(len(all)-1)/2], all[len(all)/2]
	if high.Abs() < low.Abs() {
		low = high
	}
	return skew{low, len(all)}
}

// ours reports whether enough peers agree to blame this node's clock for what is off by more than that.
func (s skew) ours(more time.Duration) bool { return s.peers >= votesLeast && s.ahead.Abs() > more }

// String says the skew with its sign: "+10m0s (ahead)".
func (s skew) String() string {
	d := s.ahead.Round(time.Second)
	if d < 0 {
		return fmt.Sprintf("%v (behind)", d)
	}
	return fmt.Sprintf("+%v (ahead)", d)
}

const clockHint = "set the clock: timedatectl set-ntp true"

// warnOfClock adds a warning if the clock is off. With fewer than three peers it cannot be said whose.
func (n *Node) warnOfClock(add func(code, title, severity, hint, format string, args ...any)) {
	s := n.clocks.measure(time.Now())
	switch {
	case s.ours(skewBad):
		add("W031", "clock-skew", "high", clockHint, "this node's clock is off by %s against %d peers; it refuses their descriptions as expired or "+
			"from the future, and they refuse its own", s, s.peers)
	case s.ours(skewTold):
		add("W031", "clock-skew", "low", clockHint, "this node's clock is off by %s against %d peers; from %v on descriptions are refused", s, s.peers, skewBad)
	case s.peers < votesLeast && s.ahead.Abs() > skewTold:
		add("W031", "clock-skew", "low", "compare them: date -u", "the clocks of this node and of the %d peers that it has asked differ by %v; one is wrong",
			s.peers, s.ahead.Abs().Round(time.Second))
	}
}

// blameClock names this node's clock in an error for which it may be the reason: a description that is too old or not yet valid is
// an error of code ClockSkew, and a thing that is not found may be one whose description was refused.
func (n *Node) blameClock(err error) error {
	s := n.clocks.measure(time.Now())
	if err == nil || !s.ours(skewBad) {
		return err
	}
	switch e := interact.AsError(err); e.Code {
	case interact.Expired:
		return &interact.Error{Code: interact.ClockSkew, Title: fmt.Sprintf("this node's clock is off by %s against %d peers: %s", s, s.peers, e.Title),
			Hint: clockHint, Err: err}
	case interact.NotFound:
		named := *e
		named.Hint = fmt.Sprintf("this node's clock is off by %s and it refuses what others say for that; %s", s, clockHint)
		return &named
	}
	return err
}
