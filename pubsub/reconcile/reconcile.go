// Package reconcile synchronizes the records of two nodes by range-based set reconciliation.
//
// Gossip has no history and drops what exceeds its queues. Reconciliation with random neighbors, at join and every minute, fills the gaps,
// so that a late joiner is complete within seconds. The cost depends on the difference: equal sets take one short round trip, and one Thing
// among 100,000 is found in five rounds. One session updates both ends. Tombstones are reconciled as other records are.
//
// A received record was requested and has a valid signature; the rest of the node verifies its TD. A peer that violates the
// protocol loses the session and is banned for ten minutes. The protocol is in wire.go, bounds in session.go.
package reconcile

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/heartbeat"
	"github.com/lmosd/lmosd/internal/streamserver"
	"github.com/lmosd/lmosd/td"
)

// Times of sessions. All pauses are jittered by a tenth.
const (
	maxPause         = time.Minute            // the longest pause
	firstPause       = 2 * time.Second        // after the first sessions; doubles, because the first peers may be new, too
	peerPollInterval = 200 * time.Millisecond // between checks for the first peer
	sessionTime      = time.Minute            // limit of a session
	stallTime        = 10 * time.Second       // without a frame
	maxPeers         = 2                      // between two pauses
	maxTries         = 6                      // peers tried between two pauses
	maxConsecutive   = 64                     // sessions with one peer in a row, if limits ended them
)

// Options configure a [Reconciler].
type Options struct {
	// Network is the name of the mesh, part of the protocol id. Required.
	Network string
	// Set holds the items of this node: the caller puts the key and seq of each record that Get returns, tombstones included, and deletes
	// those that Get no longer returns. Required.
	Set *Set
	// Get returns the newest record under a key, with its TD if it has one, or nil. The result is not changed. Get must not block.
	// Required.
	Get func(key [32]byte) *td.Signed
	// Ingest receives each record, perhaps with its TD, and verifies it in full. The session and the peer wait until it returns, so that no
	// record is lost. Sessions call it concurrently. Required.
	Ingest func(*td.Signed)
	// Room returns how many Things that are not in Set would be accepted. A full node requests only newer records of known
	// Things; otherwise it would receive the same records repeatedly. Nil means no limit.
	Room func() int
	// Verifier verifies records. A shared one saves verifying twice. Nil is a verifier for did:key.
	Verifier *td.Verifier
	// Now is this node's clock. Nil is time.Now.
	Now func() time.Time
	// Log may be nil.
	Log *slog.Logger

	maxRequests int // for tests: the records that a session requests; 0 means the constant
}

// Protocol returns the id of the protocol of a network, for the limits of the resource manager.
func Protocol(network string) protocol.ID { return protocol.ID("/lmos/" + network + "/sync/1") }

// A Reconciler begins and serves the sessions of this node. Its methods are safe for concurrent use.
type Reconciler struct {
	o      Options
	host   host.Host
	proto  protocol.ID
	log    *slog.Logger
	server *streamserver.Server
	peers  peers
	recent recent
	counts counts
	clocks clocks
	loop   *heartbeat.Loop // of Run
}

// Stats are counters since [New].
type Stats struct {
	Sessions   uint64 // sessions that this node began
	Failed     uint64 // of these, the failed ones
	Served     uint64 // sessions that other nodes began
	Refused    uint64 // rejected requests of other nodes
	Violations uint64 // sessions in which a peer violated the protocol
	Received   uint64 // records
	Sent       uint64 // records
	BytesIn    uint64
	BytesOut   uint64
	Panics     uint64 // each is a bug
}

type counts struct {
	sessions, failed, served, refused, violation, received, sent, in, out, panics atomic.Uint64
}

