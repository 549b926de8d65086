package backend

import (
	"context"
	"sync"
	"testing"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// A subscriber that leaves before the acknowledgement does not block the others.
func TestDisconnectBeforeAcknowledgment(t *testing.T) {
	t.Parallel()
	for range 100 {
		one := &topic{acked: make(chan struct{}), over: make(chan struct{})}
		topics := map[string]*topic{"": one}
		ctx, leave := context.WithCancel(t.Context())
		leave()
		var server sync.WaitGroup
		server.Go(func() {
			one.fail(protocol.Errorf(protocol.InternalError, "no"))
			close(one.over)
		})
		if got, refused := acknowledgedPart(ctx, topics, protocol.Filter{Tools: true}); got.Tools || refused != nil && refused != one.err {
			t.Errorf("got %v, %v", got, refused)
		}
		_, stop := anyOver(topics)
		stop()
		server.Wait()
	}
}
