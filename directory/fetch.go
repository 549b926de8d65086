package directory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// Bounds of fetching.
const (
	fetchTimeout = 5 * time.Second
	perHost      = 4    // fetches from one host at once
	perHostQueue = 64   // and in line for it: one dead host must not fill the line of all
	maxFlights   = 1024 // fetches and what is in line, in all
	maxTries     = 5    // until a TD is left alone for forgiveAfter
	retryAfter   = 5 * time.Second
	forgiveAfter = time.Hour
	maxFailures  = 4096
)

// Reasons not to fetch now. The next record of the thing tries again.
var (
	errNoFetch = errors.New("nothing here fetches TDs")
	errBusy    = errors.New("too many fetches")
	errBackoff = errors.New("failed lately")
)

// errLeft ends a flight whose maker has left; it says nothing about the host.
var errLeft = errors.New("nobody waits any more")

// fetcher gets TDs by hash: each once at a time, few from one host at once, and not again too soon after a failure. It has
// no goroutines: callers wait.
type fetcher struct {
	get func(ctx context.Context, r *td.Record) ([]byte, error)

	mu       sync.Mutex // owns the rest
	flights  map[parcel]*flight
	hosts    map[did.DID]*berth
	failures map[parcel]failure
}

// A parcel is a TD that is fetched: that of a hash, for one thing. The hash alone would do if nobody lied: a stranger could
// name it in a record of a dead host, and what fails there would count for the TD's owner.
type parcel struct{ key, hash [32]byte }

func parcelOf(r *td.Record) parcel { return parcel{r.Key(), r.Hash} }

// A flight is a fetch that is going on.
type flight struct {
	done chan struct{} // closed when body and err are set
	body []byte
	err  error
}

// A berth bounds the fetches from one host.
type berth struct {
	slots chan struct{}
	users int // owned by fetcher.mu
}

type failure struct {
	tries int
	next  time.Time
}

// body returns the TD of r by its hash, unverified.
func (f *fetcher) body(ctx context.Context, r *td.Record) ([]byte, error) {
	if f.get == nil {
		return nil, errNoFetch
	}
	for {
		fl, mine, err := f.board(r)
		if err != nil {
			return nil, fmt.Errorf("fetch the TD of %s: %w", r.Thing, err)
		}
		if mine {
			f.fly(ctx, r, fl)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-fl.done:
		}
		switch {
		case fl.err != errLeft:
			return fl.body, fl.err
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		// Whoever fetched it has left; we have not.
	}
}

// board returns the flight for the TD of r, and whether the caller has to make it.
func (f *fetcher) board(r *td.Record) (fl *flight, mine bool, err error) {
	p := parcelOf(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.flights[p]; fl != nil {
		return fl, false, nil
	}
	if was, ok := f.failures[p]; ok && time.Now().Before(was.next) {
		return nil, false, errBackoff
	}
	if len(f.flights) >= maxFlights {
		return nil, false, errBusy
	}
	b := f.berthLocked(hostOf(r))
	if b.users >= perHost+perHostQueue {
		return nil, false, errBusy
	}
	if f.flights == nil {
		f.flights = map[parcel]*flight{}
	}
	b.users++
	fl = &flight{done: make(chan struct{})}
	f.flights[p] = fl
	return fl, true, nil
}

// hostOf returns the host whose line a record waits in.
func hostOf(r *td.Record) did.DID {
	if len(r.Hosts) == 0 {
		return ""
	}
	return r.Hosts[0].Node
}

func (f *fetcher) berthLocked(host did.DID) *berth {
	b := f.hosts[host]
	if b == nil {
		if f.hosts == nil {
			f.hosts = map[did.DID]*berth{}
		}
		b = &berth{slots: make(chan struct{}, perHost)}
		f.hosts[host] = b
	}
	return b
}

// fly makes a flight and lands it.
func (f *fetcher) fly(ctx context.Context, r *td.Record, fl *flight) {
	f.mu.Lock()
	b := f.hosts[hostOf(r)]
	f.mu.Unlock()
	select {
	case b.slots <- struct{}{}:
		// The deadline starts when the host's turn has come, not while others wait for it.
		limited, cancel := context.WithTimeout(ctx, fetchTimeout)
		fl.body, fl.err = f.get(limited, r)
		cancel()
		<-b.slots
	case <-ctx.Done():
		fl.err = errLeft
	}
	if ctx.Err() != nil && fl.err != nil {
		fl.err = errLeft
	}
	p := parcelOf(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	if b.users--; b.users == 0 {
		delete(f.hosts, hostOf(r))
	}
	delete(f.flights, p)
	f.rememberLocked(p, fl.err)
	close(fl.done)
}

// rememberLocked notes how a fetch ended.
func (f *fetcher) rememberLocked(p parcel, err error) {
	switch err {
	case nil:
		delete(f.failures, p)
	case errLeft:
	default:
		f.failLocked(p)
	}
}

// failed notes that what came for a record was rubbish.
func (f *fetcher) failed(r *td.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failLocked(parcelOf(r))
}

// failLocked counts a failure: the next try may come after 5 s, 20 s, 80 s, 320 s, and then after an hour.
func (f *fetcher) failLocked(p parcel) {
	now := time.Now()
	was, ok := f.failures[p]
	if !ok && len(f.failures) >= maxFailures {
		f.pruneLocked(now)
	}
	if f.failures == nil {
		f.failures = map[parcel]failure{}
	}
	was.tries++
	was.next = now.Add(retryAfter << (2 * (was.tries - 1)))
	if was.tries >= maxTries {
		was = failure{next: now.Add(forgiveAfter)}
	}
	f.failures[p] = was
}

// pruneLocked makes room for a failure: what may be tried again goes first, else any.
func (f *fetcher) pruneLocked(now time.Time) {
	var some parcel
	for p, was := range f.failures {
		some = p
		if !now.Before(was.next) {
			delete(f.failures, p)
		}
	}
	if len(f.failures) >= maxFailures {
		delete(f.failures, some)
	}
}
