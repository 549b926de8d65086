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

// A filter is what a caller of the new era listens to (2026-07-28, "subscriptions/listen").
type filter struct {
	Tools     bool     `json:"toolsListChanged,omitempty"`
	Prompts   bool     `json:"promptsListChanged,omitempty"`
	Resources bool     `json:"resourcesListChanged,omitempty"`
	URIs      []string `json:"resourceSubscriptions,omitempty"`
}

const (
	// maxURIs bounds the resources that one caller listens to.
	maxURIs = 256
	// sayFor bounds how long it is tried to say something to a server that nobody waits for.
	sayFor = 10 * time.Second
)

// tellLimit is the rate of notifications to one subscriber. Changes in between are one notification.
var tellLimit = ratelimit.Every(64, 20*time.Millisecond)

// maxTold limits the notification of one change, in bytes.
const maxTold = 64 << 10

// An ear is a caller that listens.
type ear struct {
	news chan struct{} // gets a value when something is said

	mu    sync.Mutex
	want  filter
	said  []*protocol.Message
	waits map[string]bool // what of said, by method and URI
}

func newEar(want filter) *ear {
	return &ear{want: want, news: make(chan struct{}, 1), waits: map[string]bool{}}
}

// hear takes what a server says, if the caller wants to know it and is not to be told it anyway.
func (e *ear) hear(n *protocol.Message) {
	if !n.IsNotification() || len(n.Bytes()) > maxTold {
		return
	}
	what := n.Method() + " " + n.Text("uri")
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.want.wants(n) || e.waits[what] || len(e.said) >= maxNotes {
		return // the caller will read what has changed when it looks
	}
	e.waits[what] = true
	e.said = append(e.said, n)
	select {
	case e.news <- struct{}{}:
	default:
	}
}

// narrow says what of its wish the caller will be told, and forgets all else.
func (e *ear) narrow(want filter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.want = want
	e.said = slices.DeleteFunc(e.said, func(n *protocol.Message) bool { return !want.wants(n) })
}

// next returns what is to be told next; nil for nothing.
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

// listen passes on what an old server says of its own accord, as far as the caller wants to hear it, until the caller leaves.
func (o *old) listen(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error) {
	raw, err := m.Param("notifications")
	var want filter
	if err != nil || raw == nil || json.Unmarshal(raw, &want) != nil || len(want.URIs) > maxURIs {
		return protocol.RespondError(m.ID(), protocol.Errorf(protocol.InvalidParams, "notifications say what is listened to; at most %d resources", maxURIs)), nil
	}
	u, err := o.shared(ctx, capabilities(m))
	if err != nil {
		return nil, err
	}
	defer o.b.leave(u.lane)
	want = u.can(want)
	e := newEar(want)
	u.attach(e, true) // before the server is asked: what changes right after that is not missed
	defer u.attach(e, false)
	want.URIs = u.subscribe(ctx, slices.Clone(want.URIs))
	defer u.unsubscribe(want.URIs)
	e.narrow(want)
	return e.tell(ctx, m, u.Done(), notify)
}

// tell tells a caller what is heard, until it leaves, or over is closed: then it has the response.
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

// can returns what of a wish the server says it tells.
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

// subscribe tells the server which resources somebody listens to, and returns those that it takes. All of them together have
// sayFor: others wait for their turn.
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

// unsubscribe tells the server which resources nobody listens to any more. The caller is gone, and waits no longer than it must.
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
