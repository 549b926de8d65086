// Package suspicion disseminates host failures: a node reports an unreachable host, and each peer probes it before it reports it
// further.
//
// A node that is connected to a host detects its failure at once. All other nodes would list its Things as reachable until they call
// them. So each node sends the hosts that it could not reach to its peers, over the protocol /lmos/<network>/suspicion/1. A peer that
// has the host as up, lists Things there and is not connected to it dials the host once, after a random pause. If the dial fails, the
// peer marks the host as down and reports it in turn. If the dial succeeds, the report goes no further, and the reporters get a penalty.
//
// No node trusts a report: a false one costs each node at most one dial per host and minute, until the reporter is banned. If only two
// nodes are cut off from each other, all other nodes are unaffected. The return of a host needs no report: the host connects and
// announces its Things, and the directory probes it.
package suspicion

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/streamserver"
)

// Limits of sending.
const (
	batchTime   = 200 * time.Millisecond // failures within this time share one message
	batchJitter = 500 * time.Millisecond // additional random wait: a host that a peer reports in between is not sent to that peer
	sendPause   = 500 * time.Millisecond // minimum between messages to a peer; see messageRate
	sendTimeout = 3 * time.Second        // per message
	maxSends    = 32
	syncPause   = 10 * time.Minute // minimum between two SyncPeer messages to one peer
)

// Options configure [Detector].
type Options struct {
	// Network is part of the protocol id. Required.
	Network string
	// Tracks reports whether this node has Things of host in its directory and host as up. It must not block. It is required.
	Tracks func(host did.DID) bool
	// Probe dials host once and reports whether it was reached. An error means that this node cannot find out. Probe must return soon
	// after ctx ends, which is after at most 3 s. At most 32 probes run at once. It is required.
	Probe func(ctx context.Context, host did.DID) (reached bool, err error)
	// OnFailed is called for each host that could not be reached. It calls [Detector.Report] if the failure is new. It is required.
	OnFailed func(host did.DID)
	// Log receives warnings and debug messages. Nil discards them.
	Log *slog.Logger
}

// Protocol returns the protocol id of a network, for the limits of the resource manager.
func Protocol(network string) protocol.ID { return protocol.ID("/lmos/" + network + "/suspicion/1") }

// A Detector sends, receives and verifies reports of failed hosts. Its methods are safe for concurrent use.
type Detector struct {
	o       Options
	host    host.Host
	proto   protocol.ID
	log     *slog.Logger
	server  *streamserver.Server
	peers   peers
	counts  counts
	toSend  backoff.Waker // wakes sendLoop
	toProbe backoff.Waker // wakes probeLoop

	mu       sync.Mutex
	suspects map[did.DID]*suspect // by host; owned by mu
	swept    time.Time            // last removal of expired suspects; owned by mu
}

// Stats are counters since [New].
type Stats struct {
	Sent       uint64 // messages sent
	SendFailed uint64 // messages that could not be sent
	Received   uint64 // hosts in received messages
	Probed     uint64 // hosts that were probed, once for all reporters
	Confirmed  uint64 // of these, the unreachable ones
	Refuted    uint64 // of these, the reachable ones
	Rejected   uint64 // messages that were not processed: malformed, above the rate, or from a banned peer
	BytesIn    uint64
	BytesOut   uint64
	Panics     uint64 // each is a bug
}

type counts struct {
	sent, sendFailed, received, probed, confirmed, refuted, rejected, in, out, panics atomic.Uint64
}

// New starts to receive reports; [Detector.Run] probes the hosts and sends reports. Call New before h dials, so that the first
// handshake names the protocol, and [Detector.Close] before h is closed.
func New(h host.Host, o Options) (*Detector, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Network == "" || o.Tracks == nil || o.Probe == nil || o.OnFailed == nil {
		return nil, errors.New("suspicion: Network, Tracks, Probe and OnFailed are required")
	}
	d := &Detector{o: o, host: h, proto: Protocol(o.Network), log: o.Log, toSend: backoff.NewWaker(), toProbe: backoff.NewWaker(),
		suspects: map[did.DID]*suspect{}}
	d.server = d.newServer()
	h.SetStreamHandler(d.proto, d.handle)
	return d, nil
}

// Run probes reported hosts and sends reports until ctx ends. It returns nil after its last goroutine has ended.
func (d *Detector) Run(ctx context.Context) error {
	var g sync.WaitGroup
	g.Go(func() { d.probeLoop(ctx) })
	d.sendLoop(ctx)
	g.Wait()
	return nil
}

