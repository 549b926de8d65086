package relay

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	library "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/multiformats/go-multistream"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/boundedmap"
)

// ServiceOptions configure [Serve]. Host and Terms are required.
type ServiceOptions struct {
	// Host must check the peers of streams: the service relays for every node whose streams it receives.
	Host host.Host
	// Terms returns those of a node that requests a reservation. It is called concurrently and must not block.
	Terms func(did.DID) Terms
	// Settle waits a moment until it is known who a node is, before the terms of its reservation are decided: they hold until it renews. Nil does
	// not wait.
	Settle func(context.Context, did.DID)
	// Private also offers nodes the private addresses of this relay, for networks without public ones.
	Private bool
	// Daily limits what is relayed in 24 hours, and DailyOfOne what is for one caller of others, in bytes of both directions. Callers without
	// long terms share a quarter of Daily. Defaults: 16 GiB and 2 GiB.
	Daily, DailyOfOne int64
	Log               *slog.Logger // nil discards
}

// Room of a service. Those with long terms are members and partners, of which a whole office may have one address.
var rooms = map[Terms]library.Resources{
	Short: {MaxReservations: 128, MaxCircuits: 16, MaxReservationsPerIP: 8, MaxReservationsPerASN: 32},
	Long:  {MaxReservations: 512, MaxCircuits: 64, MaxReservationsPerIP: 64, MaxReservationsPerASN: 512},
}

const (
	maxSources     = 4096      // callers whose use is counted
	maxOfUntrusted = 4         // circuits of a caller without long terms
	maxUntrusted   = 64        // circuits of all of them
	untrustedPart  = 4         // of the bytes of a day are for all of them
	leastLeft      = 256 << 10 // bytes that must be left for a new circuit
	day            = 24 * time.Hour
)

// A Service relays connections between other nodes. It is safe for concurrent use.
type Service struct {
	o  ServiceOptions
	of map[Terms]*instance // read-only

	ctx   context.Context // ends with Close
	stop  context.CancelFunc
	work  sync.WaitGroup
	conns *network.NotifyBundle

	mu        sync.Mutex // owns what follows
	reserved  map[peer.ID]Terms
	circuits  map[*circuit]*Circuit
	began     time.Time // of the 24 hours that are counted
	used      int64     // bytes since then
	untrusted int64     // of these, for callers without long terms
	usedBy    map[peer.ID]int64
	total     int64
	refusals  map[string]uint64
}

// An instance is a service of the library with one set of limits. It registers its handler here instead of at the host.
type instance struct {
	host.Host
	serve   network.StreamHandler
	service *library.Relay
}

// SetStreamHandler implements [host.Host].
func (i *instance) SetStreamHandler(_ protocol.ID, f network.StreamHandler) { i.serve = f }

// RemoveStreamHandler implements [host.Host].
func (i *instance) RemoveStreamHandler(protocol.ID) {}

// Serve starts a service on a host. The caller closes it before the host.
func Serve(o ServiceOptions) (*Service, error) {
	o.Daily, o.DailyOfOne = cmp.Or(o.Daily, 16<<30), cmp.Or(o.DailyOfOne, 2<<30)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Settle == nil {
		o.Settle = func(context.Context, did.DID) {}
	}
	s := &Service{o: o, of: map[Terms]*instance{}, reserved: map[peer.ID]Terms{}, circuits: map[*circuit]*Circuit{}, refusals: map[string]uint64{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	for terms, room := range rooms {
		l := limits[terms]
		room.Limit = &library.RelayLimit{Duration: l.duration, Data: l.data}
		room.ReservationTTL, room.BufferSize = time.Hour, 4096
		i := &instance{Host: o.Host}
		var err error
		if i.service, err = library.New(i, library.WithResources(room), library.WithReservationAddressFilter(s.offers)); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.of[terms] = i
	}
	s.conns = &network.NotifyBundle{ConnectedF: s.connected}
	o.Host.Network().Notify(s.conns)
	o.Host.SetStreamHandler(proto.ProtoIDv2Hop, s.serve)
	return s, nil
}

// Close ends all reservations and circuits.
func (s *Service) Close() error {
	s.o.Host.RemoveStreamHandler(proto.ProtoIDv2Hop)
	if s.conns != nil {
		s.o.Host.Network().StopNotify(s.conns)
	}
	s.stop()
	s.work.Wait()
	var errs []error
	for _, i := range s.of {
		errs = append(errs, i.service.Close())
	}
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.circuits))
	s.mu.Unlock()
	for _, c := range open {
		_ = c.Reset()
	}
	return errors.Join(errs...)
}

