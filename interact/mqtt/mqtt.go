// Package mqtt implements the WoT MQTT binding: a client of brokers, and an embedded broker. [Client.Thing] asks agents and tools
// behind an MQTT broker: it follows the forms of their Thing Descriptions. [Broker] is a small broker of its own that offers the
// things of the mesh to MQTT clients.
//
// # Two styles of forms
//
// A form of the W3C binding names the broker in its href and the topic in terms of the MQTT vocabulary: mqv:topic, mqv:filter,
// mqv:qos, mqv:retain, mqv:controlPacket. To write or to invoke is to publish, and nobody answers. To read is to take the
// retained message.
//
// A form of kotlin-wot has the topic in the path of its href, mqtt://host:1883/urn:x:lamp/actions/fade, and asks: the request
// says where the answer is to go (MQTT 5 §4.10, request/response), and the answer is one message there. The path is the topic
// byte for byte, percent-encoded or not. The terms may have the prefix mqtt: and may stand inside "optionalProperties".
//
// A form is of the first style if it has a topic, a filter or a control packet, or if it retains.
//
// # Versions
//
// MQTT 5 is tried first. A broker that refuses it is asked in MQTT 3.1.1, where no message can say what it is an answer to: what
// needs an answer is then refused (NotAllowed).
//
// # What messages carry
//
// In MQTT 5 a message has its content type and these user properties, all optional. Requests: accept, traceparent, tracestate,
// lmos-follow ("true": states of the action are wanted as they come), lmos-detach ("true"), lmos-key, lmos-hops (how many
// nodes relayed it, so that a loop ends). Answers: lmos-status, lmos-action-id, and lmos-code beside an RFC 9457 problem. Events and readings: lmos-id, lmos-time (RFC 3339). How long the
// consumer waits is the message expiry interval.
//
// Sources: WoT Binding Templates, MQTT; kotlin-wot, binding-mqtt; OASIS MQTT 5.0 and 3.1.1; RFC 9457; W3C Trace Context, MQTT.
package mqtt

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// MaxPacket is the limit of a packet in bytes, unless [Options] say otherwise.
const MaxPacket = 4 << 20

// Limits of a client.
const (
	maxSessions  = 128  // connections to brokers
	maxFilters   = 4096 // subscriptions of one connection
	maxVersions  = 1024 // brokers whose version is remembered
	maxConns     = 8    // connections to one broker with one set of credentials
	maxQueue     = 1024 // messages that wait for a slow consumer
	versionKnown = time.Hour
)

// Times of a connection.
const (
	dialTimeout   = 10 * time.Second // TCP, TLS and CONNACK
	ackTimeout    = 10 * time.Second // a broker's acknowledgement
	keepAlive     = 30               // seconds
	idleTime      = 30 * time.Second // a connection without users is kept open
	reconnectTime = 5 * time.Minute  // a lost connection is tried again for those who listen
	firstPause    = 100 * time.Millisecond
	maxPause      = 30 * time.Second
)

// User properties (package comment).
const (
	propAccept      = "accept"
	propTraceParent = "traceparent"
	propTraceState  = "tracestate"
	propFollow      = "lmos-follow"
	propDetach      = "lmos-detach"
	propKey         = "lmos-key"
	propHops        = "lmos-hops"
	propCaller      = "lmos-caller" // to an agent of this node: who asks
	propStatus      = "lmos-status"
	propActionID    = "lmos-action-id"
	propCode        = "lmos-code"
	propID          = "lmos-id"
	propTime        = "lmos-time"
)

// answerProps are those that answers and readings have.
var answerProps = [...]string{propStatus, propActionID, propCode, propID, propTime}

