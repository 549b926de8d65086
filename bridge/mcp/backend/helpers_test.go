package backend_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// timeout limits the wait for expected events. It only determines how soon a broken test fails.
const stepTimeout = time.Minute

func wait[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(stepTimeout):
		t.Fatalf("%s did not come", what)
	}
	return v
}

// until repeats an action until its effect arrives: a subscription may begin after its request returns.
func until(t *testing.T, what string, c <-chan struct{}, do func()) {
	t.Helper()
	for end := time.Now().Add(stepTimeout); time.Now().Before(end); {
		do()
		select {
		case <-c:
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Fatalf("%s did not come", what)
}

// tunnelTo opens a tunnel to a host, as the mesh does.
func tunnelTo(t *testing.T, host protocol.Server) func(context.Context) (protocol.Conn, error) {
	var served sync.WaitGroup
	t.Cleanup(served.Wait)
	return func(ctx context.Context) (protocol.Conn, error) {
		here, there := net.Pipe()
		served.Go(func() { _ = backend.Serve(context.Background(), host, protocol.Lines(there), nil) })
		return protocol.Lines(here), nil
	}
}
