package p2p

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	natpmp "github.com/jackpal/go-nat-pmp"
	"github.com/libp2p/go-libp2p/core/network"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	"github.com/libp2p/go-netroute"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/internal/backoff"
)

// Times of NAT-PMP.
const (
	upnpFirst   = 10 * time.Second // the library has found a router by then, or none
	pmpAnswer   = 2 * time.Second
	pmpLife     = 10 * time.Minute // of a mapping
	pmpRenew    = time.Minute      // a router that has restarted forgets mappings
	pmpTryAgain = 5 * time.Minute  // without an answer; the node may have moved
)

// A portMapper gets ports from the router: by UPnP, which the library does, or else by NAT-PMP. The library has NAT-PMP, too, but asks for the route to
// 0.0.0.0, which go-netroute v0.4.0 refuses on Linux.
type portMapper struct {
	basichost.NATManager
	net    network.Network
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	mapped map[local]netip.AddrPort // owned by mu
}

// A local is a port of this machine.
type local struct {
	udp  bool
	port uint16
}

// newPortMapper returns a mapper for the listeners of a network, which works until Close.
func newPortMapper(n network.Network) basichost.NATManager {
	ctx, cancel := context.WithCancel(context.Background())
	m := &portMapper{NATManager: basichost.NewNATManager(n), net: n, cancel: cancel, done: make(chan struct{})}
	go m.run(ctx)
	return m
}

// Close implements [basichost.NATManager].
func (m *portMapper) Close() error {
	m.cancel()
	<-m.done
	return m.NATManager.Close()
}

func (m *portMapper) run(ctx context.Context) {
	defer close(m.done)
	for pause := upnpFirst; backoff.Sleep(ctx, pause) == nil; {
		if m.HasDiscoveredNAT() {
			return
		}
		mapped := request(m.listening(), pmpLife)
		m.mu.Lock()
		m.mapped = mapped
		m.mu.Unlock()
		if pause = pmpRenew; len(mapped) == 0 {
			pause = pmpTryAgain
		}
	}
	if len(m.mapped) > 0 { // no other goroutine writes
		request(slices.Collect(maps.Keys(m.mapped)), 0) // the host has closed its listeners before
	}
}

// listening returns the ports of the listeners that a router can map.
func (m *portMapper) listening() (all []local) {
	for _, a := range m.net.ListenAddresses() {
		if l, ok := localOf(a); ok && !slices.Contains(all, l) {
			all = append(all, l)
		}
	}
	return all
}

// request maps ports for a time, and returns the addresses that they have at the router. A time of 0 ends their mappings.
func request(ports []local, life time.Duration) map[local]netip.AddrPort {
	gateway, err := defaultGateway()
	if err != nil {
		return nil
	}
	client := natpmp.NewClientWithTimeout(gateway, pmpAnswer)
	answer, err := client.GetExternalAddress()
	if err != nil {
		return nil
	}
	mapped := map[local]netip.AddrPort{}
	for _, l := range ports {
		protocol, wanted := "tcp", int(l.port)
		if l.udp {
			protocol = "udp"
		}
		if life == 0 {
			wanted = 0 // RFC 6886 §3.4
		}
		got, err := client.AddPortMapping(protocol, int(l.port), wanted, int(life.Seconds()))
		if err == nil && got.MappedExternalPort != 0 {
			mapped[l] = netip.AddrPortFrom(netip.AddrFrom4(answer.ExternalIPAddress), got.MappedExternalPort)
		}
	}
	return mapped
}

// defaultGateway returns the router of this machine, by the route to an address of the internet.
func defaultGateway() (net.IP, error) {
	router, err := netroute.New()
	if err != nil {
		return nil, err
	}
	_, gateway, _, err := router.Route(net.IPv4(1, 1, 1, 1))
	if err == nil && gateway == nil {
		err = errors.New("the internet is a network of this machine")
	}
	return gateway, err
}

// localOf returns the port of a listener that a router can map.
func localOf(a ma.Multiaddr) (local, bool) {
	addr, err := manet.ToNetAddr(ma.Multiaddr(a[:min(len(a), 2)]))
	if err != nil {
		return local{}, false
	}
	at, err := netip.ParseAddrPort(addr.String())
	_, udp := addr.(*net.UDPAddr)
	return local{udp, at.Port()}, err == nil && at.Addr().Is4() && !at.Addr().IsLoopback()
}

// GetMapping implements [basichost.NATManager].
func (m *portMapper) GetMapping(a ma.Multiaddr) ma.Multiaddr {
	if external := m.NATManager.GetMapping(a); external != nil {
		return external
	}
	l, ok := localOf(a)
	m.mu.Lock()
	at, found := m.mapped[l]
	m.mu.Unlock()
	if !ok || !found {
		return nil
	}
	var external net.Addr = net.TCPAddrFromAddrPort(at)
	if l.udp {
		external = net.UDPAddrFromAddrPort(at)
	}
	out, err := manet.FromNetAddr(external)
	if err != nil {
		return nil
	}
	return ma.Join(out, a[2:])
}
