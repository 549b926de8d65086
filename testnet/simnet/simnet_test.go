package simnet

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	ma "github.com/multiformats/go-multiaddr"
	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const delay = 50 * time.Millisecond

// simulate runs f with n hosts that know each other's addresses.
func simulate(t *testing.T, n int, f func(t *testing.T, hosts []*Host)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network := New(func(a, b peer.ID) time.Duration { return delay })
		var hosts []*Host
		for i := range n {
			key, err := crypto.UnmarshalEd25519PrivateKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{byte(i + 1)}, 32)))
			if err != nil {
				t.Fatal(err)
			}
			h, err := network.Add(key, ma.StringCast(fmt.Sprintf("/ip4/10.0.0.%d/tcp/1", i+1)))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := h.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}()
			hosts = append(hosts, h)
		}
		for _, h := range hosts {
			for _, o := range hosts {
				h.Peerstore().AddAddrs(o.ID(), o.Addrs(), peerstore.PermanentAddrTTL)
			}
		}
		f(t, hosts)
	})
}

// pair returns both sides of a stream, whose protocol is agreed.
func pair(t *testing.T, a, b *Host) (near, far network.Stream) {
	t.Helper()
	came := make(chan network.Stream, 1)
	b.SetStreamHandler("/x", func(s network.Stream) { came <- s })
	near, err := a.NewStream(t.Context(), b.ID(), "/x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := near.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	far = <-came
	if _, err := far.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := far.Write([]byte("!")); err != nil {
		t.Fatal(err)
	}
	if _, err := near.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// took fails the test unless f takes the given time.
func took(t *testing.T, what string, want time.Duration, f func()) {
	t.Helper()
	began := time.Now()
	f()
	if got := time.Since(began); got != want {
		t.Errorf("%s took %v, want %v", what, got, want)
	}
}

func TestMessagesAreDelayed(t *testing.T) {
	simulate(t, 2, func(t *testing.T, h []*Host) {
		near, far := pair(t, h[0], h[1])
		big := bytes.Repeat([]byte("lmos"), 100_000)
		took(t, "a large message", delay, func() {
			go func() {
				_, _ = near.Write(big[:7])
				_, _ = near.Write(big[7:])
				_ = near.CloseWrite()
			}()
			if got, err := io.ReadAll(far); err != nil || !bytes.Equal(got, big) {
				t.Errorf("got %d bytes, %v; want %d", len(got), err, len(big))
			}
		})
		if _, err := near.Write([]byte("x")); err == nil {
			t.Error("a stream that is closed for writing takes more")
		}
		if _, err := far.Write([]byte("back")); err != nil {
			t.Errorf("the other direction: %v", err)
		}
		got := make([]byte, 2)
		for _, want := range []string{"ba", "ck"} {
			if _, err := io.ReadFull(near, got); err != nil || string(got) != want {
				t.Errorf("got %q, %v; want %q", got, err, want)
			}
		}
	})
}

func TestWritersAreThrottled(t *testing.T) {
	simulate(t, 2, func(t *testing.T, h []*Host) {
		near, far := pair(t, h[0], h[1])
		if _, err := near.Write(make([]byte, window)); err != nil {
			t.Fatal(err)
		}
		_ = near.SetWriteDeadline(time.Now().Add(time.Second))
		took(t, "a write without room", time.Second, func() {
			if _, err := near.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("got %v, want %v", err, os.ErrDeadlineExceeded)
			}
		})
		_ = near.SetWriteDeadline(time.Time{})
		go func() {
			time.Sleep(time.Minute)
			_, _ = io.CopyN(io.Discard, far, window)
		}()
		took(t, "a write until there is room", time.Minute, func() {
			if _, err := near.Write([]byte("x")); err != nil {
				t.Error(err)
			}
		})
		_ = far.CloseRead()
		if _, err := near.Write(make([]byte, 2*window)); err != nil {
			t.Errorf("to a peer that does not read: %v", err)
		}
		if _, err := far.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("got %v, want the end of what is not read", err)
		}
	})
}

func TestHowAReadEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(h []*Host, near, far network.Stream)
		want error
		took time.Duration
	}{
		"the other side closes": {func(_ []*Host, near, _ network.Stream) { _ = near.Close() }, io.EOF, delay},
		"the other side resets": {func(_ []*Host, near, _ network.Stream) { _ = near.Reset() }, network.ErrReset, delay},
		"it is reset here":      {func(_ []*Host, _, far network.Stream) { _ = far.Reset() }, network.ErrReset, 0},
		"a deadline": {func(_ []*Host, _, far network.Stream) { _ = far.SetReadDeadline(time.Now().Add(time.Second)) },
			os.ErrDeadlineExceeded, time.Second},
		"the other side ends the connection": {func(h []*Host, _, _ network.Stream) { _ = h[0].Network().ClosePeer(h[1].ID()) },
			network.ErrReset, delay},
		"the other side is cut off": {func(h []*Host, _, _ network.Stream) { h[0].Cut() }, network.ErrReset, delay},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, func(t *testing.T, h []*Host) {
				near, far := pair(t, h[0], h[1])
				took(t, "the end", c.took, func() {
					go c.end(h, near, far)
					if n, err := far.Read(make([]byte, 1)); n != 0 || !errors.Is(err, c.want) {
						t.Errorf("got %d bytes, %v; want %v", n, err, c.want)
					}
				})
			})
		})
	}
}