// connected pings the older connections of a node with a reservation that connects again, and closes those that are silent: a circuit would be
// opened over one of them, which the network keeps for half a minute after the node has lost its address or was restarted.
func (s *Service) connected(n network.Network, c network.Conn) {
	id := c.RemotePeer()
	s.mu.Lock()
	_, reserved := s.reserved[id]
	s.mu.Unlock()
	if !reserved || s.ctx.Err() != nil {
		return
	}
	for _, old := range n.ConnsToPeer(id) {
		if old == c || IsCircuit(old.RemoteMultiaddr()) {
			continue
		}
		s.work.Go(func() {
			ctx, cancel := context.WithTimeout(s.ctx, pingFor)
			defer cancel()
			if err := pingOver(ctx, old); err != nil && s.ctx.Err() == nil {
				s.o.Log.Debug("an older connection of a node is silent", "node", did.ShortPeer(id), "err", err)
				_ = old.Close()
			}
		})
	}
}

// pingOver pings a peer over one of its connections.
func pingOver(ctx context.Context, c network.Conn) error {
	s, err := c.NewStream(network.WithAllowLimitedConn(ctx, "relay ping"))
	if err != nil {
		return err
	}
	defer s.Reset()
	defer context.AfterFunc(ctx, func() { _ = s.Reset() })()
	if err := multistream.SelectProtoOrFail(ping.ID, s); err != nil {
		return err
	}
	sent, got := []byte(rand.Text() + rand.Text())[:ping.PingSize], make([]byte, ping.PingSize)
	if _, err := s.Write(sent); err != nil {
		return err
	}
	if _, err := io.ReadFull(s, got); err != nil {
		return err
	}
	if !bytes.Equal(sent, got) {
		return errors.New("the answer to a ping is another one")
	}
	return nil
}

// offers reports whether nodes with a reservation learn an address of this relay.
func (s *Service) offers(a ma.Multiaddr) bool {
	return !IsCircuit(a) && (manet.IsPublicAddr(a) || s.o.Private)
}

// serve reads the first message of a stream, and gives the stream to the service with the limits of the node that is to be reached.
func (s *Service) serve(st network.Stream) {
	_ = st.SetReadDeadline(time.Now().Add(firstMessage))
	m, raw, err := readHop(st)
	if err != nil {
		s.refuse(st, pb.Status_MALFORMED_MESSAGE)
		return
	}
	_ = st.SetReadDeadline(time.Time{})
	if m.GetType() == pb.HopMessage_RESERVE {
		s.reserve(st, raw)
		return
	}
	s.connect(st, m, raw)
}

// refuse counts a refused request and answers it.
func (s *Service) refuse(st network.Stream, status pb.Status) {
	s.mu.Lock()
	s.refusals[status.String()]++
	s.mu.Unlock()
	refuse(st, status)
}

// reserve answers a request for a reservation.
func (s *Service) reserve(st network.Stream, raw []byte) {
	from := st.Conn().RemotePeer()
	s.o.Settle(s.ctx, did.OfPeer(from))
	terms := s.o.Terms(did.OfPeer(from))
	if terms == Refused {
		s.refuse(st, pb.Status_PERMISSION_DENIED)
		return
	}
	s.mu.Lock()
	s.forgetLocked()
	s.reserved[from] = terms // before the answer, after which the node may connect at once
	s.mu.Unlock()
	answer := &recorder{Stream: st, in: io.MultiReader(bytes.NewReader(raw), st)}
	s.of[terms].serve(answer)
	m, _, err := readHop(&answer.sent)
	if err == nil && m.GetStatus() == pb.Status_OK {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reserved, from)
	if err == nil {
		s.refusals[m.GetStatus().String()]++
	}
}

// forgetLocked forgets nodes that have left: their reservations ended with the connection.
func (s *Service) forgetLocked() {
	maps.DeleteFunc(s.reserved, func(id peer.ID, _ Terms) bool {
		return s.o.Host.Network().Connectedness(id) != network.Connected
	})
}

// A recorder keeps what is sent in answer to a request.
type recorder struct {
	network.Stream
	in   io.Reader
	sent bytes.Buffer
}

