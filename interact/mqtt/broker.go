package mqtt

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
	"golang.org/x/sync/semaphore"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
	"github.com/lmosd/lmosd/td"
)

// Default limits of a broker.
const (
	defaultConnections = 128
	defaultRequests    = 32
	maxRequests        = 1024     // that run at once for all clients
	maxRequestBytes    = 64 << 20 // of their payloads
	maxClientFilters   = 256      // subscriptions of a client
	maxWatches         = 4096     // affordances that are observed for all clients
	maxClientWatches   = maxWatches / 4
	greeting           = 10 * time.Second
	resolveTime        = 10 * time.Second // to find the thing of a subscription
	requestTime        = interact.MaxWait // limit of a request
)

// BrokerOptions are the settings of a [Broker]. Mesh and Find are required; the other zero values are defaults.
type BrokerOptions struct {
	// Listen is host and port of the TCP socket; port 0 takes a free one.
	Listen string
	// TLS makes it a broker for mqtts; nil uses no TLS.
	TLS *tls.Config
	// Mesh authorizes and handles the requests.
	Mesh interact.Thing
	// From is the principal of all clients without Auth, as the listener proves it.
	From *did.Principal
	// Find resolves a reference to a thing. Its error is sent unchanged; it should be an [*interact.Error].
	Find func(ctx context.Context, ref string) (*td.Description, error)
	// Permits reports whether a client may observe an affordance of a Thing. A filter that covers none that it may is refused. Nil permits all.
	Permits func(from *did.Principal, d *td.Description, typ interact.Type, name string) bool
	// Auth returns the principal of a client, and a context whose end disconnects it; a nil principal refuses the client. A nil Auth accepts
	// all, and Listen must then be a loopback address.
	Auth func(user, password string) (*did.Principal, context.Context)
	// Gate holds the requests until their responses are sent; nil holds none.
	Gate *interact.Gate
	// Log receives log records; nil discards them.
	Log *slog.Logger
	// MaxConnections limits the connected clients; a remote host may have half of them; 0 means 128.
	MaxConnections int
	// MaxRequests limits the concurrent requests of one client; 0 means 32.
	MaxRequests int
	// MaxPacket is the limit of a packet from a client in bytes; 0 means 4 MiB.
	MaxPacket int
}

// A Broker serves the Things of a mesh to MQTT clients, in MQTT 5 and 3.1.1. It is not a general broker: clients publish requests and
// subscribe to changes and events of Things, and receive no messages of other clients.
//
// {thing} is an id, a name or an exact reference, percent-encoded for topics ([packet.Topic]). Requests are published with the
// response topic {topic}/reply/{id}, to which the client subscribes before; only that client receives the response:
//
//	{thing}                        the description
//	{thing}/properties             all readable values; with an object they are written; with an array of names these are read
//	{thing}/properties/{p}         the value; with a payload it is written
//	{thing}/actions                the states of all actions
//	{thing}/actions/{a}            the action is invoked; the payload is its input
//	{thing}/actions/{a}/query      the state of the run whose id is the payload, without one of the latest
//	{thing}/actions/{a}/cancel     that run is cancelled
//
// and these are subscribed to, also with + as name, or # at the end:
//
//	{thing}/properties/{p}/observable
//	{thing}/events/{e}
//
// The first subscriber of an affordance starts one observation at the mesh; the last one ends it. A failed observation is started
// again, with the events in between if the mesh has them.
//
// A response is one message, with the correlation data of the request: output, value or description, no data after a write,
// or an RFC 9457 problem with its code in the user property lmos-code. With the user property lmos-follow the states of an
// action are sent as they arrive, each with lmos-status; without it the response is the whole response stream, or the state of an
// action that runs in the background (Web Thing Protocol, ActionStatus). A request without a response topic gets no response, as in
// MQTT 3.1.1. The message expiry interval is the timeout of the consumer; the default is 30 s.
//
// Messages have QoS 1 at most. Nothing is retained, wills are dropped, and sessions end with their connections. A client that
// does not read is disconnected when 256 messages or 8 MiB wait for it.
type Broker struct {
	o        BrokerOptions
	server   *mochi.Server
	listener *listener
	life     context.Context // ends with Close
	end      context.CancelFunc
	tasks    sync.WaitGroup
	runs     sync.WaitGroup // Run
	room     *semaphore.Weighted
	bytes    *semaphore.Weighted
	deaf     *semaphore.Weighted // requests without a response: they continue when their clients disconnect
	closed   sync.Once

	mu        sync.Mutex // guards the rest
	running   bool
	admitted  map[net.Conn]admission // of clients whose CONNECT is being accepted
	consumers map[net.Conn]*consumer
	watches   map[watchKey]*watch

	crowded, refused, busy rareLog // rate limits of log records about limits
}

