package mqtt

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	pahosession "github.com/eclipse/paho.golang/paho/session"
	"github.com/eclipse/paho.golang/paho/session/state"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
)

// receiveMaximum is the limit of unacknowledged messages from a broker (MQTT 5 §3.1.2.11.3).
const receiveMaximum = 64

// overhead estimates the size of a message without payload and topics, in bytes.
const overhead = 512

// wire5 implements MQTT 5.
type wire5 struct {
	paho  *paho.Client
	conn  *packet.Conn
	state *state.State
	life  context.Context // ends with the connection
	end   context.CancelFunc
	watch sync.WaitGroup
	limit int // of a packet that the broker takes, in bytes; 0: none
}

// dial5 connects to the broker at the other end of conn, which it owns. deliver receives every message and must not block. The error
// wraps errVersion if the broker refuses MQTT 5, or is a *refusal.
func dial5(ctx context.Context, conn *packet.Conn, id string, l login, limit int, deliver func(*delivery)) (wire, error) {
	w := &wire5{conn: conn, state: state.NewInMemory()}
	w.life, w.end = context.WithCancel(context.Background())
	w.paho = paho.NewClient(paho.ClientConfig{
		Conn: conn, Session: &safeSession{State: w.state}, AuthHandler: noAuth{}, PacketTimeout: ackTimeout,
		OnPublishReceived:  []func(paho.PublishReceived) (bool, error){received(deliver)},
		OnServerDisconnect: func(*paho.Disconnect) {}, // the end of the connection follows
	})
	maximum, size := uint16(receiveMaximum), uint32(min(int64(limit), math.MaxUint32))
	connect := &paho.Connect{ClientID: id, KeepAlive: keepAlive, CleanStart: true, Username: l.user, UsernameFlag: l != login{},
		Password: []byte(l.password), PasswordFlag: l != login{},
		// Some brokers drop user properties of messages if problem information is not requested (MQTT 5 §3.1.2.11.7).
		Properties: &paho.ConnectProperties{ReceiveMaximum: &maximum, MaximumPacketSize: &size, RequestProblemInfo: true}}
	// paho observes ctx while it waits for the response, but not while it writes.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	ack, err := w.paho.Connect(ctx, connect)
	stop()
	if err != nil {
		w.end()
		_ = conn.Close()
		return nil, refused5(ctx, conn, ack, err)
	}
	if ack.Properties != nil && ack.Properties.MaximumPacketSize != nil {
		w.limit = int(*ack.Properties.MaximumPacketSize)
	}
	w.watch.Go(func() {
		<-w.paho.Done()
		w.end()
	})
	return w, nil
}

// refused5 returns the error of a failed CONNECT.
func refused5(ctx context.Context, conn *packet.Conn, ack *paho.Connack, err error) error {
	switch {
	case ack != nil && ack.ReasonCode == packets.ConnackUnsupportedProtocolVersion, conn.IsV3(),
		errors.Is(conn.Cause(), packet.ErrSilent):
		return fmt.Errorf("%w: %w", errVersion, err)
	case ack != nil && ack.ReasonCode >= 0x80:
		r := &refusal{code: ack.ReasonCode}
		if ack.Properties != nil {
			r.reason = interact.Excerpt(ack.Properties.ReasonString, 200)
		}
		return r
	case ctx.Err() != nil:
		return ctx.Err()
	case conn.Cause() != nil:
		return conn.Cause()
	}
	return err
}

// received converts messages of paho to deliveries.
func received(deliver func(*delivery)) func(paho.PublishReceived) (bool, error) {
	return func(r paho.PublishReceived) (bool, error) {
		d := &delivery{topic: r.Packet.Topic, retained: r.Packet.Retain, data: r.Packet.Payload}
		if p := r.Packet.Properties; p != nil {
			// A queued message keeps only the used properties, within bounds: its weight is that of topic and payload.
			d.media, d.responseTopic = interact.Clip(p.ContentType, maxProperty+1), interact.Clip(p.ResponseTopic, packet.MaxTopic)
			d.correlation = slices.Clone(p.CorrelationData[:min(len(p.CorrelationData), 64)]) // that of this node is shorter
			for _, u := range p.User {
				if known := slices.Contains(answerProps[:], u.Key); known && len(u.Value) <= maxProperty && d.prop(u.Key) == "" {
					d.props = append(d.props, prop{u.Key, u.Value})
				}
			}
		}
		deliver(d)
		return true, nil
	}
}

func (w *wire5) version() byte          { return 5 }
func (w *wire5) ended() <-chan struct{} { return w.life.Done() }
func (w *wire5) cause() error           { return w.conn.Cause() }

// within returns ctx that also ends with the connection, which paho does not report to callers.
func (w *wire5) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, ackTimeout)
	stop := context.AfterFunc(w.life, cancel)
	return ctx, func() { stop(); cancel() }
}

