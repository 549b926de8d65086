package p2p

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/p2p/relay"
	"github.com/lmosd/lmosd/td"
)

// connectTimeout limits [Peers.Connect], and pingTimeout one ping.
const (
	connectTimeout = 10 * time.Second
	pingTimeout    = 5 * time.Second
)

// PeersOptions configure [Peers]. All but Ranges are required.
type PeersOptions struct {
	// Host connects to the peers. One that is not a [Host], as in simulations, neither bans peers nor knows their refusals.
	Host    host.Host
	Network string
	// Admits returns why the policy of this node refuses a node, and Trust returns how far a node is trusted, 0 to 1.
	Admits func(did.DID) error
	Trust  func(did.DID) (amount float64, why string)
	// Ranges are the ranges of public addresses whose untrusted peers share one share.
	Ranges Ranges
	// Bootstrap gets the peers of [Peers.Connect].
	Bootstrap *Bootstrap
}

// Peers connects to other nodes by their DIDs. It is safe for concurrent use.
type Peers struct {
	o    PeersOptions
	host host.Host
	own  *Host // nil if Options.Host is another
}

// NewPeers returns the peers of a host.
func NewPeers(o PeersOptions) *Peers {
	own, _ := o.Host.(*Host)
	return &Peers{o: o, host: o.Host, own: own}
}

// peerIDOf returns the PeerID of a node, or "" if it has none.
func peerIDOf(node did.DID) peer.ID {
	raw, err := node.Peer()
	if err != nil {
		return ""
	}
	return peer.ID(raw)
}

// IsAlone reports whether there are no connections.
func (p *Peers) IsAlone() bool { return len(p.host.Network().Peers()) == 0 }

// IsConnected reports whether there is a connection to a node, relayed or not.
func (p *Peers) IsConnected(node did.DID) bool {
	id := peerIDOf(node)
	c := p.host.Network().Connectedness(id)
	return id != "" && (c == network.Connected || c == network.Limited)
}

// Latency returns the average of the pings on the connections to a node; 0 is unknown.
func (p *Peers) Latency(node did.DID) time.Duration {
	if id := peerIDOf(node); id != "" {
		return p.host.Peerstore().LatencyEWMA(id)
	}
	return 0
}

// Share returns the name of the share of the directory to which the records of a peer are charged: its own, or one for all peers of its
// address range, if it is untrusted and has a public address. Keys cost nothing, an address range does. A relay, a private network or
// loopback does not show the address of a peer.
func (p *Peers) Share(node did.DID) string {
	id := peerIDOf(node)
	if amount, _ := p.o.Trust(node); amount >= 1 || id == "" {
		return string(node)
	}
	for _, c := range p.host.Network().ConnsToPeer(id) {
		if r, ok := p.o.Ranges.of(c.RemoteMultiaddr()); ok && !relay.IsCircuit(c.RemoteMultiaddr()) {
			return r.String()
		}
	}
	return string(node)
}

// Ban refuses connections of a peer for a while ([Host.Ban]).
func (p *Peers) Ban(id peer.ID, how time.Duration) {
	if p.own != nil {
		p.own.Ban(id, how)
	}
}

// Disconnect closes the connections of a node that the policy rejects, with that reason.
func (p *Peers) Disconnect(node did.DID) {
	if id := peerIDOf(node); id != "" {
		for _, c := range p.host.Network().ConnsToPeer(id) {
			_ = c.CloseWithError(network.ConnGated)
		}
	}
}

// Refusal returns an error of code Forbidden if the policy of this node refuses the node, or if that of the node refused this one in the last
// minute, else nil.
func (p *Peers) Refusal(node did.DID) error {
	if err := p.o.Admits(node); err != nil {
		return err
	}
	if id := peerIDOf(node); id != "" && p.own != nil && p.own.Refused(id) {
		return &interact.Error{Code: interact.Forbidden, Title: "host " + node.Short() + " refuses this node by its policy", Remote: true,
			Hint: "ask its operator for an invitation, or to remove the rule against the DID of this node", Next: interact.Next(interact.StepID)}
	}
	return nil
}

// Refuse reports whether all hosts of a Thing are known to refuse this node, or to be refused by it. One other is enough for a call.
func (p *Peers) Refuse(hosts []td.Host) bool {
	return len(hosts) > 0 && !slices.ContainsFunc(hosts, func(h td.Host) bool {
		id := peerIDOf(h.Node)
		return p.o.Admits(h.Node) == nil && (id == "" || p.own == nil || !p.own.RefusedBefore(id))
	})
}

// Dial connects to a node, also at the given addresses, however recent the last failed attempt was.
func (p *Peers) Dial(ctx context.Context, node did.DID, addrs []string) error {
	to := peer.AddrInfo{ID: peerIDOf(node)} // an empty one fails below
	for _, text := range addrs {
		if a, err := ma.NewMultiaddr(text); err == nil {
			to.Addrs = append(to.Addrs, a)
		}
	}
	if s, ok := p.host.Network().(*swarm.Swarm); ok {
		s.Backoff().Clear(to.ID)
	}
	return p.host.Connect(ctx, to)
}

// Redial connects to a peer directly, unless it is connected.
func (p *Peers) Redial(ctx context.Context, id peer.ID) error {
	return p.host.Connect(network.WithForceDirectDial(ctx, "redial"), peer.AddrInfo{ID: id})
}

