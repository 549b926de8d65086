package backend

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// A hub subscribes at a stateless server for all callers, once per topic and connection. Some servers (go-sdk v1.8.0) notify only one of
// several listen requests on a connection, and none after one of them was cancelled. Requests with other topics, for example tasks, are
// passed on separately.
//
// Source: MCP 2026-07-28, "Subscriptions".
type hub struct {
	b *Backend
	l *sharedConn

	subscribers subscribers

	mu     sync.Mutex
	topics map[string]*topic // by URI; "" for the lists
}

// A topic is one listen request to the server. hub.mu guards its count.
type topic struct {
	subscribers int
	cancel      context.CancelFunc
	acked       chan struct{} // closed when the server has acknowledged or refused; got and err are read after that
	once        sync.Once     // closes acked
	got         protocol.Filter
	err         *protocol.Error
	over        chan struct{} // closed when the request has ended
}

func newHub(b *Backend, l *sharedConn) *hub {
	return &hub{b: b, l: l, topics: map[string]*topic{}}
}

// supported returns the filter of a listen request, and whether the hub supports all of it.
func supported(m *protocol.Message) (want protocol.Filter, ok bool) {
	want, bad := m.Filter()
	var all map[string]json.RawMessage
	if raw, _ := m.Param("notifications"); bad != nil || json.Unmarshal(raw, &all) != nil {
		return want, false
	}
	for name := range all {
		switch name {
		case "toolsListChanged", "promptsListChanged", "resourcesListChanged", "resourceSubscriptions":
		default:
			return want, false
		}
	}
	return want, true
}

// listen handles a listen request until the caller disconnects or the server ends it.
func (h *hub) listen(ctx context.Context, m *protocol.Message, want protocol.Filter, notify protocol.Notify) (*protocol.Message, error) {
	topics := h.enter(want)
	defer h.leave(topics)
	sub := h.subscribers.add(want) // before the request to the server: later changes are not missed
	defer h.subscribers.remove(sub)
	got, refused := acknowledgedPart(ctx, topics, want)
	if refused != nil {
		return protocol.RespondError(m.ID(), refused), nil
	}
	sub.narrow(got)
	over, stop := anyOver(topics)
	defer stop()
	return sub.serve(ctx, m, over, notify)
}

// enter subscribes to the topics of a filter.
func (h *hub) enter(want protocol.Filter) map[string]*topic {
	keys := slices.Clone(want.URIs)
	if want.Tools || want.Prompts || want.Resources {
		keys = append(keys, "")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	topics := map[string]*topic{}
	for _, key := range keys {
		t := h.topics[key]
		if t == nil {
			t = h.beginLocked(key)
		}
		if topics[key] == nil {
			t.subscribers++
		}
		topics[key] = t
	}
	return topics
}

func (h *hub) leave(topics map[string]*topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, t := range topics {
		if t.subscribers--; t.subscribers == 0 {
			t.cancel()
			if h.topics[key] == t {
				delete(h.topics, key)
			}
		}
	}
}

// beginLocked sends the listen request of a topic.
func (h *hub) beginLocked(key string) *topic {
	t := &topic{acked: make(chan struct{}), over: make(chan struct{})}
	var ctx context.Context
	ctx, t.cancel = context.WithCancel(h.b.ctx)
	h.topics[key] = t
	want := protocol.Filter{Tools: true, Prompts: true, Resources: true}
	if key != "" {
		want = protocol.Filter{URIs: []string{key}}
	}
	m := protocol.Request(`"lmosd"`, protocol.Listen, map[string]any{"notifications": want, "_meta": ownMeta(protocol.Self(h.b.o.Version))})
	err := h.b.start(func() {
		r, err := h.l.Call(ctx, m, func(n *protocol.Message) error { h.receive(t, n); return nil })
		h.ended(key, t, r, err)
	})
	if err != nil {
		t.fail(protocol.FromError(err))
		close(t.over)
	}
	return t
}

// ended removes a topic whose request has ended: the next subscriber sends another.
func (h *hub) ended(key string, t *topic, r *protocol.Message, err error) {
	switch {
	case err != nil:
		t.fail(protocol.FromError(err))
	case r.Error() != nil:
		t.fail(r.Error())
	default:
		t.fail(protocol.Errorf(protocol.InternalError, "missing acknowledgment of the server"))
	}
	h.mu.Lock()
	if h.topics[key] == t {
		delete(h.topics, key)
	}
	h.mu.Unlock()
	close(t.over)
}

func (t *topic) fail(e *protocol.Error) {
	t.once.Do(func() {
		t.err = e
		close(t.acked)
	})
}

// refused reports whether the server has refused the topic so far.
func (t *topic) refused() bool {
	select {
	case <-t.acked:
		return t.err != nil
	default:
		return false
	}
}

func (h *hub) receive(t *topic, n *protocol.Message) {
	if n.Method() == protocol.Acknowledged {
		t.once.Do(func() {
			raw, _ := n.Param("notifications")
			_ = json.Unmarshal(raw, &t.got)
			close(t.acked)
		})
		return
	}
	h.subscribers.publish(n)
}

// acknowledgedPart waits for the acknowledgments and returns the acknowledged part of a filter, or the error if all topics were refused.
func acknowledgedPart(ctx context.Context, topics map[string]*topic, want protocol.Filter) (got protocol.Filter, refused *protocol.Error) {
	late := time.NewTimer(sendTimeout)
	defer late.Stop()
	granted := len(topics) == 0
	for key, t := range topics {
		select {
		case <-t.acked:
		case <-late.C:
			late.Reset(0) // do not wait for the others either
			refused = protocol.Errorf(protocol.InternalError, "missing acknowledgment of the server")
			continue
		case <-ctx.Done():
			return got, nil
		}
		switch {
		case t.err != nil:
			refused = t.err
			continue
		case key == "":
			got.Tools, got.Prompts, got.Resources = want.Tools && t.got.Tools, want.Prompts && t.got.Prompts, want.Resources && t.got.Resources
		case slices.Contains(t.got.URIs, key):
			got.URIs = append(got.URIs, key)
		}
		granted = true
	}
	if granted {
		refused = nil
	}
	slices.Sort(got.URIs)
	return got, refused
}

// anyOver returns a channel that is closed when the server ends one of the requests. The function stop releases its goroutines.
func anyOver(topics map[string]*topic) (over <-chan struct{}, stop func()) {
	first, left := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var waits sync.WaitGroup
	for _, t := range topics {
		if t.refused() {
			continue
		}
		waits.Go(func() {
			select {
			case <-t.over:
				once.Do(func() { close(first) })
			case <-left:
			}
		})
	}
	return first, func() {
		close(left)
		waits.Wait()
	}
}
