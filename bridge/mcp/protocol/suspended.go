package protocol

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/opaque"
)

// Suspended holds calls that wait for the input of their callers, each under a requestState (MCP 2026-07-28, "Multi round-trip requests").
// A requestState is valid once, for a limited time, for the same request of the same caller, and in this process only. The fields are set
// before the first use. Suspended is safe for concurrent use.
type Suspended[T any] struct {
	// Sealer encrypts the requestStates.
	Sealer *opaque.Sealer
	// Timeout bounds the time of each call, after which it is passed to Expired.
	Timeout time.Duration
	Expired func(call T)
	// Max bounds the calls, and MaxEach those of one caller.
	Max, MaxEach int

	mu     sync.Mutex
	calls  map[string]suspendedCall[T] // by the id in the requestState
	closed bool
}

type suspendedCall[T any] struct {
	call   T
	caller string
	expiry *time.Timer
}

// Suspend holds a call and returns its requestState, which is bound to b. The error is Overloaded beyond the bounds and after Close.
func (s *Suspended[T]) Suspend(b opaque.For, call T) (state string, err error) {
	id := rand.Text()
	if err := s.hold(id, b.Caller, call); err != nil {
		return "", err
	}
	return s.Sealer.Seal(b, s.Timeout, id), nil
}

// Resume returns the call of a requestState, and removes it.
func (s *Suspended[T]) Resume(b opaque.For, state string) (call T, e *Error) {
	var id string
	if err := s.Sealer.Open(b, state, &id); err != nil {
		return call, StateError(err)
	}
	one, ok := s.take(id)
	if !ok {
		return call, UsedStateError()
	}
	return one.call, nil
}

// Restore undoes a Resume: it holds the call again under the same requestState. The error is that of Suspend.
func (s *Suspended[T]) Restore(b opaque.For, state string, call T) error {
	var id string
	if err := s.Sealer.Open(b, state, &id); err != nil {
		return err
	}
	return s.hold(id, b.Caller, call)
}

func (s *Suspended[T]) hold(id, caller string, call T) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := 0
	for _, one := range s.calls {
		if one.caller == caller {
			own++
		}
	}
	if len(s.calls) >= s.Max || own >= s.MaxEach || s.closed {
		return interact.Errorf(interact.Overloaded, "try again later", "%d calls are waiting for input", own)
	}
	if s.calls == nil {
		s.calls = map[string]suspendedCall[T]{}
	}
	s.calls[id] = suspendedCall[T]{call, caller, time.AfterFunc(s.Timeout, func() {
		if one, ok := s.take(id); ok {
			s.Expired(one.call)
		}
	})}
	return nil
}

func (s *Suspended[T]) take(id string) (one suspendedCall[T], ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one, ok = s.calls[id]; ok {
		one.expiry.Stop()
		delete(s.calls, id)
	}
	return one, ok
}

// Close removes all calls, whose contexts the caller ends, and rejects further ones.
func (s *Suspended[T]) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, one := range s.calls {
		one.expiry.Stop()
	}
	clear(s.calls)
}
