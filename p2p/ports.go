package p2p

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/transport/websocket"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/p2p/oneport"
)

// ports are the TCP ports of a host that serve more than raw libp2p: WebSockets, and the connections for the HTTP server of the node.
// After New, only Start changes them.
type ports struct {
	web     *oneport.Queue // for the HTTP server of the node; nil: it has a port of its own
	tls     *tls.Config    // nil: no certificate
	sockets *oneport.WebSockets
	uses    map[string]*uses         // by the address of TCP in Options.Listen
	open    map[string]*oneport.Port // by that address, and by the one that is listened on
	next    ma.Multiaddr             // the address of Options.Listen on which the host listens now
	stops   []func()                 // of servers for WebSockets
}

// uses are the protocols of an address of TCP.
type uses struct{ raw, ws, wss, http bool }

func (u *uses) isShared() bool { return u != nil && (u.ws || u.wss || u.http) }

// newPorts returns the ports that o describes; none is open.
func newPorts(o *Options, listen []ma.Multiaddr) (*ports, error) {
	p := &ports{sockets: oneport.NewWebSockets(), uses: map[string]*uses{}, open: map[string]*oneport.Port{}}
	secure := false
	for _, a := range listen {
		base, ending := splitTCP(a)
		if base == nil {
			continue
		}
		u := p.uses[base.String()]
		if u == nil {
			u = &uses{http: o.Web.Listen != "" && shares(base, o.Web.Listen)}
			p.uses[base.String()] = u
		}
		switch {
		case len(ending) == 0:
			u.raw = true
		case ending.Equal(oneport.Plain):
			u.ws = true
		case ending.Equal(oneport.Secure):
			u.wss = true
		}
		secure = secure || u.wss || u.http
		if u.http && p.web == nil {
			p.web = oneport.NewQueue()
		}
	}
	if !secure || o.Web.Certificate == nil {
		return p, nil
	}
	var err error
	p.tls, err = o.Web.Certificate(o.Log)
	return p, err
}

// splitTCP splits a into its address of TCP, nil if it has none, and the protocols above.
func splitTCP(a ma.Multiaddr) (base, ending ma.Multiaddr) {
	for i, c := range a {
		if c.Protocol().Code == ma.P_TCP {
			return a[:i+1], a[i+1:]
		}
	}
	return nil, nil
}

// isWebSocket reports whether a is an address of libp2p over WebSocket.
func isWebSocket(a ma.Multiaddr) bool {
	return slices.ContainsFunc(a, func(c ma.Component) bool { code := c.Protocol().Code; return code == ma.P_WS || code == ma.P_WSS })
}

// SharesPort reports whether HTTP at host:port is served on a TCP port of libp2p: both have the same address, or both are for all addresses.
// The error says that the two cannot listen beside each other. Port 0 is never shared.
func SharesPort(listen []string, host string) (shared bool, err error) {
	if _, port, err := net.SplitHostPort(host); err != nil || port == "0" || port == "" {
		return false, nil
	}
	for _, text := range listen {
		a, err := ma.NewMultiaddr(text)
		if err != nil {
			continue // listenAll reports it
		}
		base, _ := splitTCP(a)
		switch {
		case base == nil:
		case shares(base, host):
			shared = true
		case collides(base, host):
			return false, fmt.Errorf("HTTP at %s cannot listen beside %s: they have one port and different addresses", host, a)
		}
	}
	return shared, nil
}

// shares reports whether host:port means the address base.
func shares(base ma.Multiaddr, host string) bool {
	at, all, web, ok := bothAddrs(base, host)
	return ok && (at == web || all && at.Addr().IsUnspecified())
}

// collides reports whether a listener at host:port cannot be opened beside one at base.
func collides(base ma.Multiaddr, host string) bool {
	at, all, web, ok := bothAddrs(base, host)
	return ok && (all || at.Addr().Is4() == web.Addr().Is4() && (at.Addr().IsUnspecified() || web.Addr().IsUnspecified()))
}

// bothAddrs returns the addresses of base and of host:port, and whether the latter is for all addresses of IPv4 and IPv6. ok is false if they
// have different ports, or one is no IP address.
func bothAddrs(base ma.Multiaddr, host string) (at netip.AddrPort, all bool, web netip.AddrPort, ok bool) {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		return at, all, web, false
	}
	if name == "" {
		name = "::"
	}
	_, listen, err := manet.DialArgs(base)
	if err != nil {
		return at, all, web, false
	}
	at, err = netip.ParseAddrPort(listen)
	web, werr := netip.ParseAddrPort(net.JoinHostPort(name, port))
	return at, web.Addr() == netip.IPv6Unspecified(), web, errors.Join(err, werr) == nil && at.Port() == web.Port()
}

