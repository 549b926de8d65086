package messaging

import (
	"errors"
	"net"
	"net/netip"
	"time"

	coapnet "github.com/plgd-dev/go-coap/v3/net"
)

// A Remote is the source of a datagram and its destination address on this machine, which the response must use as its source.
type Remote struct {
	Addr  netip.AddrPort
	via   *coapnet.ControlMessage // nil: the choice of the system
	Group bool                    // the destination was a multicast or broadcast address
}

// A Socket sends and receives the datagrams of a server.
type Socket interface {
	// Read returns one datagram, truncated to the size of b.
	Read(b []byte) (n int, from Remote, err error)
	// Write sends one datagram. It is safe for concurrent use.
	Write(b []byte, to Remote) error
	// Stop ends the current and all later calls of Read with an error for which [IsStopped] is true.
	Stop()
	Close() error
	// Addr is the listen address.
	Addr() netip.AddrPort
}

// A udpSocket is a socket of the system that reports the destination of a datagram.
type udpSocket struct {
	*coapnet.UDPConn
	anywhere bool // it listens on all addresses
}

// Listen opens a UDP socket of the system.
func Listen(addr string) (Socket, error) {
	c, err := coapnet.NewListenUDP("udp", addr)
	if err != nil {
		return nil, err
	}
	s := &udpSocket{UDPConn: c}
	s.anywhere = s.Addr().Addr().IsUnspecified()
	return s, nil
}

func (s *udpSocket) Read(b []byte) (n int, from Remote, err error) {
	var udp *net.UDPAddr
	var to *coapnet.ControlMessage
	n, err = s.ReadWithOptions(b, coapnet.WithGetRemoteAddr(&udp), coapnet.WithGetControlMessage(&to))
	if err != nil {
		return 0, from, err
	}
	from.Addr = udp.AddrPort()
	if to == nil {
		return n, from, nil
	}
	from.Group = to.Dst.IsMulticast() || to.Dst.Equal(net.IPv4bcast)
	if s.anywhere && to.Dst != nil {
		from.via = &coapnet.ControlMessage{Src: to.Dst, IfIndex: to.IfIndex}
	}
	return n, from, nil
}

func (s *udpSocket) Write(b []byte, to Remote) error {
	options := []coapnet.UDPWriteOption{coapnet.WithRemoteAddr(net.UDPAddrFromAddrPort(to.Addr))}
	if to.via != nil {
		options = append(options, coapnet.WithControlMessage(to.via))
	}
	return s.WriteWithOptions(b, options...)
}

func (s *udpSocket) Stop() {
	if c, ok := s.NetConn().(*net.UDPConn); ok {
		_ = c.SetReadDeadline(time.Unix(1, 0)) // fails for a closed socket, which does not read either
	}
}

func (s *udpSocket) Addr() netip.AddrPort {
	if u, ok := s.LocalAddr().(*net.UDPAddr); ok {
		return u.AddrPort()
	}
	return netip.AddrPort{}
}

// IsStopped reports whether the error of a read means that the socket was stopped or closed.
func IsStopped(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, coapnet.ErrConnectionIsClosed) || IsTimeout(err)
}
