package p2p

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

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

// A node behind a router that speaks NAT-PMP gets a port, three nodes of the internet confirm it by AutoNAT, and the node relays from then on. It
// releases the port when it is closed.
func TestPortMapping(t *testing.T) { mapsPort(t, serveNATPMP) }

// The same by UPnP.
func TestPortMappingUPnP(t *testing.T) { mapsPort(t, serveUPnP) }

func mapsPort(t *testing.T, serve func(t *testing.T, r *mappings)) {
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
		router := &mappings{open: map[uint16]forwarded{}}
		t.Cleanup(router.close)
		serve(t, router)
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
		if made, left := router.counts(); made == 0 || left != 0 {
			t.Errorf("of %d mapped ports, %d are open after the end of the node", made, left)
		}
	case "inside":
		var checkers []peer.AddrInfo
		if err := json.NewDecoder(bufio.NewReader(os.Stdin)).Decode(&checkers); err != nil {
			t.Fatal(err)
		}
		netns.IP(t, "link set lo up", "link set veth1 up", "addr add "+nodeInside+"/24 dev veth1", "route add default via "+routerInside)
		poll.Until(t, "the link", func() bool { // a search is sent once
			c, err := manet.Dial(checkers[0].Addrs[0])
			return err == nil && c.Close() == nil
		})
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

// mappings are the mapped TCP ports of a router, by external port.
type mappings struct {
	mu   sync.Mutex
	open map[uint16]forwarded
	made int
}

// A forwarded is one of them.
type forwarded struct {
	net.Listener
	internal uint16
}

// add forwards the connections to an external port to the node, unless the port is taken.
func (m *mappings) add(external, internal uint16) {
	l, err := net.Listen("tcp4", netip.AddrPortFrom(netip.MustParseAddr(routerOutside), external).String())
	if err != nil {
		return
	}
	go forward(l, netip.AddrPortFrom(netip.MustParseAddr(nodeInside), internal).String())
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open[external] = forwarded{l, internal}
	m.made++
}

// remove ends the mappings to which f applies.
func (m *mappings) remove(f func(external, internal uint16) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.open, func(external uint16, to forwarded) bool {
		ends := f(external, to.internal)
		if ends {
			_ = to.Close()
		}
		return ends
	})
}

func (m *mappings) close() { m.remove(func(uint16, uint16) bool { return true }) }

func (m *mappings) counts() (made, left int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.made, len(m.open)
}

// answers passes each packet to f, and sends its answer, until the test ends.
func answers(t *testing.T, at net.PacketConn, f func(request []byte) []byte) {
	t.Cleanup(func() { _ = at.Close() })
	go func() {
		b := make([]byte, 2048)
		for {
			n, from, err := at.ReadFrom(b)
			if err != nil {
				return
			}
			if answer := f(b[:n]); answer != nil {
				_, _ = at.WriteTo(answer, from)
			}
		}
	}()
}

// serveNATPMP answers as a router (RFC 6886) until the test ends. A connection to a mapped port is forwarded to the node.
func serveNATPMP(t *testing.T, r *mappings) {
	t.Helper()
	at, err := net.ListenPacket("udp4", net.JoinHostPort(routerInside, "5351"))
	if err != nil {
		t.Fatal(err)
	}
	answers(t, at, func(request []byte) []byte { return answerNATPMP(r, request) })
}

// answerNATPMP returns the answer to a request; nil if it is none.
func answerNATPMP(r *mappings, request []byte) []byte {
	const external, mapTCP, answers, notSupported = 0, 2, 128, 5
	switch {
	case len(request) == 2 && request[1] == external: // §3.2
		return append([]byte{0, answers + external, 0, 0, 0, 0, 0, 1}, net.ParseIP(routerOutside).To4()...)
	case len(request) == 12 && request[1] == mapTCP: // §3.3
		internal, port := binary.BigEndian.Uint16(request[4:]), binary.BigEndian.Uint16(request[6:])
		if binary.BigEndian.Uint32(request[8:]) == 0 { // §3.4
			r.remove(func(_, of uint16) bool { return of == internal })
		} else {
			r.add(port, internal)
		}
		return append(append([]byte{0, answers + mapTCP, 0, 0, 0, 0, 0, 1}, request[4:8]...), request[8:12]...)
	case len(request) > 1:
		return []byte{0, answers + request[1], 0, notSupported, 0, 0, 0, 1}
	}
	return nil
}