func (w *wire5) publish(ctx context.Context, p *publication) error {
	if w.limit > 0 && len(p.data)+len(p.topic)+len(p.responseTopic)+overhead > w.limit {
		return &refusal{code: 0x95} // the broker would end the connection
	}
	packet := &paho.Publish{Topic: p.topic, QoS: p.qos, Retain: p.retain, Payload: p.data, Properties: &paho.PublishProperties{
		ContentType: p.media, ResponseTopic: p.responseTopic, CorrelationData: p.correlation}}
	if p.expiry > 0 {
		seconds := uint32(min((p.expiry+time.Second-1)/time.Second, math.MaxUint32))
		packet.Properties.MessageExpiry = &seconds
	}
	for _, u := range p.props {
		packet.Properties.User.Add(u.name, u.value)
	}
	inner, cancel := w.within(ctx)
	defer cancel()
	resp, err := w.paho.Publish(inner, packet)
	switch {
	case resp != nil && resp.ReasonCode >= 0x80:
		r := &refusal{code: resp.ReasonCode}
		if resp.Properties != nil {
			r.reason = interact.Excerpt(resp.Properties.ReasonString, 200)
		}
		return r
	case err == nil && resp != nil && resp.ReasonCode == 0x10: // MQTT 5 §3.4.2.1: no matching subscribers
		return errNoSubscriber
	case errors.Is(err, paho.ErrInvalidArguments):
		return &refusal{code: 0x9b, reason: interact.Excerpt(err.Error(), 200)}
	}
	return w.failed(ctx, inner, err)
}

func (w *wire5) subscribe(ctx context.Context, filter string, qos byte) error {
	inner, cancel := w.within(ctx)
	defer cancel()
	ack, err := w.paho.Subscribe(inner, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: filter, QoS: qos}}})
	switch {
	case ack != nil && len(ack.Reasons) != 1:
		return fmt.Errorf("%w: %d codes for one filter", packet.ErrProtocol, len(ack.Reasons))
	case ack != nil && ack.Reasons[0] >= 0x80:
		r := &refusal{code: ack.Reasons[0]}
		if ack.Properties != nil {
			r.reason = interact.Excerpt(ack.Properties.ReasonString, 200)
		}
		return r
	case errors.Is(err, paho.ErrInvalidArguments):
		return &refusal{code: 0xa2}
	}
	return w.failed(ctx, inner, err)
}

func (w *wire5) unsubscribe(ctx context.Context, filter string) error {
	inner, cancel := w.within(ctx)
	defer cancel()
	ack, err := w.paho.Unsubscribe(inner, &paho.Unsubscribe{Topics: []string{filter}})
	if ack != nil && len(ack.Reasons) == 1 && ack.Reasons[0] >= 0x80 {
		return &refusal{code: ack.Reasons[0]}
	}
	return w.failed(ctx, inner, err)
}

// failed converts an error of paho. inner is ctx, or has ended before it.
func (w *wire5) failed(ctx, inner context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pahosession.ErrNoConnection):
		return errUnsent
	case ctx.Err() != nil:
		return ctx.Err()
	case w.life.Err() == nil && inner.Err() != nil:
		return errSlowAck
	}
	return fmt.Errorf("%w: %w", errLost, err)
}

func (w *wire5) close() {
	_ = w.paho.Disconnect(&paho.Disconnect{}) // else the broker notices the end of the connection
	w.watch.Wait()
	_ = w.state.Close()
	w.end()
}

// A safeSession handles a race of paho 0.23, which responds to a PUBREC on a connection that it removes at the same time.
type safeSession struct {
	*state.State
	mu sync.Mutex // held while paho reads or removes the connection, because paho holds no lock
}

// PacketReceived implements the SessionManager of paho.
func (c *safeSession) PacketReceived(p *packets.ControlPacket, out chan<- *packets.Publish) (err error) {
	if p.Type != packets.PUBREC {
		return c.State.PacketReceived(p, out)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() {
		if recover() != nil { // there is no connection any more
			err = errLost
		}
	}()
	return c.State.PacketReceived(p, out)
}

// ConnectionLost implements the SessionManager of paho.
func (c *safeSession) ConnectionLost(p *packets.Disconnect) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.State.ConnectionLost(p)
}

// noAuth is the authenticator that paho requires. It is never announced, and [packet.Conn] ends the connection of a broker that uses it.
type noAuth struct{}

// Authenticate implements [paho.Auther].
func (noAuth) Authenticate(*paho.Auth) *paho.Auth {
	return &paho.Auth{ReasonCode: packets.AuthContinueAuthentication, Properties: &paho.AuthProperties{}}
}

// Authenticated implements [paho.Auther].
func (noAuth) Authenticated() {}
