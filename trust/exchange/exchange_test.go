package exchange

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testhost"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// An end is a host with an Exchange.
type end struct {
	*Exchange
	key  *keystore.Key
	host host.Host
	now  atomic.Int64 // nanoseconds after noon
}

func newPeer(t *testing.T, h Handler) *end {
	t.Helper()
	key := didtest.NewKey()
	return newPeerOn(t, key, testhost.Listen(t, key, "/ip4/127.0.0.1/tcp/0"), h)
}

func newPeerOn(t *testing.T, key *keystore.Key, on host.Host, h Handler) *end {
	t.Helper()
	p := &end{key: key, host: on}
	p.Exchange = New(Options{Network: "test", Host: p.host, Handle: h, Now: func() time.Time { return noon.Add(time.Duration(p.now.Load())) },
		Log: slog.New(slog.DiscardHandler)})
	p.Start()
	t.Cleanup(p.Close)
	return p
}

// answers returns a peer that answers each request with its operation as a text.
func answers(t *testing.T) *end { return newPeer(t, answer) }

func answer(_ context.Context, from did.DID, q *Request) (*Response, error) {
	if q.SCID != "" {
		return nil, interact.Errorf(interact.NotFound, "look elsewhere", "no %s for %s", q.SCID, from)
	}
	return &Response{Body: []byte{byte(q.Op)}}, nil
}

// The end of its context ends a request to a node that does not answer.
func TestRequestsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	silent, asked := answers(t), make(chan struct{})
	silent.host.SetStreamHandler(Protocol("test"), func(network.Stream) { close(asked) })
	e := answers(t)
	testhost.Connect(t, e.host, silent.host)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	go func() {
		<-asked
		cancel()
	}()
	s, err := e.Open(ctx, silent.key.DID())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Do(&Request{Op: OpSeek}); err == nil || ctx.Err() == nil {
		t.Errorf("the request ended with %v", err)
	}
}

// TestExchangeThroughARelay: nodes behind routers show their credentials on the relayed connection, which may never become a direct one.
func TestExchangeThroughARelay(t *testing.T) {
	t.Parallel()
	through := testhost.Listen(t, didtest.NewKey(), "/ip4/127.0.0.1/tcp/0")
	service, err := relay.New(through)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = service.Close() })
	behind := func() *end {
		key := didtest.NewKey()
		priv, err := crypto.UnmarshalPrivateKey(key.Libp2p())
		if err != nil {
			t.Fatal(err)
		}
		h, err := libp2p.New(libp2p.Identity(priv), libp2p.NoListenAddrs, libp2p.EnableRelay(), libp2p.DisableMetrics())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close() })
		p := newPeerOn(t, key, h, answer)
		testhost.Connect(t, h, through)
		return p
	}
	caller, hidden := behind(), behind()
	if _, err := client.Reserve(t.Context(), hidden.host, peer.AddrInfo{ID: through.ID(), Addrs: through.Addrs()}); err != nil {
		t.Fatal(err)
	}
	to := peer.AddrInfo{ID: hidden.host.ID(), Addrs: []ma.Multiaddr{ma.StringCast("/p2p/" + through.ID().String() + "/p2p-circuit")}}
	if err := caller.host.Connect(network.WithAllowLimitedConn(t.Context(), "test"), to); err != nil {
		t.Fatal(err)
	}
	if got := caller.host.Network().Connectedness(hidden.host.ID()); got != network.Limited {
		t.Fatalf("the connection is %s", got)
	}
	if r, err := caller.Ask(t.Context(), hidden.key.DID(), &Request{Op: OpHello}); err != nil || Op(r.Body[0]) != OpHello {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestExchange(t *testing.T) {
	t.Parallel()
	a, b := answers(t), answers(t)
	testhost.Connect(t, a.host, b.host)
	if r, err := a.Ask(t.Context(), b.key.DID(), &Request{Op: OpGet}); err != nil || len(r.Body) != 1 || Op(r.Body[0]) != OpGet {
		t.Errorf("%+v, %v", r, err)
	}
	known := (*interact.Error)(nil)
	_, err := a.Ask(t.Context(), b.key.DID(), &Request{Op: OpGet, SCID: "Qm"})
	if !errors.As(err, &known) || known.Code != interact.NotFound || !known.Remote || !strings.Contains(known.Title, string(a.key.DID())) {
		t.Errorf("an error: %v", err)
	}
	s, err := a.Open(t.Context(), b.key.DID())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, op := range []Op{OpSeek, OpHello} {
		if r, err := s.Do(&Request{Op: op}); err != nil || Op(r.Body[0]) != op {
			t.Errorf("%d: %+v, %v", op, r, err)
		}
	}
	if _, err := s.Do(&Request{Op: OpSeek}); err == nil {
		t.Error("a third request on one stream was answered")
	}
}

// A peer that repeats its hello 1,000 times a second is refused with the code for limits, and others are not. Later it is served again.
func TestPeerThatRepeatsItsHello(t *testing.T) {
	t.Parallel()
	server, hostile, other := answers(t), answers(t), answers(t)
	testhost.Connect(t, hostile.host, server.host)
	testhost.Connect(t, other.host, server.host)
	hello := func(p *end) error {
		_, err := p.Ask(t.Context(), server.key.DID(), &Request{Op: OpHello})
		return err
	}
	var err error
	served := 0
	for err == nil && served <= 3*int(budget.Burst) {
		if err = hello(hostile); err == nil {
			served++
			server.now.Add(int64(time.Millisecond))
		}
	}
	limited := (*network.StreamError)(nil)
	if !errors.As(err, &limited) || limited.ErrorCode != network.StreamRateLimited {
		t.Errorf("after %d requests: %v", served, err)
	}
	if err := hello(other); err != nil {
		t.Errorf("another peer: %v", err)
	}
	server.now.Add(int64(time.Minute))
	if err := hello(hostile); err != nil {
		t.Errorf("after a minute: %v", err)
	}
}

// A hello of 1 MiB ends the exchange: it is read only as far as permitted.
func TestHelloOf1MiB(t *testing.T) {
	t.Parallel()
	a, b := answers(t), answers(t)
	testhost.Connect(t, a.host, b.host)
	if r, err := a.Ask(t.Context(), b.key.DID(), &Request{Op: OpHello, Secret: make([]byte, 1<<20)}); err == nil {
		t.Errorf("it was answered: %+v", r)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte{0xa1, 0x01, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		q := &Request{}
		if decodeFrame(b, q) == nil && (len(q.Seeks) > MaxSeeks || len(q.Known) > MaxKnown) {
			t.Errorf("decoded beyond the limits: %+v", q)
		}
		_ = decodeFrame(b, &Response{})
	})
}