// share returns l, or the raw connections of l if the port has other uses.
func (p *ports) share(l manet.Listener) manet.Listener {
	base, _ := splitTCP(p.next)
	if !p.uses[base.String()].isShared() {
		return l
	}
	return p.serve(l).Libp2p()
}

// serve opens the port at which l listens, for the uses of the address next.
func (p *ports) serve(l manet.Listener) *oneport.Port {
	base, _ := splitTCP(p.next)
	u, to := p.uses[base.String()], oneport.Queues{}
	if u.raw {
		to.Libp2p = oneport.NewQueue()
	}
	switch {
	case u.http && p.tls != nil:
		to.TLS = p.web
	case u.http:
		to.HTTP = p.web
	}
	if u.ws && to.HTTP == nil {
		to.HTTP = oneport.NewQueue()
		p.stops = append(p.stops, p.sockets.Serve(to.HTTP, nil))
	}
	if u.wss && to.TLS == nil {
		to.TLS = oneport.NewQueue()
		p.stops = append(p.stops, p.sockets.Serve(to.TLS, p.tls))
	}
	port := oneport.Open(l, to)
	p.open[base.String()], p.open[port.Multiaddr().String()] = port, port
	return port
}

// listenWeb listens on an address with WebSockets. It opens the port if the transport of TCP has not.
func (p *ports) listenWeb(a ma.Multiaddr) (manet.Listener, error) {
	base, ending := splitTCP(a)
	switch {
	case !ending.Equal(oneport.Plain) && !ending.Equal(oneport.Secure):
		return nil, errors.New("expected an address that ends in /ws or /tls/ws")
	case ending.Equal(oneport.Secure) && p.tls == nil:
		return nil, errors.New("it requires a certificate: set http.tls.cert and http.tls.key")
	}
	port, end := p.open[base.String()], func() error { return nil }
	if port == nil {
		l, err := manet.Listen(base)
		if err != nil {
			return nil, err
		}
		port = p.serve(l)
		end = port.Close
	}
	return p.sockets.Listener(port, ending, end), nil
}

// at returns an address with WebSockets with the port that is open for its address of TCP; false if none is.
func (p *ports) at(a ma.Multiaddr) (ma.Multiaddr, bool) {
	base, ending := splitTCP(a)
	port := p.open[base.String()]
	if port == nil || !isWebSocket(a) {
		return a, false
	}
	return port.Multiaddr().Encapsulate(ending), true
}

func (p *ports) close() error {
	_ = p.sockets.Close() // has no error
	for _, stop := range p.stops {
		stop()
	}
	return nil
}

// HTTP returns the connections for the HTTP server of the node, of all ports that it shares: TLS if there is a certificate, else plain. It is
// nil if Web.Listen shares none. Closing it closes no port.
func (h *Host) HTTP() net.Listener {
	if h == nil || h.ports.web == nil {
		return nil
	}
	return h.ports.web
}

// Upgrade serves a request to the HTTP server that opens a libp2p connection ([oneport.WebSockets.Upgrade]). It returns false for others, and
// if the host listens for no WebSockets.
func (h *Host) Upgrade(w http.ResponseWriter, r *http.Request) bool {
	return h != nil && slices.ContainsFunc(h.listen, isWebSocket) && h.ports.sockets.Upgrade(w, r)
}

// A portUpgrader lets the transport of TCP share its ports.
type portUpgrader struct {
	transport.Upgrader
	ports *ports
}

// GateMaListener implements [transport.Upgrader].
func (u portUpgrader) GateMaListener(l manet.Listener) transport.GatedMaListener {
	return u.Upgrader.GateMaListener(u.ports.share(l))
}

// A webTransport dials WebSockets by the library, and listens for them on shared ports.
type webTransport struct {
	*websocket.WebsocketTransport
	up    transport.Upgrader
	ports *ports
}

func (h *Host) newWebTransport(up transport.Upgrader) (transport.Transport, error) {
	var opts []websocket.Option
	if h.o.roots != nil {
		opts = append(opts, websocket.WithTLSClientConfig(&tls.Config{RootCAs: h.o.roots}))
	}
	w, err := websocket.New(up, h.rm, nil, opts...)
	return &webTransport{w, up, h.ports}, err
}

// Listen implements [transport.Transport].
func (t *webTransport) Listen(a ma.Multiaddr) (transport.Listener, error) {
	l, err := t.ports.listenWeb(a)
	if err != nil {
		return nil, err
	}
	return webListener{t.up.UpgradeGatedMaListener(t, t.up.GateMaListener(l))}, nil
}

// A webListener returns connections that say their transport.
type webListener struct{ transport.Listener }

// Accept implements [transport.Listener].
func (l webListener) Accept() (transport.CapableConn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return webConn{c}, nil
}

type webConn struct{ transport.CapableConn }

// ConnState implements [transport.CapableConn].
func (c webConn) ConnState() network.ConnectionState {
	s := c.CapableConn.ConnState()
	s.Transport = "websocket"
	return s
}
