package p2p

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/interacttest"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) {
	// A goroutine of QUIC's sockets ends a moment after the last connection on them.
	testmain.Run(m)
}

const (
	anyTCP  = "/ip4/127.0.0.1/tcp/0"
	anyQUIC = "/ip4/127.0.0.1/udp/0/quic-v1"
)

// made returns a loopback host that is closed at the end of the test.
func made(t testing.TB, o Options) *Host {
	t.Helper()
	if o.Key == nil {
		o.Key = didtest.NewKey()
	}
	o.Network, o.Loopback = "test", true
	h, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return h
}

func started(t testing.TB, o Options) *Host {
	t.Helper()
	h := made(t, o)
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	return h
}

func dial(t testing.TB, from, to *Host) error {
	t.Helper()
	return from.Connect(t.Context(), peer.AddrInfo{ID: to.ID(), Addrs: to.Addrs()})
}

func TestHostsConnect(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		listen              string
		from, to            Options
		transport, security string
	}{
		"TCP":          {listen: anyTCP, transport: "tcp", security: "/tls/1.0.0"},
		"QUIC":         {listen: anyQUIC, transport: "quic-v1"},
		"lean":         {listen: anyTCP, from: Options{NoNoise: true}, to: Options{NoNoise: true}, transport: "tcp", security: "/tls/1.0.0"},
		"lean and not": {listen: anyTCP, from: Options{NoNoise: true}, transport: "tcp", security: "/tls/1.0.0"},
		"ready to relay": {listen: anyTCP, from: Options{NAT: NAT{Relay: true}}, to: Options{NAT: NAT{Relay: true, AutoNAT: true}},
			transport: "tcp", security: "/tls/1.0.0"},
		"counted":         {listen: anyQUIC, to: Options{Metrics: prometheus.NewRegistry()}, transport: "quic-v1"},
		"who is admitted": {listen: anyQUIC, to: Options{Admits: func(did.DID) error { return nil }}, transport: "quic-v1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.to.Listen, c.to.ListenExplicit, c.to.Version = []string{c.listen}, true, "7"
			from, to := started(t, c.from), started(t, c.to)
			if err := dial(t, from, to); err != nil {
				t.Fatal(err)
			}
			conn := from.Network().ConnsToPeer(to.ID())[0].ConnState()
			if conn.Transport != c.transport || string(conn.Security) != c.security {
				t.Errorf("connected by %s over %s, want %s over %s", conn.Security, conn.Transport, c.security, c.transport)
			}
			if agent, err := from.Peerstore().Get(to.ID(), "AgentVersion"); agent != "lmosd/7" {
				t.Errorf("agent version %v (%v), want lmosd/7", agent, err)
			}
			if r, ok := c.to.Metrics.(*prometheus.Registry); ok {
				if all, err := r.Gather(); err != nil || len(all) == 0 {
					t.Errorf("%d families of metrics, %v; want those of the library", len(all), err)
				}
			}
		})
	}
}

func TestUnadmittedPeersAreNotConnected(t *testing.T) {
	t.Parallel()
	denied := didtest.NewKey()
	admits := func(id did.DID) error {
		if id == denied.DID() {
			return errors.New("denied")
		}
		return nil
	}
	strict := started(t, Options{Listen: []string{anyTCP}, Admits: admits})
	unadmitted := started(t, Options{Key: denied, Listen: []string{anyTCP}})
	if err := dial(t, strict, unadmitted); err == nil {
		t.Error("a peer that is not admitted is dialed")
	}
	_ = dial(t, unadmitted, strict) // the refusal may arrive after the dial returns
	if len(strict.Network().ConnsToPeer(unadmitted.ID())) > 0 {
		t.Error("a peer that is not admitted is accepted")
	}
	if err := dial(t, started(t, Options{}), strict); err != nil {
		t.Errorf("an admitted peer is refused: %v", err)
	}
}

func TestInvalidListenAddresses(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"listen.p2p":      {Listen: []string{"127.0.0.1:1"}},
		"listen.announce": {Announce: []string{"example.org"}},
		"mesh.filter":     {Filter: []string{"10.0.0.1"}},
	} {
		o.Key = didtest.NewKey()
		h, err := New(o)
		if err == nil {
			t.Fatal(errors.Join(errors.New("New accepted it"), h.Close()))
		}
		if e := wantCode(t, err, interact.ConfigInvalid); !strings.Contains(e.Title, name) {
			t.Errorf("%q does not name %s", e.Title, name)
		}
	}
	other := started(t, Options{Listen: []string{anyTCP}}).Addrs()[0].String()
	for name, c := range map[string]struct {
		listen string
		want   interact.Code
	}{
		"an unsupported transport":      {"/ip4/127.0.0.1/udp/0/webrtc-direct", interact.ConfigInvalid},
		"another name for TLS":          {"/ip4/127.0.0.1/tcp/0/wss", interact.ConfigInvalid},
		"TLS without a certificate":     {"/ip4/127.0.0.1/tcp/0/tls/ws", interact.ConfigInvalid},
		"an address of another machine": {"/ip4/192.0.2.1/tcp/0", interact.ConfigInvalid},
		"a TCP port that is busy":       {"/ip4/127.0.0.1/tcp/" + busyTCP(t), interact.PortBusy},
		"a UDP port that is busy":       {"/ip4/127.0.0.1/udp/" + busyUDP(t) + "/quic-v1", interact.PortBusy},
		"a port of another host":        {other, interact.PortBusy},
	} {
		err := made(t, Options{Listen: []string{anyQUIC, c.listen}, ListenExplicit: true}).Start()
		if e := wantCode(t, err, c.want); !strings.Contains(e.Title, "cannot listen on "+c.listen) {
			t.Errorf("%s: %q does not name it", name, e.Title)
		}
	}
}

// busyTCP and busyUDP return a port of 127.0.0.1 that is in use until the test ends.
func busyTCP(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func busyUDP(t testing.TB) string {
	t.Helper()
	l, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	_, port, _ := net.SplitHostPort(l.LocalAddr().String())
	return port
}

func TestBusyDefaultPortIsReplaced(t *testing.T) {
	t.Parallel()
	busy := []string{"/ip4/127.0.0.1/udp/" + busyUDP(t) + "/quic-v1", "/ip4/127.0.0.1/tcp/" + busyTCP(t)}
	var log bytes.Buffer
	h := started(t, Options{Listen: busy, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if len(h.Addrs()) != len(busy) {
		t.Errorf("listens on %v, want as many addresses as %v", h.Addrs(), busy)
	}
	for _, b := range busy {
		if !strings.Contains(log.String(), "busy="+b) {
			t.Errorf("the log does not name %s: %s", b, log.String())
		}
		for _, a := range h.Addrs() {
			if a.String() == b {
				t.Errorf("listens on %s, which is busy", b)
			}
		}
	}
}

var wantCode = interacttest.WantError
