package p2p

import (
	"errors"
	"net"
	"slices"
	"syscall"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/interact"
)

// listenAll listens on each address: the Listen method of the network succeeds if one of them works. A busy port is replaced by a
// free one with a warning, unless Options.ListenExplicit: then it is an error of code PortBusy. Other failures are ConfigInvalid.
func (h *Host) listenAll() error {
	// WebSockets last: they share the ports of TCP.
	web := slices.DeleteFunc(slices.Clone(h.listen), func(a ma.Multiaddr) bool { return !isWebSocket(a) })
	for _, a := range append(slices.DeleteFunc(slices.Clone(h.listen), isWebSocket), web...) {
		h.ports.next = a
		err := h.listenOn(a)
		if errors.Is(err, syscall.EADDRINUSE) && !h.o.ListenExplicit {
			h.o.Log.Warn("default port busy, free port used", "busy", a.String())
			err = h.listenOn(anyPort(a))
		}
		if err != nil {
			return listenError(a, err)
		}
	}
	return nil
}

func (h *Host) listenOn(a ma.Multiaddr) error {
	if at, open := h.ports.at(a); open {
		return h.swarm.AddListenAddr(at)
	}
	if h.o.Transport == nil {
		if err := vacant(a); err != nil {
			return err
		}
	}
	return h.swarm.AddListenAddr(a)
}

// vacant returns an error if another program listens on a TCP port. The host shares ports (SO_REUSEPORT) to dial from them, also
// with another lmosd, and each would then get half of the connections.
func vacant(a ma.Multiaddr) error {
	network, addr, err := manet.DialArgs(a)
	if err != nil || network != "tcp4" && network != "tcp6" {
		return nil // UDP ports are not shared
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		return err
	}
	return l.Close()
}

func listenError(a ma.Multiaddr, err error) error {
	e := &interact.Error{Code: interact.ConfigInvalid, Title: "cannot listen on " + a.String(), Err: err,
		Hint: "choose another address", Next: interact.Next(interact.StepRun, "listen.p2p", "/ip4/0.0.0.0/udp/4667/quic-v1")}
	if errors.Is(err, syscall.EADDRINUSE) {
		e.Code, e.Hint, e.Next = interact.PortBusy, "stop the program that listens there, or choose another", interact.Next(interact.StepRun, "listen.p2p", anyPort(a).String())
	}
	return e
}

// anyPort returns a with port 0.
func anyPort(a ma.Multiaddr) ma.Multiaddr {
	out := make(ma.Multiaddr, 0, len(a))
	for _, c := range a {
		if code := c.Protocol().Code; code == ma.P_TCP || code == ma.P_UDP {
			if z, err := ma.NewComponent(c.Protocol().Name, "0"); err == nil {
				c = *z
			}
		}
		out = append(out, c)
	}
	return out
}

// multiaddrs parses the addresses of a configuration key.
func multiaddrs(key string, ss []string) ([]ma.Multiaddr, error) {
	as := make([]ma.Multiaddr, 0, len(ss))
	for _, s := range ss {
		a, err := ma.NewMultiaddr(s)
		if err != nil {
			return nil, &interact.Error{Code: interact.ConfigInvalid, Title: key + " contains an invalid multiaddr: " + s,
				Hint: "write it like /ip4/192.0.2.7/udp/4667/quic-v1", Err: err}
		}
		as = append(as, a)
	}
	return as, nil
}