// Options are the settings of a [Client]. The zero value works.
type Options struct {
	// Credentials are what brokers ask for: user name and password of a security scheme "basic". The zero value has none.
	Credentials credentials.Store
	// Dial opens every connection; nil means a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS is the configuration for mqtts; nil trusts what the system trusts. It is copied, and the server's name is set.
	TLS *tls.Config
	// Log receives log records; nil discards them.
	Log *slog.Logger
	// MaxPacket is the limit of a packet from a broker in bytes; 0 means 4 MiB. MQTT 5 brokers are told and keep back what is
	// larger; what a 3.1.1 broker sends beyond it is dropped and fails who waits for it.
	MaxPacket int
	// Queue is how many messages, and 8 MiB at most, may wait for a slow consumer before its observation fails (Overloaded);
	// 0 means 1024.
	Queue int
	// Idle is how long a connection that nobody uses stays open; 0 means 30 s.
	Idle time.Duration
}

// A Client asks agents behind MQTT brokers. There is one connection for all who ask one broker with the same credentials, and
// more only where filters overlap. It is safe for concurrent use.
type Client struct {
	o        Options
	consumer form.Consumer
	tasks    sync.WaitGroup // closes idle sessions

	mu       sync.Mutex // guards the rest
	closed   bool
	sessions map[sessionKey]*session
	versions map[string]known
}

// known is the version that a broker speaks, as far as was seen.
type known struct {
	version byte
	until   time.Time
}

// NewClient returns a client with options o. Close it when it is done.
func NewClient(o Options) *Client {
	if o.Dial == nil {
		o.Dial = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MaxPacket <= 0 {
		o.MaxPacket = MaxPacket
	}
	if o.Queue <= 0 {
		o.Queue = maxQueue
	}
	if o.Idle <= 0 {
		o.Idle = idleTime
	}
	c := &Client{o: o, sessions: map[sessionKey]*session{}, versions: map[string]known{}}
	c.consumer = form.Consumer{Transport: c, NoVariables: true, Security: form.Security{Protocol: "MQTT", Schemes: []string{"basic"},
		Credentials: o.Credentials, Log: o.Log, Add: (*form.Secrets).AddLogin}}
	return c
}

// Close closes all connections and waits for the client's goroutines. Interactions that still run fail (ShuttingDown).
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	open := c.sessions
	c.sessions = map[sessionKey]*session{}
	c.mu.Unlock()
	var closing sync.WaitGroup
	for _, s := range open {
		closing.Go(s.close)
	}
	closing.Wait()
	c.tasks.Wait()
}

// Claims reports whether this binding can use the form f: its scheme is mqtt or mqtts.
func Claims(f *td.Form) bool {
	return scheme.Lookup(f.Scheme()).Protocol == "mqtt" && f.Subprotocol == ""
}

// Thing returns the agent that t describes. Over the mqtt and mqtts forms of t it answers ReadProperty, WriteProperty,
// ObserveProperty, ObserveAllProperties, InvokeAction, SubscribeEvent and SubscribeAllEvents; other messages are
// [interact.NotAllowed]. It takes the first form whose content type is that of the message or the one that the consumer would
// like, else the first whose type the data can be converted to.
//
// Errors are always an [*interact.Error]:
//   - NotAllowed, UnsupportedType, Unauthenticated, BadTD: nothing was sent. A broker's refusal of the credentials is such.
//   - Unreachable: the broker was not reached, or nobody listens there; with Started, the connection broke after the sending.
//   - Timeout: no answer came, or no message is retained.
//   - AgentFailed, with Remote: the agent answered with a problem, or the broker refused the message.
//   - Overloaded: the consumer of an observation was too slow.
//
// An observation survives a lost connection for five minutes; what is published in between is lost. A message without a deadline
// has 30 s, but for observations and subscriptions. QoS is 1 unless the form says otherwise.
func (c *Client) Thing(t *td.Thing) interact.Thing { return c.consumer.Thing(t) }

// version returns the version that the broker at host spoke last, 0 if it is not known.
func (c *Client) version(host string, now time.Time) byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k, ok := c.versions[host]; ok && now.Before(k.until) {
		return k.version
	}
	return 0
}

// learn remembers the version of a broker for an hour: it may be replaced by a newer one.
func (c *Client) learn(host string, version byte, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.versions[host]; !ok && len(c.versions) >= maxVersions {
		for other := range c.versions {
			delete(c.versions, other)
			break
		}
	}
	c.versions[host] = known{version: version, until: now.Add(versionKnown)}
}
