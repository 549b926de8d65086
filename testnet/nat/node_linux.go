package nat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/testnet"
)

// A world is a cloud with the nodes that everybody knows: one to join through, which issues the membership of the others, and two relays.
type world struct {
	*Cloud
	o         Options
	network   string
	listen    func(v6 bool) []string // listen addresses of all nodes
	profile   string
	bootstrap *node
	relays    [2]*node
	verifier  *verifier
	lastNode  atomic.Int32 // number of the last node
	lastSite  atomic.Int32 // number of the last router
	verified  atomic.Int32 // number of routers
	site      func(n int) netip.Addr
}

// A node is a process on a machine.
type node struct {
	*testnet.Member
	*Machine
	w        *world
	flags    []string
	started  time.Time     // when it was ready
	reserved time.Duration // from then until it had two relays
}

// A worldSpec differs by scenario.
type worldSpec struct {
	name       string
	transports []Transport
	port       int
	private    bool // addresses of the cloud are private ones
	v6         bool // the nodes that everybody knows have IPv6 addresses, too
}

// p2pPort is the port of the nodes.
const p2pPort = 4001

// newWorld makes a cloud, and starts the nodes that everybody knows.
func newWorld(ctx context.Context, o Options, spec worldSpec) (w *world, err error) {
	w = &world{Cloud: NewCloud(Link{Delay: o.Delay}, o.Seed), o: o, network: "nat-" + spec.name, profile: "default"}
	w.o.Dir = o.Dir + "/" + spec.name
	w.listen = func(v6 bool) []string { return listenAddrs(spec, v6) }
	first := byte(11)
	if spec.private {
		first, w.profile = 10, "federation"
	}
	w.site = func(n int) netip.Addr { return netip.AddrFrom4([4]byte{first, byte(16 + n>>8), byte(n), 1}) }
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	var machines [3]*Machine
	for i := range machines {
		addrs := []netip.Addr{netip.AddrFrom4([4]byte{first, byte(1 + i), 0, 1})}
		if spec.v6 {
			addrs = append(addrs, netip.AddrFrom16([16]byte{0x2a, 0, 0, byte(1 + i), 15: 1}))
		}
		if machines[i], err = w.public(addrs...); err != nil {
			return w, err
		}
	}
	if w.verifier, err = newVerifier(machines[0], machines[1]); err != nil {
		return w, err
	}
	if w.bootstrap, err = w.start(ctx, machines[0], "--mesh.relay=false", "--mesh.dht.mode=server"); err != nil {
		return w, err
	}
	if _, err = w.bootstrap.InitOrganization(ctx, api.OrganizationInit{Domain: "nat.example", RecoveryFile: w.o.Dir + "/recovery"}); err != nil {
		return w, err
	}
	for i := range w.relays {
		if w.relays[i], err = w.start(ctx, machines[1+i], "--mesh.dht.mode=server"); err != nil {
			return w, err
		}
		if err = w.admit(ctx, w.relays[i]); err != nil {
			return w, err
		}
	}
	return w, nil
}

// listenAddrs returns the addresses on which nodes of a world listen.
func listenAddrs(spec worldSpec, v6 bool) []string {
	hosts := []string{"/ip4/0.0.0.0"}
	if v6 {
		hosts = append(hosts, "/ip6/::")
	}
	var all []string
	for _, h := range hosts {
		for _, t := range spec.transports {
			if t == QUIC {
				all = append(all, fmt.Sprintf("%s/udp/%d/quic-v1", h, spec.port))
			} else {
				all = append(all, fmt.Sprintf("%s/tcp/%d", h, spec.port))
			}
		}
	}
	return all
}

// close stops the nodes that everybody knows, and the cloud.
func (w *world) close() error {
	var err error
	for _, n := range []*node{w.bootstrap, w.relays[0], w.relays[1]} {
		if n != nil {
			err = errors.Join(err, n.close())
		}
	}
	if w.verifier != nil {
		err = errors.Join(err, w.verifier.close())
	}
	return errors.Join(err, w.Cloud.Close())
}

// behindNew makes a machine behind new routers in the cloud, and verifies them.
func (w *world) behindNew(kinds ...Kind) (*Machine, error) {
	m, err := w.behind(w.site(int(w.lastSite.Add(1))), kinds...)
	if err != nil {
		return nil, err
	}
	if err := w.verifier.verify(m); err != nil {
		return nil, errors.Join(err, m.close())
	}
	w.verified.Add(int32(len(m.routers)))
	return m, nil
}

// start starts a new node on a machine.
func (w *world) start(ctx context.Context, m *Machine, flags ...string) (*node, error) {
	n := &node{Machine: m, w: w, flags: flags}
	return n, n.run(ctx, int(w.lastNode.Add(1)))
}

// run starts the process of the node, with the key of a number, on its machine.
func (n *node) run(ctx context.Context, number int) error {
	v6 := slices.ContainsFunc(n.addrs, netip.Addr.Is6)
	flags := []string{"--profile=" + n.w.profile, "--mesh.mdns=false", "--trust.audit.level=off"}
	for _, a := range n.w.listen(v6) {
		flags = append(flags, "--listen.p2p="+a)
	}
	if b := n.w.bootstrap; b != nil && b.Member != nil {
		for _, a := range b.Addrs {
			flags = append(flags, "--mesh.bootstrap="+a)
		}
	}
	m, err := testnet.Spawn(ctx, number, testnet.Options{Network: n.w.network, Seed: n.w.o.Seed, Dir: n.w.o.Dir, Binary: n.w.o.Binary, In: n.do,
		Flags: append(flags, n.flags...)})
	if err == nil {
		n.Member, n.started = m, time.Now()
	}
	return err
}

