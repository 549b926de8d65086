package tdd

import (
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// queries limits the concurrent queries: in total, and per caller to one less than in total. Further queries of a caller wait in the queue
// of the caller, so that they do not delay other callers.
type queries struct {
	slots   chan struct{} // one for each query that runs
	mu      sync.Mutex
	callers map[string]*callerQueue // those with a running or waiting query; owned by mu
}

type callerQueue struct {
	slots chan struct{} // one for each query that runs or waits for queries.slots
	users int           // owned by queries.mu
}

func newQueries(most int) *queries {
	return &queries{slots: make(chan struct{}, most), callers: map[string]*callerQueue{}}
}

// acquire waits until r may run a query; done ends it.
func (q *queries) acquire(r *http.Request, until time.Time) (done func(), err error) {
	caller := callerOf(r)
	own := q.addQuery(caller)
	var held []chan struct{}
	done = func() {
		for _, slots := range held {
			<-slots
		}
		q.removeQuery(caller)
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

func (q *queries) addQuery(caller string) chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.callers[caller]
	if l == nil {
		l = &callerQueue{slots: make(chan struct{}, max(cap(q.slots)-1, 1))}
		q.callers[caller] = l
	}
	l.users++
	return l.slots
}

func (q *queries) removeQuery(caller string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.callers[caller]; l.users > 1 {
		l.users--
		return
	}
	delete(q.callers, caller)
}

// callerOf returns the address of the caller; for IPv6 its /64 network, because a host may have all addresses of it. All callers over the
// unix socket count as one, and so do all callers behind a proxy.
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
