package node

import (
	"fmt"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
)

// Skews of the clock (reconcile.Skew).
const (
	skewWarn   = 30 * time.Second // there is a warning
	skewRefuse = 5 * time.Minute  // records are refused: the tolerance of package td
)

const clockHint = "set the clock: timedatectl set-ntp true"

// warnOfClock adds a warning if the clock is wrong, or one of few peers has another time.
func (n *Node) warnOfClock(add func(code, title, severity, hint, format string, args ...any) *api.Warning) {
	s := n.sync.Skew()
	switch {
	case s.IsOurs(skewRefuse):
		add("W031", "clock-skew", "high", clockHint, "this node's clock is off by %s against %d peers; it refuses their descriptions as expired or "+
			"from the future, and they refuse its own", s, s.Peers)
	case s.IsOurs(skewWarn):
		add("W031", "clock-skew", "low", clockHint, "this node's clock is off by %s against %d peers; from %v on descriptions are refused", s, s.Peers, skewRefuse)
	case s.IsUndecided(skewWarn):
		add("W031", "clock-skew", "low", "compare them: date -u", "the clocks of this node and of the %d peers that it has asked differ by %v; one is wrong",
			s.Peers, s.Ahead.Abs().Round(time.Second))
	}
}

// blameClock names a wrong clock of this node in an error that it may have caused: an expired or future description is an error of code
// ClockSkew, and the description of a thing that is not found may have been refused.
func (n *Node) blameClock(err error) error {
	s := n.sync.Skew()
	if err == nil || !s.IsOurs(skewRefuse) {
		return err
	}
	switch e := interact.AsError(err); e.Code {
	case interact.Expired:
		return &interact.Error{Code: interact.ClockSkew, Title: fmt.Sprintf("this node's clock is off by %s against %d peers: %s", s, s.Peers, e.Title),
			Hint: clockHint, Err: err}
	case interact.NotFound:
		named := *e
		named.Next = nil
		named.Hint = fmt.Sprintf("this node's clock is off by %s and it refuses what others say for that; %s", s, clockHint)
		return &named
	}
	return err
}
