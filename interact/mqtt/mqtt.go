// Package mqtt implements the WoT MQTT binding: a client of brokers, and an embedded broker. [Client.Thing] calls agents and tools
// behind an MQTT broker, over the forms of their Thing Descriptions. [Broker] is a small broker that serves the Things of the mesh to
// MQTT clients.
//
// Files of the client: call.go (one operation), session.go (a connection to a broker), queue.go (messages that arrived), mqtt3.go and
// mqtt5.go (the versions). Files of the broker: broker.go, listener.go, login.go, consumer.go (a connected client), target.go (what a topic
// names), request.go (one request), watch.go (subscriptions).
//
// # Two styles of forms
//
// A form of the W3C binding names the broker in its href and the topic in terms of the MQTT vocabulary: mqv:topic, mqv:filter,
// mqv:qos, mqv:retain, mqv:controlPacket. A writing or an invocation is a published message, without a response. A reading is the
// retained message.
//
// A form of kotlin-wot has the topic in the path of its href, mqtt://host:1883/urn:x:lamp/actions/fade, and uses
// request/response: the request has a response topic (MQTT 5 §4.10), and the response is one message there. The path is the topic
// byte for byte, percent-encoded or not. The terms may have the prefix mqtt: and may stand inside "optionalProperties".
//
// A form is of the first style if it has a topic, a filter or a control packet, or if it retains.
//
// # Versions
//
// MQTT 5 is tried first. For a broker that refuses it, MQTT 3.1.1 is used, which has no request/response: operations that
// need a response are then refused (NotAllowed).
//
// # Message properties
//
// In MQTT 5 a message has its content type and these user properties, all optional. Requests: accept, traceparent, tracestate,
// lmos-follow ("true": each state of the action is a response), lmos-detach ("true"), lmos-key, lmos-hops (the
// number of nodes that relayed it, so that a loop ends); and, to agents of this node, lmos-caller, lmos-caller-via, lmos-caller-org,
// lmos-caller-roles, lmos-caller-groups and lmos-caller-lent-by. Responses: lmos-status, lmos-action-id, and lmos-code with an RFC 9457 problem.
// Events and readings: lmos-id, lmos-time (RFC 3339). The message expiry interval is the timeout of the consumer.
//
// Sources: WoT Binding Templates, MQTT; kotlin-wot, binding-mqtt; OASIS MQTT 5.0 and 3.1.1; RFC 9457; W3C Trace Context, MQTT.
package mqtt

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// maxPacket is the limit of a packet in bytes, unless [Options] say otherwise.
const maxPacket = 4 << 20

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
	reconnectTime = 5 * time.Minute  // how long a lost connection with subscribers is retried
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
	propCaller      = "lmos-caller" // to an agent of this node: the caller ([did.Principal.ID]), Via, Org, and Roles separated by spaces
	propCallerVia   = "lmos-caller-via"
	propCallerOrg   = "lmos-caller-org"
	propCallerRoles = "lmos-caller-roles"

	propCallerGroups = "lmos-caller-groups"  // "ID/ROLE", separated by spaces
	propCallerLentBy = "lmos-caller-lent-by" // of a call by a delegation: the ID of the delegator
	propStatus       = "lmos-status"
	propActionID     = "lmos-action-id"
	propCode         = "lmos-code"
	propID           = "lmos-id"
	propTime         = "lmos-time"
)

// answerProps are the user properties of responses and readings.
var answerProps = [...]string{propStatus, propActionID, propCode, propID, propTime}

// Options are the settings of a [Client]. The zero value works.
type Options struct {
	// Credentials are the secrets for brokers: user name and password of a security scheme "basic". The zero value has none.
	Credentials credentials.Store
	// Dial opens every connection; nil means a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS is the configuration for mqtts; nil trusts the roots of the system. It is copied, and the server name is set.
	TLS *tls.Config
	// Log receives log records; nil discards them.
	Log *slog.Logger
	// MaxPacket is the limit of a packet from a broker in bytes; 0 means 4 MiB. It is announced to MQTT 5
	// brokers, which then drop larger packets; the payload of a larger packet from a 3.1.1 broker is dropped, and its interaction fails.
	MaxPacket int
	// Queue limits the messages, of 8 MiB at most, that wait for a slow consumer before its observation fails (Overloaded);
	// 0 means 1024.
	Queue int
	// Idle is how long an unused connection stays open; 0 means 30 s.
	Idle time.Duration
}

// A Client calls agents behind MQTT brokers. All interactions at a broker with the same credentials share a connection, unless their
// filters overlap. It is safe for concurrent use.
type Client struct {
	o        Options
	consumer form.Consumer
	tasks    sync.WaitGroup // closes idle sessions

	mu       sync.Mutex // guards the rest
	closed   bool
	sessions map[sessionKey]*session
	versions map[string]brokerVersion
}

// A brokerVersion is the known MQTT version of a broker.
type brokerVersion struct {
	version byte
	until   time.Time
}

// NewClient returns a client with options o. Close it when it is done.
func NewClient(o Options) *Client {
	if o.Dial == nil {
		o.Dial = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.MaxPacket = cmp.Or(max(o.MaxPacket, 0), maxPacket)
	o.Queue = cmp.Or(max(o.Queue, 0), maxQueue)
	o.Idle = cmp.Or(max(o.Idle, 0), idleTime)
	c := &Client{o: o, sessions: map[sessionKey]*session{}, versions: map[string]brokerVersion{}}
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

// Supports reports whether this binding can use the form f: its scheme is one of MQTT (td/scheme).
func Supports(f *td.Form) bool {
	return scheme.Lookup(f.Scheme()).Protocol == "mqtt" && f.Subprotocol == ""
}

// Thing returns the agent that t describes. Over the MQTT forms of t it supports ReadProperty, WriteProperty,
// ObserveProperty, ObserveAllProperties, InvokeAction, SubscribeEvent and SubscribeAllEvents; other messages are
// [interact.NotAllowed]. It uses the first form with the content type of the message or an accepted one, else the first form to
// whose type the data can be converted.
//
// Errors are always an [*interact.Error]:
//   - NotAllowed, UnsupportedType, Unauthenticated, BadTD: nothing was sent. That includes credentials that the broker refuses.
//   - Unreachable: the broker was not reached, or has no subscriber for the topic; with Started, the connection broke after sending.
//   - Timeout: no response came, or no message is retained.
//   - AgentFailed, with Remote: the agent returned a problem, or the broker refused the message.
//   - Overloaded: the consumer of an observation was too slow.
//
// An observation survives a lost connection for 5 minutes; messages in between are lost. The default deadline is 30 s, except for
// observations and subscriptions. The default QoS is 1.
func (c *Client) Thing(t *td.Thing) interact.Thing { return c.consumer.Thing(t) }

// version returns the known MQTT version of the broker at host, or 0.
func (c *Client) version(host string, now time.Time) byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k, ok := c.versions[host]; ok && now.Before(k.until) {
		return k.version
	}
	return 0
}

// learn stores the version of a broker for one hour: the broker may be upgraded.
func (c *Client) learn(host string, version byte, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	boundedmap.Put(&c.versions, host, brokerVersion{version: version, until: now.Add(versionKnown)}, maxVersions,
		func(k brokerVersion) bool { return !now.Before(k.until) })
}
