package backend

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/internal/ratelimit"
)

// sendTimeout bounds messages to a server that no caller waits for.
const sendTimeout = 10 * time.Second

// notifyLimit is the rate of notifications to one subscriber. Changes in between are combined.
var notifyLimit = ratelimit.Every(64, 20*time.Millisecond)

// maxNotification bounds a notification of a change, in bytes.
const maxNotification = 64 << 10

// A subscriber is the listen request of a caller.
type subscriber struct {
	changed chan struct{} // signals a new message

	mu     sync.Mutex
	want   protocol.Filter
	queue  []*protocol.Message
	queued map[string]bool // the content of queue, by method and URI
}

// subscribers are the listen requests of all callers. It is safe for concurrent use.
type subscribers struct {
	mu  sync.Mutex
	all map[*subscriber]bool
}

func (s *subscribers) add(want protocol.Filter) *subscriber {
	sub := &subscriber{want: want, changed: make(chan struct{}, 1), queued: map[string]bool{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*subscriber]bool{}
	}
	s.all[sub] = true
	return sub
}

func (s *subscribers) remove(sub *subscriber) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, sub)
}

// publish passes a notification to all subscribers.
func (s *subscribers) publish(n *protocol.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for sub := range s.all {
		sub.receive(n)
	}
}

// receive queues a notification that matches the filter, unless an equal one is queued.
func (s *subscriber) receive(n *protocol.Message) {
	if !n.IsNotification() || len(n.Bytes()) > maxNotification {
		return
	}
	key := n.Method() + " " + n.Text("uri")
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.want.Matches(n) || s.queued[key] || len(s.queue) >= maxNotes {
		return // dropped: the next read of the caller shows the change
	}
	s.queued[key] = true
	s.queue = append(s.queue, n)
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// narrow reduces the filter to the acknowledged part and drops queued notifications that do not match.
func (s *subscriber) narrow(want protocol.Filter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want = want
	s.queue = slices.DeleteFunc(s.queue, func(n *protocol.Message) bool { return !want.Matches(n) })
}

// next returns the next notification; nil if there is none.
func (s *subscriber) next() *protocol.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return nil
	}
	n := s.queue[0]
	s.queue[0], s.queue = nil, s.queue[1:]
	delete(s.queued, n.Method()+" "+n.Text("uri"))
	return n
}

// listen passes the notifications of a legacy server to the caller until it disconnects.
func (s *legacyServer) listen(ctx context.Context, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error) {
	want, bad := m.Filter()
	if bad != nil {
		return protocol.RespondError(m.ID(), bad), nil
	}
	u, err := s.shared(ctx, capabilities(m))
	if err != nil {
		return nil, err
	}
	defer s.b.leave(u.sharedConn)
	want = u.can(want)
	sub := s.subscribers.add(want) // before the request to the server: later changes are not missed
	defer s.subscribers.remove(sub)
	want.URIs = u.subscribe(ctx, slices.Clone(want.URIs))
	defer u.unsubscribe(want.URIs)
	sub.narrow(want)
	return sub.serve(ctx, m, u.Done(), notify)
}

// serve acknowledges the request and sends the queued notifications, until the caller disconnects or over is closed; then it returns the
// response.
func (s *subscriber) serve(ctx context.Context, m *protocol.Message, over <-chan struct{}, notify protocol.Notify) (*protocol.Message, error) {
	if err := notify(m.Acknowledgment(s.want)); err != nil {
		return nil, err
	}
	var rate ratelimit.Bucket
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.changed:
			timer.Reset(rate.Wait(notifyLimit, 1, time.Now()))
		case <-timer.C:
			n := s.next()
			if n == nil {
				continue
			}
			rate.Take(notifyLimit, 1, time.Now())
			if err := notify(n.WithParam(json.RawMessage(m.ID()), "_meta", protocol.MetaSubscription)); err != nil {
				return nil, err
			}
			timer.Reset(rate.Wait(notifyLimit, 1, time.Now()))
		case <-over:
			return m.EndSubscription(), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// can returns the part of a filter that the server supports. A legacy server has no tasks.
func (u *upstream) can(want protocol.Filter) protocol.Filter {
	type changes struct {
		ListChanged bool `json:"listChanged"`
		Subscribe   bool `json:"subscribe"`
	}
	var has struct {
		Capabilities struct{ Tools, Prompts, Resources changes } `json:"capabilities"`
	}
	_ = json.Unmarshal(u.info.Discovered, &has)
	c := has.Capabilities
	want.Tools = want.Tools && c.Tools.ListChanged
	want.Prompts = want.Prompts && c.Prompts.ListChanged
	want.Resources = want.Resources && c.Resources.ListChanged
	want.Tasks = nil
	if !c.Resources.Subscribe {
		want.URIs = nil
	}
	return want
}

// subscribe subscribes at the server to the resources without a subscription, and returns those that it accepts. The whole takes at most
// sendTimeout.
func (u *upstream) subscribe(ctx context.Context, uris []string) []string {
	if len(uris) == 0 {
		return nil
	}
	select {
	case u.subscribing <- struct{}{}:
		defer func() { <-u.subscribing }()
	case <-ctx.Done():
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	slices.Sort(uris)
	return slices.DeleteFunc(slices.Compact(uris), func(uri string) bool {
		if u.uris[uri] == 0 && !u.ask(ctx, protocol.Subscribe, uri) {
			return true
		}
		u.uris[uri]++
		return false
	})
}

// unsubscribe removes subscriptions at the server without subscribers. It runs in the background.
func (u *upstream) unsubscribe(uris []string) {
	if len(uris) == 0 {
		return
	}
	_ = u.legacy.b.start(func() {
		select {
		case u.subscribing <- struct{}{}:
			defer func() { <-u.subscribing }()
		case <-u.legacy.b.ctx.Done():
			return
		}
		for _, uri := range uris {
			if u.uris[uri]--; u.uris[uri] == 0 {
				delete(u.uris, uri)
				u.ask(u.legacy.b.ctx, protocol.Unsubscribe, uri)
			}
		}
	})
}

func (u *upstream) ask(ctx context.Context, method, uri string) bool {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	r, err := u.Call(ctx, protocol.Request(`"lmosd"`, method, map[string]string{"uri": uri}), protocol.Ignore)
	return err == nil && r.Error() == nil
}