// NewBroker opens the socket of a broker. Run it and Close it. The error is an [*interact.Error]: PortBusy, WildcardBind for an
// address that other hosts reach without Auth, or ConfigInvalid.
func NewBroker(o BrokerOptions) (*Broker, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.MaxConnections = cmp.Or(max(o.MaxConnections, 0), defaultConnections)
	o.MaxRequests = cmp.Or(max(o.MaxRequests, 0), defaultRequests)
	o.MaxPacket = cmp.Or(max(o.MaxPacket, 0), maxPacket)
	socket, err := listen(o)
	if err != nil {
		return nil, err
	}
	b := &Broker{o: o, room: semaphore.NewWeighted(maxRequests),
		bytes: semaphore.NewWeighted(max(maxRequestBytes, int64(o.MaxPacket))), deaf: semaphore.NewWeighted(maxRequests / 2),
		admitted: map[net.Conn]admission{}, consumers: map[net.Conn]*consumer{}, watches: map[watchKey]*watch{}}
	b.life, b.end = context.WithCancel(context.Background())
	b.listener = newListener(socket, o, b.goodbye, b.dismiss)
	b.server = mochi.New(&mochi.Options{
		Capabilities: &mochi.Capabilities{
			MaximumClients:             math.MaxInt64, // the listener counts
			MaximumClientWritesPending: 1,             // nothing is queued there: see consumer
			MaximumPacketSize:          uint32(min(int64(o.MaxPacket)+packet.MaxControl, math.MaxUint32)),
			ReceiveMaximum:             uint16(min(o.MaxRequests, math.MaxUint16)),
			MaximumInflight:            1024,
			MinimumProtocolVersion:     4,
			MaximumQos:                 2,
			WildcardSubAvailable:       1,
			SubIDAvailable:             0,
			// An acknowledgement has no properties of the request.
			Compatibilities: mochi.Compatibilities{NoInheritedPropertiesOnAck: true},
		},
		Logger: slog.New(slog.DiscardHandler), // it writes whole packets, secrets included
		// No $SYS: clients cannot subscribe to it, and the broker does not count for it.
		SysTopicResendInterval: 1 << 30,
	})
	if err := errors.Join(b.server.AddHook(&hooks{broker: b}, nil), b.server.AddListener(b.listener)); err != nil {
		socket.Close()
		return nil, &interact.Error{Code: interact.Internal, Title: "the MQTT broker cannot be set up", Err: err}
	}
	return b, nil
}

func listen(o BrokerOptions) (net.Listener, error) {
	l, err := net.Listen("tcp", o.Listen)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, &interact.Error{Code: interact.PortBusy, Title: o.Listen + " is in use",
			Hint: "choose another port for mqtt.listen", Err: err}
	case err != nil:
		return nil, &interact.Error{Code: interact.ConfigInvalid, Title: "cannot listen on " + o.Listen,
			Hint: "for example mqtt.listen: 127.0.0.1:1883", Err: err}
	}
	if a, ok := l.Addr().(*net.TCPAddr); o.Auth == nil && (!ok || !a.IP.IsLoopback()) {
		l.Close() // it has served no client
		return nil, interact.Errorf(interact.WildcardBind, "listen on 127.0.0.1, or set http.auth: token",
			"the MQTT broker at %s is reachable from other hosts and has no authentication", o.Listen)
	}
	if o.TLS != nil {
		l = tls.NewListener(l, o.TLS)
	}
	return l, nil
}

