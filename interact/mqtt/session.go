package mqtt

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
	"github.com/lmosd/lmosd/internal/backoff"
)

// A sessionKey identifies a shared connection.
type sessionKey struct {
	host   string
	secure bool
	login  [32]byte
	index  int // greater than 0 only if filters overlap
}

// A session is the connection to a broker, with its subscriptions. It connects on demand, and connects again for its subscribers when
// the connection is lost.
//
//	 acquire            connect              lost, no subscriber
//	─────────▶ unconnected ──▶ connected ─────────────────▶ unconnected ─▶ closed when idle
//	                             ▲  │ lost, with subscribers
//	                             └──┴──▶ reviving: connects and subscribes again, for [reconnectTime]
type session struct {
	client *Client
	key    sessionKey
	login  login
	life   context.Context // ends with the session
	end    context.CancelFunc
	tasks  sync.WaitGroup

	// users and idle are owned by client.mu.
	users int
	idle  *time.Timer

	mu      sync.Mutex    // guards the rest
	wire    wire          // nil: not connected
	opening chan struct{} // not nil while a connection is being opened; closed when that ends
	failed  error         // why the last attempt failed
	subs    map[string]*subscription
	wild    int // number of subs with a wildcard
}

// A subscription is one filter and its inboxes.
type subscription struct {
	filter    string
	qos       byte
	on        wire          // the connection that acknowledged it, or nil
	busy      chan struct{} // not nil while a SUBSCRIBE or UNSUBSCRIBE is under way; closed when that ends
	listeners map[*inbox]bool
}

// errOverlap means that a filter covers topics of another one on this connection. A broker may then send a message once or twice
// (MQTT 5 §3.3.4), and the client cannot distinguish both.
var errOverlap = errors.New("filters overlap")

// acquire returns a session with the broker of p, and counts one more user, which must release it.
func (c *Client) acquire(p *plan, index int) (*session, error) {
	key := sessionKey{host: p.host, secure: p.secure, login: p.login.digest(), index: index}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, shuttingDown()
	}
	s := c.sessions[key]
	if s == nil {
		if len(c.sessions) >= maxSessions && !c.evictLocked() {
			return nil, interact.Errorf(interact.Overloaded, "send it again when others have ended",
				"%d connections to MQTT brokers are in use", maxSessions)
		}
		s = &session{client: c, key: key, login: p.login, subs: map[string]*subscription{}}
		s.life, s.end = context.WithCancel(context.Background())
		c.sessions[key] = s
	}
	s.users++
	if s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
	return s, nil
}

func shuttingDown() error {
	return interact.Errorf(interact.ShuttingDown, "send it again when the node runs", "the connection to the broker was closed")
}

// evictLocked retires a session without users.
func (c *Client) evictLocked() bool {
	for _, s := range c.sessions {
		if s.users == 0 {
			c.retireLocked(s)
			return true
		}
	}
	return false
}

// release ends one use. After the last one the connection stays open for the idle time.
func (c *Client) release(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.users--; s.users > 0 || c.closed {
		return
	}
	s.idle = time.AfterFunc(c.o.Idle, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if s.users == 0 && c.sessions[s.key] == s {
			c.retireLocked(s)
		}
	})
}

// retireLocked removes s and closes it.
func (c *Client) retireLocked(s *session) {
	delete(c.sessions, s.key)
	if !c.closed {
		c.tasks.Go(s.close)
	}
}

// close ends the connection and its interactions.
func (s *session) close() {
	s.end()
	s.fail(shuttingDown())
	s.mu.Lock()
	w := s.wire
	s.wire = nil
	s.mu.Unlock()
	if w != nil {
		w.close()
	}
	s.tasks.Wait()
}

// connect returns the wire, and waits until it is open. The error is an [*interact.Error]: nothing was sent.
func (s *session) connect(ctx context.Context) (wire, error) {
	s.mu.Lock()
	for s.wire == nil || isDone(s.wire) {
		s.wire = nil // watch continues
		if s.life.Err() != nil {
			s.mu.Unlock()
			return nil, shuttingDown()
		}
		if s.opening == nil {
			s.opening, s.failed = make(chan struct{}), nil
			s.tasks.Go(s.open)
		}
		wait := s.opening
		s.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, s.timeoutError(ctx, "was not reached")
		}
		s.mu.Lock()
		if err := s.failed; err != nil && s.wire == nil && s.opening == nil {
			s.mu.Unlock()
			return nil, err
		}
	}
	defer s.mu.Unlock()
	return s.wire, nil
}

// open makes one attempt to connect and wakes the waiting callers.
func (s *session) open() {
	ctx, cancel := context.WithTimeout(s.life, dialTimeout)
	w, err := s.dial(ctx)
	cancel()
	s.mu.Lock()
	close(s.opening)
	s.opening = nil
	gone := s.life.Err() != nil
	switch {
	case err != nil:
		s.failed = err
	case gone:
		s.failed = shuttingDown()
	default:
		s.wire, s.failed = w, nil
		s.tasks.Go(func() { s.watch(w) })
	}
	s.mu.Unlock()
	if err == nil && gone {
		w.close()
	}
}

