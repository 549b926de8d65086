// Package ws implements the WebSocket bindings, client and server: the LMOS subprotocol and the W3C Web Thing Protocol. [Server]
// serves the Things of the mesh to consumers, [Client] calls agents that are WebSocket servers, and [Attach] is an agent that dials
// its node and serves calls over that connection.
//
// One codec (interact/ws/frame) reads three dialects, frame by frame, and replies in the same dialect: the LMOS documents (doc), the
// Kotlin SDK (kotlin), and the Web Thing Protocol (wtp). A connection is symmetric (conn.go): it serves the requests of its peer
// (requests.go, subscription.go, invocation.go) and sends its own (call.go, peer.go), regardless of the side that dialed.
//
// # Extensions
//
// Some members are extensions of lmosd; other peers ignore them (LMOS WebSocket subprotocol: unknown members are ignored).
//
//	contentType        media type of the data, if it is not application/json. Text is then a JSON string
//	base64             true: the data is a JSON string in base64 (RFC 4648 §4)
//	state              the exact state of an action that a dialect does not have: running, cancelled
//	actionID           in every status of an action that has one, and in queryAction and cancelAction
//	error              in a failed actionStatus: the problem (RFC 9457)
//	lastNotificationId in LMOS observations and subscriptions, as the Web Thing Protocol has it
//	idempotencyKey     in invokeAction: with one key an action runs once
//	delegation         in requests: a delegation, by which the consumer uses the right of another caller (header Lmos-Capability of HTTP)
//	code, hint         in errors: "LMOS-1404", and the next step
//	caller             in requests to an agent of the node: the caller, {"id", "did", "node", "name", "via", "lentBy", …}. Ignored from other peers
//	timeLeft           in requests: the timeout of the response in milliseconds
//	hops               in requests: the number of nodes that relayed it, for the detection of loops
//	streams            true, in registerThing: the agent accepts request streams; in thingRegistered: the node sends them
//	stream             in invokeAction: the input follows in binary frames, as the stream of this number (frame.Packet)
//
// registerThing, thingRegistered and unregisterThing are separate messages, see [Attach].
//
// Sources: LMOS protocol, "WebSocket subprotocol"; kotlin-wot; W3C Web Thing Protocol WebSocket Sub-protocol; RFC 6455.
package ws

import "time"

// Fixed limits, in bytes unless stated otherwise.
const (
	maxQueued = 1 << 10 // frames that wait for a consumer
	maxHeld   = 8 << 20 // bytes of these frames
	maxThings = 256     // registered over one connection
	maxKnown  = 256     // cached descriptions of a connection
	maxRuns   = 1024    // stored runs of a connection
	maxKept   = 1 << 20 // bytes of the outputs of ended actions
	maxParts  = 1 << 16 // of an output that are joined
	maxWait   = 1 << 20 // bytes of the frames that wait to be written; a larger frame waits alone
	maxFrames = 32      // frames that wait to be written
)

// Defaults and times.
const (
	defaultMessage       = 4 << 20
	defaultPending       = 256
	defaultSubscriptions = 1000
	defaultRate          = 50_000 // frames per second
	pingAfter            = 30 * time.Second
	defaultKeep          = 10 * time.Minute
	pongWait             = 10 * time.Second
	writeTimeout         = 10 * time.Second // for a peer that reads too slowly
	farewell             = 3 * time.Second  // for the close handshake
	dialWait             = 15 * time.Second // for address, connection, TLS and upgrade
	idle                 = 5 * time.Minute  // after which a client closes an unused connection
	askWait              = 30 * time.Second // for the response to a request without a deadline, except actions
	knownFor             = 5 * time.Second  // a description is cached
	// ackDelay is the delay of an acknowledgement: the Thing must have started the observation, and may return an error. The first
	// notification ends the delay.
	ackDelay = 10 * time.Millisecond
)
