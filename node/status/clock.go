package status

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

// warnOfClock adds a warning if the clock is wrong, or differs from those of a few peers.
func (r *Reporter) warnOfClock(add warner) {
	s := r.Sync.Skew()
	switch {
	case s.IsOurs(skewRefuse):
		add(api.ClockSkewed, clockHint, "this node's clock is off by %s against %s; it refuses their descriptions as expired or "+
			"from the future, and they refuse its own", s, interact.Count(s.Peers, "peer", "peers"))
	case s.IsOurs(skewWarn):
		add(api.ClockSkewed, clockHint, "this node's clock is off by %s against %s; from %v on descriptions are refused", s, interact.Count(s.Peers, "peer", "peers"), skewRefuse).Severity = "low"
	case s.IsUndecided(skewWarn):
		add(api.ClockSkewed, "compare them: date -u", "the clocks of this node and of %s differ by %v; one is wrong",
			interact.Count(s.Peers, "peer", "peers"), s.Ahead.Abs().Round(time.Second)).Severity = "low"
	}
}

// WithClock adds a wrong clock of this node to an error that it may have caused: an expired or future description becomes an error of code
// ClockSkew. The description of a Thing that is not found may have been refused.
func (r *Reporter) WithClock(err error) error {
	s := r.Sync.Skew()
	if err == nil || !s.IsOurs(skewRefuse) {
		return err
	}
	switch e := interact.AsError(err); e.Code {
	case interact.Expired:
		return &interact.Error{Code: interact.ClockSkew, Title: fmt.Sprintf("this node's clock is off by %s against %s: %s", s, interact.Count(s.Peers, "peer", "peers"), e.Title),
			Hint: clockHint, Err: err}
	case interact.NotFound:
		explained := *e
		explained.Next = nil
		explained.Hint = fmt.Sprintf("this node's clock is off by %s so it refuses the descriptions of others; %s", s, clockHint)
		return &explained
	}
	return err
}