// dial opens a connection in the newest version that the broker accepts.
func (s *session) dial(ctx context.Context) (wire, error) {
	host := s.key.host
	known := s.client.version(host, time.Now())
	var newer error
	if known != 4 {
		w, err := s.dialVersion(ctx, 5)
		if !errors.Is(err, errVersion) {
			if err != nil {
				return nil, s.connectError(err)
			}
			s.client.learn(host, 5, time.Now())
			return w, nil
		}
		newer = err
	}
	w, err := s.dialVersion(ctx, 4)
	if err != nil {
		if newer != nil {
			err = fmt.Errorf("%w; in MQTT 3.1.1: %w", newer, err)
		}
		return nil, s.connectError(err)
	}
	s.client.learn(host, 4, time.Now())
	return w, nil
}

func (s *session) dialVersion(ctx context.Context, version byte) (wire, error) {
	o := &s.client.o
	conn, err := o.Dial(ctx, "tcp", s.key.host)
	if err != nil {
		return nil, err
	}
	if s.key.secure {
		if conn, err = s.secure(ctx, conn); err != nil {
			return nil, err
		}
	}
	// 23 letters and digits: every broker accepts such an identifier (MQTT 3.1.1 §3.1.3.1).
	id := "lmosd" + strings.ReplaceAll(interact.NewID(), "-", "")[:18]
	if version == 5 {
		g := packet.NewConn(conn, packet.FromBroker, o.MaxPacket)
		return dial5(ctx, g, id, s.login, o.MaxPacket, s.deliver)
	}
	return dial3(ctx, packet.NewConn(conn, packet.FromBroker3, o.MaxPacket), id, s.login, packet.WriteTimeout, s.deliver)
}

// secure makes a TLS connection of conn (scheme mqtts).
func (s *session) secure(ctx context.Context, conn net.Conn) (net.Conn, error) {
	config := &tls.Config{}
	if s.client.o.TLS != nil {
		config = s.client.o.TLS.Clone()
	}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(s.key.host)
	}
	t := tls.Client(conn, config)
	if err := t.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return t, nil
}

// watch waits for the end of w, and connects again for its subscribers.
func (s *session) watch(w wire) {
	select {
	case <-w.ended():
	case <-s.life.Done():
		return // close continues
	}
	s.mu.Lock()
	if s.wire == w {
		s.wire = nil
	}
	for _, sub := range s.subs {
		if sub.on == w {
			sub.on = nil
		}
		s.settleLocked(sub)
	}
	s.mu.Unlock()
	s.client.o.Log.Info("broker lost", "broker", s.key.host, "err", w.cause())
	s.tasks.Go(w.close) // it may take long
	s.revive()
}

// revive connects and subscribes again while the session has subscribers.
func (s *session) revive() {
	until := time.Now().Add(reconnectTime)
	pauses := backoff.Backoff{First: firstPause, Max: maxPause, Jitter: 0.5} // clients must not reconnect all at once
	for s.hasSubscribers() {
		w, err := s.connect(s.life)
		if err == nil {
			s.resubscribe(w)
			return
		}
		if time.Now().After(until) {
			s.fail(&interact.Error{Code: interact.Unreachable, Title: "the connection to the broker at " + s.key.host +
				" was lost and could not be opened again",
				Hint: "see whether the broker runs", Err: err})
			return
		}
		if pauses.Sleep(s.life) != nil {
			return
		}
	}
}

// hasSubscribers reports whether the session has subscribers.
func (s *session) hasSubscribers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		for l := range sub.listeners {
			if !l.once {
				return true
			}
		}
	}
	return false
}

// resubscribe subscribes on w to all filters in use. If w ends in between, its watch continues.
func (s *session) resubscribe(w wire) {
	s.mu.Lock()
	var again []*subscription
	for _, sub := range s.subs {
		if sub.on == nil && sub.busy == nil && len(sub.listeners) > 0 {
			again = append(again, sub)
			for l := range sub.listeners {
				l.renew()
			}
		}
	}
	s.mu.Unlock()
	for _, sub := range again {
		if _, err := s.ensure(s.life, sub, false); err != nil && !isDone(w) && s.life.Err() == nil {
			s.mu.Lock()
			for l := range sub.listeners {
				l.fail(err)
			}
			s.mu.Unlock()
		}
	}
}

func isDone(w wire) bool { return isClosed(w.ended()) }

// fail ends all inboxes.
func (s *session) fail(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		for l := range sub.listeners {
			l.fail(why)
		}
	}
}

