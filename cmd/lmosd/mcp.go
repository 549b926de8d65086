package main

import (
	"context"
	"errors"
	"io"
	"net/url"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/bridge/mcp/facade"
	"github.com/lmosd/lmosd/bridge/mcp/wire"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/console"
	"github.com/lmosd/lmosd/interact"
)

func newMCPCommand(a *app) *cobra.Command {
	var thing string
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "be an MCP server on standard input and output: the whole mesh, or one agent",
		Long: "For clients of the Model Context Protocol that start a program: what they say goes to the node that runs here, which\n" +
			"answers as at /mcp of its API, for clients of 2026-07-28 and of older revisions. Nothing else is on standard output.\n" +
			"A node that is started anew is found again. lmosd install writes this command into a client's configuration.",
		Example: `  lmosd mcp
  lmosd mcp --thing weather`,
		Annotations: console.About(console.ScopeMesh, console.ReadWrite, "lmosd install, lmosd expose, lmosd run"),
		Args:        console.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.relayMCP(cmd.Context(), thing)
		},
	}
	cmd.Flags().StringVar(&thing, "thing", "", "serve only this `AGENT`, with its own names")
	return cmd
}

// relayMCP passes on what a client says, until it closes its end or ctx does.
func (a *app) relayMCP(ctx context.Context, thing string) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	defer client.Close()
	path := "/mcp"
	if thing != "" {
		if _, err := client.Agent(ctx, thing); err != nil {
			return err
		}
		path += "/things/" + url.PathEscape(thing)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &mcpRelay{ctx: ctx, client: wire.Lines(standard{a.Stdin, a.Out}), open: map[wire.ID]bool{}, answered: make(chan struct{}, 1),
		dial: func(ctx context.Context, in io.Reader) (io.ReadCloser, error) {
			return client.Stream(ctx, path, facade.LinesType, in)
		}}
	return r.run()
}

// standard is the client's end: it is not ours to close.
type standard struct {
	io.Reader
	io.Writer
}

func (standard) Close() error { return nil }

// answerFor is how long a client that has closed its end may still want its answers, and how long a node may take to begin to answer.
const answerFor = 10 * time.Second

// An mcpRelay stands between a client on standard input and output, and the node. When the node goes away, requests that wait get an
// error, and the next one is sent to the node that is there then; a session of 2025-11-25 is begun anew, without the client.
type mcpRelay struct {
	ctx      context.Context
	client   wire.Conn
	dial     func(ctx context.Context, in io.Reader) (io.ReadCloser, error)
	work     sync.WaitGroup
	answered chan struct{} // told of each answer

	mu    sync.Mutex
	node  wire.Conn        // nil: there is none
	open  map[wire.ID]bool // requests of the client that wait
	begun []*wire.Message  // how the client began a session: initialize, and that it is initialized
}

func (r *mcpRelay) run() error {
	defer r.work.Wait()
	defer r.leave()
	if _, err := r.connect(); err != nil {
		return err
	}
	said := make(chan *wire.Message)
	ended := make(chan error, 1)
	go func() { ended <- r.read(said) }() // it ends with the process, if the client never closes its end
	for {
		select {
		case m := <-said:
			r.take(m)
		case err := <-ended:
			r.settle()
			return err
		case <-r.ctx.Done():
			return nil
		}
	}
}

// read reads what the client says to its end. What is no message is answered here.
func (r *mcpRelay) read(said chan<- *wire.Message) error {
	for {
		m, err := r.client.Read(r.ctx)
		bad := new(wire.Error)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &bad):
			var id wire.ID
			if m != nil {
				id = m.ID()
			}
			if err := r.client.Write(r.ctx, wire.Refuse(id, bad)); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		select {
		case said <- m:
		case <-r.ctx.Done():
			return nil
		}
	}
}

// take sends a message to the node.
func (r *mcpRelay) take(m *wire.Message) {
	node, err := r.connect()
	r.mu.Lock()
	if m.IsRequest() {
		r.open[m.ID()] = true
	}
	if m.Method() == wire.Initialize && !m.IsModern() {
		r.begun = []*wire.Message{m}
	} else if m.Method() == wire.Initialized && len(r.begun) == 1 {
		r.begun = append(r.begun, m)
	}
	r.mu.Unlock()
	if err == nil {
		err = node.Write(r.ctx, m)
	}
	if err != nil && m.IsRequest() {
		r.refuse(m.ID(), err)
	}
}