// Report queues a report that host could not be reached; [Detector.Run] sends it to the peers within a second. Call it once per failure
// of a host. It does not block.
func (d *Detector) Report(host did.DID) {
	if _, err := host.Key(); err != nil {
		return // Only nodes have such DIDs.
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.suspectLocked(host, maxSuspects, time.Now()); s != nil {
		s.report = true
		d.toSend.Wake()
	}
}

// Suspect queues a probe of host within a second, as a report of a peer does. Callers use it for a host that did not answer, which may
// have other reasons. It does not block.
func (d *Detector) Suspect(host did.DID) { d.add("", host, time.Now()) }

// SyncPeer sends the failed hosts to a new peer, which missed earlier reports. It sends the first 64 of failed, and nothing to a peer
// that it sent to within the last ten minutes. It takes at most 3 s.
func (d *Detector) SyncPeer(ctx context.Context, p peer.ID, failed []did.DID) {
	if len(failed) == 0 || d.host.Network().Connectedness(p) == network.NotConnected || !d.supports(p) || !d.peers.syncDue(p, time.Now()) {
		return
	}
	d.send(ctx, p, failed[:min(len(failed), maxHosts)])
}

// sendLoop sends queued reports until ctx ends.
func (d *Detector) sendLoop(ctx context.Context) {
	var g sync.WaitGroup
	defer g.Wait()
	slots := make(chan struct{}, maxSends)
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.toSend:
		}
		if backoff.Sleep(ctx, batchTime+rand.N(batchJitter)) != nil {
			return
		}
		batch := d.gather()
		for _, p := range d.receivers() {
			failed := batch.without(p)
			if len(failed) == 0 {
				continue
			}
			select {
			case <-ctx.Done():
				return
			case slots <- struct{}{}:
			}
			g.Go(func() {
				defer func() { <-slots }()
				d.send(ctx, p, failed)
			})
		}
		if backoff.Sleep(ctx, sendPause-batchTime) != nil {
			return
		}
	}
}

// A batch is the content of one message: hosts, each with the peers that reported it.
type batch map[did.DID][]peer.ID

// gather removes queued reports, as many as fit into one message.
func (d *Detector) gather() batch {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := batch{}
	for host, s := range d.suspects {
		switch {
		case !s.report:
		case len(b) == maxHosts:
			d.toSend.Wake()
			return b
		default:
			b[host] = s.reporters
			s.report, s.reporters = false, nil
		}
	}
	return b
}

// without returns the hosts that p has not reported itself.
func (b batch) without(p peer.ID) []did.DID {
	var hosts []did.DID
	for host, by := range b {
		if !slices.Contains(by, p) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// receivers returns the connected peers that accept reports, in random order.
func (d *Detector) receivers() []peer.ID {
	var ps []peer.ID
	for _, p := range d.host.Network().Peers() {
		if d.supports(p) {
			ps = append(ps, p)
		}
	}
	rand.Shuffle(len(ps), func(i, j int) { ps[i], ps[j] = ps[j], ps[i] })
	return ps
}

func (d *Detector) supports(p peer.ID) bool {
	ids, err := d.host.Peerstore().SupportsProtocols(p, d.proto)
	return err == nil && len(ids) > 0
}

// send sends one message. A failure is not retried: other nodes report the same hosts.
func (d *Detector) send(ctx context.Context, p peer.ID, failed []did.DID) {
	n, err := d.write(ctx, p, failed)
	if err != nil {
		d.counts.sendFailed.Add(1)
		d.log.Debug("failure report not sent", "peer", did.ShortPeer(p), "err", err)
		return
	}
	d.counts.sent.Add(1)
	d.counts.out.Add(uint64(n))
}

func (d *Detector) write(ctx context.Context, p peer.ID, failed []did.DID) (int, error) {
	body, err := encode(failed)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	// A message has at most 2 kB, which a relayed connection can carry.
	st, err := d.host.NewStream(network.WithAllowLimitedConn(network.WithNoDial(ctx, "lmos suspicion"), "lmos suspicion"), p, d.proto)
	if err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, func() { _ = st.Reset() })
	defer stop()
	if _, err := st.Write(body); err != nil {
		_ = st.Reset()
		return 0, err
	}
	return len(body), st.Close()
}

// Stats returns the counters.
func (d *Detector) Stats() Stats {
	c := &d.counts
	return Stats{Sent: c.sent.Load(), SendFailed: c.sendFailed.Load(), Received: c.received.Load(), Probed: c.probed.Load(), Confirmed: c.confirmed.Load(),
		Refuted: c.refuted.Load(), Rejected: c.rejected.Load(), BytesIn: c.in.Load(), BytesOut: c.out.Load(), Panics: c.panics.Load()}
}
