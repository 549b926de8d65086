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

// Limits of fetching.
const (
	fetchTimeout = 5 * time.Second
	perHost      = 4    // concurrent fetches from one host
	perHostQueue = 64   // running and waiting fetches of one host, so that a dead host does not fill the queue
	maxFlights   = 1024 // running and waiting fetches
	maxTries     = 5    // failures until a TD is not fetched for forgiveAfter
	retryAfter   = 5 * time.Second
	forgiveAfter = time.Hour
	maxFailures  = 4096
)

// Reasons not to fetch now. The next record of the Thing tries again.
var (
	errNoFetch = errors.New("fetching TDs is not configured")
	errBusy    = errors.New("too many fetches")
	errBackoff = errors.New("failed recently")
)

// errLeft ends a flight that was canceled, which says nothing about the host.
var errLeft = errors.New("fetch canceled")

// fetcher fetches TDs by hash: each once at a time, few from one host concurrently, and with a back-off after failures. It has no goroutines:
// callers wait.
type fetcher struct {
	get func(ctx context.Context, r *td.Record) ([]byte, error)

	mu       sync.Mutex // owns the rest
	flights  map[parcel]*flight
	hosts    map[did.DID]*berth
	failures map[parcel]failure
}

// A parcel identifies a fetch: a hash and a Thing. The hash alone is not sufficient: another owner could name it in a record of a dead host,
// and the failures would count for the TD's owner.
type parcel struct{ key, hash [32]byte }

func parcelOf(r *td.Record) parcel { return parcel{r.Key(), r.Hash} }

// A flight is a running fetch.
type flight struct {
	done chan struct{} // closed when body and err are set
	body []byte
	err  error
}

// A berth limits the fetches from one host.
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
		// The fetching caller was canceled; this one was not.
	}
}

// board returns the flight for the TD of r, and whether the caller has to fetch.
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

// hostOf returns the host in whose queue a record waits.
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

// fly runs a flight.
func (f *fetcher) fly(ctx context.Context, r *td.Record, fl *flight) {
	f.mu.Lock()
	b := f.hosts[hostOf(r)]
	f.mu.Unlock()
	select {
	case b.slots <- struct{}{}:
		// The deadline starts with the fetch, not with the wait for a slot.
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

// rememberLocked records the end of a fetch.
func (f *fetcher) rememberLocked(p parcel, err error) {
	switch err {
	case nil:
		delete(f.failures, p)
	case errLeft:
	default:
		f.failLocked(p)
	}
}

// failed records that the TD of a record was invalid.
func (f *fetcher) failed(r *td.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failLocked(parcelOf(r))
}

// failLocked counts a failure: the next try is allowed after 5 s, 20 s, 80 s, 320 s, and then after an hour.
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

// pruneLocked makes room for a failure: expired ones are dropped first, else any.
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
