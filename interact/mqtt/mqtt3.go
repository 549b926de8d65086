package mqtt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	paho3 "github.com/eclipse/paho.mqtt.golang"
	packets3 "github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/lmosd/lmosd/interact/mqtt/packet"
)

// wire3 implements MQTT 3.1.1.
type wire3 struct {
	paho  paho3.Client
	conn  *packet.Conn
	life  context.Context // ends with the connection
	end   context.CancelFunc
	tasks sync.WaitGroup // calls of paho, which take no context

	mu     sync.Mutex // guards closed
	closed bool       // no task can start
}

// dial3 is [dial5] for MQTT 3.1.1. A message that paho cannot take over within handover is given up.
func dial3(ctx context.Context, conn *packet.Conn, id string, l login, handover time.Duration,
	deliver func(*delivery)) (wire, error) {
	w := &wire3{conn: conn}
	w.life, w.end = context.WithCancel(context.Background())
	o := paho3.NewClientOptions().AddBroker("tcp://broker").SetClientID(id).SetProtocolVersion(4).SetCleanSession(true).
		SetAutoReconnect(false).SetConnectRetry(false).SetOrderMatters(true).SetKeepAlive(keepAlive * time.Second).
		SetPingTimeout(ackTimeout).SetConnectTimeout(dialTimeout).SetWriteTimeout(handover).
		SetCustomOpenConnectionFn(func(*url.URL, paho3.ClientOptions) (net.Conn, error) { return conn, nil }).
		SetConnectionLostHandler(func(paho3.Client, error) { w.end() }).
		SetDefaultPublishHandler(func(_ paho3.Client, m paho3.Message) {
			d := &delivery{topic: m.Topic(), retained: m.Retained(), data: m.Payload()}
			d.cut = len(d.data) == 0 && conn.WasCut(d.topic)
			deliver(d)
		})
	if l != (login{}) {
		o.SetUsername(l.user).SetPassword(l.password)
	}
	w.paho = paho3.NewClient(o)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	token := w.paho.Connect()
	<-token.Done() // the connection timeout ends it
	stop()
	if err := token.Error(); err != nil {
		w.end()
		_ = conn.Close()
		return nil, refused3(ctx, conn, err)
	}
	return w, nil
}

// refused3 returns the error of a failed CONNECT.
func refused3(ctx context.Context, conn *packet.Conn, err error) error {
	for code, reason := range connectCodes {
		if errors.Is(err, packets3.ConnErrors[code]) {
			return &refusal{code: reason}
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case conn.Cause() != nil:
		return conn.Cause()
	}
	return err
}

func (w *wire3) version() byte          { return 4 }
func (w *wire3) ended() <-chan struct{} { return w.life.Done() }
func (w *wire3) cause() error           { return w.conn.Cause() }

func (w *wire3) publish(ctx context.Context, p *publication) error {
	_, err := w.call(ctx, func() paho3.Token { return w.paho.Publish(p.topic, p.qos, p.retain, p.data) })
	if err == nil && p.qos == 0 && w.conn.Cause() != nil {
		return errLost // without an acknowledgement only the end of the connection shows the loss
	}
	return err
}

func (w *wire3) subscribe(ctx context.Context, filter string, qos byte) error {
	token, err := w.call(ctx, func() paho3.Token { return w.paho.Subscribe(filter, qos, nil) })
	if err != nil {
		return err
	}
	for _, code := range token.(*paho3.SubscribeToken).Result() {
		if code >= 0x80 { // MQTT 3.1.1 §3.9.3 has no other
			return &refusal{code: code}
		}
	}
	return nil
}

func (w *wire3) unsubscribe(ctx context.Context, filter string) error {
	_, err := w.call(ctx, func() paho3.Token { return w.paho.Unsubscribe(filter) })
	return err
}

// call runs f and waits for its token, until ctx, the connection or the acknowledgement timeout ends.
func (w *wire3) call(ctx context.Context, f func() paho3.Token) (paho3.Token, error) {
	if w.life.Err() != nil {
		return nil, errUnsent
	}
	timer := time.NewTimer(ackTimeout)
	defer timer.Stop()
	began := make(chan paho3.Token, 1)
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil, errUnsent
	}
	w.tasks.Go(func() { began <- f() })
	w.mu.Unlock()
	var token paho3.Token
	var done <-chan struct{}
	for {
		select {
		case token = <-began:
			began, done = nil, token.Done()
		case <-done:
			if err := token.Error(); err != nil {
				return nil, w.failed(err)
			}
			return token, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-w.life.Done():
			if done != nil && token.Error() == nil && isClosed(done) {
				return token, nil // it was acknowledged before the end
			}
			return nil, errLost
		case <-timer.C:
			return nil, errSlowAck
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (w *wire3) failed(err error) error {
	if errors.Is(err, paho3.ErrNotConnected) {
		return errUnsent
	}
	return fmt.Errorf("%w: %w", errLost, err)
}

func (w *wire3) close() {
	w.paho.Disconnect(100) // milliseconds for the DISCONNECT to leave
	_ = w.conn.Close()
	w.end()
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.tasks.Wait()
}