// listen delivers messages that match filter to l. again requests the retained messages even if the subscription exists. It returns
// the wire of the subscription. The caller calls leave at the end, also after an error.
func (s *session) listen(ctx context.Context, filter string, qos byte, l *inbox, again bool) (wire, error) {
	s.mu.Lock()
	sub := s.subs[filter]
	if sub == nil {
		if err := s.roomLocked(filter); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		sub = &subscription{filter: filter, qos: qos, listeners: map[*inbox]bool{}}
		s.subs[filter] = sub
		if packet.IsPattern(filter) {
			s.wild++
		}
	}
	if qos > sub.qos {
		sub.qos, again = qos, true
	}
	sub.listeners[l] = true
	s.mu.Unlock()
	return s.ensure(ctx, sub, again)
}

// roomLocked reports whether a filter can be added.
func (s *session) roomLocked(filter string) error {
	if len(s.subs) >= maxFilters {
		return interact.Errorf(interact.Overloaded, "send it again when others have ended",
			"%d subscriptions at the broker %s", maxFilters, s.key.host)
	}
	if s.wild == 0 && !packet.IsPattern(filter) {
		return nil
	}
	for other := range s.subs {
		if packet.Overlap(filter, other) {
			return errOverlap
		}
	}
	return nil
}

// ensure subscribes sub on the current wire, unless it is subscribed and again is not set. If the connection is lost it subscribes on
// a new one; a repeated SUBSCRIBE is harmless.
func (s *session) ensure(ctx context.Context, sub *subscription, again bool) (wire, error) {
	for lost := 0; ; {
		w, err := s.connect(ctx)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		switch {
		case sub.busy != nil:
			busy := sub.busy
			s.mu.Unlock()
			select {
			case <-busy:
			case <-s.life.Done():
			case <-ctx.Done():
				return nil, s.timeoutError(ctx, "did not accept a subscription in time")
			}
			continue
		case s.wire != w: // lost in between
			s.mu.Unlock()
			continue
		case sub.on == w && !again:
			s.mu.Unlock()
			return w, nil
		}
		sub.busy = make(chan struct{})
		qos := sub.qos
		s.mu.Unlock()
		err = insist(ctx, func() error { return w.subscribe(ctx, sub.filter, qos) })
		s.mu.Lock()
		close(sub.busy)
		sub.busy = nil
		if err == nil && s.wire == w {
			sub.on = w
		}
		s.settleLocked(sub)
		wanted := len(sub.listeners) > 0
		s.mu.Unlock()
		if lost++; wanted && lost < 3 && (errors.Is(err, errLost) || errors.Is(err, errUnsent)) && s.over(ctx, w) {
			continue
		}
		return w, s.subscribeError(ctx, w, sub.filter, err)
	}
}

// over waits for the end of a lost connection. It reports false if the session or ctx ends first.
func (s *session) over(ctx context.Context, w wire) bool {
	select {
	case <-w.ended():
		return s.life.Err() == nil
	case <-s.life.Done():
	case <-ctx.Done():
	}
	return false
}

// insist repeats f if the packet identifier was in use: a known broker confuses the identifiers of both directions.
func insist(ctx context.Context, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		var r *refusal
		if !errors.As(err, &r) || r.code != 0x91 || try == 10 {
			return err
		}
		if err := backoff.Sleep(ctx, time.Duration(try)*time.Millisecond); err != nil {
			return err
		}
	}
}

// leave ends the delivery to an inbox.
func (s *session) leave(filter string, l *inbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.subs[filter]
	if sub == nil || !sub.listeners[l] {
		return
	}
	delete(sub.listeners, l)
	s.settleLocked(sub)
}

// settleLocked unsubscribes from a filter without inboxes, and then removes it.
func (s *session) settleLocked(sub *subscription) {
	if len(sub.listeners) > 0 || sub.busy != nil || s.subs[sub.filter] != sub {
		return
	}
	w := sub.on
	if w == nil || w != s.wire {
		delete(s.subs, sub.filter)
		if packet.IsPattern(sub.filter) {
			s.wild--
		}
		return
	}
	sub.busy = make(chan struct{})
	if s.life.Err() != nil {
		return // the session ends
	}
	s.tasks.Go(func() {
		err := insist(s.life, func() error { return w.unsubscribe(s.life, sub.filter) })
		s.mu.Lock()
		defer s.mu.Unlock()
		close(sub.busy)
		sub.busy, sub.on = nil, nil
		s.settleLocked(sub)
		if err != nil && s.life.Err() == nil && !isDone(w) {
			s.client.o.Log.Warn("unsubscription failed", "broker", s.key.host, "err", err)
		}
	})
}

// deliver adds a message to the matching inboxes. It must not block the connection.
func (s *session) deliver(d *delivery) {
	if len(d.topic) > packet.MaxTopic { // MQTT 3.1.1 only: packet.Conn ends a connection of MQTT 5
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	give := func(sub *subscription) {
		for l := range sub.listeners {
			l.push(d)
		}
	}
	if sub := s.subs[d.topic]; sub != nil {
		give(sub)
	}
	if s.wild == 0 {
		return
	}
	for filter, sub := range s.subs {
		if filter != d.topic && packet.IsPattern(filter) && packet.Matches(filter, d.topic) {
			give(sub)
		}
	}
}
