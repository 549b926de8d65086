package p2p

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
)

// A failed dial is logged once with the address as it is configured, again if its reason changes, and when it works.
func TestBootstrapAddressesAreLogged(t *testing.T) {
	t.Parallel()
	other := started(t, Options{})
	text := "/ip4/192.0.2.1/tcp/4667/p2p/" + other.ID().String()
	b := bootstrapOf(t, started(t, Options{}), inMemory(), text)
	var log strings.Builder
	b.log = slog.New(slog.NewTextHandler(&log, nil))
	if s := b.State(); len(s) != 1 || s[0].State != api.BootstrapWaiting || s[0].Addr != text || s[0].DID != did.OfPeer(other.ID()) {
		t.Fatalf("before the first dial: %+v", s)
	}
	addr := ma.StringCast("/ip4/192.0.2.1/tcp/4667")
	failed := func(cause error) error {
		return fmt.Errorf("failed to dial: %w", &swarm.DialError{Peer: other.ID(), DialErrors: []swarm.TransportError{
			{Address: ma.StringCast("/ip4/192.0.2.2/tcp/1"), Cause: errors.New("of another address")}, {Address: addr, Cause: cause}}})
	}
	for range 3 {
		b.Dialed(other.ID(), failed(syscall.ECONNREFUSED), 2*time.Second)
	}
	b.Dialed(peer.ID("another"), nil, 0)
	b.Dialed(other.ID(), context.Canceled, 0)
	s := b.State()[0]
	if n := strings.Count(log.String(), "bootstrap address not reached"); n != 1 || !strings.Contains(log.String(), text) || !strings.Contains(log.String(), "connection refused") ||
		!strings.Contains(log.String(), "retry_in=2s") || s.State != api.BootstrapUnreachable || s.Next.IsZero() {
		t.Errorf("%d times, %+v, log %s", n, s, log.String())
	}
	b.Dialed(other.ID(), failed(context.DeadlineExceeded), time.Second)
	b.Dialed(other.ID(), nil, time.Second)
	if got := b.State()[0]; strings.Count(log.String(), "not reached") != 2 || strings.Count(log.String(), "address reached") != 1 || got.State != api.BootstrapReached ||
		got.Reason != "" || !got.Next.IsZero() {
		t.Errorf("%+v, log %s", got, log.String())
	}
}

func TestReasonsOfFailedDials(t *testing.T) {
	t.Parallel()
	another := didtest.NewKey().DID()
	id, err := peer.Decode(another.PeerText())
	if err != nil {
		t.Fatal(err)
	}
	for want, err := range map[string]error{
		"connection refused: no program listens there":         fmt.Errorf("dial: %w", syscall.ECONNREFUSED),
		"no route to the host":                                 syscall.ENETUNREACH,
		"no answer":                                            errors.New("timeout: no recent network activity"),
		"another node has this address: " + another.Short():    sec.ErrPeerIDMismatch{Actual: id},
		"the clocks of both nodes differ by more than an hour": errors.New("x509: certificate has expired or is not yet valid"),
		"something else":                                       errors.New("something\n\telse"),
	} {
		if got := dialReason(err, nil); got != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
}