// New serves the sessions of other nodes; [Reconciler.Run] begins sessions. Call New before h dials, because the first handshake
// contains the protocol. Call Close before h is closed.
func New(h host.Host, o Options) (*Reconciler, error) {
	if o.Verifier == nil {
		o.Verifier = td.NewVerifier(did.Keys())
	}
	if o.Room == nil {
		o.Room = func() int { return math.MaxInt }
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.maxRequests = cmp.Or(o.maxRequests, maxRequests)
	if o.Network == "" || o.Set == nil || o.Get == nil || o.Ingest == nil {
		return nil, errors.New("reconcile: Network, Set, Get and Ingest are required")
	}
	r := &Reconciler{o: o, host: h, proto: Protocol(o.Network), log: o.Log}
	r.server = r.newServer()
	h.SetStreamHandler(r.proto, r.handle)
	return r, nil
}

// Run syncs with one or two random neighbors as soon as one is connected, then after growing pauses, and finally every minute. It returns
// nil when ctx ends.
func (r *Reconciler) Run(ctx context.Context) error {
	pauses := backoff.Backoff{First: firstPause, Max: maxPause, Jitter: 0.1}
	r.loop = heartbeat.Start(ctx, "reconciliation", maxPause+sessionTime)
	for {
		wait := peerPollInterval
		if r.syncNeighbors(ctx) > 0 {
			wait = pauses.Next()
		} else if len(r.neighbors()) == 0 {
			pauses.Reset() // a node without peers joins again
		}
		r.loop.Beat()
		if backoff.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// syncNeighbors syncs with a few random neighbors, and returns the number of successful syncs.
func (r *Reconciler) syncNeighbors(ctx context.Context) (done int) {
	all := r.neighbors()
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, p := range all[:min(len(all), maxTries)] {
		if ctx.Err() != nil || done == maxPeers {
			break
		}
		if r.syncAll(ctx, p) == nil {
			done++
		}
	}
	return done
}

// syncAll runs sessions with a peer until one ends without reaching a limit, or transfers nothing.
func (r *Reconciler) syncAll(ctx context.Context, p peer.ID) error {
	for range maxConsecutive {
		r.loop.Beat()
		report, err := r.Sync(ctx, p)
		if err != nil || !report.More || report.Received+report.Sent == 0 {
			return err
		}
	}
	return nil
}

// neighbors returns the connected peers that support the protocol and are not avoided. Relayed connections are too slow.
func (r *Reconciler) neighbors() []peer.ID {
	var ps []peer.ID
	now := time.Now()
	for _, p := range r.host.Network().Peers() {
		if r.host.Network().Connectedness(p) != network.Connected || r.peers.avoids(p, now) {
			continue
		}
		if ids, err := r.host.Peerstore().SupportsProtocols(p, r.proto); err == nil && len(ids) > 0 {
			ps = append(ps, p)
		}
	}
	return ps
}

// Sync runs one session with a connected peer. Afterwards each end has the newest version of all records of both, unless Report.More is
// set. A session takes at most 1 minute, and ends after 10 s without a frame. The report is also valid with an error. After a failed
// session [Reconciler.Run] avoids the peer for 5 s, and after a violation of the protocol for 10 minutes.
func (r *Reconciler) Sync(ctx context.Context, p peer.ID) (Report, error) {
	start := time.Now()
	r.counts.sessions.Add(1)
	report, err := r.sync(ctx, p)
	report.Peer = did.OfPeer(p)
	report.Took = time.Since(start)
	r.addCounts(p, report)
	if report.Timed {
		r.clocks.vote(report.Peer, report.Clock, time.Now())
	}
	if err != nil {
		r.counts.failed.Add(1)
		if ctx.Err() == nil {
			r.penalize(p, err)
		}
		return report, fmt.Errorf("sync with %s: %w", p, err)
	}
	r.log.Debug("synced", "peer", did.ShortPeer(p), "received", report.Received, "sent", report.Sent, "rounds", report.Rounds,
		"in", report.BytesIn, "out", report.BytesOut, "more", report.More, "took", report.Took)
	return report, nil
}

func (r *Reconciler) sync(ctx context.Context, p peer.ID) (Report, error) {
	ctx, cancel := context.WithTimeout(ctx, sessionTime)
	defer cancel()
	// The context limits the negotiation; the AfterFunc below ends the session.
	st, err := r.host.NewStream(network.WithNoDial(ctx, "lmos sync"), p, r.proto)
	if err != nil {
		return Report{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = st.Reset() })
	defer stop()
	report, err := r.runSession(st, func(s *session) error {
		if err := s.initiate(); err != nil {
			return err
		}
		return s.finish(st)
	})
	if err != nil {
		_ = st.ResetWithError(streamserver.CodeOf(err))
		return report, cmp.Or(context.Cause(ctx), err)
	}
	_ = st.Close()
	return report, nil
}

// runSession runs one end of a session over a stream, with its memory and deadline.
func (r *Reconciler) runSession(st network.Stream, run func(*session) error) (Report, error) {
	if err := st.Scope().ReserveMemory(sessionMemory, network.ReservationPriorityMedium); err != nil {
		return Report{}, fmt.Errorf("reserve %d bytes: %w", sessionMemory, err)
	}
	defer st.Scope().ReleaseMemory(sessionMemory)
	watch := time.AfterFunc(stallTime, func() { _ = st.Reset() })
	defer watch.Stop()
	s := newSession(r, st.Scope(), st, func() { watch.Reset(stallTime) })
	s.peer = did.OfPeer(st.Conn().RemotePeer()) // the host accepts only Ed25519 keys
	err := run(s)
	return s.report, err
}

func (r *Reconciler) addCounts(p peer.ID, report Report) {
	r.counts.received.Add(uint64(report.Received))
	r.counts.sent.Add(uint64(report.Sent))
	r.counts.in.Add(uint64(report.BytesIn))
	r.counts.out.Add(uint64(report.BytesOut))
	if report.Refused+report.Missing > 0 {
		r.log.Debug("received records not stored", "peer", did.ShortPeer(p), "refused", report.Refused, "missing", report.Missing)
	}
}

// penalize avoids a peer, for a duration that depends on the error.
func (r *Reconciler) penalize(p peer.ID, err error) {
	violation := errors.Is(err, streamserver.ErrViolation)
	r.peers.ban(p, violation, time.Now())
	if !violation {
		r.log.Debug("session failed", "peer", did.ShortPeer(p), "err", err)
		return
	}
	r.counts.violation.Add(1)
	r.log.Warn("sync protocol violated", "peer", did.ShortPeer(p), "err", err)
}

// outgoing returns the record under a key as it is sent: with its TD if withTD is set and the record does not contain the TD.
func (r *Reconciler) outgoing(key [32]byte, withTD bool) recordMessage {
	s := r.o.Get(key)
	if s == nil {
		return recordMessage{}
	}
	rec, err := r.o.Verifier.Record(s.Record, time.Now())
	switch {
	case err != nil:
		return recordMessage{} // expired
	case rec.Audience != td.Public:
		return recordMessage{} // it has replaced the public record that was announced
	case withTD && rec.Kind == td.KindTD && len(rec.Inline) == 0:
		return recordMessage{Record: s.Record, TD: s.TD}
	}
	return recordMessage{Record: s.Record}
}

// accept verifies a requested record and passes it to Options.Ingest. An error means that the peer violated the protocol.
func (r *Reconciler) accept(requested item, s *td.Signed) (accepted bool, err error) {
	now := time.Now()
	rec, err := r.o.Verifier.Record(s.Record, now)
	switch {
	case errors.Is(err, td.ErrVersion):
		r.recent.add(requested, now) // else each session would request it
		return false, nil
	case errors.Is(err, td.ErrExpired), errors.Is(err, td.ErrFuture):
		return false, nil // clocks differ; the type is unknown here
	case err != nil:
		return false, fmt.Errorf("%w: %w", errViolation, err)
	case rec.Audience != td.Public:
		return false, fmt.Errorf("%w: the record is not public", errViolation)
	case rec.CarrierKey() != requested.key || rec.Seq < requested.seq:
		return false, fmt.Errorf("%w: expected the announced record, got another one", errViolation)
	case s.TD != nil && !matches(rec, s.TD):
		return false, fmt.Errorf("%w: the TD does not match the hash in its record", errViolation)
	}
	r.recent.add(item{requested.key, rec.Seq}, now)
	r.o.Ingest(s)
	return true, nil
}

func matches(r *td.Record, body []byte) bool {
	sum := sha256.Sum256(body)
	return r.Kind == td.KindTD && len(body) == r.Size && bytes.Equal(sum[:], r.Hash[:])
}

// now reads this node's clock.
func (r *Reconciler) now() time.Time {
	if r.o.Now != nil {
		return r.o.Now()
	}
	return time.Now()
}

// Stats returns the counters of r.
func (r *Reconciler) Stats() Stats {
	c := &r.counts
	return Stats{
		Sessions: c.sessions.Load(), Failed: c.failed.Load(), Served: c.served.Load(), Refused: c.refused.Load(), Violations: c.violation.Load(),
		Received: c.received.Load(), Sent: c.sent.Load(), BytesIn: c.in.Load(), BytesOut: c.out.Load(), Panics: c.panics.Load(),
	}
}
