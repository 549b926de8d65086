package stream

import (
	"context"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A wire carries UDP packets to a host until it is cut. Then they vanish, as they do when a machine loses its power.
type wire struct {
	front net.PacketConn
	to    *net.UDPAddr

	// mu owns what follows.
	mu    sync.Mutex
	cut   bool
	backs map[string]*net.UDPConn // by sender
	work  sync.WaitGroup
}

// newWire returns a wire to the QUIC address a, and the address of its near end.
func newWire(t *testing.T, a multiaddr.Multiaddr) (*wire, string) {
	t.Helper()
	udp, _ := multiaddr.SplitFunc(a, func(c multiaddr.Component) bool { return c.Protocol().Code == multiaddr.P_QUIC_V1 })
	to, err := manet.ToNetAddr(udp)
	if err != nil {
		t.Fatal(err)
	}
	front, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{front: front, to: to.(*net.UDPAddr), backs: map[string]*net.UDPConn{}}
	w.work.Go(w.forth)
	t.Cleanup(w.close)
	return w, "/ip4/127.0.0.1/udp/" + strconv.Itoa(front.LocalAddr().(*net.UDPAddr).Port) + "/quic-v1"
}

func (w *wire) forth() {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := w.front.ReadFrom(buf)
		if err != nil {
			return
		}
		if back := w.back(from); back != nil {
			_, _ = back.Write(buf[:n])
		}
	}
}

// back returns the socket that stands for from, or nil once the wire is cut.
func (w *wire) back(from net.Addr) *net.UDPConn {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.backs[from.String()]; c != nil || w.cut {
		if w.cut {
			return nil
		}
		return c
	}
	c, err := net.DialUDP("udp4", nil, w.to)
	if err != nil {
		return nil
	}
	w.backs[from.String()] = c
	w.work.Go(func() {
		buf := make([]byte, 1<<16)
		for n, err := c.Read(buf); err == nil; n, err = c.Read(buf) {
			if !w.isCut() {
				_, _ = w.front.WriteTo(buf[:n], from)
			}
		}
	})
	return c
}

func (w *wire) isCut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut
}

func (w *wire) sever() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
}

func (w *wire) close() {
	_ = w.front.Close()
	w.mu.Lock()
	for _, c := range w.backs {
		_ = c.Close()
	}
	w.mu.Unlock()
	w.work.Wait()
}

// quicAddr returns where h listens, whatever it announces.
func quicAddr(t *testing.T, h host.Host) multiaddr.Multiaddr {
	t.Helper()
	for _, a := range h.Network().ListenAddresses() {
		if _, err := a.ValueForProtocol(multiaddr.P_QUIC_V1); err == nil {
			return a
		}
	}
	t.Fatal("the host does not listen on QUIC")
	return nil
}

// TestAPeerThatLostItsPower: QUIC would notice after half a minute.
func TestAPeerThatLostItsPower(t *testing.T) {
	t.Parallel()
	hidden := libp2p.AddrsFactory(func([]multiaddr.Multiaddr) []multiaddr.Multiaddr { return nil }) // the wire is the only way
	server := newHost(t, "quic", hidden)
	w := newWaiting()
	newBinding(t, server, Options{}).Serve(interact.Func(w.Do))
	cord, near := newWire(t, quicAddr(t, server))
	where := at(t, server)
	where.Addrs = []string{near}

	var log reachLog
	caller := newBinding(t, newHost(t, "quic"), Options{ProbeAfter: 100 * time.Millisecond, ProbeTimeout: 500 * time.Millisecond,
		Reach: log.reach})
	thing := caller.at([]td.Host{where})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() {
		<-w.began
		cord.sever()
	}()
	_, err := interact.Call(ctx, thing, ask("a", ""))
	if code(err) != interact.Unreachable {
		t.Errorf("got %v, want Unreachable", err)
	}
	if ok, told := log.last(where.Node); ok || !told {
		t.Error("the dead peer was not reported")
	}
}
