package p2p

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/netns"
	"github.com/lmosd/lmosd/internal/poll"
)

// The addresses of TestPortMapping: the two ends between a router and a node, and in the internet the router and a node.
const (
	routerInside, nodeInside   = "10.9.1.1", "10.9.1.2"
	routerOutside, checkerAddr = "11.0.0.9", "11.0.0.5"
)

// A node behind a router that speaks NAT-PMP gets a port, three nodes of the internet confirm it by AutoNAT, and the node relays from then on.
func TestPortMapping(t *testing.T) {
	switch netns.Role(t) {
	case "":
		t.Parallel()
		netns.Run(t, "internet")
	case "internet":
		inside := netns.Command(t, "inside")
		in, err := inside.StdinPipe()
		inside.Stdout, inside.Stderr = os.Stdout, os.Stderr
		if err = errors.Join(err, inside.Start()); err != nil {
			t.Fatal(err)
		}
		netns.IP(t, "link set lo up", "link add veth0 type veth peer name veth1", "link set veth0 up", "addr add "+routerInside+"/24 dev veth0",
			"addr add "+routerOutside+"/32 dev lo", "addr add "+checkerAddr+"/32 dev lo", fmt.Sprintf("link set veth1 netns %d", inside.Process.Pid))
		serveNATPMP(t)
		var checkers []peer.AddrInfo
		for range 3 { // AutoNAT counts each peer once in two minutes
			h := started(t, Options{Listen: []string{"/ip4/" + checkerAddr + "/tcp/0"}, NAT: NAT{AutoNAT: true}})
			checkers = append(checkers, peer.AddrInfo{ID: h.ID(), Addrs: h.Addrs()})
		}
		if err := json.NewEncoder(in).Encode(checkers); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(in.Close(), inside.Wait()); err != nil {
			t.Errorf("the node inside: %v", err)
		}
	case "inside":
		var checkers []peer.AddrInfo
		if err := json.NewDecoder(bufio.NewReader(os.Stdin)).Decode(&checkers); err != nil {
			t.Fatal(err)
		}
		netns.IP(t, "link set lo up", "link set veth1 up", "addr add "+nodeInside+"/24 dev veth1", "route add default via "+routerInside)
		h := started(t, Options{Listen: []string{"/ip4/0.0.0.0/tcp/4667"}, PublicOnly: true,
			Relays: func(did.DID) (bool, did.Relation) { return true, did.Untrusted }, NAT: NAT{Relay: true, Serve: true, AutoNAT: true, PortMap: true}})
		runs(t, h)
		for _, c := range checkers {
			if err := h.Connect(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		poll.Until(t, "a mapped port", func() bool { return netOf(h).PortMapping.State == api.MappingMapped })
		poll.Until(t, "a proven address", func() bool { return netOf(h).Reachability == api.ReachablePublic })
		poll.Until(t, "a node that relays", h.CanServe)
		n := netOf(h)
		t.Logf("%+v", n)
		external, err := ma.NewMultiaddr(n.Addrs[0].Addr)
		if ip, ok := ipOf(external); err != nil || !ok || ip.String() != routerOutside || n.Addrs[0].Proof != api.SourceMapping ||
			n.Addrs[0].Checked != api.CheckedReachable {
			t.Errorf("the node has %+v", n)
		}
	}
}

// serveNATPMP answers as a router (RFC 6886) until the test ends. A connection to a mapped port is forwarded to the node.
func serveNATPMP(t *testing.T) {
	t.Helper()
	router, err := net.ListenPacket("udp4", net.JoinHostPort(routerInside, "5351"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = router.Close() })
	go func() {
		b := make([]byte, 64)
		for {
			n, from, err := router.ReadFrom(b)
			if err != nil {
				return
			}
			if answer := answerNATPMP(t, b[:n]); answer != nil {
				_, _ = router.WriteTo(answer, from)
			}
		}
	}()
}

// answerNATPMP returns the answer to a request; nil if it is none.
func answerNATPMP(t *testing.T, request []byte) []byte {
	const external, mapTCP, answers, notSupported = 0, 2, 128, 5
	switch {
	case len(request) == 2 && request[1] == external: // §3.2
		return append([]byte{0, answers + external, 0, 0, 0, 0, 0, 1}, net.ParseIP(routerOutside).To4()...)
	case len(request) == 12 && request[1] == mapTCP: // §3.3
		port := binary.BigEndian.Uint16(request[6:])
		l, err := net.Listen("tcp4", net.JoinHostPort(routerOutside, strconv.Itoa(int(port))))
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
			go forward(l, net.JoinHostPort(nodeInside, strconv.Itoa(int(binary.BigEndian.Uint16(request[4:])))))
		}
		return append(append([]byte{0, answers + mapTCP, 0, 0, 0, 0, 0, 1}, request[4:8]...), request[8:12]...)
	case len(request) > 1:
		return []byte{0, answers + request[1], 0, notSupported, 0, 0, 0, 1}
	}
	return nil
}

// forward connects each caller of l to an address.
func forward(l net.Listener, to string) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp4", to)
		if err != nil {
			_ = in.Close()
			continue
		}
		for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
			go func() {
				_, _ = io.Copy(pair[0], pair[1])
				_ = errors.Join(pair[0].Close(), pair[1].Close())
			}()
		}
	}
}
