package stdio

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
)

const (
	// drainTimeout limits the wait for responses after the client closed its end, and the wait for the first response of a node.
	drainTimeout = 10 * time.Second
	// Reconnection to the node, with growing pauses.
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Second
	// maxKept limits the listens, and the subscriptions of a session, that are repeated at the next node.
	maxKept = 256
)

// Options are the settings of [Run].
type Options struct {
	// In and Out are the ends of the client. They are not closed.
	In  io.Reader
	Out io.Writer
	// Dial starts an exchange of messages with the node, one per line; in has the messages for it. It is called again after a disconnect.
	// The hint of its error is how to start a node.
	Dial func(ctx context.Context, in io.Reader) (io.ReadCloser, error)
	// OnConnection receives the error of the connection to the node, or nil when it is connected again.
	OnConnection func(err error)
	// Version is the version of this program, for clients without a node; empty means "dev".
	Version string
}

// A relay connects a client with the node. When the node disconnects, waiting requests get an error. The next node gets the state of the
// client: the initialization of a session of 2025-11-25, its subscriptions and log level, and its listens.
type relay struct {
	Options
	ctx      context.Context
	client   protocol.Conn
	work     sync.WaitGroup
	answered chan struct{} // signals a response
	lost     chan struct{} // signals that no node is connected
	turn     chan struct{} // holds a token during a connection attempt or a write to the node
	away     bool          // OnConnection reported it; owned by the holder of turn

	mu           sync.Mutex
	node         protocol.Conn // nil: not connected
	met          bool          // a node has responded
	open         map[protocol.ID]bool
	listens      map[protocol.ID]*protocol.Message // open listens of 2026-07-28
	acknowledged map[protocol.ID]bool              // those acknowledged to the client
	handshake    []*protocol.Message               // the initialization of the session: initialize and initialized
	level        *protocol.Message                 // the last log level of the session
	watched      map[string]*protocol.Message      // subscribed resources of the session
}

// Run forwards messages until the client closes its end or ctx ends. The error is that of the end.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &relay{Options: o, ctx: ctx, client: protocol.Lines(standard{o.In, o.Out}),
		answered: make(chan struct{}, 1), lost: make(chan struct{}, 1), turn: make(chan struct{}, 1),
		open: map[protocol.ID]bool{}, listens: map[protocol.ID]*protocol.Message{}, acknowledged: map[protocol.ID]bool{}, watched: map[string]*protocol.Message{}}
	defer func() { go r.client.Close() }() // it waits for running writes, which the client may never read
	defer r.work.Wait()
	defer cancel()
	r.work.Go(r.seek)
	r.miss()
	in := make(chan *protocol.Message)
	ended := make(chan error, 1)
	go func() { ended <- r.read(in) }() // it ends with the process, if the client never closes its end
	for {
		select {
		case m := <-in:
			r.take(m)
		case err := <-ended:
			r.settle()
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// standard is the end of the client, which is not closed here.
type standard struct {
	io.Reader
	io.Writer
}

func (standard) Close() error { return nil }

// read reads the messages of the client. Invalid ones are answered here.
func (r *relay) read(in chan<- *protocol.Message) error {
	for {
		m, err := r.client.Read(r.ctx)
		bad := new(protocol.Error)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &bad):
			var id protocol.ID
			if m != nil {
				id = m.ID()
			}
			if err := r.client.Write(r.ctx, protocol.RespondError(id, bad)); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		select {
		case in <- m:
		case <-r.ctx.Done():
			return nil
		}
	}
}

// take sends a message to the node. Without a node, it is answered here, if possible.
func (r *relay) take(m *protocol.Message) {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-r.ctx.Done():
		return
	}
	node, err := r.connect()
	r.note(m)
	if err == nil {
		err = node.Write(r.ctx, m)
	}
	if err == nil || !m.IsRequest() || r.ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	_, listens := r.listens[m.ID()]
	met := r.met
	r.mu.Unlock()
	if listens {
		return // the next node gets it
	}
	if a := absent(m, protocol.Self(r.Version), err, met); a != nil {
		r.answer(m.ID(), a)
		return
	}
	r.refuse(m.ID(), err)
}

// note records the state of the client.
func (r *relay) note(m *protocol.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.IsRequest() {
		r.open[m.ID()] = true
	}
	switch method := m.Method(); {
	case method == protocol.Listen && m.IsModern() && len(r.listens) < maxKept:
		r.listens[m.ID()] = m
	case method == protocol.Cancelled:
		raw, _ := m.Param("requestId")
		r.closeLocked(protocol.ID(raw))
	case m.IsModern():
	case method == protocol.Initialize:
		r.handshake, r.level = []*protocol.Message{m}, nil
		clear(r.watched)
	case method == protocol.Initialized && len(r.handshake) == 1:
		r.handshake = append(r.handshake, m)
	case method == "logging/setLevel":
		r.level = m
	case method == "resources/subscribe" && len(r.watched) < maxKept:
		r.watched[m.Text("uri")] = m
	case method == "resources/unsubscribe":
		delete(r.watched, m.Text("uri"))
	}
}