// IsLocalFailure reports whether a dial failed at this node, before it reached the network. It did not if another node has the address of the peer,
// which is not dialed again for a while.
func IsLocalFailure(err error) bool {
	if _, moved := errors.AsType[sec.ErrPeerIDMismatch](err); moved {
		return false
	}
	for _, e := range []error{context.Canceled, network.ErrResourceLimitExceeded, swarm.ErrGaterDisallowedConnection, swarm.ErrSwarmClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Connect connects to a peer at a multiaddr with /p2p.
func (p *Peers) Connect(ctx context.Context, addr string) error {
	info, err := peer.AddrInfoFromString(addr)
	if err != nil {
		return &interact.Error{Code: interact.Invalid, Title: "expected the address of a peer, got " + addr, Err: err,
			Hint: "copy an address of that node, like /ip4/192.0.2.7/udp/4667/quic-v1/p2p/12D3KooW…", Next: interact.Next(interact.StepID)}
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	err = p.host.Connect(ctx, *info)
	if node, bad := did.FromPeer([]byte(info.ID)); bad == nil {
		if refusal := p.Refusal(node); refusal != nil {
			return refusal
		}
	}
	if err == nil && p.host.Network().Connectedness(info.ID) == network.NotConnected {
		err = errors.New("the peer closed the connection at once")
	}
	switch {
	case forClocks(err):
		return &interact.Error{Code: interact.ClockSkew, Title: "the clocks of this node and of the peer differ by more than an hour", Err: err,
			Hint: "compare them: date -u; then set the clock: timedatectl set-ntp true"}
	case err != nil:
		return &interact.Error{Code: interact.Unreachable, Title: "the peer does not answer", Err: err,
			Hint: "see that the node runs there, in the same network (" + p.o.Network + "), and that a firewall lets the port through"}
	}
	p.o.Bootstrap.HandlePeerFound(*info)
	return nil
}

// Ping measures the round trips to a node, n times, and returns the link to it.
func (p *Peers) Ping(ctx context.Context, node did.DID, n int) (link Link, all []time.Duration, err error) {
	id := peerIDOf(node) // an empty one fails below
	if err := p.host.Connect(ctx, peer.AddrInfo{ID: id}); err != nil {
		return Link{}, nil, err
	}
	link = linkOf(p.host.Network().ConnsToPeer(id))
	ctx, cancel := context.WithTimeout(ctx, pingTimeout*time.Duration(n))
	defer cancel()
	for r := range ping.Ping(ctx, p.host, id) {
		if r.Error != nil {
			return Link{}, nil, r.Error
		}
		if all = append(all, r.RTT); len(all) == n {
			break
		}
	}
	return link, all, ctx.Err()
}

// Count counts the connected peers: all, those with a direct connection, and those with relayed ones only.
func (p *Peers) Count() (total, direct, relayed int) {
	for _, id := range p.host.Network().Peers() {
		total++
		if slices.ContainsFunc(p.host.Network().ConnsToPeer(id), isDirect) {
			direct++
		} else {
			relayed++
		}
	}
	return total, direct, relayed
}

// List returns the connected nodes, sorted by DID.
func (p *Peers) List() []api.Peer {
	out := []api.Peer{}
	for _, id := range p.host.Network().Peers() {
		if conns := p.host.Network().ConnsToPeer(id); len(conns) > 0 {
			out = append(out, p.describe(id, conns[max(slices.IndexFunc(conns, isDirect), 0)])) // a relayed one remains for a while after a punch
		}
	}
	slices.SortFunc(out, func(a, b api.Peer) int { return strings.Compare(string(a.DID), string(b.DID)) })
	return out
}

// OnConnection calls f when a node has connected and when its last connection has ended, until stop is called. f must not block.
func (p *Peers) OnConnection(f func(node did.DID, connected bool)) (stop func()) {
	var mu sync.Mutex // held while f is called, so that the calls for a node alternate
	connected := map[peer.ID]bool{}
	for _, id := range p.host.Network().Peers() {
		connected[id] = true
	}
	update := func(n network.Network, c network.Conn) {
		mu.Lock()
		defer mu.Unlock()
		id := c.RemotePeer()
		now := len(n.ConnsToPeer(id)) > 0
		if now == connected[id] {
			return
		}
		if connected[id] = now; !now {
			delete(connected, id)
		}
		if node, err := did.FromPeer([]byte(id)); err == nil {
			f(node, now)
		}
	}
	bundle := &network.NotifyBundle{ConnectedF: update, DisconnectedF: update}
	p.host.Network().Notify(bundle)
	return func() { p.host.Network().StopNotify(bundle) }
}

func isDirect(c network.Conn) bool { return !relay.IsCircuit(c.RemoteMultiaddr()) }

func (p *Peers) describe(id peer.ID, c network.Conn) api.Peer {
	node := did.OfPeer(id) // the host admits no other keys
	agent, _ := p.host.Peerstore().Get(id, "AgentVersion")
	text, _ := agent.(string)
	return api.Peer{DID: node, PeerID: id.String(), Addr: c.RemoteMultiaddr().String(), Relay: relayOf(c), Transport: transportOf(c),
		Direction: strings.ToLower(c.Stat().Direction.String()), Agent: text,
		RTT: float64(p.host.Peerstore().LatencyEWMA(id).Microseconds()) / 1000, Since: time.Since(c.Stat().Opened).Seconds(), Opened: c.Stat().Opened}
}

func transportOf(c network.Conn) string {
	if t := c.ConnState().Transport; t != "" {
		return t
	}
	return "unknown"
}
