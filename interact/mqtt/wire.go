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
	// version is 5, or 4 for MQTT 3.1.1 as its CONNECT says.
	version() byte
	// publish sends p and waits for the acknowledgement that its QoS asks for. Errors wrap errUnsent, errLost, errNobody or a
	// *refusal, or the context's.
	publish(ctx context.Context, p *publication) error
	// subscribe adds one filter and waits for the acknowledgement; to do it again makes the broker send retained messages again.
	subscribe(ctx context.Context, filter string, qos byte) error
	unsubscribe(ctx context.Context, filter string) error
	// ended is closed when the connection is gone; cause says why then.
	ended() <-chan struct{}
	cause() error
	// close ends the connection and waits for what it started.
	close()
}

// A publication is a message to publish. What MQTT 3.1.1 does not have is not sent there.
type publication struct {
	topic       string
	qos         byte
	retain      bool
	data        []byte
	media       string
	answerTo    string
	correlation []byte
	expiry      time.Duration // 0: never
	props       []prop
}

// add adds a user property; one that says nothing, or cannot be sent, is left out.
func (p *publication) add(name, value string) {
	if value != "" && isProperty(value) {
		p.props = append(p.props, prop{name, value})
	}
}

// A prop is a user property of MQTT 5.
type prop struct{ name, value string }

// A delivery is a message that came.
type delivery struct {
	topic       string
	retained    bool // it was kept by the broker from before the subscription
	data        []byte
	cut         bool // it was too large, and its payload is gone
	media       string
	answerTo    string
	correlation []byte
	props       []prop
}

// weight is what a message counts while it waits, in bytes.
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
	errUnsent       = errors.New("the connection was gone before it was sent")
	errLost         = errors.New("the connection broke")
	errNoSubscriber = errors.New("the topic has no subscriber")
	errVersion      = errors.New("the broker refuses this version of MQTT")
	errSlowAck      = errors.New("the broker did not acknowledge it in time")
)

// A refusal is a broker's No, in the codes of MQTT 5 (§2.4); those of 3.1.1 are translated.
type refusal struct {
	code   byte
	reason string // the broker's own words, bounded
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

// refusals are the reason codes that are told apart (MQTT 5 §2.4, §3.2.2.2, §3.4.2.1, §3.9.3).
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
