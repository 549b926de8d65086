package backend

import (
	"context"
	"crypto/rand"
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
	// parkedFor is how long a request waits for its caller to come back with what the server asked for.
	parkedFor = 10 * time.Minute
	// maxParked bounds the requests that wait so, and maxParkedEach those of one caller.
	maxParked     = 128
	maxParkedEach = 16
	// maxNotes bounds what the server may say of a request meanwhile, and maxNoteBytes how long that may be. What is more is dropped:
	// notifications may be.
	maxNotes     = 256
	maxNoteBytes = 32 << 20
	// maxAsked bounds what a server may want to know at once.
	maxAsked = 32
)

// A run is a request to an old server. The server may ask for things: then the caller gets input_required, and the run is parked
// until it comes back with the answers.
type run struct {
	up     *upstream
	caller string
	user   string // of the caller, which may be a relay
	level  int    // of the log messages that the caller wants, an index of levels; len(levels) for none
	cancel context.CancelFunc

	notes chan *protocol.Message // requests and notifications of the server until then
	noted atomic.Int64           // bytes of notes
	done  chan struct{}
	resp  *protocol.Message // once done is closed
	err   error

	waits bool // for its caller; owned by upstream.mu

	mu      sync.Mutex
	waiting map[string]*protocol.Message // what the server asked for and waits for, by the key that the caller has
	keys    int
	over    bool // nobody comes back for it

	expiry *time.Timer // owned by old.mu
}

// begin starts a run in a session that the caller uses, and that the run leaves.
func (o *old) begin(ctx context.Context, u *upstream, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error) {
	r := &run{up: u, caller: protocol.CallerOf(ctx), user: protocol.UserOf(ctx), level: levelOf(m), notes: make(chan *protocol.Message, maxNotes),
		done: make(chan struct{}), waiting: map[string]*protocol.Message{}}
	u.verbose(ctx, r.level)
	var running context.Context
	running, r.cancel = context.WithCancel(o.b.ctx)
	u.enter(r)
	end := func() {
		u.exit(r)
		r.cancel()
		o.b.leave(u.lane)
	}
	err := o.b.start(func() {
		defer close(r.done)
		defer end()
		r.resp, r.err = u.Call(running, older(m), func(n *protocol.Message) error { r.add(n); return nil })
	})
	if err != nil {
		end()
		return nil, err
	}
	return o.follow(ctx, r, m, notify)
}

// add takes what the server says.
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

// took notes that n was taken out of the notes.
func (r *run) took(n *protocol.Message) *protocol.Message {
	r.noted.Add(-int64(len(n.Bytes())))
	return n
}

// abandon ends a run for which nobody comes back. What the server waits for is declined.
func (r *run) abandon() {
	r.cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	for _, asked := range r.waiting {
		r.up.decline(asked)
	}
	clear(r.waiting)
	for len(r.notes) > 0 {
		if n := r.took(<-r.notes); n.IsRequest() {
			r.up.decline(n)
		}
	}
}

// follow passes on what the server says of m, until it has answered, or asks for something.
func (o *old) follow(ctx context.Context, r *run, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error) {
	for {
		select {
		case n := <-r.notes:
			if r.took(n).IsRequest() {
				asked := r.gather(n)
				if !r.ended() {
					return o.park(r, m, asked)
				}
				r.pass(asked)
				continue
			}
			if err := pass(m, n, notify); err != nil {
				r.abandon()
				return nil, err
			}
		case <-r.done:
			for len(r.notes) > 0 { // what came before the response
				n := r.took(<-r.notes)
				if n.IsRequest() {
					r.pass([]*protocol.Message{n})
					continue
				}
				if err := pass(m, n, notify); err != nil {
					r.abandon()
					return nil, err
				}
			}
			if r.err != nil {
				return nil, o.b.broken(ctx, r.err)
			}
			return newer(m, r.resp.WithID(m.ID())), nil
		case <-ctx.Done():
			r.abandon()
			return nil, ctx.Err()
		}
	}
}

// ended reports whether the server has answered the request.
func (r *run) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// pass gives what the server asks for to another run, now that this one has ended: it did not ask for this one, or it did not wait.
func (r *run) pass(asked []*protocol.Message) {
	for _, one := range asked {
		r.up.asks(one)
	}
}

// pass passes on what may be said with the response to m, which may be a retry with another token. All else is for those who listen.
func pass(m, n *protocol.Message, notify func(*protocol.Message) error) error {
	switch token := m.ProgressToken(); {
	case n.Method() == protocol.Progress && token != nil:
		return notify(n.WithParam(token, "progressToken"))
	case n.Method() == protocol.LogMessage && m.Text("_meta", protocol.MetaLogLevel) != "":
		return notify(n)
	}
	return nil
}

// together is how long it is waited for more that the server asks for at once: each round costs the caller a request.
const together = 10 * time.Millisecond