// Addr returns the address of the socket.
func (b *Broker) Addr() net.Addr { return b.listener.Addr() }

// Run serves clients until ctx or the broker ends, and returns when the last goroutine has. It is called once at most.
func (b *Broker) Run(ctx context.Context) error {
	b.mu.Lock()
	if b.running || b.life.Err() != nil {
		b.mu.Unlock()
		return errors.New("the MQTT broker is running or closed")
	}
	b.running = true
	b.runs.Add(1)
	b.mu.Unlock()
	defer b.runs.Done()
	if err := b.server.Serve(); err != nil {
		b.shut()
		return err
	}
	b.o.Log.Info("mqtt broker", "listen", b.Addr().String())
	select {
	case <-ctx.Done():
	case <-b.life.Done():
	}
	b.shut()
	return nil
}

// Close ends the broker and waits for it.
func (b *Broker) Close() error {
	b.shut()
	b.runs.Wait()
	return nil
}

// shut closes the socket, disconnects the clients, and waits for what they have started.
func (b *Broker) shut() {
	b.closed.Do(func() {
		b.mu.Lock()
		b.end()
		b.mu.Unlock()
		_ = b.server.Close() // its hooks and listeners give no errors
		b.tasks.Wait()
	})
}

// goodbye sends DISCONNECT with the reason of the shutdown to the clients.
func (b *Broker) goodbye() {
	var work sync.WaitGroup
	b.mu.Lock()
	for _, c := range b.consumers {
		work.Go(func() { b.disconnect(c, packets.ErrServerShuttingDown) })
	}
	b.mu.Unlock()
	work.Wait()
}

// spawn runs f in a goroutine that Run waits for, unless the broker has ended.
func (b *Broker) spawn(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spawnLocked(f)
}

func (b *Broker) spawnLocked(f func()) bool {
	if b.life.Err() != nil {
		return false
	}
	b.tasks.Go(f)
	return true
}

// hooks are the callbacks of mochi.
type hooks struct {
	mochi.HookBase
	broker *Broker
}

// ID implements [mochi.Hook].
func (*hooks) ID() string { return "lmosd" }

// Provides implements [mochi.Hook].
func (*hooks) Provides(b byte) bool {
	switch b {
	case mochi.OnConnect, mochi.OnConnectAuthenticate, mochi.OnACLCheck, mochi.OnPacketRead, mochi.OnPacketEncode,
		mochi.OnSessionEstablish,
		mochi.OnSubscribe, mochi.OnSubscribed, mochi.OnUnsubscribed, mochi.OnPublish:
		return true
	}
	return false
}

// OnPacketRead implements [mochi.Hook]: it removes unsupported options, and records acknowledgements.
func (h *hooks) OnPacketRead(cl *mochi.Client, pk packets.Packet) (packets.Packet, error) {
	switch pk.FixedHeader.Type {
	case packets.Connect:
		// A will would be published without authorization, and a session would outlive its watches.
		pk.Connect.WillFlag, pk.Connect.WillRetain, pk.Connect.WillQos, pk.Connect.Clean = false, false, 0, true
	case packets.Puback:
		if c := h.broker.consumer(cl); c != nil {
			c.acknowledged(pk.PacketID)
		}
	}
	return pk, nil
}

// OnConnect implements [mochi.Hook].
func (h *hooks) OnConnect(cl *mochi.Client, _ packets.Packet) error {
	// Mochi must not receive an identifier twice: it would lock a read lock twice, and hang if the other client is busy (see admit).
	// Without a quota it does not search for messages to send, which has the same defect.
	cl.ID = strconv.Quote(string(cl.Properties.Username)) + cl.ID + "\x00" + interact.NewID()
	cl.State.Inflight.ResetSendQuota(0)
	if cl.Properties.ProtocolVersion == 5 && (cl.State.Keepalive == 0 || cl.State.Keepalive > 300) { // MQTT 5 §3.2.2.3.14
		cl.State.Keepalive, cl.State.ServerKeepalive = 300, true
	}
	return nil
}

