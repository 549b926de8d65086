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

// A filter is the content of a listen request (2026-07-28, "subscriptions/listen").
type filter struct {
	Tools     bool     `json:"toolsListChanged,omitempty"`
	Prompts   bool     `json:"promptsListChanged,omitempty"`
	Resources bool     `json:"resourcesListChanged,omitempty"`
	URIs      []string `json:"resourceSubscriptions,omitempty"`
}

const (
	// maxURIs bounds the resources of one listen request.
	maxURIs = 256
	// sendTimeout bounds messages to a server that no caller waits for.
	sayFor = 10 * time.Second
)

// notifyLimit is the rate of notifications to one subscriber. Changes in between are combined.
var tellLimit = ratelimit.Every(64, 20*time.Millisecond)

// maxNotification bounds a notification of a change, in bytes.
const maxTold = 64 << 10

// A subscriber is the listen request of a caller.
type ear struct {
	news chan struct{} // signals a new message

	mu    sync.Mutex
	want  filter
	said  []*protocol.Message
	waits map[string]bool // the content of queue, by method and URI
}

func newEar(want filter) *ear {
	return &ear{want: want, news: make(chan struct{}, 1), waits: map[string]bool{}}
}

// receive queues a notification that matches the filter, unless an equal one is queued.
func (e *ear) hear(n *protocol.Message) {
	if !n.IsNotification() || len(n.Bytes()) > maxTold {
		return
	}
	what := n.Method() + " " + n.Text("uri")
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.want.wants(n) || e.waits[what] || len(e.said) >= maxNotes {
		return // dropped: the next read of the caller shows the change
	}
	e.waits[what] = true
	e.said = append(e.said, n)
	select {
	case e.news <- struct{}{}:
	default:
	}
}

// narrow reduces the filter to the acknowledged part and drops queued notifications that do not match.
func (e *ear) narrow(want filter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.want = want
	e.said = slices.DeleteFunc(e.said, func(n *protocol.Message) bool { return !want.wants(n) })
}

// next returns the next notification; nil if there is none.
func (e *ear) next() *protocol.Message {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.said) == 0 {
		return nil
	}
	n := e.said[0]
	e.said[0], e.said = nil, e.said[1:]
	delete(e.waits, n.Method()+" "+n.Text("uri"))
	return n
}

// listen passes the notifications of a legacy server to the caller until it disconnects.
func (o *old) listen(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error) {
	raw, err := m.Param("notifications")
	var want filter
	if err != nil || raw == nil || json.Unmarshal(raw, &want) != nil || len(want.URIs) > maxURIs {
		return protocol.RespondError(m.ID(), protocol.Errorf(protocol.InvalidParams, "expected an object as notifications, with at most %d resources", maxURIs)), nil
	}
	u, err := o.shared(ctx, capabilities(m))
	if err != nil {
		return nil, err
	}
	defer o.b.leave(u.lane)
	want = u.can(want)
	e := newEar(want)
	u.attach(e, true) // before the request to the server: later changes are not missed
	defer u.attach(e, false)
	want.URIs = u.subscribe(ctx, slices.Clone(want.URIs))
	defer u.unsubscribe(want.URIs)
	e.narrow(want)
	return e.tell(ctx, m, u.Done(), notify)
}

// serve acknowledges the request and sends the queued notifications, until the caller disconnects or over is closed; then it returns the
// response.
func (e *ear) tell(ctx context.Context, m *protocol.Message, over <-chan struct{}, notify func(*protocol.Message) error) (*protocol.Message, error) {
	tag := json.RawMessage(m.ID())
	ack := protocol.Request("", protocol.Acknowledged, map[string]any{"notifications": e.want, "_meta": map[string]any{protocol.MetaSubscription: tag}})
	if err := notify(ack); err != nil {
		return nil, err
	}
	var rate ratelimit.Bucket
	soon := time.NewTimer(0)
	defer soon.Stop()
	for {
		select {
		case <-e.news:
			soon.Reset(rate.Wait(tellLimit, 1, time.Now()))
		case <-soon.C:
			n := e.next()
			if n == nil {
				continue
			}
			rate.Take(tellLimit, 1, time.Now())
			if err := notify(n.WithParam(tag, "_meta", protocol.MetaSubscription)); err != nil {
				return nil, err
			}
			soon.Reset(rate.Wait(tellLimit, 1, time.Now()))
		case <-over:
			return protocol.Respond(m.ID(), map[string]any{"resultType": "complete", "_meta": map[string]any{protocol.MetaSubscription: tag}}), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (u *upstream) attach(e *ear, on bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ears[e] = on; !on {
		delete(u.ears, e)
	}
}

// can returns the part of a filter that the server supports.
func (u *upstream) can(want filter) filter {
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
	ctx, cancel := context.WithTimeout(ctx, sayFor)
	defer cancel()
	slices.Sort(uris)
	return slices.DeleteFunc(slices.Compact(uris), func(uri string) bool {
		if u.uris[uri] == 0 && !u.ask(ctx, "resources/subscribe", uri) {
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
	_ = u.o.b.start(func() {
		select {
		case u.subscribing <- struct{}{}:
			defer func() { <-u.subscribing }()
		case <-u.o.b.ctx.Done():
			return
		}
		for _, uri := range uris {
			if u.uris[uri]--; u.uris[uri] == 0 {
				delete(u.uris, uri)
				u.ask(u.o.b.ctx, "resources/unsubscribe", uri)
			}
		}
	})
}

func (u *upstream) ask(ctx context.Context, method, uri string) bool {
	ctx, cancel := context.WithTimeout(ctx, sayFor)
	defer cancel()
	r, err := u.Call(ctx, protocol.Request(`"lmosd"`, method, map[string]string{"uri": uri}), ignore)
	return err == nil && r.Error() == nil
}

func (f *filter) wants(n *protocol.Message) bool {
	switch n.Method() {
	case protocol.ToolsChanged:
		return f.Tools
	case protocol.PromptsChanged:
		return f.Prompts
	case protocol.ResourcesChanged:
		return f.Resources
	case protocol.ResourceUpdated:
		return slices.Contains(f.URIs, n.Text("uri"))
	}
	return false
}