// The type of the device, without its version, and that of its service.
const (
	wanDevice  = "urn:schemas-upnp-org:device:WANConnectionDevice:"
	wanService = "urn:schemas-upnp-org:service:WANIPConnection:1"
)

// serveUPnP answers as an Internet Gateway Device until the test ends: to searches by SSDP, and to requests by SOAP.
func serveUPnP(t *testing.T, r *mappings) {
	t.Helper()
	inside, err := net.InterfaceByName("veth0")
	if err != nil {
		t.Fatal(err)
	}
	searches, err := net.ListenMulticastUDP("udp4", inside, &net.UDPAddr{IP: net.IPv4(239, 255, 255, 250), Port: 1900})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /device.xml", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `<root xmlns="urn:schemas-upnp-org:device-1-0"><specVersion><major>1</major><minor>0</minor></specVersion><device>
<deviceType>%s2</deviceType><UDN>uuid:1</UDN><serviceList><service><serviceType>%s</serviceType><serviceId>urn:upnp-org:serviceId:WANIPConn1</serviceId>
<SCPDURL>/scpd.xml</SCPDURL><controlURL>/control</controlURL><eventSubURL>/events</eventSubURL></service></serviceList></device></root>`, wanDevice, wanService)
	})
	mux.HandleFunc("POST /control", r.control)
	l, err := net.Listen("tcp4", net.JoinHostPort(routerInside, "0"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	server.SetKeepAlivesEnabled(false) // the client would keep goroutines
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(l) }()
	answers(t, searches, func(request []byte) []byte {
		search, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(request)))
		if err != nil || search.Method != "M-SEARCH" || !strings.HasPrefix(search.Header.Get("ST"), wanDevice) { // of version 1 or 2
			return nil
		}
		return fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nST: %[1]s\r\nUSN: uuid:1::%[1]s\r\nLOCATION: http://%[2]s/device.xml\r\n\r\n", search.Header.Get("ST"), l.Addr())
	})
}

// control answers a request of UPnP (WANIPConnection:1 §2.4).
func (m *mappings) control(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Body struct {
			Action struct {
				XMLName  xml.Name
				External uint16 `xml:"NewExternalPort"`
				Internal uint16 `xml:"NewInternalPort"`
				Protocol string `xml:"NewProtocol"`
				Client   string `xml:"NewInternalClient"`
			} `xml:",any"`
		}
	}
	if err := xml.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out := ""
	switch a := in.Body.Action; {
	case a.XMLName.Local == "GetNATRSIPStatus":
		out = "<NewRSIPAvailable>0</NewRSIPAvailable><NewNATEnabled>1</NewNATEnabled>"
	case a.XMLName.Local == "GetExternalIPAddress":
		out = "<NewExternalIPAddress>" + routerOutside + "</NewExternalIPAddress>"
	case a.XMLName.Local == "AddPortMapping" && a.Protocol == "TCP" && a.Client == nodeInside:
		m.add(a.External, a.Internal)
	case a.XMLName.Local == "DeletePortMapping" && a.Protocol == "TCP":
		m.remove(func(external, _ uint16) bool { return external == a.External })
	default:
		http.Error(w, "expected another action or protocol", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", `text/xml; charset="utf-8"`)
	fmt.Fprintf(w, `<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" s:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>
<u:%[1]sResponse xmlns:u="%[2]s">%[3]s</u:%[1]sResponse></s:Body></s:Envelope>`, in.Body.Action.XMLName.Local, wanService, out)
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
