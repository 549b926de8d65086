package backend

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/wire"
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

// An ear is a caller that listens.
type ear struct {
	want filter
	said chan *wire.Message
}

func (e *ear) hear(n *wire.Message) {
	if n.IsNotification() && e.want.wants(n) {
		select {
		case e.said <- n:
		default: // the caller will read what has changed when it looks
		}
	}
}

// listen passes on what an old server says of its own accord, as far as the caller wants to hear it, until the caller leaves.
func (o *old) listen(ctx context.Context, m *wire.Message, notify func(*wire.Message) error) (*wire.Message, error) {
	raw, err := m.Param("notifications")
	var want filter
	if err != nil || raw == nil || json.Unmarshal(raw, &want) != nil || len(want.URIs) > maxURIs {
		return wire.Refuse(m.ID(), wire.Errorf(wire.InvalidParams, "notifications say what is listened to; at most %d resources", maxURIs)), nil
	}
	u, err := o.common(ctx)
	if err != nil {
		return nil, err
	}
	defer o.b.leave(u.lane)
	e := &ear{want: u.can(want), said: make(chan *wire.Message, maxNotes)}
	e.want.URIs = u.subscribe(ctx, e.want.URIs)
	defer u.unsubscribe(e.want.URIs)
	u.attach(e, true)
	defer u.attach(e, false)
	return e.tell(ctx, m, u.Done(), notify)
}

// tell tells a caller what is heard, until it leaves, or over is closed: then it has the response.
func (e *ear) tell(ctx context.Context, m *wire.Message, over <-chan struct{}, notify func(*wire.Message) error) (*wire.Message, error) {
	tag := json.RawMessage(m.ID())
	ack := wire.Request("", wire.Acknowledged, map[string]any{"notifications": e.want, "_meta": map[string]any{wire.MetaSubscription: tag}})
	if err := notify(ack); err != nil {
		return nil, err
	}
	for {
		select {
		case n := <-e.said:
			if err := notify(n.WithParam(tag, "_meta", wire.MetaSubscription)); err != nil {
				return nil, err
			}
		case <-over:
			return wire.Respond(m.ID(), map[string]any{"resultType": "complete", "_meta": map[string]any{wire.MetaSubscription: tag}}), nil
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

// subscribe tells the server which resources somebody listens to, and returns those that it takes.
func (u *upstream) subscribe(ctx context.Context, uris []string) []string {
	u.subscribing.Lock()
	defer u.subscribing.Unlock()
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
		u.subscribing.Lock()
		defer u.subscribing.Unlock()
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
	r, err := u.Call(ctx, wire.Request(`"lmosd"`, method, map[string]string{"uri": uri}), ignore)
	return err == nil && r.Error() == nil
}

func (f *filter) wants(n *wire.Message) bool {
	switch n.Method() {
	case wire.ToolsChanged:
		return f.Tools
	case wire.PromptsChanged:
		return f.Prompts
	case wire.ResourcesChanged:
		return f.Resources
	case wire.ResourceUpdated:
		return slices.Contains(f.URIs, n.Text("uri"))
	}
	return false
}
