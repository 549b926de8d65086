package p2p

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/testhost"
)

// openHost is a host that opens all streams.
type openHost struct{ host.Host }

func (openHost) NewStream(context.Context, peer.ID, ...protocol.ID) (network.Stream, error) {
	return nil, nil
}

// No stream is opened to a node that is not admitted.
func TestGateOpensNoStream(t *testing.T) {
	t.Parallel()
	denied, bad := errors.New("denied"), didtest.NewKey()
	g := Gate(openHost{}, func(id did.DID) error {
		if id == bad.DID() {
			return denied
		}
		return nil
	})
	if _, err := g.NewStream(t.Context(), peer.ID(bad.Peer()), "/x"); !errors.Is(err, denied) {
		t.Errorf("got %v", err)
	}
	if _, err := g.NewStream(t.Context(), peer.ID(didtest.NewKey().Peer()), "/x"); err != nil {
		t.Error(err)
	}
}

// A handler that a service of libp2p sets on the host itself, by its id or by a match, does not receive the streams of a node that is not
// admitted; the free protocols do.
func TestHandlersOfTheHostAreGated(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{anyTCP, anyQUIC} {
		var bad atomic.Pointer[did.DID]
		h := started(t, Options{Listen: []string{transport}, NAT: NAT{Relay: true, AutoNAT: true}, Streams: func(id did.DID) error {
			if p := bad.Load(); p != nil && *p == id {
				return errors.New("denied")
			}
			return nil
		}})
		free := Free("test")
		var called atomic.Int64
		count := func(s network.Stream) { called.Add(1); _ = s.Close() }
		h.BasicHost.SetStreamHandler("/service/1", count)
		h.BasicHost.SetStreamHandlerMatch("/matched/1", func(id protocol.ID) bool { return strings.HasPrefix(string(id), "/matched/") }, count)
		h.BasicHost.SetStreamHandler(free[3], count) // as package trust does
		caller := started(t, Options{})
		if err := dial(t, caller, h); err != nil {
			t.Fatal(err)
		}
		opens := func(id protocol.ID) error { return testhost.OpenStream(t, caller, h.ID(), id) }
		if err := opens("/service/1"); err != nil || called.Load() != 1 {
			t.Fatalf("an admitted peer: %v, %d calls", err, called.Load())
		}
		id := caller.o.Key.DID()
		bad.Store(&id)
		for _, one := range append(h.Mux().Protocols(), "/matched/2") {
			err := opens(one)
			if isFree := slices.Contains(free, one); isFree == testhost.IsGated(err) {
				t.Errorf("%s over %s: %v, free: %v", one, transport, err, isFree)
			}
		}
		if called.Load() != 2 {
			t.Errorf("%d calls, want that of the admitted peer and that of the free protocol", called.Load())
		}
	}
}
