package backend

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/wire"
)

const (
	// parkedFor is how long a request waits for its caller to come back with what the server asked for.
	parkedFor = 10 * time.Minute
	// maxParked bounds the requests that wait so.
	maxParked = 128
	// maxNotes bounds what the server may say of a request meanwhile. What is more is dropped: notifications may be.
	maxNotes = 256
)

// A run is a request to an old server that has a session of its own. The server may ask for things: then the caller gets
// input_required, and the run is parked until it comes back with the answers.
type run struct {
	up     *upstream
	digest [sha256.Size]byte // of the request
	cancel context.CancelFunc

	notes chan *wire.Message // what the server says meanwhile, and asks
	done  chan struct{}
	resp  *wire.Message // once done is closed
	err   error

	mu      sync.Mutex
	waiting map[string]*wire.Message // what the server asked for and waits for, by the key that the caller has
	keys    int

	expiry *time.Timer // owned by old.mu
}

// begin starts a run.
func (o *old) begin(ctx context.Context, m *wire.Message, caps, level string, notify func(*wire.Message) error) (*wire.Message, error) {
	u, err := o.own(ctx, caps)
	if err != nil {
		return nil, err
	}
	if level != "" {
		if _, err := u.Call(ctx, wire.Request(`"lmosd"`, "logging/setLevel", map[string]string{"level": level}), ignore); err != nil {
			o.release(u, false)
			return nil, o.b.broken(ctx, err)
		}
	}
	r := &run{up: u, digest: digest(m), notes: make(chan *wire.Message, maxNotes), done: make(chan struct{}), waiting: map[string]*wire.Message{}}
	u.give(r.add)
	var running context.Context
	running, r.cancel = context.WithCancel(o.b.ctx)
	err = o.b.start(func() {
		defer close(r.done)
		defer r.cancel()
		r.resp, r.err = u.Call(running, older(m), func(n *wire.Message) error { r.add(n); return nil })
		o.release(u, r.err == nil)
	})
	if err != nil {
		r.cancel()
		o.release(u, false)
		return nil, err
	}
	return o.follow(ctx, r, m, notify)
}

// add takes what the server says.
func (r *run) add(m *wire.Message) {
	select {
	case r.notes <- m:
	default:
		if m.IsRequest() {
			r.up.say(wire.Refuse(m.ID(), wire.Errorf(wire.InternalError, "too much is asked at once")))
		}
	}
}

// follow passes on what the server says of m, until it has answered, or asks for something.
func (o *old) follow(ctx context.Context, r *run, m *wire.Message, notify func(*wire.Message) error) (*wire.Message, error) {
	for {
		select {
		case n := <-r.notes:
			if n.IsRequest() {
				return o.park(r, m, r.gather(n))
			}
			if err := pass(m, n, notify); err != nil {
				r.cancel()
				return nil, err
			}
		case <-r.done:
			for len(r.notes) > 0 { // what came before the response
				if err := pass(m, <-r.notes, notify); err != nil {
					return nil, err
				}
			}
			if r.err != nil {
				return nil, o.b.broken(ctx, r.err)
			}
			return newer(m, r.resp.WithID(m.ID())), nil
		case <-ctx.Done():
			r.cancel()
			return nil, ctx.Err()
		}
	}
}

// pass passes on what may be said with the response to m, which may be a retry with another token. All else is for those who listen.
func pass(m, n *wire.Message, notify func(*wire.Message) error) error {
	switch token := m.ProgressToken(); {
	case n.Method() == wire.Progress && token != nil:
		return notify(n.WithParam(token, "progressToken"))
	case n.Method() == wire.LogMessage && m.Text("_meta", wire.MetaLogLevel) != "":
		return notify(n)
	}
	return nil
}

// together is how long it is waited for more that the server asks for at once: each round costs the caller a request.
const together = 10 * time.Millisecond

