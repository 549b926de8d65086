package p2p

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/multiformats/go-multistream"
	"github.com/quic-go/quic-go"

	"github.com/lmosd/lmosd/did/didtest"
)

// shown returns the certificate of a host at an address.
func shown(t *testing.T, h *Host, at ma.Multiaddr) *x509.Certificate {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	priv, err := crypto.UnmarshalPrivateKey(didtest.NewKey().Libp2p())
	if err != nil {
		t.Fatal(err)
	}
	identity, err := libp2ptls.NewIdentity(priv)
	if err != nil {
		t.Fatal(err)
	}
	config, _ := identity.ConfigForPeer(h.ID())
	_, addr, err := manet.DialArgs(at)
	if err != nil {
		t.Fatal(err)
	}
	if isQUIC(at) {
		c, err := quic.DialAddr(ctx, addr, config, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.CloseWithError(0, "")
		return c.ConnectionState().TLS.PeerCertificates[0]
	}
	raw, err := manet.Dial(at)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if err := multistream.SelectProtoOrFail(libp2ptls.ID, raw); err != nil {
		t.Fatal(err)
	}
	c := tls.Client(raw, config)
	if err := c.HandshakeContext(ctx); err != nil {
		t.Fatal(err)
	}
	return c.ConnectionState().PeerCertificates[0]
}

// TestCertificatesAreAlwaysValid checks that a peer whose clock is wrong by years accepts the certificates of hosts. A peer whose clock is
// two hours behind rejects those of the library, which become valid an hour before their creation.
func TestCertificatesAreAlwaysValid(t *testing.T) {
	t.Parallel()
	h := started(t, Options{Listen: []string{anyTCP, anyQUIC}})
	for _, at := range h.Network().ListenAddresses() {
		c := shown(t, h, at)
		pool := x509.NewCertPool()
		pool.AddCert(c)
		c.UnhandledCriticalExtensions = nil // libp2p's own, which the library checks
		for _, off := range []time.Duration{-20 * 365 * 24 * time.Hour, -2 * time.Hour, 2 * time.Hour, 200 * 365 * 24 * time.Hour} {
			if _, err := c.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: time.Now().Add(off)}); err != nil {
				t.Errorf("%s: with a clock that is off by %v: %v", at, off, err)
			}
		}
	}
}

// TestTLSInteroperatesWithLibp2p connects this package's TLS with libp2p's, in both directions, and checks the identities.
func TestTLSInteroperatesWithLibp2p(t *testing.T) {
	t.Parallel()
	ours, theirs := started(t, Options{Listen: []string{anyTCP}}), foreign(t)
	other := started(t, Options{})
	for _, c := range []struct{ from, to hostLike }{{ours, theirs}, {theirs, other}, {other, ours}} {
		if len(c.to.Addrs()) == 0 {
			c.from, c.to = c.to, c.from
		}
		if err := c.from.Connect(t.Context(), peer.AddrInfo{ID: c.to.ID(), Addrs: c.to.Addrs()}); err != nil {
			t.Fatal(err)
		}
		for _, conn := range c.from.Network().ConnsToPeer(c.to.ID()) {
			if s := conn.ConnState(); s.Security != libp2ptls.ID || s.StreamMultiplexer != "/yamux/1.0.0" || !s.UsedEarlyMuxerNegotiation {
				t.Errorf("got %+v", s)
			}
		}
		if c.from.Network().Connectedness(c.to.ID()) != network.Connected {
			t.Error("not connected")
		}
	}
	// A peer with another id than the dialed one is refused.
	wrong := peer.AddrInfo{ID: other.ID(), Addrs: theirs.Addrs()}
	if err := started(t, Options{}).Connect(t.Context(), wrong); err == nil {
		t.Error("a peer with another key than the dialed one was accepted")
	}
}

type hostLike interface {
	ID() peer.ID
	Addrs() []ma.Multiaddr
	Network() network.Network
	Connect(context.Context, peer.AddrInfo) error
}

// foreign returns a host with the defaults of libp2p.
func foreign(t *testing.T) hostLike {
	t.Helper()
	priv, err := crypto.UnmarshalPrivateKey(didtest.NewKey().Libp2p())
	if err != nil {
		t.Fatal(err)
	}
	h, err := libp2p.New(libp2p.Identity(priv), libp2p.ListenAddrStrings(anyTCP), libp2p.DisableRelay(),
		libp2p.NoTransports, libp2p.Transport(tcp.NewTCPTransport), libp2p.Security(libp2ptls.ID, libp2ptls.New))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// TestDialFailsBecauseOfTheClock has a peer whose certificate begins in two hours, as the library's does where the clock is three ahead.
func TestDialFailsBecauseOfTheClock(t *testing.T) {
	t.Parallel()
	priv, err := crypto.UnmarshalPrivateKey(didtest.NewKey().Libp2p())
	if err != nil {
		t.Fatal(err)
	}
	early, err := libp2ptls.NewIdentity(priv, libp2ptls.WithCertTemplate(&x509.Certificate{SerialNumber: big.NewInt(1),
		Subject: pkix.Name{SerialNumber: "1"}, NotBefore: time.Now().Add(2 * time.Hour), NotAfter: time.Now().Add(3 * time.Hour)}))
	if err != nil {
		t.Fatal(err)
	}
	own, err := crypto.UnmarshalPrivateKey(didtest.NewKey().Libp2p())
	if err != nil {
		t.Fatal(err)
	}
	client, err := newTLS(own, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // a pipe has no buffer: both would write, and neither read
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	config, _ := early.ConfigForPeer("")
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := l.Accept(); err == nil {
			defer c.Close()
			_ = tls.Server(c, config).HandshakeContext(t.Context()) // the result of the client counts
		}
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.SecureOutbound(t.Context(), raw, "")
	<-done
	if !forClocks(err) || forClocks(nil) || forClocks(context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// A closed is a connection that the other end has closed after the handshake.
type closed struct{ net.Conn }

// Close implements [net.Conn].
func (c closed) Close() error { return errors.Join(c.Conn.Close(), network.ErrReset) }

// The handshake with this node itself proves a relay. The other end closes the connection after it, which may be noticed first.
func TestSelfClosesFirst(t *testing.T) {
	t.Parallel()
	priv, err := crypto.UnmarshalPrivateKey(didtest.NewKey().Libp2p())
	if err != nil {
		t.Fatal(err)
	}
	self, err := newTLS(priv, muxers())
	if err != nil {
		t.Fatal(err)
	}
	one, two := net.Pipe()
	done := make(chan error, 1)
	go func() {
		mux := multistream.NewMultistreamMuxer[protocol.ID]()
		mux.AddHandler(self.ID(), nil)
		if _, _, err := mux.Negotiate(two); err != nil {
			done <- err
			return
		}
		_, err := self.SecureInbound(t.Context(), two, "")
		done <- errors.Join(err, two.Close())
	}()
	if err := self.isSelf(t.Context(), closed{one}); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
