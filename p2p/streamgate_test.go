package p2p

import (
	"context"
	"errors"
	"testing"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
)

// openHost is a host that opens all streams.
type openHost struct{ host.Host }

func (openHost) NewStream(context.Context, peer.ID, ...protocol.ID) (network.Stream, error) {
	return nil, nil
}

// A stream to a node that is not admitted is opened only if each protocol that may be negotiated is free.
func TestGateOpensOnlyFreeStreams(t *testing.T) {
	t.Parallel()
	denied := errors.New("denied")
	g := Gate(openHost{}, func(did.DID) error { return denied }, "/free/1", "/free/2")
	for name, c := range map[string]struct {
		ids  []protocol.ID
		want error
	}{
		"free":            {[]protocol.ID{"/free/1"}, nil},
		"both free":       {[]protocol.ID{"/free/2", "/free/1"}, nil},
		"not free":        {[]protocol.ID{"/other"}, denied},
		"one of two free": {[]protocol.ID{"/free/1", "/other"}, denied},
		"none":            {nil, denied},
	} {
		if _, err := g.NewStream(t.Context(), peer.ID(didtest.NewKey().Peer()), c.ids...); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}