// connect returns the connection to the node, made if there is none.
func (r *mcpRelay) connect() (wire.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.node != nil {
		return r.node, nil
	}
	ctx, cancel := context.WithCancel(r.ctx)
	in, feed := io.Pipe()
	late := time.AfterFunc(answerFor, cancel)
	body, err := r.dial(ctx, in)
	if !late.Stop() && r.ctx.Err() == nil {
		if err == nil {
			body.Close()
		}
		err = interact.Errorf(interact.Timeout, "lmosd status", "the node does not answer")
	}
	if err != nil {
		cancel()
		return nil, err
	}
	node := wire.Lines(&mcpStream{body, feed, cancel})
	for _, m := range r.begun {
		if err := repeat(ctx, node, m); err != nil {
			node.Close()
			return nil, err
		}
	}
	r.node = node
	r.work.Go(func() { r.pump(node) })
	return node, nil
}

// repeat says to a node what the client said to the one before it. The answer is not the client's any more.
func repeat(ctx context.Context, node wire.Conn, m *wire.Message) error {
	if err := node.Write(ctx, m); err != nil || !m.IsRequest() {
		return err
	}
	for {
		if a, err := node.Read(ctx); err != nil || a.IsResponse() && a.ID() == m.ID() {
			return err
		}
	}
}

// An mcpStream is the request and the answer of one connection.
type mcpStream struct {
	io.ReadCloser
	feed   *io.PipeWriter
	cancel context.CancelFunc
}

func (s *mcpStream) Write(p []byte) (int, error) { return s.feed.Write(p) }

func (s *mcpStream) Close() error {
	s.cancel()
	return errors.Join(s.feed.Close(), s.ReadCloser.Close())
}

// pump passes on what the node says, to the end of the connection. Requests that wait then have no answer.
func (r *mcpRelay) pump(node wire.Conn) {
	for {
		m, err := node.Read(r.ctx)
		if bad := new(wire.Error); errors.As(err, &bad) {
			continue // it is between the node and us
		}
		if err != nil {
			break
		}
		if m.IsResponse() {
			r.mu.Lock()
			delete(r.open, m.ID())
			r.mu.Unlock()
		}
		if r.client.Write(r.ctx, m) != nil {
			break
		}
		r.tell()
	}
	node.Close()
	r.mu.Lock()
	if r.node == node {
		r.node = nil
	}
	var waiting []wire.ID
	for id := range r.open {
		waiting = append(waiting, id)
	}
	r.mu.Unlock()
	for _, id := range waiting {
		r.refuse(id, interact.Errorf(interact.NodeLost, "try again", "the node went away before it answered"))
	}
}

func (r *mcpRelay) tell() {
	select {
	case r.answered <- struct{}{}:
	default:
	}
}

// refuse answers for a node that does not.
func (r *mcpRelay) refuse(id wire.ID, err error) {
	r.mu.Lock()
	waits := r.open[id]
	delete(r.open, id)
	r.mu.Unlock()
	if !waits || r.ctx.Err() != nil {
		return
	}
	e := interact.AsError(err)
	_ = r.client.Write(r.ctx, wire.Refuse(id, wire.Errorf(wire.InternalError, "%s", e.Error()).With(map[string]any{
		"code": e.Code.String(), "hint": e.Hint, "retryable": e.Code.Retryable()}))) // who does not read has left
	r.tell()
}

// settle waits for the answers to a client that has said all, for a while.
func (r *mcpRelay) settle() {
	late := time.NewTimer(answerFor)
	defer late.Stop()
	for {
		r.mu.Lock()
		waiting := len(r.open)
		r.mu.Unlock()
		if waiting == 0 {
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

func (r *mcpRelay) leave() {
	r.mu.Lock()
	node := r.node
	r.mu.Unlock()
	if node != nil {
		node.Close()
	}
}