func (r *relay) closeLocked(id protocol.ID) {
	delete(r.open, id)
	delete(r.listens, id)
	delete(r.acknowledged, id)
}

// connect returns the connection to the node, and connects if necessary. The caller holds turn.
func (r *relay) connect() (protocol.Conn, error) {
	r.mu.Lock()
	node := r.node
	r.mu.Unlock()
	if node != nil {
		return node, nil
	}
	node, err := r.dial()
	if r.ctx.Err() == nil && (err != nil) != r.away {
		r.away = err != nil
		r.OnConnection(err)
	}
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.node = node
	r.mu.Unlock()
	r.work.Go(func() { r.pump(node) })
	return node, nil
}

func (r *relay) dial() (protocol.Conn, error) {
	ctx, cancel := context.WithCancel(r.ctx)
	in, feed := io.Pipe()
	context.AfterFunc(ctx, func() { feed.Close() }) // net/http may wait for the end of a request body even after ctx
	late := time.AfterFunc(drainTimeout, cancel)
	body, err := r.Dial(ctx, in)
	if err == nil {
		node := protocol.Lines(&stream{body, feed, cancel})
		context.AfterFunc(ctx, func() { node.Close() }) // unblocks Read and Write, which do not heed ctx
		if err = r.resume(ctx, node); err == nil && late.Stop() {
			return node, nil
		}
		node.Close()
	}
	cancel()
	switch {
	case !late.Stop() && r.ctx.Err() == nil:
		err = interact.Errorf(interact.Timeout, "", "the node does not answer").Then(interact.StepStatus)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe):
		err = ended(err)
	}
	return nil, err
}

// resume sends the state of the client to a new node, and notifies the client that all may have changed.
func (r *relay) resume(ctx context.Context, node protocol.Conn) error {
	state, listens := r.state()
	for _, m := range state {
		if err := repeat(ctx, node, m); err != nil {
			return err
		}
	}
	for _, m := range listens {
		if err := node.Write(ctx, m); err != nil {
			return err
		}
	}
	if len(state) < 2 {
		return nil // there is no session
	}
	r.mu.Lock()
	r.met = true
	r.mu.Unlock()
	for _, method := range []string{protocol.ToolsChanged, protocol.PromptsChanged, protocol.ResourcesChanged} {
		if err := r.client.Write(ctx, protocol.Request("", method, nil)); err != nil {
			return err
		}
	}
	return nil
}

// state returns the messages for a new node: the session and the listens.
func (r *relay) state() (session, listens []*protocol.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	session = slices.Clone(r.handshake)
	if len(r.handshake) == 2 {
		if r.level != nil {
			session = append(session, r.level)
		}
		session = slices.AppendSeq(session, maps.Values(r.watched))
	}
	return session, slices.Collect(maps.Values(r.listens))
}

// repeat sends messages of the client to a new node and drops the responses. A rejected session is an error.
func repeat(ctx context.Context, node protocol.Conn, m *protocol.Message) error {
	if err := node.Write(ctx, m); err != nil || !m.IsRequest() {
		return err
	}
	for {
		a, err := node.Read(ctx)
		if err != nil {
			return err
		}
		if !a.IsResponse() || a.ID() != m.ID() {
			continue
		}
		if why := refusal(a); why != nil && m.Method() == protocol.Initialize {
			return why
		}
		return nil
	}
}

// refusal returns the error of a session that may succeed later: the agent is offline or unknown. Otherwise nil.
func refusal(a *protocol.Message) error {
	e := a.Error()
	if e == nil {
		return nil
	}
	if why := protocol.InteractError(e); why != nil && (why.Code == interact.NotFound || why.Code.Retryable()) {
		return why
	}
	return nil
}

// A stream has the request and the response of one connection.
type stream struct {
	io.ReadCloser
	feed   *io.PipeWriter
	cancel context.CancelFunc
}

func (s *stream) Write(p []byte) (int, error) { return s.feed.Write(p) }

func (s *stream) Close() error {
	s.cancel()
	return errors.Join(s.feed.Close(), s.ReadCloser.Close())
}

