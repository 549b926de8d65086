package suspicion

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
)

// Limits of messages that others send.
const (
	service    = "lmos.gone"
	maxServing = 256 // at once: when many hosts go, all peers tell it at once
)

// errPanic says that a handler panicked.
var errPanic = errors.New("the handler panicked")

// handle hears one message: a place, service, memory, deadline, message, close.
func (r *Rumours) handle(st network.Stream) {
	if code := r.enter(st); code != network.StreamNoError {
		r.counts.refused.Add(1)
		_ = st.ResetWithError(code)
		return
	}
	defer r.leave(st)
	if err := r.serve(st); err != nil {
		r.counts.refused.Add(1)
		code := network.StreamNoError
		if errors.Is(err, errWire) {
			code = network.StreamProtocolViolation
			r.peers.shun(st.Conn().RemotePeer(), time.Now())
			r.log.Warn("peer breaks the protocol of rumours", "peer", st.Conn().RemotePeer(), "err", err)
		}
		_ = st.ResetWithError(code)
		return
	}
	_ = st.Close()
}

// serve reads the message and notes what it says. A panic costs it and not the process.
func (r *Rumours) serve(st network.Stream) (err error) {
	p := st.Conn().RemotePeer()
	defer func() {
		if fault := recover(); fault != nil {
			r.counts.panics.Add(1)
			r.log.Error("handler of rumours panicked", "peer", p, "panic", fmt.Sprint(fault), "stack", string(debug.Stack()))
			err = errPanic
		}
	}()
	if err := st.Scope().SetService(service); err != nil {
		return err
	}
	if err := st.Scope().ReserveMemory(maxMessage, network.ReservationPriorityLow); err != nil {
		return fmt.Errorf("reserve %d bytes: %w", maxMessage, err)
	}
	defer st.Scope().ReleaseMemory(maxMessage)
	watch := time.AfterFunc(sendTime, func() { _ = st.Reset() })
	defer watch.Stop()
	body, err := io.ReadAll(io.LimitReader(st, maxMessage+1))
	if err != nil {
		return err
	}
	r.counts.in.Add(uint64(len(body)))
	if len(body) > maxMessage {
		return fmt.Errorf("%w: more than %d bytes", errWire, maxMessage)
	}
	hosts, err := decode(body)
	if err != nil {
		return err
	}
	r.hear(p, hosts, time.Now())
	return nil
}

// enter takes a place for a message without waiting, or says with what code to reset it.
func (r *Rumours) enter(st network.Stream) network.StreamErrorCode {
	p := st.Conn().RemotePeer()
	if !r.admits(p) {
		return network.StreamGated
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return network.StreamShutdown
	case len(r.serving) >= maxServing, !r.peers.may(p, time.Now()):
		return network.StreamRateLimited
	}
	r.serving[st] = true
	r.ended.Add(1)
	return network.StreamNoError
}

func (r *Rumours) leave(st network.Stream) {
	defer r.ended.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.serving, st)
}

// Close hears nothing more, ends what is being heard, and returns when the last has ended. It is called after Run has returned, and
// before the host is closed.
func (r *Rumours) Close() error {
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