func TestDials(t *testing.T) {
	simulate(t, 3, func(t *testing.T, h []*Host) {
		a, b, c := h[0], h[1], h[2]
		if _, err := a.Network().NewStream(network.WithNoDial(t.Context(), "test"), b.ID()); !errors.Is(err, network.ErrNoConn) {
			t.Errorf("a stream without a connection: %v", err)
		}
		took(t, "two dials at once", 2*delay, func() {
			var g errgroup.Group
			g.Go(func() error { _, err := a.Network().DialPeer(t.Context(), b.ID()); return err })
			g.Go(func() error { _, err := b.Network().DialPeer(t.Context(), a.ID()); return err })
			if err := g.Wait(); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if x, y := len(a.Network().Conns()), len(b.Network().Conns()); x != y || x < 1 || x > 2 {
			t.Errorf("there are %d and %d connections, want one, or one of each dial", x, y)
		}
		short, cancel := context.WithTimeout(t.Context(), delay)
		defer cancel()
		if _, err := a.Network().DialPeer(short, c.ID()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a dial without time gives %v", err)
		}
		a.Peerstore().ClearAddrs(c.ID())
		if _, err := a.Network().DialPeer(t.Context(), c.ID()); err == nil {
			t.Error("a peer without an address was reached")
		}
		if _, err := a.Network().DialPeer(t.Context(), a.ID()); err == nil {
			t.Error("a host has reached itself")
		}
		c.Cut()
		took(t, "to learn that there is no listener", 2*delay, func() {
			if _, err := b.Network().DialPeer(t.Context(), c.ID()); err == nil {
				t.Error("a host that is cut off was reached")
			}
		})
	})
}

// diary records the connection events of a host.
type diary struct {
	mu   sync.Mutex
	text string
}

func (d *diary) note(s string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.text += s
}

func (d *diary) bundle() *network.NotifyBundle {
	return &network.NotifyBundle{
		ConnectedF:    func(n network.Network, c network.Conn) { d.note("+" + n.Connectedness(c.RemotePeer()).String()) },
		DisconnectedF: func(n network.Network, c network.Conn) { d.note("-" + n.Connectedness(c.RemotePeer()).String()) },
	}
}

// Events are in order: a host that closes a connection and dials at once is not reported as disconnected.
func TestEventsAreInOrder(t *testing.T) {
	simulate(t, 2, func(t *testing.T, h []*Host) {
		var near, far diary
		h[0].Network().Notify(near.bundle())
		h[1].Network().Notify(far.bundle())
		want := ""
		for range 3 {
			if _, err := h[0].Network().DialPeer(t.Context(), h[1].ID()); err != nil {
				t.Fatal(err)
			}
			_ = h[0].Network().ClosePeer(h[1].ID())
			want += "+Connected-NotConnected"
		}
		time.Sleep(delay)
		synctest.Wait()
		if near.text != want || far.text != want {
			t.Errorf("told were %s and %s, want %s", near.text, far.text, want)
		}
		if left := len(h[0].Network().Conns()) + len(h[1].Network().Conns()); left != 0 {
			t.Errorf("%d connections are left", left)
		}
	})
}

// What is sent over a link that is cut arrives when it is joined again, unless the two ends have given the connection up.
func TestCutLinks(t *testing.T) {
	for name, c := range map[string]struct {
		cut  time.Duration
		want error
		took time.Duration
	}{
		"joined in time": {20 * time.Second, nil, 20*time.Second + delay},
		"given up":       {time.Minute, network.ErrReset, silence},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, func(t *testing.T, h []*Host) {
				near, far := pair(t, h[0], h[1])
				h[0].port.net.Cut(func(a, b peer.ID) bool { return true })
				if _, err := near.Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				go func() {
					time.Sleep(c.cut)
					h[0].port.net.Cut(func(a, b peer.ID) bool { return false })
				}()
				took(t, "a message over it", c.took, func() {
					if _, err := far.Read(make([]byte, 1)); !errors.Is(err, c.want) {
						t.Errorf("got %v, want %v", err, c.want)
					}
				})
				time.Sleep(c.cut)
			})
		})
	}
}

// A dead process refuses dials at once; a host without power, without a path or behind a router does not answer them.
func TestHostsThatAreNotThere(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(h []*Host)
		took time.Duration
	}{
		"killed":          {func(h []*Host) { h[1].port.Kill() }, 2 * delay},
		"without power":   {func(h []*Host) { h[1].port.Silence() }, time.Second},
		"cut off":         {func(h []*Host) { h[0].port.net.Cut(func(a, b peer.ID) bool { return true }) }, time.Second},
		"behind a router": {func(h []*Host) { h[1].port.router = true }, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, func(t *testing.T, h []*Host) {
				c.lose(h)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				took(t, "a dial", c.took, func() {
					if _, err := h[0].Network().DialPeer(ctx, h[1].ID()); err == nil {
						t.Error("the host was reached")
					}
				})
			})
		})
	}
}

// A host that dials another one which has the address meanwhile does not reach it.
func TestAnotherHostAtTheAddress(t *testing.T) {
	simulate(t, 3, func(t *testing.T, h []*Host) {
		h[0].Peerstore().ClearAddrs(h[1].ID())
		h[0].Peerstore().AddAddrs(h[1].ID(), h[2].Addrs(), peerstore.PermanentAddrTTL)
		if _, err := h[0].Network().DialPeer(t.Context(), h[1].ID()); err == nil || len(h[0].Network().Conns()) != 0 {
			t.Errorf("got %v, want that another host is there", err)
		}
	})
}
