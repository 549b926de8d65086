// Package rumour spreads that a host is gone, as far as it is true: a node that finds a host gone tells its peers, who see for
// themselves before they tell theirs.
//
// Who was connected to a host notices its end at once; all others would list its things as reachable until they try them. So each
// node names the hosts that it could not reach to its peers, over the protocol /lmos/<network>/gone/1. A peer that lists things
// there, is not connected to the host and counts it as up dials it once, after a moment. If that fails the host is down for this
// node too, by its own experience, which it tells in turn. If it succeeds the rumour ends here, and costs who told it some credit.
//
// So nobody is believed, nothing is amplified beyond one dial per node, host and minute, and where two nodes are cut off from each
// other all the rest go on as before. That a host is back needs no rumour: it connects, it announces, and it is probed.
package suspicion

import (
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
	"github.com/lmosd/lmosd/internal/streamserver"
)

// Bounds of telling.
const (
	gatherTime  = 200 * time.Millisecond // what is found within it goes in one message
	spreadTime  = 500 * time.Millisecond // so much more at random: who hears it from a peer meanwhile need not tell that one
	tellPause   = 500 * time.Millisecond // between messages to a peer, at least; see eachTime
	sendTime    = 3 * time.Second        // of one message
	sendsAtOnce = 32
	meetTime    = 10 * time.Minute // a peer that was told what is gone is told again after it, when it comes again
)

// Options configure [Detector].
type Options struct {
	// Network is the name of the mesh, part of the protocol id. Empty means "main".
	Network string
	// Expects reports whether it matters here if host is gone: things are reached through it, and it counts as up. It must not
	// block. It is required.
	Expects func(host did.DID) bool
	// Try dials host once and reports whether it was reached. The error says why that cannot be known from here. It must return
	// soon after ctx ends, which is after 3 s at most. Up to 32 are tried at once. It is required.
	Try func(ctx context.Context, host did.DID) (reached bool, err error)
	// Gone is told of each host that was tried in vain. It is what calls Report, if that is news. It is required.
	Gone func(host did.DID)
	// Admits says to whom rumours are told, and whose are heard; an error means no. It must not block. Nil admits everyone.
	Admits func(did.DID) error
	// Log may be nil.
	Log *slog.Logger
}

// Protocol returns the id of the protocol of a network, for the limits of the resource manager.
func Protocol(network string) protocol.ID { return protocol.ID("/lmos/" + network + "/gone/1") }

// Detector are this node's part in spreading what is gone. Their methods are safe for concurrent use.
type Detector struct {
	o      Options
	host   host.Host
	proto  protocol.ID
	log    *slog.Logger
	server *streamserver.Server
	peers  peers
	counts counts
	news   chan struct{} // there is something to tell
	due    chan struct{} // there is something to check

	mu      sync.Mutex
	stories map[did.DID]*story // by host; owned by mu
	swept   time.Time          // when what is over was forgotten last; owned by mu
}

// Stats counts since [New].
type Stats struct {
	Told     uint64 // messages to peers
	Unsent   uint64 // messages that did not get out
	Heard    uint64 // hosts that peers named
	Checked  uint64 // hosts that were tried, suspects too: once for all who named them
	True     uint64 // of these, those that were gone
	False    uint64 // of these, those that were not
	Refused  uint64 // messages that were not heard: malformed, too many, or of who is not listened to
	BytesIn  uint64
	BytesOut uint64
	Panics   uint64 // each is a bug
}

type counts struct {
	told, unsent, heard, checked, right, wrong, refused, in, out, panics atomic.Uint64
}

