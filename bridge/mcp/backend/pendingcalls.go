package backend

import (
	"context"
	"sync"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// pendingCalls are the pending requests of one client: their number is bounded, their ids are distinct, and the client can cancel them.
// It is safe for concurrent use.
type pendingCalls struct {
	room    chan struct{} // holds a token per request, until release
	mu      sync.Mutex
	cancels map[protocol.ID]context.CancelFunc
}

func newPendingCalls(limit int) *pendingCalls {
	return &pendingCalls{room: make(chan struct{}, limit), cancels: map[protocol.ID]context.CancelFunc{}}
}

// enter registers a request and returns its context. The caller must call complete at its end, and release after the response.
func (p *pendingCalls) enter(ctx context.Context, id protocol.ID) (context.Context, *protocol.Error) {
	select {
	case p.room <- struct{}{}:
	default:
		return nil, protocol.Errorf(protocol.InternalError, "%d requests are pending", cap(p.room))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cancels[id] != nil {
		p.release()
		return nil, protocol.DuplicateID(id)
	}
	ctx, p.cancels[id] = context.WithCancel(ctx)
	return ctx, nil
}

// complete removes a request with its context, so that the client may reuse the id. It reports whether the request was cancelled: then it
// gets no response.
func (p *pendingCalls) complete(ctx context.Context, id protocol.ID) (cancelled bool) {
	cancelled = ctx.Err() != nil
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancels[id]()
	delete(p.cancels, id)
	return cancelled
}

func (p *pendingCalls) release() { <-p.room }

// cancel cancels the request that a notification names.
func (p *pendingCalls) cancel(n *protocol.Message) {
	raw, _ := n.Param("requestId")
	p.mu.Lock()
	defer p.mu.Unlock()
	if cancel := p.cancels[protocol.IDOf(raw)]; cancel != nil {
		cancel()
	}
}