// gather returns what the server asks for: first, and what comes right after it.
func (r *run) gather(first *wire.Message) (asked []*wire.Message) {
	asked = append(asked, first)
	late := time.NewTimer(together)
	defer late.Stop()
	for {
		select {
		case n := <-r.notes:
			if !n.IsRequest() {
				r.add(n) // for the next round
				return asked
			}
			asked = append(asked, n)
		case <-late.C:
			return asked
		}
	}
}

// park lets the run wait, and tells the caller what the server asks for, now and since before.
func (o *old) park(r *run, m *wire.Message, asked []*wire.Message) (*wire.Message, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range asked {
		r.keys++
		r.waiting[fmt.Sprintf("r%d", r.keys)] = one
	}
	state := rand.Text()
	if !o.keep(state, r) {
		r.cancel()
		return nil, overloaded("too many requests wait for answers of their callers")
	}
	requests := map[string]any{}
	for key, asked := range r.waiting {
		one := map[string]any{"method": asked.Method()}
		if p := asked.Params(); p != nil {
			one["params"] = p
		}
		requests[key] = one
	}
	return wire.Respond(m.ID(), map[string]any{"resultType": "input_required", "inputRequests": requests, "requestState": state}), nil
}

// keep parks r under a state, if there is room.
func (o *old) keep(state string, r *run) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.parked) >= maxParked {
		return false
	}
	o.parked[state] = r
	r.expiry = time.AfterFunc(parkedFor, func() {
		if o.unpark(state) != nil {
			r.cancel()
		}
	})
	return true
}

// unpark takes the run of a state, which is good once; nil if there is none.
func (o *old) unpark(state string) *run {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.parked[state]
	if r != nil {
		delete(o.parked, state)
		r.expiry.Stop()
	}
	return r
}

// resume gives the server what the caller brings, and goes on. A state is a random word: it cannot be forged. It is for the same
// request only, for a while, and once.
func (o *old) resume(ctx context.Context, m *wire.Message, state string, notify func(*wire.Message) error) (*wire.Message, error) {
	r := o.unpark(state)
	if r == nil {
		return wire.Refuse(m.ID(), wire.Errorf(wire.InvalidParams, "the requestState is unknown, used or too old: ask anew without it")), nil
	}
	if r.digest != digest(m) {
		r.cancel()
		return wire.Refuse(m.ID(), wire.Errorf(wire.InvalidParams, "the requestState belongs to another request")), nil
	}
	answers, err := inputs(m)
	if err != nil {
		if !o.keep(state, r) {
			r.cancel()
		}
		return wire.Refuse(m.ID(), err), nil
	}
	r.mu.Lock()
	for key, answer := range answers {
		asked := r.waiting[key]
		if asked == nil {
			continue // unknown keys are ignored
		}
		delete(r.waiting, key)
		if err := r.up.Write(ctx, wire.Respond(asked.ID(), answer)); err != nil {
			r.mu.Unlock()
			r.cancel()
			return nil, o.b.broken(ctx, err)
		}
	}
	missing := len(r.waiting) > 0
	r.mu.Unlock()
	if missing {
		return o.park(r, m, nil)
	}
	return o.follow(ctx, r, m, notify)
}

// inputs reads the answers that a caller brings.
func inputs(m *wire.Message) (map[string]json.RawMessage, *wire.Error) {
	raw, err := m.Param("inputResponses")
	if err != nil {
		return nil, err.(*wire.Error)
	}
	answers := map[string]json.RawMessage{}
	if raw != nil && json.Unmarshal(raw, &answers) != nil {
		return nil, wire.Errorf(wire.InvalidParams, "inputResponses are an object")
	}
	for key, answer := range answers {
		if len(answer) == 0 || answer[0] != '{' {
			return nil, wire.Errorf(wire.InvalidParams, "the answer to %q is no object", key)
		}
	}
	return answers, nil
}

// digest is the hash of what a request asks for: what stays the same when it is sent again with answers.
func digest(m *wire.Message) [sha256.Size]byte {
	m = older(m).WithParam(nil, "_meta")
	s := sha256.New()
	fmt.Fprintf(s, "%s %s", m.Method(), m.Params())
	return [sha256.Size]byte(s.Sum(nil))
}
