package p2p

import (
	"context"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/p2p/oneport"
	"github.com/lmosd/lmosd/p2p/relay"
)

// fallbackAfter is the time after which a dial over TCP is tried over WebSocket, too.
const fallbackAfter = 700 * time.Millisecond

// A tcpTransport is the transport of TCP that falls back to the WebSockets of a peer on the same port. The network of the library never dials
// these beside TCP, although some networks permit only HTTP on a port.
type tcpTransport struct {
	*tcp.TcpTransport
	web   transport.Transport
	addrs func(peer.ID) []ma.Multiaddr
}

// Dial implements [transport.Transport].
func (t *tcpTransport) Dial(ctx context.Context, a ma.Multiaddr, p peer.ID) (transport.CapableConn, error) {
	return t.DialWithUpdates(ctx, a, p, nil)
}

// DialWithUpdates implements [transport.DialUpdater].
func (t *tcpTransport) DialWithUpdates(ctx context.Context, a ma.Multiaddr, p peer.ID, updates chan<- transport.DialUpdate) (transport.CapableConn, error) {
	web := webAddr(a, t.addrs(p))
	if punch, _, _ := network.GetSimultaneousConnect(ctx); web == nil || punch {
		return t.TcpTransport.DialWithUpdates(ctx, a, p, updates)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		conn transport.CapableConn
		err  error
	}
	raw, fallback := make(chan result, 1), make(chan result, 1)
	go func() {
		c, err := t.TcpTransport.DialWithUpdates(ctx, a, p, updates)
		raw <- result{c, err}
	}()
	timer := time.NewTimer(fallbackAfter)
	defer timer.Stop()
	var first result
	select {
	case first = <-raw:
		if first.err == nil || ctx.Err() != nil {
			return first.conn, first.err
		}
		if c, err := t.web.Dial(ctx, web, p); err == nil {
			return c, nil
		}
		return nil, first.err
	case <-timer.C:
	}
	go func() {
		c, err := t.web.Dial(ctx, web, p)
		fallback <- result{c, err}
	}()
	other := fallback
	select {
	case first = <-raw:
	case first = <-fallback:
		other = raw
	}
	if first.err != nil {
		second := <-other
		return second.conn, second.err
	}
	go func() { // it ends with ctx
		if late := <-other; late.err == nil {
			_ = late.conn.Close()
		}
	}()
	return first.conn, nil
}

// webAddr returns the address of the WebSockets that a peer has at the address of TCP; nil if it has none. A name in an address of the peer with
// the same port is taken for one of this address: the certificate proves it.
func webAddr(a ma.Multiaddr, of []ma.Multiaddr) ma.Multiaddr {
	port, err := a.ValueForProtocol(ma.P_TCP)
	if err != nil {
		return nil
	}
	for _, w := range of {
		base, ending := splitTCP(w)
		if other, err := w.ValueForProtocol(ma.P_TCP); err != nil || other != port || !isWebSocket(w) || relay.IsCircuit(w) || len(base) != 2 {
			continue
		}
		switch code := base[0].Protocol().Code; {
		case base.Equal(a):
			return w
		case code != ma.P_DNS && code != ma.P_DNS4 && code != ma.P_DNS6:
		case ending.Equal(oneport.Plain):
			return a.Encapsulate(oneport.Plain)
		case ending.Equal(oneport.Secure):
			if sni, err := ma.NewComponent("sni", base[0].Value()); err == nil {
				return a.Encapsulate(ending[:1]).AppendComponent(sni, &ending[1])
			}
		}
	}
	return nil
}
