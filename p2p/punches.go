package p2p

import (
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/p2p/protocol/holepunch"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
)

// maxPunches limits the attempts that are kept.
const maxPunches = 32

// A punchLog counts attempts of hole punching, and keeps the last ones. It is safe for concurrent use; the zero value is empty.
type punchLog struct {
	mu    sync.Mutex // owns what follows
	count api.PunchCounts
	last  []api.Punch // the oldest first
}

// Trace implements [holepunch.EventTracer].
func (l *punchLog) Trace(e *holepunch.Event) {
	p := api.Punch{DID: did.OfPeer(e.Remote), At: time.Unix(0, e.Timestamp).UTC()}
	switch of := e.Evt.(type) {
	case *holepunch.DirectDialEvt:
		if !of.Success {
			return // an attempt follows
		}
		p.Result, p.Took = api.PunchDirect, milliseconds(of.EllapsedTime)
	case *holepunch.EndHolePunchEvt:
		p.Result, p.Took, p.Reason = api.PunchWon, milliseconds(of.EllapsedTime), oneLine(of.Error)
		if !of.Success {
			p.Result = api.PunchFailed
		}
	case *holepunch.ProtocolErrorEvt:
		p.Result, p.Reason = api.PunchFailed, oneLine(of.Error)
	default:
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch p.Result {
	case api.PunchDirect:
		l.count.Direct++
	case api.PunchWon:
		l.count.Tried++
		l.count.Won++
	default:
		l.count.Tried++
		l.count.Failed++
	}
	if len(l.last) == maxPunches {
		l.last = slices.Delete(l.last, 0, 1)
	}
	l.last = append(l.last, p)
}

// state returns the counts, and the last attempts, the newest first.
func (l *punchLog) state() (api.PunchCounts, []api.Punch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := slices.Clone(l.last)
	slices.Reverse(last)
	return l.count, last
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
