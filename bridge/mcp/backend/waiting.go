package backend

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/internal/opaque"
)

const (
	// suspendTimeout bounds the time that a request waits for the input of its caller.
	suspendTimeout = 10 * time.Minute
	// maxSuspended bounds the suspended requests, and maxSuspendedEach those of one caller.
	maxSuspended     = 128
	maxSuspendedEach = 16
	// maxNotes and maxNoteBytes bound the queued messages of the server for a request. Messages beyond them are dropped: notifications may
	// be lost, and input requests are declined.
	maxNotes     = 256
	maxNoteBytes = 32 << 20
	// maxInputs bounds the concurrent input requests of a server.
	maxInputs = 32
)

// A run is a request to a legacy server. When the server sends an input request, the caller gets input_required, and the run is suspended
// until the caller responds.
type run struct {
	up     *upstream
	caller string
	user   string // of the caller, if that is a relay
	level  int    // requested log level, an index of levels; len(levels) for none
	cancel context.CancelFunc

	notes chan *protocol.Message // queued requests and notifications of the server
	noted atomic.Int64           // bytes of notes
	done  chan struct{}
	resp  *protocol.Message // set before done is closed
	err   error

	waits bool // waiting for the caller; guarded by upstream.mu

	mu      sync.Mutex
	waiting map[string]*protocol.Message // pending input requests by their key for the caller
	keys    int
	over    bool // abandoned
}

// begin starts a run in a reserved upstream, and releases the upstream at its end.
func (s *legacyServer) begin(ctx context.Context, u *upstream, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error) {
	r := &run{up: u, caller: protocol.CallerOf(ctx), user: protocol.UserOf(ctx), level: levelOf(m), notes: make(chan *protocol.Message, maxNotes),
		done: make(chan struct{}), waiting: map[string]*protocol.Message{}}
	u.verbose(ctx, r.level)
	var running context.Context
	running, r.cancel = context.WithCancel(s.b.ctx)
	u.enter(r)
	end := func() {
		u.exit(r)
		r.cancel()
		s.b.leave(u.sharedConn)
	}
	err := s.b.start(func() {
		defer close(r.done)
		defer end()
		r.resp, r.err = u.Call(running, toLegacy(m), func(n *protocol.Message) error { r.add(n); return nil })
	})
	if err != nil {
		end()
		return nil, err
	}
	return s.follow(ctx, r, m, notify)
}

// add queues a message of the server.
func (r *run) add(m *protocol.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	size := int64(len(m.Bytes()))
	if !r.over && r.noted.Load()+size <= maxNoteBytes {
		select {
		case r.notes <- m:
			r.noted.Add(size)
			return
		default:
		}
	}
	if m.IsRequest() {
		r.up.decline(m)
	}
}

// took accounts for the removal of n from the queue.
func (r *run) took(n *protocol.Message) *protocol.Message {
	r.noted.Add(-int64(len(n.Bytes())))
	return n
}

// abandon ends a run and declines its input requests.
func (r *run) abandon() {
	r.cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	for _, one := range r.waiting {
		r.up.decline(one)
	}
	clear(r.waiting)
	for len(r.notes) > 0 {
		if n := r.took(<-r.notes); n.IsRequest() {
			r.up.decline(n)
		}
	}
}

// follow passes on the messages of the server until the response or an input request.
func (s *legacyServer) follow(ctx context.Context, r *run, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error) {
	for {
		select {
		case n := <-r.notes:
			if r.took(n).IsRequest() {
				input := r.gather(n)
				if !r.ended() {
					return s.suspend(r, m, input)
				}
				r.redirect(input)
				continue
			}
			if err := pass(m, n, notify); err != nil {
				r.abandon()
				return nil, err
			}
		case <-r.done:
			for len(r.notes) > 0 { // messages before the response
				n := r.took(<-r.notes)
				if n.IsRequest() {
					r.redirect([]*protocol.Message{n})
					continue
				}
				if err := pass(m, n, notify); err != nil {
					r.abandon()
					return nil, err
				}
			}
			if r.err != nil {
				return nil, s.b.broken(ctx, r.err)
			}
			return toModern(m, r.resp.WithID(m.ID())), nil
		case <-ctx.Done():
			r.abandon()
			return nil, ctx.Err()
		}
	}
}

// ended reports whether the server has responded.
func (r *run) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// redirect passes the input requests of an ended run to another run: they did not belong to this one.
func (r *run) redirect(input []*protocol.Message) {
	for _, one := range input {
		r.up.dispatch(one)
	}
}

// pass passes a progress or log message to the caller of m, which may be a retry with another token. Other notifications go to
// subscribers.
func pass(m, n *protocol.Message, notify protocol.Notify) error {
	switch token := m.ProgressToken(); {
	case n.Method() == protocol.Progress && token != nil:
		return notify(n.WithParam(token, "progressToken"))
	case n.Method() == protocol.LogMessage && m.Text("_meta", protocol.MetaLogLevel) != "":
		return notify(n)
	}
	return nil
}

