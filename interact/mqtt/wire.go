package mqtt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// A wire is one connection to a broker in one version of the protocol. Its methods are safe for concurrent use.
type wire interface {
	// version is the protocol version in CONNECT: 5, or 4 for MQTT 3.1.1.
	version() byte
	// publish sends p and waits for the acknowledgement of its QoS. Errors wrap errUnsent, errLost, errNoSubscriber or a
	// *refusal, or the context's.
	publish(ctx context.Context, p *publication) error
	// subscribe adds one filter and waits for the acknowledgement; after a repetition the broker sends retained messages again.
	subscribe(ctx context.Context, filter string, qos byte) error
	unsubscribe(ctx context.Context, filter string) error
	// ended is closed at the end of the connection; cause then returns its cause.
	ended() <-chan struct{}
	cause() error
	// close ends the connection and waits for its goroutines.
	close()
}

// A publication is a message to publish. Fields that MQTT 3.1.1 does not have are not sent there.
type publication struct {
	topic         string
	qos           byte
	retain        bool
	data          []byte
	media         string
	responseTopic string
	correlation   []byte
	expiry        time.Duration // 0: never
	props         []prop
}

// add adds a user property, unless it is empty or cannot be sent.
func (p *publication) add(name, value string) {
	if value != "" && isProperty(value) {
		p.props = append(p.props, prop{name, value})
	}
}

// A prop is a user property of MQTT 5.
type prop struct{ name, value string }

// A delivery is a received message.
type delivery struct {
	topic         string
	retained      bool // it is older than the subscription
	data          []byte
	cut           bool // it was too large, and its payload was dropped
	media         string
	responseTopic string
	correlation   []byte
	props         []prop
}

// weight is the size of a message for the limit of a queue, in bytes.
func (d *delivery) weight() int { return len(d.data) + len(d.topic) + overhead }

// prop returns the first user property called name.
func (d *delivery) prop(name string) string {
	for _, p := range d.props {
		if p.name == name {
			return p.value
		}
	}
	return ""
}

// Errors of wires.
var (
	errUnsent       = errors.New("the connection was lost before it was sent")
	errLost         = errors.New("the connection was lost")
	errNoSubscriber = errors.New("the topic has no subscriber")
	errVersion      = errors.New("the broker refuses this version of MQTT")
	errSlowAck      = errors.New("the broker did not acknowledge it in time")
)

// A refusal is a failure code of a broker, in the codes of MQTT 5 (§2.4); those of 3.1.1 are converted.
type refusal struct {
	code   byte
	reason string // text of the broker, bounded
}

func (r *refusal) Error() string {
	text := refusals[r.code].text
	if text == "" {
		text = fmt.Sprintf("reason %#x", r.code)
	}
	if r.reason != "" {
		text += " (" + r.reason + ")"
	}
	return text
}

// refusals are the distinguished reason codes (MQTT 5 §2.4, §3.2.2.2, §3.4.2.1, §3.9.3).
var refusals = map[byte]struct {
	text string
	code interact.Code
}{
	0x80: {"unspecified error", interact.AgentFailed},
	0x81: {"malformed packet", interact.AgentFailed},
	0x82: {"protocol error", interact.AgentFailed},
	0x83: {"implementation specific error", interact.AgentFailed},
	0x84: {"unsupported protocol version", interact.Unreachable},
	0x85: {"client identifier not valid", interact.Unreachable},
	0x86: {"bad user name or password", interact.Unauthenticated},
	0x87: {"not authorized", interact.Unauthenticated},
	0x88: {"server unavailable", interact.Unreachable},
	0x89: {"server busy", interact.Unreachable},
	0x8a: {"banned", interact.Unreachable},
	0x8c: {"bad authentication method", interact.Unauthenticated},
	0x8f: {"topic filter invalid", interact.AgentFailed},
	0x90: {"topic name invalid", interact.AgentFailed},
	0x91: {"packet identifier in use", interact.AgentFailed},
	0x95: {"packet too large", interact.TooLarge},
	0x97: {"quota exceeded", interact.Overloaded},
	0x99: {"payload format invalid", interact.AgentFailed},
	0x9a: {"retain not supported", interact.NotAllowed},
	0x9b: {"QoS not supported", interact.NotAllowed},
	0x9c: {"use another server", interact.Unreachable},
	0x9d: {"server moved", interact.Unreachable},
	0x9f: {"connection rate exceeded", interact.Unreachable},
	0xa2: {"wildcard subscriptions not supported", interact.NotAllowed},
}

// connectCodes are the return codes of a CONNACK of MQTT 3.1.1 (§3.2.2.3) as reason codes of MQTT 5.
var connectCodes = map[byte]byte{1: 0x84, 2: 0x85, 3: 0x88, 4: 0x86, 5: 0x87}
