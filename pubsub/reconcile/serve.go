package reconcile

import (
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
)

// Limits of sessions that others begin.
const (
	service    = "lmos.sync"
	maxServing = 8 // at once; one of each peer
)

// errPanic says that a handler panicked.
var errPanic = errors.New("the handler panicked")

// handle holds a session that another node began: a place, service, memory, deadline, turns, close.
func (r *Reconciler) handle(st network.Stream) {
	if code := r.enter(st); code != network.StreamNoError {
		r.counts.refused.Add(1)
		_ = st.ResetWithError(code)
		return
	}
	defer r.ended.Done()
	limit := time.AfterFunc(sessionTime, func() { _ = st.Reset() })
	defer limit.Stop()
	err := r.serve(st)
	r.leave(st) // before the far end hears that it is over, and begins the next one
	if err != nil {
		r.blame(st.Conn().RemotePeer(), err)
		_ = st.ResetWithError(codeOf(err))
		return
	}
	r.counts.served.Add(1)
	_ = st.Close()
}

// serve holds the session. A panic costs it and not the process.
func (r *Reconciler) serve(st network.Stream) (err error) {
	p := st.Conn().RemotePeer()
	defer func() {
		if fault := recover(); fault != nil {
			r.counts.panics.Add(1)
			r.log.Error("sync handler panicked", "peer", p, "panic", fmt.Sprint(fault), "stack", string(debug.Stack()))
			err = errPanic
		}
	}()
	if err := st.Scope().SetService(service); err != nil {
		return err
	}
	report, err := r.hold(st, (*session).follow)
	r.account(p, report)
	return err
}

func codeOf(err error) network.StreamErrorCode {
	switch {
	case errors.Is(err, errWire), errors.Is(err, errLie):
		return network.StreamProtocolViolation
	case errors.Is(err, network.ErrResourceLimitExceeded):
		return network.StreamResourceLimitExceeded
	}
	return network.StreamNoError
}

// enter takes a place for a session without waiting, or says with what code to reset it.
func (r *Reconciler) enter(st network.Stream) network.StreamErrorCode {
	p := st.Conn().RemotePeer()
	if !r.admits(p) {
		return network.StreamGated
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return network.StreamShutdown
	case len(r.serving) >= maxServing, r.isServedLocked(p), r.peers.lied(p, time.Now()), !r.peers.may(p, time.Now()):
		return network.StreamRateLimited
	}
	r.serving[st] = true
	r.ended.Add(1)
	return network.StreamNoError
}

func (r *Reconciler) isServedLocked(p peer.ID) bool {
	for st := range r.serving {
		if st.Conn().RemotePeer() == p {
			return true
		}
	}
	return false
}

// leave gives up the place of a session.
func (r *Reconciler) leave(st network.Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.serving, st)
}

// Close answers no more sessions, ends those that are being served, and returns when the last has ended. It is called after Run
// has returned, and before the host is closed.
func (r *Reconciler) Close() error {
	r.host.RemoveStreamHandler(r.proto)
	r.mu.Lock()
	r.closed = true
	open := slices.Collect(maps.Keys(r.serving))
	r.mu.Unlock()
	for _, st := range open {
		_ = st.ResetWithError(network.StreamShutdown)
	}
	r.ended.Wait()
	return nil
}