// gather returns what the server asks for: first, and what comes right after it.
func (r *run) gather(first *protocol.Message) (asked []*protocol.Message) {
	asked = append(asked, first)
	late := time.NewTimer(together)
	defer late.Stop()
	for {
		select {
		case n := <-r.notes:
			if !r.took(n).IsRequest() {
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
func (o *old) park(r *run, m *protocol.Message, asked []*protocol.Message) (*protocol.Message, error) {
	r.up.pause(r, true)
	id := rand.Text()
	if !o.keep(id, r) {
		for _, one := range asked {
			r.up.decline(one)
		}
		r.abandon()
		return nil, overloaded("too many requests wait for answers of their callers")
	}
	state := o.sealer.Seal(goodFor(r.caller, m), parkedFor, id)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range asked {
		if len(r.waiting) >= maxAsked {
			r.up.decline(one)
			continue
		}
		r.keys++
		r.waiting[fmt.Sprintf("r%d", r.keys)] = one
	}
	requests := map[string]any{}
	for key, asked := range r.waiting {
		one := map[string]any{"method": asked.Method()}
		if p := asked.Params(); p != nil {
			one["params"] = p
		}
		requests[key] = one
	}
	return protocol.Respond(m.ID(), map[string]any{"resultType": "input_required", "inputRequests": requests, "requestState": state}), nil
}

// goodFor is what the state of a parked request is good for: the same request of the same caller.
func goodFor(caller string, m *protocol.Message) opaque.For {
	return opaque.For{Purpose: "parked", Caller: caller, Request: digest(m)}
}

// keep parks r, if there is room.
func (o *old) keep(id string, r *run) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	own := 0
	for _, one := range o.parked {
		if one.caller == r.caller {
			own++
		}
	}
	if len(o.parked) >= maxParked || own >= maxParkedEach || o.b.ctx.Err() != nil {
		return false
	}
	o.parked[id] = r
	r.expiry = time.AfterFunc(parkedFor, func() {
		if o.unpark(id) != nil {
			r.abandon()
		}
	})
	return true
}

// unpark takes a run, which is there once; nil if there is none.
func (o *old) unpark(id string) *run {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.parked[id]
	if r != nil {
		delete(o.parked, id)
		r.expiry.Stop()
	}
	return r
}

// forget lets go of all that is parked; their sessions end with the backend.
func (o *old) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, r := range o.parked {
		delete(o.parked, id)
		r.expiry.Stop()
	}
}

// resume gives the server what the caller brings, and goes on. A state is for the same request of the same caller only, for a while,
// and once. It says where it is good: the run waits in this process.
func (o *old) resume(ctx context.Context, m *protocol.Message, state string, notify func(*protocol.Message) error) (*protocol.Message, error) {
	var id string
	if err := o.sealer.Open(goodFor(protocol.CallerOf(ctx), m), state, &id); err != nil {
		return protocol.RespondError(m.ID(), protocol.StateError(err)), nil
	}
	r := o.unpark(id)
	if r == nil {
		return protocol.RespondError(m.ID(), protocol.UsedStateError()), nil
	}
	answers, bad := inputs(m)
	if bad != nil {
		if !o.keep(id, r) {
			r.abandon()
		}
		return protocol.RespondError(m.ID(), bad), nil
	}
	r.up.pause(r, false)
	missing, err := r.answer(ctx, answers)
	if err != nil {
		r.abandon()
		return nil, o.b.broken(ctx, err)
	}
	if missing {
		return o.park(r, m, nil)
	}
	return o.follow(ctx, r, m, notify)
}

// answer tells the server what the caller answers, and reports whether it waits for more. Unknown keys are ignored. Nothing is
// locked while it is written: a server that does not read would keep whoever reads what it says.
func (r *run) answer(ctx context.Context, answers map[string]json.RawMessage) (missing bool, err error) {
	asked := map[string]*protocol.Message{}
	r.mu.Lock()
	for key := range answers {
		if r.waiting[key] != nil {
			asked[key] = r.waiting[key]
			delete(r.waiting, key)
		}
	}
	missing = len(r.waiting) > 0
	r.mu.Unlock()
	for key, one := range asked {
		if err != nil {
			r.up.decline(one)
			continue
		}
		err = r.up.Write(ctx, protocol.Respond(one.ID(), answers[key]))
	}
	return missing, err
}

// inputs reads the answers that a caller brings.
func inputs(m *protocol.Message) (map[string]json.RawMessage, *protocol.Error) {
	raw, err := m.Param("inputResponses")
	if err != nil {
		return nil, err.(*protocol.Error)
	}
	answers := map[string]json.RawMessage{}
	if raw != nil && json.Unmarshal(raw, &answers) != nil {
		return nil, protocol.Errorf(protocol.InvalidParams, "inputResponses are an object")
	}
	for key, answer := range answers {
		if len(answer) == 0 || answer[0] != '{' {
			return nil, protocol.Errorf(protocol.InvalidParams, "the answer to %q is no object", key)
		}
	}
	return answers, nil
}

// digest is the hash of what a request asks for: what stays the same when it is sent again with answers.
func digest(m *protocol.Message) [sha256.Size]byte {
	m = older(m).WithParam(nil, "_meta")
	s := sha256.New()
	fmt.Fprintf(s, "%s %s", m.Method(), m.Params())
	return [sha256.Size]byte(s.Sum(nil))
}
