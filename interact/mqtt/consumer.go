package mqtt

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/lmosd/lmosd/did"
)

const (
	maxOutgoing = 256 // messages that wait for a client, or for its acknowledgement
	maxPending  = 32  // unacknowledged messages
)

// A consumer is a client of the broker. It has its own queue of outgoing messages: that of mochi does not count bytes, and confuses the
// packet identifiers of both directions.
type consumer struct {
	client   *mochi.Client
	name     string // principal, user and client identifier
	from     *did.Principal
	life     context.Context // ends with the connection
	end      context.CancelFunc
	requests atomic.Int64 // that run
	// proposed has the filters of the SUBSCRIBE that is being read. The goroutine that reads the connection owns it.
	proposed map[string]*proposal
	// filters has the subscribed filters; broker.mu guards it.
	filters map[string]*proposal

	wake chan struct{} // has room for one

	mu      sync.Mutex // guards the rest
	queue   []queued
	pending map[uint16]int // bytes by packet identifier
	size    int            // bytes of both
	last    uint16         // packet identifier
	over    bool           // its limit is exceeded
	writing bool           // run writes to it
}

// An outgoing is a message for one or several clients. It does not change after send.
type outgoing struct {
	topic       string
	data        []byte
	media       string
	correlation []byte
	props       []packets.UserProperty
}

// add adds a user property; an empty one, or one that cannot be sent, is left out.
func (p *outgoing) add(name, value string) {
	if value != "" && isProperty(value) {
		p.props = append(p.props, packets.UserProperty{Key: name, Val: value})
	}
}

// A queued is a message in the queue of one client.
type queued struct {
	*outgoing
	qos byte
}

// weight is the size of a message for the limit of a queue, in bytes.
func (p *outgoing) weight() int { return len(p.data) + overhead }

// admit adds a consumer for a client whose CONNECT was accepted. It ends the connection that the same user has with the same
// identifier (MQTT 5 §3.1.4); one user cannot end another's, nor one principal. The end of the admission disconnects the client.
func (b *Broker) admit(cl *mochi.Client) {
	c := &consumer{client: cl, proposed: map[string]*proposal{}, filters: map[string]*proposal{}, pending: map[uint16]int{},
		wake: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	who := b.admitted[cl.Net.Conn]
	delete(b.admitted, cl.Net.Conn)
	c.from = who.from
	c.name = c.from.ID() + " " + cl.ID[:strings.LastIndexByte(cl.ID, 0)]
	for _, other := range b.consumers {
		if other.name == c.name {
			b.spawnLocked(func() { b.disconnect(other, packets.ErrSessionTakenOver) })
		}
	}
	life, cancel := context.WithCancel(b.life)
	stop := context.AfterFunc(who.until, func() { b.spawn(func() { b.disconnect(c, packets.ErrNotAuthorized) }) })
	c.life, c.end = life, func() {
		stop()
		cancel()
	}
	if !b.spawnLocked(func() { c.run(b) }) {
		c.end()
		return
	}
	b.consumers[cl.Net.Conn] = c
}

// disconnect ends a connection, with a reason if the protocol supports it, within [packet.WriteTimeout].
func (b *Broker) disconnect(c *consumer, why packets.Code) {
	if c.client.Properties.ProtocolVersion == 5 {
		_ = b.server.DisconnectClient(c.client, why) // the connection ends either way
	}
	c.client.Stop(why)
}

// consumer returns the consumer of a client; nil after its removal.
func (b *Broker) consumer(cl *mochi.Client) *consumer {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.consumers[cl.Net.Conn]
}

// run sends the queued messages until the connection ends.
func (c *consumer) run(b *Broker) {
	for {
		pk, over := c.next()
		switch {
		case pk != nil:
			if err := c.client.WritePacket(*pk); errors.Is(err, packets.ErrPacketTooLarge) {
				c.acknowledged(pk.PacketID) // MQTT 5 §3.1.2.11.4: it is discarded as if it was sent
			} else if err != nil {
				c.client.Stop(err)
			}
			continue
		case over:
			b.o.Log.Warn("mqtt client too slow", "remote", c.client.Net.Remote)
			b.disconnect(c, packets.ErrQuotaExceeded)
			<-c.life.Done()
			return
		}
		select {
		case <-c.wake:
		case <-c.life.Done():
			return
		}
	}
}

// next takes a message that may be sent now. It is called after the previous message was written.
func (c *consumer) next() (pk *packets.Packet, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writing = false; len(c.queue) == 0 || c.over {
		return nil, c.over
	}
	p := c.queue[0]
	if p.qos > 0 && len(c.pending) >= c.window() {
		return nil, false
	}
	c.queue[0] = queued{}
	c.queue, c.writing = c.queue[1:], true
	pk = &packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: p.qos}, TopicName: p.topic, Payload: p.data,
		Created: time.Now().Unix(), Properties: packets.Properties{ContentType: p.media, CorrelationData: p.correlation,
			User: p.props}}
	if p.qos == 0 {
		c.size -= p.weight()
		return pk, false
	}
	for c.last++; c.last == 0 || c.pending[c.last] > 0; c.last++ {
	}
	pk.PacketID, c.pending[c.last] = c.last, p.weight()
	return pk, false
}

// window is the limit of unacknowledged messages (MQTT 5 §3.1.2.11.3).
func (c *consumer) window() int {
	if wants := int(c.client.Properties.Props.ReceiveMaximum); wants > 0 {
		return min(wants, maxPending)
	}
	return maxPending
}

// send queues a message. A client whose queue is full is disconnected, because it would miss messages unnoticed. stuck means that the
// caller must stop the client, without holding locks: run is busy with a write that may take long.
func (c *consumer) send(p *outgoing, qos byte) (stuck bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return false
	}
	if len(c.queue)+len(c.pending) >= maxOutgoing || c.size+p.weight() > max(maxQueued, p.weight()) {
		c.over, c.queue = true, nil
	} else {
		c.queue, c.size = append(c.queue, queued{p, qos}), c.size+p.weight()
	}
	c.ring()
	return c.over && c.writing
}

// isHalfFull reports whether the queue is half full. Errors of rejected requests are then not sent as separate messages, which would end
// the connection of a client that reads.
func (c *consumer) isHalfFull() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue)+len(c.pending) >= maxOutgoing/2 || c.size >= maxQueued/2
}

// stop ends the connection without DISCONNECT.
func (c *consumer) stop() { c.client.Stop(packets.ErrQuotaExceeded) }

// acknowledged removes a message that the client has acknowledged.
func (c *consumer) acknowledged(id uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if weight := c.pending[id]; weight > 0 {
		delete(c.pending, id)
		c.size -= weight
		c.ring()
	}
}

func (c *consumer) ring() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// dismiss ends the subscriptions of a connection and its requests with a response topic.
func (b *Broker) dismiss(conn net.Conn) {
	b.mu.Lock()
	delete(b.admitted, conn)
	c := b.consumers[conn]
	if c == nil {
		b.mu.Unlock()
		return
	}
	delete(b.consumers, conn)
	c.end()
	for filter := range c.filters {
		b.unsubscribeLocked(c, filter)
	}
	b.mu.Unlock()
	// Mochi does this itself, unless a packet made it panic (see listener.leave).
	if cl, ok := b.server.Clients.Get(c.client.ID); ok && cl == c.client {
		b.server.UnsubscribeClient(cl)
		b.server.Clients.Delete(cl.ID)
	}
}
