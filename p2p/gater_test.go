package p2p

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/testhost"
)

// idOf returns the PeerID of a public key.
func idOf(t testing.TB, key crypto.PubKey, err error) peer.ID {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	id, err := peer.IDFromPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// rawID returns the PeerID of 32 bytes that claim to be an Ed25519 key.
func rawID(t testing.TB, hexKey string) peer.ID {
	t.Helper()
	b, err := hex.DecodeString(hexKey)
	if err != nil {
		t.Fatal(err)
	}
	key, err := crypto.UnmarshalEd25519PublicKey(b)
	return idOf(t, key, err)
}

func TestGaterRejectsInvalidKeys(t *testing.T) {
	t.Parallel()
	_, ed, err := crypto.GenerateEd25519Key(rand.Reader)
	good := idOf(t, ed, err)
	_, rsa, err := crypto.GenerateRSAKeyPair(2048, rand.Reader)
	rsaID := idOf(t, rsa, err)
	_, secp, err := crypto.GenerateSecp256k1Key(rand.Reader)
	secpID := idOf(t, secp, err)
	_, ec, err := crypto.GenerateECDSAKeyPair(rand.Reader)
	for name, c := range map[string]struct {
		id   peer.ID
		want bool
	}{
		"Ed25519":   {good, true},
		"RSA":       {rsaID, false},
		"secp256k1": {secpID, false},
		"ECDSA":     {idOf(t, ec, err), false},
		"no id":     {"", false},
		"garbage":   {"garbage", false},
		// Points of order 1, 2, 4 and 8: signatures by them verify for many messages.
		"order 1": {rawID(t, "0100000000000000000000000000000000000000000000000000000000000000"), false},
		"order 2": {rawID(t, "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"), false},
		"order 4": {rawID(t, "0000000000000000000000000000000000000000000000000000000000000000"), false},
		"order 8": {rawID(t, "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), false},
		// The same point has a second spelling, and so a second PeerID: y = p + 1.
		"not canonical": {rawID(t, "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"), false},
		"no point":      {rawID(t, "0200000000000000000000000000000000000000000000000000000000000000"), false},
	} {
		g := &gater{}
		if got := g.InterceptPeerDial(c.id); got != c.want {
			t.Errorf("%s: dial allowed %v, want %v", name, got, c.want)
		}
		for _, dir := range []network.Direction{network.DirInbound, network.DirOutbound} {
			if got := g.InterceptSecured(dir, c.id, nil); got != c.want {
				t.Errorf("%s: %v allowed %v, want %v", name, dir, got, c.want)
			}
		}
		if !g.InterceptAccept(nil) {
			t.Errorf("%s: InterceptAccept rejected an unauthenticated connection", name)
		}
	}
}

func TestPolicyDecidesConnections(t *testing.T) {
	t.Parallel()
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	denied, err := did.FromKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := denied.Peer()
	if err != nil {
		t.Fatal(err)
	}
	g := &gater{admits: func(id did.DID) error {
		if id == denied {
			return errors.New("denied")
		}
		return nil
	}}
	if g.InterceptPeerDial(peer.ID(raw)) || g.InterceptSecured(network.DirOutbound, peer.ID(raw), nil) {
		t.Error("a denied peer is dialed")
	}
	if !g.InterceptPeerDial(peer.ID(didtest.NewKey().Peer())) {
		t.Error("an admitted peer is rejected")
	}
}

func TestGaterRejectsHostileAddresses(t *testing.T) {
	t.Parallel()
	for addr, c := range map[string]struct{ anywhere, loopback bool }{
		"/ip4/192.0.2.1/tcp/4667":            {true, true},
		"/ip4/10.0.0.1/udp/4667/quic-v1":     {true, true},
		"/ip6/2001:db8::1/tcp/4667":          {true, true},
		"/ip6/fd00::1/tcp/4667":              {true, true},
		"/ip4/127.0.0.1/tcp/4668":            {false, true},
		"/ip4/127.8.8.8/tcp/4668":            {false, true},
		"/ip6/::1/tcp/4668":                  {false, true},
		"/ip6/::ffff:127.0.0.1/tcp/4668":     {false, true},
		"/ip4/169.254.169.254/tcp/80":        {false, false}, // a cloud's metadata
		"/ip6/fe80::1/tcp/4667":              {false, false},
		"/ip6zone/eth0/ip6/fe80::1/tcp/4667": {false, false},
		"/ip4/0.0.0.0/tcp/4667":              {false, false}, // this machine on some systems
		"/ip6/::/tcp/4667":                   {false, false},
		"/ip4/224.0.0.251/udp/5353/quic-v1":  {false, false},
		"/ip4/239.255.255.250/tcp/1900":      {false, false},
		"/ip4/255.255.255.255/udp/9/quic-v1": {false, false},
		"/dns4/node.example/tcp/4667":        {true, true},
		"/p2p/12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB/p2p-circuit": {true, true},
	} {
		a, err := ma.NewMultiaddr(addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := (&gater{}).InterceptAddrDial("", a); got != c.anywhere {
			t.Errorf("%s: allowed %v, want %v", addr, got, c.anywhere)
		}
		if got := (&gater{loopback: true}).InterceptAddrDial("", a); got != c.loopback {
			t.Errorf("%s: with loopback allowed: %v, want %v", addr, got, c.loopback)
		}
	}
}

// TestBan dials from and to a banned host over real connections.
func TestBan(t *testing.T) {
	t.Parallel()
	a, b, c := started(t, Options{Listen: []string{anyTCP}}), started(t, Options{Listen: []string{anyTCP}}), started(t, Options{Listen: []string{anyTCP}})
	a.Ban(b.ID(), time.Minute)
	to := func(h *Host) peer.AddrInfo { return peer.AddrInfo{ID: h.ID(), Addrs: h.Addrs()} }
	if err := a.Connect(t.Context(), to(b)); !errors.Is(err, swarm.ErrGaterDisallowedConnection) {
		t.Errorf("dialled a banned peer: %v", err)
	}
	_ = b.Connect(t.Context(), to(a)) // b may see its connection end a moment after it was made
	if a.Network().Connectedness(b.ID()) == network.Connected {
		t.Error("a banned peer is connected")
	}
	if err := c.Connect(t.Context(), to(a)); err != nil {
		t.Errorf("a peer that is not banned is rejected: %v", err)
	}
}

func TestBansAreBounded(t *testing.T) {
	t.Parallel()
	g, now := &gater{}, time.Now()
	for i := range 3 * maxBanned {
		g.ban(peer.ID(fmt.Sprint(i)), time.Minute, now)
	}
	if len(g.banned) > maxBanned {
		t.Errorf("%d bans are kept", len(g.banned))
	}
	last := peer.ID(fmt.Sprint(3*maxBanned - 1))
	if !g.isBanned(last, now) || g.isBanned(last, now.Add(time.Minute)) {
		t.Error("the ban ended early")
	}
	g.ban("later", time.Minute, now.Add(time.Hour))
	if len(g.banned) != 1 {
		t.Errorf("%d bans are kept after their end", len(g.banned))
	}
}

// A host with a key that has no did:key is refused at the handshake, in both directions and over each transport.
func TestHostsWithOtherKeysDoNotConnect(t *testing.T) {
	t.Parallel()
	for name, generate := range map[string]func() (crypto.PrivKey, crypto.PubKey, error){
		"RSA":       func() (crypto.PrivKey, crypto.PubKey, error) { return crypto.GenerateRSAKeyPair(2048, rand.Reader) },
		"secp256k1": func() (crypto.PrivKey, crypto.PubKey, error) { return crypto.GenerateSecp256k1Key(rand.Reader) },
		"ECDSA":     func() (crypto.PrivKey, crypto.PubKey, error) { return crypto.GenerateECDSAKeyPair(rand.Reader) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			priv, _, err := generate()
			if err != nil {
				t.Fatal(err)
			}
			other, err := libp2p.New(libp2p.Identity(priv), libp2p.ListenAddrStrings(anyTCP, anyQUIC), libp2p.DisableMetrics(), libp2p.DisableRelay())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = other.Close() })
			h := started(t, Options{Listen: []string{anyTCP, anyQUIC}})
			for _, at := range h.Addrs() {
				// The dialer may end its handshake first: the connection counts when a stream is answered.
				err := other.Connect(t.Context(), peer.AddrInfo{ID: h.ID(), Addrs: []ma.Multiaddr{at}})
				if err == nil {
					err = testhost.OpenStream(t, other, h.ID(), "/ipfs/ping/1.0.0")
				}
				if err == nil || len(h.Network().Peers()) > 0 {
					t.Errorf("it is connected over %s: %v, %v", at, err, h.Network().Peers())
				}
				_ = other.Network().ClosePeer(h.ID())
			}
			if err := h.Connect(t.Context(), peer.AddrInfo{ID: other.ID(), Addrs: other.Addrs()}); err == nil {
				t.Error("it was dialed")
			}
		})
	}
}

// A record may name the address of another node: it is dialed once, and the error says who answered there.
func TestAddressesOfOthersAreDialedOnce(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{anyTCP, anyQUIC} {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			victim, h := started(t, Options{Listen: []string{addr}}), started(t, Options{})
			named := peer.AddrInfo{ID: peer.ID(didtest.NewKey().Peer()), Addrs: victim.Addrs()}
			for range 2 {
				err := h.Connect(network.WithForceDirectDial(t.Context(), "no back-off"), named)
				var other sec.ErrPeerIDMismatch
				if !errors.As(err, &other) || other.Actual != victim.ID() {
					t.Errorf("got %v", err)
				}
				if IsLocalFailure(err) {
					t.Errorf("%v does not show that the node is not there", err)
				}
			}
			if h.gater.InterceptAddrDial(named.ID, victim.Addrs()[0]) {
				t.Error("the address would be dialed again")
			}
			if !h.gater.InterceptAddrDial(victim.ID(), victim.Addrs()[0]) {
				t.Error("the node itself would not be dialed at its address")
			}
			if h.gater.isOthers(named.ID, victim.Addrs()[0], time.Now().Add(othersFor+time.Second)) {
				t.Error("the address is never dialed again")
			}
			if err := dial(t, h, victim); err != nil {
				t.Error(err)
			}
		})
	}
}

// A host that ends begins no dial, also before its network is closed.
func TestEndingHostsDialNoPeer(t *testing.T) {
	t.Parallel()
	to := started(t, Options{Listen: []string{anyTCP}})
	h, err := New(Options{Key: didtest.NewKey(), Network: "test", Loopback: true})
	if err != nil {
		t.Fatal(err)
	}
	if !h.gater.InterceptPeerDial(to.ID()) {
		t.Fatal("the peer would not be dialed")
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if h.gater.InterceptPeerDial(to.ID()) {
		t.Error("a host that has ended would dial")
	}
	if err := dial(t, h, to); err == nil || !IsLocalFailure(err) {
		t.Errorf("got %v, want a failure of this host", err)
	}
}
