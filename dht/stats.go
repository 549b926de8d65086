package dht

import (
	"sync/atomic"

	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
)

// Stats is what a DHT has done since New. Counters only grow.
type Stats struct {
	Provided int // keys that this node provides, now

	// Calls counts outbound messages by type: "FIND_NODE", "PUT_VALUE", …
	Calls map[string]Calls

	Asked     uint64 // peers asked for records or bodies
	AskFailed uint64 // of these, without a valid answer

	Served  uint64 // requests for records and bodies answered
	Refused uint64 // such requests refused

	RefusedStreams  uint64 // inbound DHT streams beyond a limit
	RefusedFrames   uint64 // inbound DHT frames that were malformed or announced too much
	LimitedRequests uint64 // inbound DHT requests beyond their peer's rate
	Panics          uint64 // handlers that panicked; each is a bug

	Values, Providers Usage
}

// Calls counts outbound messages of one type.
type Calls struct {
	Sent      uint64
	Failed    uint64 // no reply, refused, or out of time
	Malformed uint64 // replies that were no reply to what was asked
}

// Usage is how full a store of the DHT is.
type Usage struct {
	Entries, Bytes int    // now
	Evicted        uint64 // entries that gave way to closer ones
	Refused        uint64 // entries that were farther than all that is kept
}

// counters is the live form of Stats. It is safe for concurrent use.
type counters struct {
	byType [6]struct{ sent, failed, malformed atomic.Uint64 }

	asked, askFailed                                       atomic.Uint64
	served, refused                                        atomic.Uint64
	refusedStreams, refusedFrames, limitedRequests, panics atomic.Uint64
}

// calls returns the counters of a message type. Requests are made here, so t is a known one.
func (c *counters) calls(t pb.Message_MessageType) *struct{ sent, failed, malformed atomic.Uint64 } {
	return &c.byType[int(t)%len(c.byType)]
}

// Stats returns what d has done so far.
func (d *DHT) Stats() Stats {
	c := d.stats
	s := Stats{
		Provided: d.offers.len(), Calls: map[string]Calls{},
		Asked: c.asked.Load(), AskFailed: c.askFailed.Load(),
		Served: c.served.Load(), Refused: c.refused.Load(),
		RefusedStreams: c.refusedStreams.Load(), RefusedFrames: c.refusedFrames.Load(),
		LimitedRequests: c.limitedRequests.Load(), Panics: c.panics.Load(),
		Values: d.valueDS.usage(), Providers: d.providerDS.usage(),
	}
	for t := range c.byType {
		n := &c.byType[t]
		s.Calls[pb.Message_MessageType(t).String()] = Calls{n.sent.Load(), n.failed.Load(), n.malformed.Load()}
	}
	return s
}
