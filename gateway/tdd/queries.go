package tdd

import (
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// queries are what runs: so many at once, and all of these but one of one caller. What one caller asks beyond that waits in a line
// of its own, so that it is before nobody else in the line of all.
type queries struct {
	slots chan struct{} // one for each query that runs
	mu    sync.Mutex
	lines map[string]*line // of the callers with a query that runs or waits; owned by mu
}

type line struct {
	slots chan struct{} // one for each query that runs or is in the line of all
	users int           // of this line; owned by queries.mu
}

func newQueries(most int) *queries {
	return &queries{slots: make(chan struct{}, most), lines: map[string]*line{}}
}

// take waits until r may run a query, which ends with done.
func (q *queries) take(r *http.Request, until time.Time) (done func(), err error) {
	caller := callerOf(r)
	own := q.join(caller)
	var held []chan struct{}
	done = func() {
		for _, slots := range held {
			<-slots
		}
		q.leave(caller)
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for _, slots := range []chan struct{}{own, q.slots} {
		select {
		case slots <- struct{}{}:
			held = append(held, slots)
			continue
		case <-timer.C:
			err = interact.Errorf(interact.Overloaded, "try again in a moment", "%d queries run already", len(slots))
		case <-r.Context().Done():
			err = r.Context().Err()
		}
		done()
		return nil, err
	}
	return done, nil
}

func (q *queries) join(caller string) chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[caller]
	if l == nil {
		l = &line{slots: make(chan struct{}, max(cap(q.slots)-1, 1))}
		q.lines[caller] = l
	}
	l.users++
	return l.slots
}

func (q *queries) leave(caller string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lines[caller]; l.users > 1 {
		l.users--
		return
	}
	delete(q.lines, caller)
}

// callerOf returns the host that asks. Of IPv6 that is its network: a host has as many addresses of that as it likes. All who ask
// over the unix socket are one, and so are those behind a proxy.
func callerOf(r *http.Request) string {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return "" // a unix socket
	}
	ip := from.Addr().Unmap()
	if network, err := ip.Prefix(64); ip.Is6() && err == nil {
		return network.String()
	}
	return ip.String()
}
