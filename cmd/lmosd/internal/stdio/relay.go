// Package stdio implements lmosd mcp: it forwards MCP messages between standard input and output and the local node. Clients start
// it once and never again, so it outlives the node: it serves before there is one, and goes on with the next.
//
// Sources: MCP 2026-07-28, "stdio", "Subscriptions"; MCP 2025-11-25, "Lifecycle", "Resources", "Logging".
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
	// drainTimeout is how long a client that has closed its end may still want its answers, and how long a node may take to begin to
	// answer.
	drainTimeout = 10 * time.Second
	// A node that is away is looked for again, less often each time.
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Second
	// maxKept bounds the listens, and the subscriptions of a session, that are told to the next node.
	maxKept = 256
)

// Options are the settings of [Run].
type Options struct {
	// In and Out are the client's ends. They are not closed.
	In  io.Reader
	Out io.Writer
	// Dial begins an exchange of messages with the node, one on a line: in is what is said to it. It is called again when the
	// node went away. The hint of its error says what starts one.
	Dial func(ctx context.Context, in io.Reader) (io.ReadCloser, error)
	// OnConnection gets a line for people about the node: that it is away, with why, or there again (nil).
	OnConnection func(err error)
	// Version is that of this program, for clients that ask while there is no node; empty means "dev".
	Version string
}

// A relay stands between a client and the node. When the node goes away, requests that wait get an error; what is a state of the
// client is told to the node that is there next: how it began a session of 2025-11-25, its subscriptions and log level, and what
// it listens to.
type relay struct {
	Options
	ctx      context.Context
	client   protocol.Conn
	work     sync.WaitGroup
	answered chan struct{} // told of each answer
	lost     chan struct{} // told that there is no node
	turn     chan struct{} // holds a token while somebody connects, or says something to the node
	away     bool          // Told has said so; owned by who has the turn

	mu           sync.Mutex
	node         protocol.Conn // nil: there is none
	met          bool          // one has answered
	open         map[protocol.ID]bool
	listens      map[protocol.ID]*protocol.Message // those of the new era that are open
	acknowledged map[protocol.ID]bool              // of which the client was told that they are
	handshake    []*protocol.Message               // how the client began a session: initialize, and that it is initialized
	level        *protocol.Message                 // what it said last of log messages in the session
	watched      map[string]*protocol.Message      // resources that it subscribed to in the session
}

// Run passes on what the client says, until it closes its end or ctx does. The error is that of its end.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &relay{Options: o, ctx: ctx, client: protocol.Lines(standard{o.In, o.Out}),
		answered: make(chan struct{}, 1), lost: make(chan struct{}, 1), turn: make(chan struct{}, 1),
		open: map[protocol.ID]bool{}, listens: map[protocol.ID]*protocol.Message{}, acknowledged: map[protocol.ID]bool{}, watched: map[string]*protocol.Message{}}
	defer func() { go r.client.Close() }() // it waits for what is being written, which the client may never read
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

// standard is the client's end: it is not ours to close.
type standard struct {
	io.Reader
	io.Writer
}

func (standard) Close() error { return nil }

// read reads what the client says to its end. What is no message is answered here.
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

// take sends a message to the node. Where there is none, it is answered here, as far as that can be.
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
		return // the next node is told
	}
	if a := absent(m, protocol.Self(r.Version), err, met); a != nil {
		r.answer(m.ID(), a)
		return
	}
	r.refuse(m.ID(), err)
}

// note keeps what is the client's state.
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

// connect returns the connection to the node, made if there is none. The caller has the turn.
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
		err = interact.Errorf(interact.Timeout, "lmosd status", "the node does not answer")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe):
		err = ended(err)
	}
	return nil, err
}

// resume tells a node what the one before it was told, and the client that all may be different now.
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

// state is what a node is told that did not hear the client say it: its session, and what it listens to.
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

// repeat says to a node what the client said to the one before it. The answer is not the client's any more; that the session is refused is
// an error.
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

// refusal is why the node refuses what may be had later: an agent that is away, or is not known yet. Nil if it does not.
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

// A stream is the request and the answer of one connection.
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

// pump passes on what the node says, to the end of the connection. Requests that wait then have no answer.
func (r *relay) pump(node protocol.Conn) {
	var why error
	for {
		m, err := node.Read(r.ctx)
		if bad := new(protocol.Error); errors.As(err, &bad) {
			continue // it is between the node and us
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

// refused is why a session cannot begin now, if m says so. Then the client is answered as if there were no node, and the next is asked
// again.
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

// ended is why there is no answer when the connection to the node has ended.
func ended(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe):
		return interact.Errorf(interact.NodeLost, "try again", "the node ended the connection before it answered")
	case errors.As(err, new(*interact.Error)):
		return err
	}
	return interact.Errorf(interact.NodeLost, "try again", "the node went away before it answered")
}

// changed is what a client that listens is told instead, when the next node acknowledges what it listens to: its tools may be
// others.
func changed(ack *protocol.Message) *protocol.Message {
	if raw, _ := ack.Param("notifications", "toolsListChanged"); string(raw) != "true" {
		return nil
	}
	id, _ := ack.Param("_meta", protocol.MetaSubscription)
	return protocol.Request("", protocol.ToolsChanged, map[string]any{"_meta": map[string]any{protocol.MetaSubscription: id}})
}

// gone refuses what the node has not answered.
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

// miss asks for another node.
func (r *relay) miss() {
	select {
	case r.lost <- struct{}{}:
	default:
	}
}

// seek looks for a node whenever there is none, so that the client hears what changed without asking.
func (r *relay) seek() {
	pauses, since := backoff.Backoff{First: firstPause, Max: maxPause}, time.Now()
	for {
		select {
		case <-r.lost:
		case <-r.ctx.Done():
			return
		}
		if time.Since(since) > maxPause { // the last one stayed
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

// found reports whether there is a node.
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

// refuse answers for a node that does not.
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
		_ = r.client.Write(r.ctx, m) // who does not read has left
		r.notify()
	}
}

// settle waits for the answers to a client that has said all, for a while. What it listens to has no end.
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
