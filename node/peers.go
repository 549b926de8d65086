package node

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/td"
)

const (
	redialIn    = 2 * time.Second // how long a lost peer has to answer before its things are marked unreachable
	greetAtOnce = 16              // peers
	greetMax    = 256             // records that a new peer is asked for
	goneMax     = 64              // hosts that are gone, of which a new peer is told
	goneIn      = 5 * time.Second // after which it is: by then it knows what it has missed of things
)

// watchPeers follows who comes and goes: a new peer is asked what it offers, so that a late joiner knows its neighbours'
// things at once, and told which hosts are gone; the things of a lost peer that does not answer a redial are marked unreachable.
// Who is alone may be cut off: when somebody comes again, whatever seemed down is probed anew.
func (n *Node) watchPeers(ctx context.Context) error {
	sub, err := n.host.EventBus().Subscribe([]any{new(event.EvtPeerIdentificationCompleted), new(event.EvtPeerConnectednessChanged)})
	if err != nil {
		return err
	}
	defer sub.Close()
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for _, p := range n.host.Network().Peers() {
		tasks.Go(func() { n.greet(ctx, p) })
	}
	alone := false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-sub.Out():
			if !ok {
				return nil
			}
			switch e := e.(type) {
			case event.EvtPeerIdentificationCompleted:
				if alone {
					alone = false
					n.dir.Retry()
				}
				tasks.Go(func() { n.greet(ctx, e.Peer) })
			case event.EvtPeerConnectednessChanged:
				if e.Connectedness == network.NotConnected {
					n.parted(e.Peer)
					alone = alone || n.isAlone()
					tasks.Go(func() { n.missed(ctx, e.Peer) })
				}
			}
		}
	}
}

func (n *Node) isAlone() bool { return len(n.host.Network().Peers()) == 0 }

// greet welcomes a new peer.
func (n *Node) greet(ctx context.Context, p peer.ID) {
	id, err := did.FromPeer([]byte(p))
	if err != nil {
		return
	}
	n.dir.SetReachable(id, true)
	n.interview(ctx, p)
	select {
	case <-ctx.Done():
	case <-time.After(goneIn):
		n.suspicion.SyncPeer(ctx, p, n.dir.Down(goneMax))
	}
}

// interview asks a new peer for the records of what it offers. What comes is verified like everything else.
func (n *Node) interview(ctx context.Context, p peer.ID) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	select {
	case n.greeting <- struct{}{}:
		defer func() { <-n.greeting }()
	case <-ctx.Done():
		return
	}
	for s, err := range n.dht.Ask(ctx, p, td.Query{Limit: greetMax}) {
		if err != nil {
			n.log.Debug("a new peer did not say what it offers", "peer", p, "err", err)
			return
		}
		n.dir.Enqueue(s)
	}
}

// parted notes that a peer was there until now.
func (n *Node) parted(p peer.ID) {
	if id, err := did.FromPeer([]byte(p)); err == nil {
		n.dir.Disconnected(id)
	}
}

// missed tries a lost peer once more.
func (n *Node) missed(ctx context.Context, p peer.ID) {
	id, err := did.FromPeer([]byte(p))
	if err != nil || !n.dir.Hosts(id) {
		return // Nothing is reached through it.
	}
	limited, cancel := context.WithTimeout(ctx, redialIn)
	defer cancel()
	err = n.host.Connect(network.WithForceDirectDial(limited, "is it still there"), peer.AddrInfo{ID: p})
	if err != nil && ctx.Err() == nil && !ourFault(err) { // if it is back, greet says so
		n.reached(id, false)
	}
}

// try dials a host that is said to be gone, over the addresses that its things name. The error says why that tells nothing of it.
func (n *Node) try(ctx context.Context, id did.DID) (reached bool, err error) {
	err = n.probe(ctx, id)
	switch {
	case err == nil:
		return true, nil
	case ourFault(err):
		return false, err
	case n.isAlone():
		return false, errors.New("this node reaches nobody")
	}
	return false, nil
}

// ban keeps a peer from being connected for a while. A host that was given to the node decides for itself.
func (n *Node) ban(id peer.ID, how time.Duration) {
	if n.made != nil {
		n.made.Ban(id, how)
	}
}

// refusal returns why a node and this one do not talk, if that is a policy: that of this node, or that of the other, which said so when it
// closed the connection. It is an [*interact.Error] of code Forbidden, or nil.
func (n *Node) refusal(id did.DID) error {
	if err := n.policy.Admits(id); err != nil {
		return err
	}
	raw, err := id.Peer()
	if err != nil || n.made == nil || !n.made.Refused(peer.ID(raw)) {
		return nil
	}
	return refusedBy(id)
}

func refusedBy(id did.DID) *interact.Error {
	return &interact.Error{Code: interact.Forbidden, Title: "host " + id.Short() + " refuses this node by its policy", Remote: true,
		Hint: "ask its operator to admit the DID of this node (trust.allow, trust.deny there)", Next: interact.Next(interact.StepID)}
}

// refuses reports whether all hosts of a thing are known not to talk with this node by a policy: one that does is enough for a call. It
// asks nobody.
func (n *Node) refuses(d *td.Description) bool {
	talks := func(h td.Host) bool {
		raw, err := h.Node.Peer()
		return (n.policy.Admits(h.Node) == nil || h.Node == n.DID()) && (err != nil || n.made == nil || !n.made.RefusedBefore(peer.ID(raw)))
	}
	return len(d.Record.Hosts) > 0 && !slices.ContainsFunc(d.Record.Hosts, talks)
}

// ourFault reports whether a dial failed here, before anybody was asked.
func ourFault(err error) bool {
	for _, e := range []error{context.Canceled, network.ErrResourceLimitExceeded, swarm.ErrGaterDisallowedConnection, swarm.ErrSwarmClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Connect dials a peer and remembers it for as long as the node runs.
func (n *Node) Connect(ctx context.Context, addr string) error {
	a, err := ma.NewMultiaddr(addr)
	if err == nil {
		var info *peer.AddrInfo
		if info, err = peer.AddrInfoFromP2pAddr(a); err == nil {
			return n.dial(ctx, *info)
		}
	}
	return &interact.Error{Code: interact.Invalid, Title: "not the address of a peer: " + addr, Err: err,
		Hint: "copy an address of that node, like /ip4/192.0.2.7/udp/4667/quic-v1/p2p/12D3KooW…", Next: interact.Next(interact.StepID)}
}

func (n *Node) dial(ctx context.Context, p peer.AddrInfo) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := n.host.Connect(ctx, p)
	if id, bad := did.FromPeer([]byte(p.ID)); bad == nil {
		if refusal := n.refusal(id); refusal != nil {
			return refusal
		}
	}
	if err == nil && n.host.Network().Connectedness(p.ID) == network.NotConnected {
		err = errors.New("it closed the connection at once")
	}
	switch {
	case p2p.ForClocks(err):
		return &interact.Error{Code: interact.ClockSkew, Title: "the clocks of this node and of the peer differ by more than an hour", Err: err,
			Hint: "compare them: date -u; then " + clockHint}
	case err != nil:
		return &interact.Error{Code: interact.Unreachable, Title: "the peer does not answer", Err: err,
			Hint: "see that the node runs there, in the same network (" + n.opts.Network + "), and that a firewall lets the port through"}
	}
	n.bootstrap.HandlePeerFound(p)
	return nil
}
