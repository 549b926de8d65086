package dht

import (
	"context"
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/ratelimit"
	"github.com/lmosd/lmosd/internal/streamserver"
	"github.com/lmosd/lmosd/td"
)

// Limits of serving the records protocol.
const (
	recordsService      = "lmos.records"
	recordsTime         = 10 * time.Second // of a request with its response
	maxRequests         = 128              // at once
	maxPeerRequests     = 16               // at once of one peer
	recordsRequestRate  = 50               // per second of one peer
	recordsRequestBurst = 500
	bytesPerQuery       = 64 << 10 // of a response count as one query: a response may have 4 MB
	maxBodies           = 2 << 20  // bytes of TDs in one response; further ones must be fetched by hash
)

// A recordServer serves the queries of other nodes from the data of this node. It is safe for concurrent use.
type recordServer struct {
	d      *DHT
	server *streamserver.Server
	rate   *ratelimit.Limiter[peer.ID]
}

func newRecordServer(d *DHT) *recordServer {
	s := &recordServer{d: d, rate: ratelimit.NewLimiter[peer.ID](ratelimit.Limit{Rate: recordsRequestRate, Burst: recordsRequestBurst}, maxMetered)}
	s.server = streamserver.New(streamserver.Options{Service: recordsService, Total: maxRequests, PerPeer: maxPeerRequests,
		Deadline: recordsTime, Admit: s.admit, Done: s.done, Log: d.log})
	return s
}

func (s *recordServer) handle(st network.Stream) { s.server.Serve(st, s.serve) }

func (s *recordServer) admit(c network.Conn) network.StreamErrorCode {
	if s.rate.Take(c.RemotePeer(), 1, time.Now()) > 0 {
		return network.StreamRateLimited
	}
	return network.StreamNoError
}

func (s *recordServer) done(p peer.ID, err error) {
	switch err {
	case nil:
		s.d.stats.served.Add(1)
	case streamserver.ErrPanic:
		s.d.stats.panics.Add(1)
	default:
		s.d.stats.refused.Add(1)
		s.d.log.Debug("request not answered", "peer", did.ShortPeer(p), "err", err)
	}
}

func (s *recordServer) serve(st network.Stream) error {
	frame, release, err := streamserver.ReadFrame(st, st.Scope(), maxRecordsRequest)
	if err != nil {
		return fmt.Errorf("read question: %w", err)
	}
	q, err := decodeRecordsRequest(frame)
	release()
	if err != nil {
		return err
	}
	switch q.Op {
	case opBody:
		return s.body(st, [32]byte(q.Hash))
	case opState:
		return s.states(st, q.Keys)
	}
	return s.find(st, q.Query)
}

func (s *recordServer) body(st network.Stream, hash [32]byte) error {
	b, ok := s.d.o.Local.Body(s.caller(st), hash)
	if !ok {
		return s.send(st, &recordsResponse{Error: "not here"})
	}
	if err := s.send(st, &recordsResponse{TD: b}); err != nil {
		return err
	}
	return s.send(st, &recordsResponse{End: true})
}

// find sends at most q.Limit results, and whether there are more.
func (s *recordServer) find(st network.Stream, w *wireQuery) error {
	q, err := w.query()
	if err != nil {
		return err
	}
	limit := q.Limit
	q.Limit++ // one more shows whether the response is cut; otherwise the counter does
	q.Counter = new(td.CoverageCounter)
	found := s.search(s.caller(st), q)
	room := maxBodies
	for _, f := range found[:min(len(found), limit)] {
		a := &recordsResponse{Record: f.Record}
		if len(f.TD) <= room && !s.isInside(f) {
			a.TD = f.TD
			room -= len(f.TD)
		}
		if err := s.send(st, a); err != nil {
			return err
		}
	}
	return s.send(st, &recordsResponse{End: true, Truncated: len(found) > limit || q.Counter.Coverage().Truncated})
}

// search returns the results of this node for q: with the role index from its whole directory, unless the query is empty, which
// means all hosted Things.
func (s *recordServer) search(ctx context.Context, q td.Query) []*td.Signed {
	if s.d.o.Index != nil && (q.HasCriteria() || len(q.Or) > 0) {
		return s.d.o.Index(ctx, q)
	}
	return s.d.o.Local.Hosted(ctx, q)
}

// caller returns a context with the principal of the peer at the other end of a stream.
func (s *recordServer) caller(st network.Stream) context.Context {
	var p *did.Principal
	if id, err := did.FromPeer([]byte(st.Conn().RemotePeer())); err == nil { // admit has checked the type of the key
		p = s.d.o.Principal(id)
	}
	return did.WithPrincipal(context.Background(), p)
}

// isInside reports whether the TD of f is inside its record.
func (s *recordServer) isInside(f *td.Signed) bool {
	r, err := s.d.o.Verifier.Record(f.Record, time.Now())
	return err == nil && len(r.Inline) > 0
}

// send writes one frame. Its memory is reserved until it is sent.
func (s *recordServer) send(st network.Stream, a *recordsResponse) error {
	size := len(a.Record) + len(a.TD) + 128
	if err := st.Scope().ReserveMemory(size, network.ReservationPriorityMedium); err != nil {
		return err
	}
	defer st.Scope().ReleaseMemory(size)
	frame, err := encodeMessage(a, maxRecordsResponse)
	if err != nil {
		return err
	}
	if data := len(a.Record) + len(a.TD); data > 0 {
		s.rate.Charge(st.Conn().RemotePeer(), float64(data)/bytesPerQuery, time.Now())
	}
	_, err = st.Write(frame)
	return err
}
