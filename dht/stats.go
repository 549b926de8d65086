package dht

import (
	"sync/atomic"

	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
)

// Stats are counters since New, and current values.
type Stats struct {
	Provided int // keys that this node provides, now

	// Calls counts outbound messages by type: "FIND_NODE", "PUT_VALUE", …
	Calls map[string]Calls

	Queried       uint64 // peers queried for records or bodies
	QueriesFailed uint64 // of these, without a valid response

	Served  uint64 // requests for records and bodies answered
	Refused uint64 // such requests refused

	RefusedStreams  uint64 // inbound DHT streams beyond a limit
	RefusedFrames   uint64 // inbound DHT frames that were malformed or too large
	LimitedRequests uint64 // inbound DHT requests beyond their peer's rate
	RefusedWrites   uint64 // records of peers that may not store any
	Panics          uint64 // handlers that panicked; each is a bug

	Values, Providers Usage
}

// Calls counts outbound messages of one type.
type Calls struct {
	Sent      uint64
	Failed    uint64 // no reply, rejected, or timed out
	Malformed uint64 // replies that did not match the request
}

// Usage is the fill level of a store of the DHT.
type Usage struct {
	Entries, Bytes int    // now
	Evicted        uint64 // entries replaced by closer ones
	Refused        uint64 // entries farther than all stored ones
}

// counters is the live form of Stats. It is safe for concurrent use.
type counters struct {
	byType [6]struct{ sent, failed, malformed atomic.Uint64 }

	queried, queriesFailed                                 atomic.Uint64
	served, refused                                        atomic.Uint64
	refusedStreams, refusedFrames, limitedRequests, panics atomic.Uint64
	refusedWrites                                          atomic.Uint64
}

// calls returns the counters of a message type. Requests are made here, so t is a known one.
func (c *counters) calls(t pb.Message_MessageType) *struct{ sent, failed, malformed atomic.Uint64 } {
	return &c.byType[int(t)%len(c.byType)]
}

// Stats returns the counters and current values.
func (d *DHT) Stats() Stats {
	c := d.stats
	s := Stats{
		Provided: d.provided.len(), Calls: map[string]Calls{},
		Queried: c.queried.Load(), QueriesFailed: c.queriesFailed.Load(),
		Served: c.served.Load(), Refused: c.refused.Load(),
		RefusedStreams: c.refusedStreams.Load(), RefusedFrames: c.refusedFrames.Load(),
		LimitedRequests: c.limitedRequests.Load(), Panics: c.panics.Load(), RefusedWrites: c.refusedWrites.Load(),
		Values: d.valueDS.usage(), Providers: d.providerDS.usage(),
	}
	for t := range c.byType {
		n := &c.byType[t]
		s.Calls[pb.Message_MessageType(t).String()] = Calls{n.sent.Load(), n.failed.Load(), n.malformed.Load()}
	}
	return s
}