// OnConnectAuthenticate implements [mochi.Hook].
func (h *hooks) OnConnectAuthenticate(cl *mochi.Client, pk packets.Packet) bool {
	who := admission{h.broker.o.From, context.Background()}
	if auth := h.broker.o.Auth; auth != nil {
		if who.from, who.until = auth(string(pk.Connect.Username), string(pk.Connect.Password)); who.from == nil {
			h.broker.refused.warn(h.broker.o.Log, "mqtt client refused", "remote", cl.Net.Remote)
			return false
		}
	}
	h.broker.mu.Lock()
	defer h.broker.mu.Unlock()
	h.broker.admitted[cl.Net.Conn] = who
	return true
}

// An admission is the principal of a client, until the end of a context.
type admission struct {
	from  *did.Principal
	until context.Context
}

// OnSessionEstablish implements [mochi.Hook].
func (h *hooks) OnSessionEstablish(cl *mochi.Client, _ packets.Packet) { h.broker.admit(cl) }

// OnPacketEncode implements [mochi.Hook]: a CONNACK lists what is not supported (MQTT 5 §3.2.2.3), and messages keep their user
// properties even if the client requests no problem information (§3.1.2.11.7).
func (h *hooks) OnPacketEncode(_ *mochi.Client, pk packets.Packet) packets.Packet {
	if pk.FixedHeader.Type == packets.Publish {
		pk.Mods.DisallowProblemInfo = false
	}
	if pk.FixedHeader.Type == packets.Connack && pk.ReasonCode == packets.CodeSuccess.Code {
		p := &pk.Properties
		p.MaximumPacketSize = uint32(min(h.broker.o.MaxPacket, math.MaxInt32))
		p.RetainAvailableFlag, p.SharedSubAvailableFlag, p.SubIDAvailableFlag = true, true, true
		p.RetainAvailable, p.SharedSubAvailable, p.SubIDAvailable = 0, 0, 0
	}
	return pk
}

// OnSubscribe implements [mochi.Hook].
func (h *hooks) OnSubscribe(cl *mochi.Client, pk packets.Packet) packets.Packet {
	c := h.broker.consumer(cl)
	if c == nil {
		return pk
	}
	ctx, cancel := context.WithTimeout(c.life, resolveTime)
	defer cancel()
	for i := range pk.Filters {
		f := &pk.Filters[i]
		f.Qos = min(f.Qos, 1)
		if len(c.proposed) < maxClientFilters {
			c.proposed[f.Filter] = h.broker.propose(ctx, c, f.Filter, f.Qos)
		}
	}
	return pk
}

// OnACLCheck implements [mochi.Hook].
func (h *hooks) OnACLCheck(cl *mochi.Client, topic string, write bool) bool {
	if write {
		_, ok := parseRequest(topic)
		return ok
	}
	c := h.broker.consumer(cl)
	return c != nil && c.proposed[topic] != nil
}

// OnSubscribed implements [mochi.Hook].
func (h *hooks) OnSubscribed(cl *mochi.Client, pk packets.Packet, codes []byte) {
	c := h.broker.consumer(cl)
	if c == nil {
		return
	}
	for i, f := range pk.Filters {
		if p := c.proposed[f.Filter]; p != nil && codes[i] <= packets.CodeGrantedQos2.Code {
			h.broker.subscribe(c, f.Filter, p)
		}
	}
	clear(c.proposed)
}

// OnUnsubscribed implements [mochi.Hook].
func (h *hooks) OnUnsubscribed(cl *mochi.Client, pk packets.Packet) {
	if c := h.broker.consumer(cl); c != nil {
		for _, f := range pk.Filters {
			h.broker.unsubscribe(c, f.Filter)
		}
	}
}

// OnPublish implements [mochi.Hook]: every message is a request; other clients do not receive it.
func (h *hooks) OnPublish(cl *mochi.Client, pk packets.Packet) (packets.Packet, error) {
	code := packets.ErrNotAuthorized
	if c := h.broker.consumer(cl); c != nil {
		code = h.broker.accept(c, pk)
	}
	if code.Code >= packets.ErrUnspecifiedError.Code && pk.FixedHeader.Qos == 1 && cl.Properties.ProtocolVersion == 5 {
		return pk, code
	}
	return pk, packets.CodeSuccessIgnore
}
