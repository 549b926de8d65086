package nat

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A verifier has two public servers, one of them with two ports, which find out what kind of router a machine is behind (RFC 5780 §4.3, §4.4).
type verifier struct {
	first, other, second *net.UDPConn
	mu                   sync.Mutex // of one verification at a time
}

// newVerifier opens the servers on two public machines.
func newVerifier(a, b *Machine) (*verifier, error) {
	var err [3]error
	v := &verifier{}
	v.first, err[0] = a.listenUDP(netip.AddrPortFrom(a.addrs[0], 3478))
	v.other, err[1] = a.listenUDP(netip.AddrPortFrom(a.addrs[0], 3479))
	v.second, err[2] = b.listenUDP(netip.AddrPortFrom(b.addrs[0], 3478))
	if err := errors.Join(err[:]...); err != nil {
		return nil, errors.Join(err, v.close())
	}
	return v, nil
}

func (v *verifier) close() error {
	var err error
	for _, c := range []*net.UDPConn{v.first, v.other, v.second} {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}

// answerFor limits the wait for a packet that must arrive, silentFor the one for packets that must not.
const (
	answerFor = 10 * time.Second
	silentFor = 300 * time.Millisecond
)

// A behavior is what was observed of routers; the zero value is that of ones without UDP.
type behavior struct {
	passes        bool // packets arrive at a server
	sameMapping   bool // all destinations see one port
	fromOtherPort bool // packets from another port of a known address arrive
	fromOtherAddr bool // packets from an unknown address arrive
}

// behaviors are those of the kinds of routers.
var behaviors = map[Kind]behavior{
	FullCone:          {passes: true, sameMapping: true, fromOtherPort: true, fromOtherAddr: true},
	AddressRestricted: {passes: true, sameMapping: true, fromOtherPort: true},
	PortRestricted:    {passes: true, sameMapping: true},
	Symmetric:         {passes: true},
	UDPBlocked:        {},
	Only443:           {},
}

// verify returns an error if the routers of a machine are of another kind than all of them must be.
func (v *verifier) verify(m *Machine) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, r := range m.routers {
		want := behaviors[r.kind]
		got, err := v.observe(m, want.passes)
		if err != nil {
			return fmt.Errorf("verify the router %s: %w", r.kind, err)
		}
		if got != want {
			return fmt.Errorf("the router is expected to be %s, %+v, and is %+v", r.kind, want, got)
		}
	}
	return nil
}

// observe sends packets from the machine to the servers and back. It waits for the first one for longer if it is expected to pass.
func (v *verifier) observe(m *Machine, passes bool) (b behavior, err error) {
	limit := silentFor
	if passes {
		limit = answerFor
	}
	client, err := m.listenUDP(netip.AddrPort{})
	if err != nil {
		return b, err
	}
	defer client.Close()
	var seen []netip.AddrPort
	for _, server := range []*net.UDPConn{v.first, v.other, v.second} {
		at, err := seenBy(client, server, limit)
		if err != nil {
			return b, err
		}
		if !at.IsValid() {
			return b, nil
		}
		seen = append(seen, at)
	}
	b.passes, b.sameMapping = true, len(slices.Compact(seen)) == 1
	b.fromOtherPort, b.fromOtherAddr, err = v.filters(m)
	return b, err
}

// filters sends packets to a new socket of the machine from a port and an address to which the socket has sent nothing.
func (v *verifier) filters(m *Machine) (port, addr bool, err error) {
	client, err := m.listenUDP(netip.AddrPort{})
	if err != nil {
		return false, false, err
	}
	defer client.Close()
	at, err := seenBy(client, v.first, answerFor)
	if err != nil {
		return false, false, err
	}
	for i, server := range []*net.UDPConn{v.other, v.second, v.first} { // the last one passes
		if _, err := server.WriteToUDPAddrPort([]byte{byte(i)}, at); err != nil {
			return false, false, err
		}
	}
	limit, buf := answerFor, make([]byte, mtu)
	for {
		if err := client.SetReadDeadline(time.Now().Add(limit)); err != nil {
			return false, false, err
		}
		_, _, err := client.ReadFromUDPAddrPort(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && limit == silentFor:
			return port, addr, nil
		case err != nil:
			return false, false, err
		}
		switch buf[0] {
		case 0:
			port = true
		case 1:
			addr = true
		default:
			limit = silentFor
		}
	}
}

// seenBy returns the address by which a server sees a client; an invalid one if nothing arrives in time.
func seenBy(client, server *net.UDPConn, limit time.Duration) (at netip.AddrPort, err error) {
	nonce := rand.Text()
	buf := make([]byte, mtu)
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if _, err := client.WriteToUDPAddrPort([]byte(nonce), netip.MustParseAddrPort(server.LocalAddr().String())); err != nil && !errors.Is(err, unix.EPERM) {
			return at, err
		}
		if err := server.SetReadDeadline(time.Now().Add(silentFor)); err != nil {
			return at, err
		}
		for err == nil {
			var n int
			if n, at, err = server.ReadFromUDPAddrPort(buf); err == nil && string(buf[:n]) == nonce {
				return at, nil
			}
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return at, err
		}
		err = nil
	}
	return netip.AddrPort{}, nil
}