// gatherDelay is the time in which further input requests are combined: each round costs a request of the caller.
const gatherDelay = 10 * time.Millisecond

// gather returns first and the input requests that follow within gatherDelay.
func (r *run) gather(first *protocol.Message) (input []*protocol.Message) {
	input = append(input, first)
	late := time.NewTimer(gatherDelay)
	defer late.Stop()
	for {
		select {
		case n := <-r.notes:
			if !r.took(n).IsRequest() {
				r.add(n) // for the next round
				return input
			}
			input = append(input, n)
		case <-late.C:
			return input
		}
	}
}

// suspend suspends the run. It returns the response for the caller, with the new input requests and those without a response yet.
func (s *legacyServer) suspend(r *run, m *protocol.Message, input []*protocol.Message) (*protocol.Message, error) {
	r.up.pause(r, true)
	state, err := s.suspended.Suspend(bindingOf(r.caller, m), r)
	if err != nil {
		for _, one := range input {
			r.up.decline(one)
		}
		r.abandon()
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range input {
		if len(r.waiting) >= maxInputs {
			r.up.decline(one)
			continue
		}
		r.keys++
		r.waiting[fmt.Sprintf("r%d", r.keys)] = one
	}
	requests := map[string]any{}
	for key, one := range r.waiting {
		request := map[string]any{"method": one.Method()}
		if p := one.Params(); p != nil {
			request["params"] = p
		}
		requests[key] = request
	}
	return protocol.Respond(m.ID(), map[string]any{"resultType": "input_required", "inputRequests": requests, "requestState": state}), nil
}

// bindingOf returns the binding of a requestState: the caller and the request, which a retry must repeat.
func bindingOf(caller string, m *protocol.Message) opaque.For {
	return opaque.For{Purpose: "suspended", Caller: caller, Request: digest(m)}
}

// resume passes the responses of the caller to the server and continues the run. After malformed responses the caller can repeat the request.
func (s *legacyServer) resume(ctx context.Context, m *protocol.Message, state string, notify protocol.Notify) (*protocol.Message, error) {
	binding := bindingOf(protocol.CallerOf(ctx), m)
	r, bad := s.suspended.Resume(binding, state)
	if bad != nil {
		return protocol.RespondError(m.ID(), bad), nil
	}
	answers, bad := inputs(m)
	if bad != nil {
		if s.suspended.Restore(binding, state, r) != nil {
			r.abandon()
		}
		return protocol.RespondError(m.ID(), bad), nil
	}
	r.up.pause(r, false)
	missing, err := r.answer(ctx, answers)
	if err != nil {
		r.abandon()
		return nil, s.b.broken(ctx, err)
	}
	if missing {
		return s.suspend(r, m, nil)
	}
	return s.follow(ctx, r, m, notify)
}

// answer sends the responses of the caller to the server and reports whether more are missing. Unknown keys are ignored. It holds no lock
// during writes, because a server that does not read must not block the reader of its messages.
func (r *run) answer(ctx context.Context, answers map[string]json.RawMessage) (missing bool, err error) {
	answered := map[string]*protocol.Message{}
	r.mu.Lock()
	for key := range answers {
		if r.waiting[key] != nil {
			answered[key] = r.waiting[key]
			delete(r.waiting, key)
		}
	}
	missing = len(r.waiting) > 0
	r.mu.Unlock()
	for key, one := range answered {
		if err != nil {
			r.up.decline(one)
			continue
		}
		err = r.up.Write(ctx, protocol.Respond(one.ID(), answers[key]))
	}
	return missing, err
}

// inputs parses the inputResponses of a request.
func inputs(m *protocol.Message) (map[string]json.RawMessage, *protocol.Error) {
	raw, err := m.Param("inputResponses")
	if err != nil {
		return nil, err.(*protocol.Error)
	}
	answers := map[string]json.RawMessage{}
	if raw != nil && json.Unmarshal(raw, &answers) != nil {
		return nil, protocol.Errorf(protocol.InvalidParams, "expected an object as inputResponses")
	}
	for key, answer := range answers {
		if len(answer) == 0 || answer[0] != '{' {
			return nil, protocol.Errorf(protocol.InvalidParams, "expected an object as the response to %q", key)
		}
	}
	return answers, nil
}

// digest returns the hash of the part of a request that a retry repeats.
func digest(m *protocol.Message) [sha256.Size]byte {
	m = toLegacy(m).WithParam(nil, "_meta")
	s := sha256.New()
	fmt.Fprintf(s, "%s %s", m.Method(), m.Params())
	return [sha256.Size]byte(s.Sum(nil))
}