// pump forwards the messages of the node until the connection ends. Waiting requests then get an error.
func (r *relay) pump(node protocol.Conn) {
	var why error
	for {
		m, err := node.Read(r.ctx)
		if bad := new(protocol.Error); errors.As(err, &bad) {
			continue // a response to the relay
		}
		if err == nil {
			err = r.refused(m)
		}
		if err != nil {
			why = err
			break
		}
		again := false
		r.mu.Lock()
		if m.IsResponse() {
			r.met = true
			r.closeLocked(m.ID())
		} else if m.Method() == protocol.Acknowledged {
			raw, _ := m.Param("_meta", protocol.MetaSubscription)
			if id := protocol.ID(raw); r.listens[id] != nil {
				again = r.acknowledged[id]
				r.acknowledged[id] = true
			}
		}
		r.mu.Unlock()
		if again {
			m = changed(m)
		}
		if m != nil && r.client.Write(r.ctx, m) != nil {
			break
		}
		r.notify()
	}
	node.Close()
	r.gone(node, why)
	r.miss()
}

// refused returns why a session cannot start now, if m is such an error. The client then gets the answer without a node, and the next node
// is tried.
func (r *relay) refused(m *protocol.Message) error {
	if !m.IsResponse() {
		return nil
	}
	r.mu.Lock()
	var first *protocol.Message
	if len(r.handshake) > 0 && r.handshake[0].ID() == m.ID() && r.open[m.ID()] {
		first = r.handshake[0]
	}
	r.mu.Unlock()
	why := refusal(m)
	if first == nil || why == nil {
		return nil
	}
	r.answer(m.ID(), absent(first, protocol.Self(r.Version), why, false))
	return why
}

// ended returns the error of requests when the connection to the node has ended.
func ended(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe):
		return interact.Errorf(interact.NodeLost, "try again", "the node ended the connection before it answered")
	case errors.As(err, new(*interact.Error)):
		return err
	}
	return interact.Errorf(interact.NodeLost, "try again", "the node disconnected before it answered")
}

// changed returns the notification for a listening client when a new node acknowledges its listen: its tools may differ.
func changed(ack *protocol.Message) *protocol.Message {
	if raw, _ := ack.Param("notifications", "toolsListChanged"); string(raw) != "true" {
		return nil
	}
	id, _ := ack.Param("_meta", protocol.MetaSubscription)
	return protocol.Request("", protocol.ToolsChanged, map[string]any{"_meta": map[string]any{protocol.MetaSubscription: id}})
}

// gone rejects the requests that the node has not answered.
func (r *relay) gone(node protocol.Conn, why error) {
	r.mu.Lock()
	if r.node == node {
		r.node = nil
	}
	var waiting []protocol.ID
	for id := range r.open {
		if r.listens[id] == nil {
			waiting = append(waiting, id)
		}
	}
	r.mu.Unlock()
	for _, id := range waiting {
		r.refuse(id, ended(why))
	}
}

// miss requests a new connection.
func (r *relay) miss() {
	select {
	case r.lost <- struct{}{}:
	default:
	}
}

// seek connects whenever there is no node, so that the client is notified of changes.
func (r *relay) seek() {
	pauses, since := backoff.Backoff{First: firstPause, Max: maxPause}, time.Now()
	for {
		select {
		case <-r.lost:
		case <-r.ctx.Done():
			return
		}
		if time.Since(since) > maxPause { // the last connection was stable
			pauses.Reset()
		}
		for there := false; !there; there = r.found() {
			if pauses.Sleep(r.ctx) != nil {
				return
			}
		}
		since = time.Now()
	}
}

// found reports whether a node is connected.
func (r *relay) found() bool {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-r.ctx.Done():
		return false
	}
	_, err := r.connect()
	return err == nil
}

func (r *relay) notify() {
	select {
	case r.answered <- struct{}{}:
	default:
	}
}

// refuse answers requests without a node.
func (r *relay) refuse(id protocol.ID, err error) {
	r.answer(id, protocol.RespondError(id, protocol.FromError(err)))
}

// answer answers a request that still waits.
func (r *relay) answer(id protocol.ID, m *protocol.Message) {
	r.mu.Lock()
	waits := r.open[id]
	r.closeLocked(id)
	r.mu.Unlock()
	if waits && r.ctx.Err() == nil {
		_ = r.client.Write(r.ctx, m) // a client that does not read has left
		r.notify()
	}
}

// settle waits for the responses after the client closed its end, up to a limit, without listens.
func (r *relay) settle() {
	late := time.NewTimer(drainTimeout)
	defer late.Stop()
	for {
		r.mu.Lock()
		waiting := len(r.open) - len(r.listens)
		r.mu.Unlock()
		if waiting <= 0 {
			return
		}
		select {
		case <-r.answered:
		case <-late.C:
			return
		case <-r.ctx.Done():
			return
		}
	}
}