// New hears rumours from now on. [Detector.Run] checks and tells them. Call it before h dials, so that the first handshake names the
// protocol; call Close before h is closed.
func New(h host.Host, o Options) (*Detector, error) {
	if o.Network == "" {
		o.Network = "main"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Admits == nil {
		o.Admits = func(did.DID) error { return nil }
	}
	if o.Expects == nil || o.Try == nil || o.Gone == nil {
		return nil, errors.New("rumour: Expects, Try and Gone are required")
	}
	r := &Detector{o: o, host: h, proto: Protocol(o.Network), log: o.Log, news: make(chan struct{}, 1), due: make(chan struct{}, 1),
		stories: map[did.DID]*story{}}
	r.server = r.newServer()
	h.SetStreamHandler(r.proto, r.handle)
	return r, nil
}

// Run checks what was heard and tells what is gone, until ctx ends. It returns nil after its last goroutine has.
func (r *Detector) Run(ctx context.Context) error {
	var g sync.WaitGroup
	g.Go(func() { r.check(ctx) })
	r.tell(ctx)
	g.Wait()
	return nil
}

// Report has the peers told that host could not be reached, by [Detector.Run] and within a second. Call it once for each time that a
// host is found to be gone. It does not block.
func (r *Detector) Report(host did.DID) {
	if _, err := host.Key(); err != nil {
		return // It is no node.
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.storyLocked(host, maxStories, time.Now()); s != nil {
		s.tell = true
		wake(r.news)
	}
}

// Suspect has host tried within a second, as if a peer had told of it: it did not answer, and that may have other reasons. It does
// not block.
func (r *Detector) Suspect(host did.DID) { r.note("", host, time.Now()) }

// Meet tells a new peer which hosts are gone: it has not heard what was said before it came. A peer that was told so within ten
// minutes is not told again. More than 64 hosts are cut. It takes 3 s at most.
func (r *Detector) Meet(ctx context.Context, p peer.ID, gone []did.DID) {
	if len(gone) == 0 || r.host.Network().Connectedness(p) == network.NotConnected || !r.listens(p) || !r.peers.meets(p, time.Now()) {
		return
	}
	r.send(ctx, p, gone[:min(len(gone), maxHosts)])
}

// tell sends what there is to tell, until ctx ends.
func (r *Detector) tell(ctx context.Context) {
	var g sync.WaitGroup
	defer g.Wait()
	places := make(chan struct{}, sendsAtOnce)
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.news:
		}
		if !sleep(ctx, gatherTime+rand.N(spreadTime)) {
			return
		}
		batch := r.gather()
		for _, p := range r.listeners() {
			gone := batch.without(p)
			if len(gone) == 0 {
				continue
			}
			select {
			case <-ctx.Done():
				return
			case places <- struct{}{}:
			}
			g.Go(func() {
				defer func() { <-places }()
				r.send(ctx, p, gone)
			})
		}
		if !sleep(ctx, tellPause-gatherTime) {
			return
		}
	}
}

// A batch is what goes into one message: hosts, each with those who said so themselves.
type batch map[did.DID][]peer.ID

// gather takes what is to be told, as much as fits into a message.
func (r *Detector) gather() batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := batch{}
	for host, s := range r.stories {
		switch {
		case !s.tell:
		case len(b) == maxHosts:
			wake(r.news)
			return b
		default:
			b[host] = s.by
			s.tell, s.by = false, nil
		}
	}
	return b
}

// without returns the hosts that p has not named itself.
func (b batch) without(p peer.ID) []did.DID {
	var hosts []did.DID
	for host, by := range b {
		if !slices.Contains(by, p) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// listeners returns the connected peers that hear rumours, in no order.
func (r *Detector) listeners() []peer.ID {
	var ps []peer.ID
	for _, p := range r.host.Network().Peers() {
		if r.listens(p) {
			ps = append(ps, p)
		}
	}
	rand.Shuffle(len(ps), func(i, j int) { ps[i], ps[j] = ps[j], ps[i] })
	return ps
}

func (r *Detector) listens(p peer.ID) bool {
	ids, err := r.host.Peerstore().SupportsProtocols(p, r.proto)
	return err == nil && len(ids) > 0 && r.admits(p)
}

// admits says whether rumours are told to p, and heard from it.
func (r *Detector) admits(p peer.ID) bool {
	id, err := did.FromPeer([]byte(p))
	return err == nil && r.o.Admits(id) == nil
}

// send sends one message. That it does not get out is no reason to try again: others tell it too.
func (r *Detector) send(ctx context.Context, p peer.ID, gone []did.DID) {
	n, err := r.write(ctx, p, gone)
	if err != nil {
		r.counts.unsent.Add(1)
		r.log.Debug("a peer was not told who is gone", "peer", p, "err", err)
		return
	}
	r.counts.told.Add(1)
	r.counts.out.Add(uint64(n))
}

func (r *Detector) write(ctx context.Context, p peer.ID, gone []did.DID) (int, error) {
	body, err := encode(gone)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	// A message of 2 kB is not too much for a relay.
	st, err := r.host.NewStream(network.WithAllowLimitedConn(network.WithNoDial(ctx, "lmos gone"), "lmos gone"), p, r.proto)
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

// Stats returns what r has done so far.
func (r *Detector) Stats() Stats {
	c := &r.counts
	return Stats{Told: c.told.Load(), Unsent: c.unsent.Load(), Heard: c.heard.Load(), Checked: c.checked.Load(), True: c.right.Load(),
		False: c.wrong.Load(), Refused: c.refused.Load(), BytesIn: c.in.Load(), BytesOut: c.out.Load(), Panics: c.panics.Load()}
}

// wake has a loop look again.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sleep waits for pause, and reports false if ctx ended before.
func sleep(ctx context.Context, pause time.Duration) bool {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