// close stops the node and releases its machine.
func (n *node) close() error {
	var err error
	if n.Member != nil {
		err = n.Stop()
	}
	return errors.Join(err, n.Machine.close())
}

// admit makes a node a member of the organization, so that relays serve it by the terms of members.
func (w *world) admit(ctx context.Context, n *node) error {
	i, err := w.bootstrap.Invite(ctx, api.InvitationRequest{Kind: api.InviteNode})
	if err != nil {
		return err
	}
	if _, err := n.JoinOrganization(ctx, api.Acceptance{Invitation: i.Text}); err != nil {
		return fmt.Errorf("node %d joins the organization: %w", n.N, err)
	}
	return n.until(ctx, 20*time.Second, "it is a confirmed member", func(ctx context.Context) bool {
		o, err := n.Organization(ctx)
		return err == nil && o.State == api.OrganizationConfirmed
	})
}

// until polls a condition of the node.
func (n *node) until(ctx context.Context, limit time.Duration, what string, cond func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return testnet.Until(ctx, fmt.Sprintf("node %d: %s", n.N, what), func() bool { return cond(ctx) })
}

// circuits returns the addresses of the node at its relays.
func (n *node) circuits(ctx context.Context) []string {
	s, err := n.Status(ctx)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(s.Addrs, func(a string) bool { return !isCircuit(a) })
}

// peerID returns the libp2p id of the node.
func (n *node) peerID() string { return n.Addrs[0][strings.LastIndexByte(n.Addrs[0], '/')+1:] }

func isCircuit(addr string) bool { return strings.Contains(addr, "/p2p-circuit") }

// path returns how the node is connected with another one.
func (n *node) path(ctx context.Context, other did.DID) Path {
	peers, err := n.Peers(ctx)
	if err != nil {
		return None
	}
	for _, p := range peers.Items {
		if p.DID == other && isCircuit(p.Addr) {
			return Relayed
		} else if p.DID == other {
			return Direct
		}
	}
	return None
}

// An agent is an HTTP server on the machine of a node, which publishes it.
type agent struct {
	server *http.Server
	ref    string
}

// streamSize is the size of the output of the action download.
const streamSize = 1 << 20

// publish starts an agent with the actions ping and download and the event tick, and publishes it at the node.
func (n *node) publish(ctx context.Context) (*agent, error) {
	l, err := n.listenTCP()
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /ping", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", interact.JSON)
		_, _ = io.WriteString(w, `"pong"`)
	})
	mux.HandleFunc("POST /download", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(make([]byte, streamSize))
	})
	mux.HandleFunc("GET /tick", tick)
	a := &agent{server: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}}
	go func() { _ = a.server.Serve(l) }() // until close
	p, err := n.Publish(ctx, describe(l.Addr()))
	if err != nil {
		return nil, errors.Join(err, a.server.Close())
	}
	a.ref = p.Ref
	return a, nil
}

// tick sends an event each 20 ms, until the listener disconnects.
func tick(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	c := http.NewResponseController(w)
	for id := 1; c.Flush() == nil; id++ {
		select {
		case <-time.After(20 * time.Millisecond):
			fmt.Fprintf(w, "id: %d\nevent: tick\ndata: %d\n\n", id, id)
		case <-r.Context().Done():
			return
		}
	}
}

func describe(at net.Addr) []byte {
	return fmt.Appendf(nil, `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Probe", "security": "nosec",
"securityDefinitions": {"nosec": {"scheme": "nosec"}}, "base": "http://%s/", "actions": {"ping": {"safe": true, "idempotent": true, "forms": [{"href": "ping"}]},
"download": {"synchronous": true, "safe": true, "forms": [{"href": "download", "contentType": "application/octet-stream"}]}},
"events": {"tick": {"data": {"type": "integer"}, "forms": [{"href": "tick", "subprotocol": "sse", "op": "subscribeevent"}]}}}`, at)
}

// ping calls the agent of another node, and returns the time until its answer.
func (n *node) ping(ctx context.Context, a *agent) (time.Duration, error) {
	start := time.Now()
	_, _, err := n.Call(ctx, a.ref, "ping", interact.JSON, []byte("{}"))
	return time.Since(start), err
}

// download calls the agent for a stream of 1 MB.
func (n *node) download(ctx context.Context, a *agent) error {
	var size counter
	_, err := n.Invoke(ctx, a.ref, "download", api.CallOptions{Output: &size})
	if err == nil && size != streamSize {
		err = fmt.Errorf("%d of %d bytes arrived", size, streamSize)
	}
	return err
}

type counter int

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

// listen receives a number of events of the agent.
func (n *node) listen(ctx context.Context, a *agent, number int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, err := range n.Watch(ctx, a.ref, "events", "tick", "") {
		if err != nil {
			return err
		}
		if number--; number == 0 {
			return nil
		}
	}
	return errors.New("the subscription ended")
}