// Read implements [network.Stream].
func (r *recorder) Read(b []byte) (int, error) { return r.in.Read(b) }

// Write implements [network.Stream].
func (r *recorder) Write(b []byte) (int, error) {
	r.sent.Write(b)
	return r.Stream.Write(b)
}

// connect opens a circuit.
func (s *Service) connect(st network.Stream, m *pb.HopMessage, raw []byte) {
	to, err := util.PeerToPeerInfoV2(m.GetPeer())
	if m.GetType() != pb.HopMessage_CONNECT || err != nil {
		s.refuse(st, pb.Status_MALFORMED_MESSAGE)
		return
	}
	from := st.Conn().RemotePeer()
	known, own, untrusted := s.o.Terms(did.OfPeer(from)) == Long, 0, 0
	s.mu.Lock()
	terms := s.reserved[to.ID]
	left := s.leftLocked(from, known, time.Now())
	for _, c := range s.circuits {
		if !c.known {
			untrusted++
		}
		if c.From == did.OfPeer(from) {
			own++
		}
	}
	s.mu.Unlock()
	switch {
	case terms == Refused || s.o.Terms(did.OfPeer(to.ID)) < terms: // the second: they were lowered
		s.refuse(st, pb.Status_NO_RESERVATION)
		return
	case from == to.ID: // a proof, which moves no data
	case left < leastLeft || !known && (own >= maxOfUntrusted || untrusted >= maxUntrusted):
		s.refuse(st, pb.Status_RESOURCE_LIMIT_EXCEEDED)
		return
	}
	about := &Circuit{From: did.OfPeer(from), To: did.OfPeer(to.ID), Terms: terms, Since: time.Now(), known: known}
	c := &circuit{Stream: st, in: io.MultiReader(bytes.NewReader(raw), st)}
	c.spend = func(n int) bool { return s.spend(from, about, n) }
	c.done = func() {
		s.mu.Lock()
		delete(s.circuits, c)
		s.mu.Unlock()
	}
	s.mu.Lock()
	s.circuits[c] = about
	s.mu.Unlock()
	s.of[terms].serve(c)
}

// leftLocked returns what the caller may still have relayed, in bytes.
func (s *Service) leftLocked(from peer.ID, known bool, now time.Time) int64 {
	if now.Sub(s.began) >= day || now.Before(s.began) {
		s.began, s.used, s.untrusted, s.usedBy = now, 0, 0, nil
	}
	left := min(s.o.Daily-s.used, s.o.DailyOfOne-s.usedBy[from])
	if !known {
		left = min(left, s.o.Daily/untrustedPart-s.untrusted)
	}
	return left
}

// spend counts relayed bytes, and reports whether they are within the limits.
func (s *Service) spend(from peer.ID, about *Circuit, n int) bool {
	about.bytes.Add(int64(n))
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.leftLocked(from, about.known, time.Now())
	s.total += int64(n)
	s.used += int64(n)
	if !about.known {
		s.untrusted += int64(n)
	}
	boundedmap.Put(&s.usedBy, from, s.usedBy[from]+int64(n), maxSources, nil)
	return int64(n) <= left
}

// A Circuit is a connection that is relayed.
type Circuit struct {
	From, To did.DID
	Terms    Terms
	Since    time.Time
	known    bool // the caller is one with long terms
	bytes    atomic.Int64
}

// Bytes returns what was relayed in both directions.
func (c *Circuit) Bytes() int64 { return c.bytes.Load() }

// Stats are the state of a service.
type Stats struct {
	Reservations map[did.DID]Terms
	Circuits     []*Circuit // the oldest first
	// Total and Today are the relayed bytes since the start, and in the 24 hours that are counted.
	Total, Today, Daily int64
	// Refused are the refused requests by the status of the protocol.
	Refused map[string]uint64
}

// Stats returns the state. A nil service has none.
func (s *Service) Stats() *Stats {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked()
	out := &Stats{Reservations: map[did.DID]Terms{}, Total: s.total, Today: s.used, Daily: s.o.Daily, Refused: maps.Clone(s.refusals),
		Circuits: slices.SortedFunc(maps.Values(s.circuits), func(a, b *Circuit) int { return a.Since.Compare(b.Since) })}
	for id, terms := range s.reserved {
		out.Reservations[did.OfPeer(id)] = terms
	}
	return out
}
