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
	maxFetches   = 1024 // running and waiting fetches
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

// errCanceled ends a job that was canceled, which says nothing about the host.
var errCanceled = errors.New("fetch canceled")

// fetcher fetches TDs by hash: each once at a time, few from one host concurrently, and with a back-off after failures. It has no goroutines:
// callers wait.
type fetcher struct {
	get func(ctx context.Context, r *td.Record) ([]byte, error)

	mu       sync.Mutex // owns the rest
	jobs     map[fetchKey]*fetchJob
	hosts    map[did.DID]*hostSlots
	failures map[fetchKey]failure
}

// A fetchKey identifies a fetch: a hash and a Thing. The hash alone is not sufficient: another owner could name it in a record of a dead host,
// and the failures would count for the TD's owner.
type fetchKey struct{ key, hash [32]byte }

func fetchKeyOf(r *td.Record) fetchKey { return fetchKey{r.Key(), r.Hash} }

// A fetchJob is a running fetch.
type fetchJob struct {
	done chan struct{} // closed when body and err are set
	body []byte
	err  error
}

// hostSlots limits the fetches from one host.
type hostSlots struct {
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
		fl, mine, err := f.join(r)
		if err != nil {
			return nil, fmt.Errorf("fetch the TD of %s: %w", r.Thing, err)
		}
		if mine {
			f.run(ctx, r, fl)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-fl.done:
		}
		switch {
		case fl.err != errCanceled:
			return fl.body, fl.err
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		// The fetching caller was canceled; this one was not.
	}
}

// join returns the job for the TD of r, and whether the caller has to fetch.
func (f *fetcher) join(r *td.Record) (fl *fetchJob, mine bool, err error) {
	p := fetchKeyOf(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.jobs[p]; fl != nil {
		return fl, false, nil
	}
	if was, ok := f.failures[p]; ok && time.Now().Before(was.next) {
		return nil, false, errBackoff
	}
	if len(f.jobs) >= maxFetches {
		return nil, false, errBusy
	}
	b := f.slotsLocked(hostOf(r))
	if b.users >= perHost+perHostQueue {
		return nil, false, errBusy
	}
	if f.jobs == nil {
		f.jobs = map[fetchKey]*fetchJob{}
	}
	b.users++
	fl = &fetchJob{done: make(chan struct{})}
	f.jobs[p] = fl
	return fl, true, nil
}

// hostOf returns the host in whose queue a record waits.
func hostOf(r *td.Record) did.DID {
	if len(r.Hosts) == 0 {
		return ""
	}
	return r.Hosts[0].Node
}

func (f *fetcher) slotsLocked(host did.DID) *hostSlots {
	b := f.hosts[host]
	if b == nil {
		if f.hosts == nil {
			f.hosts = map[did.DID]*hostSlots{}
		}
		b = &hostSlots{slots: make(chan struct{}, perHost)}
		f.hosts[host] = b
	}
	return b
}

// run fetches the TD of r, completes the job and wakes its waiters.
func (f *fetcher) run(ctx context.Context, r *td.Record, fl *fetchJob) {
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
		fl.err = errCanceled
	}
	if ctx.Err() != nil && fl.err != nil {
		fl.err = errCanceled
	}
	p := fetchKeyOf(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	if b.users--; b.users == 0 {
		delete(f.hosts, hostOf(r))
	}
	delete(f.jobs, p)
	f.rememberLocked(p, fl.err)
	close(fl.done)
}

// rememberLocked records the end of a fetch.
func (f *fetcher) rememberLocked(p fetchKey, err error) {
	switch err {
	case nil:
		delete(f.failures, p)
	case errCanceled:
	default:
		f.failLocked(p)
	}
}

// failed records that the TD of a record was invalid.
func (f *fetcher) failed(r *td.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failLocked(fetchKeyOf(r))
}

// failLocked counts a failure: the next try is allowed after 5 s, 20 s, 80 s, 320 s, and then after an hour.
func (f *fetcher) failLocked(p fetchKey) {
	now := time.Now()
	was, ok := f.failures[p]
	if !ok && len(f.failures) >= maxFailures {
		f.pruneLocked(now)
	}
	if f.failures == nil {
		f.failures = map[fetchKey]failure{}
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
	var some fetchKey
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
