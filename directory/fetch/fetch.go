// Package fetch fetches TDs by hash from their hosts: each once at a time, few from one host concurrently, and with a back-off after
// failures.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/td"
)

// Limits of fetching.
const (
	Max          = 1024 // running and waiting fetches
	perHost      = 4    // concurrent fetches from one host
	perHostQueue = 64   // running and waiting fetches of one host, so that a dead host does not fill the queue
	timeout      = 5 * time.Second
	maxFailures  = 4096
)

// pauses are the pauses after failures in a row. After the last one the failures are forgotten.
var pauses = [...]time.Duration{5 * time.Second, 20 * time.Second, 80 * time.Second, 320 * time.Second, time.Hour}

// ErrBusy is the error of a fetch that exceeds a limit of concurrent fetches.
var ErrBusy = errors.New("too many fetches")

// errCanceled ends a canceled job, which does not count as a failure.
var errCanceled = errors.New("fetch canceled")

// A Fetcher fetches TDs. It has no goroutines: callers wait. Its methods are safe for concurrent use.
type Fetcher struct {
	get func(ctx context.Context, r *td.Record) ([]byte, error)

	mu       sync.Mutex // owns the rest
	jobs     map[target]*job
	hosts    map[did.DID]*host
	failures map[target]failure
}

// A target identifies a fetch: a hash and a Thing. The hash alone is not sufficient: another owner could sign a record with this hash and an
// unreachable host, and the failures would count for the TD's owner.
type target struct{ key, hash [32]byte }

func targetOf(r *td.Record) target { return target{r.CarrierKey(), r.Hash} }

// A job is a running fetch.
type job struct {
	host *host
	done chan struct{} // closed when body and err are set
	body []byte
	err  error
}

// A host limits the fetches from one host.
type host struct {
	slots chan struct{}
	jobs  int // owned by Fetcher.mu
}

type failure struct {
	tries int
	next  time.Time
}

// New returns a Fetcher that calls get for each fetch, with a limit of 5 s. If get is nil, all fetches fail.
func New(get func(ctx context.Context, r *td.Record) ([]byte, error)) *Fetcher {
	return &Fetcher{get: get, jobs: map[target]*job{}, hosts: map[did.DID]*host{}, failures: map[target]failure{}}
}

// TD returns the TD of r by its hash, unverified. The error wraps [ErrBusy] if a limit is exceeded. After an error the next record of the Thing
// can try again.
func (f *Fetcher) TD(ctx context.Context, r *td.Record) ([]byte, error) {
	if f.get == nil {
		return nil, errors.New("fetching TDs is not configured")
	}
	for {
		j, first, err := f.join(r)
		if err != nil {
			return nil, fmt.Errorf("fetch the TD of %s: %w", r.Thing, err)
		}
		if first {
			f.run(ctx, r, j)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-j.done:
		}
		switch {
		case j.err != errCanceled:
			return j.body, j.err
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		// The fetching caller was canceled; this one was not.
	}
}

// join returns the job for the TD of r, and whether it is new, so that the caller must run it.
func (f *Fetcher) join(r *td.Record) (j *job, first bool, err error) {
	t := targetOf(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	if j := f.jobs[t]; j != nil {
		return j, false, nil
	}
	if time.Now().Before(f.failures[t].next) {
		return nil, false, errors.New("failed recently")
	}
	h := f.hosts[hostOf(r)]
	if len(f.jobs) >= Max || h != nil && h.jobs >= perHost+perHostQueue {
		return nil, false, ErrBusy
	}
	if h == nil {
		h = &host{slots: make(chan struct{}, perHost)}
		f.hosts[hostOf(r)] = h
	}
	h.jobs++
	j = &job{host: h, done: make(chan struct{})}
	f.jobs[t] = j
	return j, true, nil
}

// hostOf returns the host whose limits apply to a record.
func hostOf(r *td.Record) did.DID {
	if len(r.Hosts) == 0 {
		return ""
	}
	return r.Hosts[0].Node
}

// run fetches the TD of r, completes the job and wakes its waiters.
func (f *Fetcher) run(ctx context.Context, r *td.Record, j *job) {
	select {
	case j.host.slots <- struct{}{}:
		// The deadline starts with the fetch, not with the wait for a slot.
		limited, cancel := context.WithTimeout(ctx, timeout)
		j.body, j.err = f.get(limited, r)
		cancel()
		<-j.host.slots
	case <-ctx.Done():
		j.err = errCanceled
	}
	if ctx.Err() != nil && j.err != nil {
		j.err = errCanceled
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if j.host.jobs--; j.host.jobs == 0 {
		delete(f.hosts, hostOf(r))
	}
	t := targetOf(r)
	delete(f.jobs, t)
	switch j.err {
	case nil:
		delete(f.failures, t)
	case errCanceled:
	default:
		f.failLocked(t)
	}
	close(j.done)
}

// Failed records that the TD of a record was invalid.
func (f *Fetcher) Failed(r *td.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failLocked(targetOf(r))
}

// failLocked counts a failure: the next try is allowed after a pause.
func (f *Fetcher) failLocked(t target) {
	now := time.Now()
	tries := f.failures[t].tries
	is := failure{(tries + 1) % len(pauses), now.Add(pauses[tries])}
	boundedmap.Put(&f.failures, t, is, maxFailures, func(was failure) bool { return !now.Before(was.next) })
}
