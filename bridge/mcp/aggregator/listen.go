package aggregator

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/ratelimit"
	"github.com/lmosd/lmosd/td"
)

const (
	// resubscribeDelay is the first delay before an ended subscription is renewed. It grows up to maxResubscribeDelay.
	resubscribeDelay    = time.Second
	maxResubscribeDelay = time.Minute
	// debounce is the delay after a change in which further changes are combined.
	debounce = 200 * time.Millisecond
)

// enterListen returns the filter of a listen request, and counts the request until leave is called.
func (h *Handler) enterListen(ctx context.Context, m *protocol.Message) (want protocol.Filter, leave func(), e *protocol.Error) {
	if want, e = filterOf(m); e != nil {
		return want, nil, e
	}
	caller := protocol.CallerOf(ctx)
	if h.listens.Enter(caller) != ratelimit.Entered {
		return want, nil, features.Error(errListens)
	}
	return want, func() { h.listens.Leave(caller) }, nil
}

// filterOf returns the filter of a listen request. Tasks in it require that the client supports tasks.
func filterOf(m *protocol.Message) (protocol.Filter, *protocol.Error) {
	f, e := m.Filter()
	if e == nil && len(f.Tasks) > 0 {
		e = features.NeedTasks(m)
	}
	return f, e
}

// A listener is one subscriptions/listen request. Its messages come from several goroutines and are sent by one.
type listener struct {
	ctx    context.Context
	cancel context.CancelFunc
	m      *protocol.Message
	out    chan *protocol.Message
	work   sync.WaitGroup
}

func newListener(ctx context.Context, m *protocol.Message) *listener {
	l := &listener{m: m, out: make(chan *protocol.Message)}
	l.ctx, l.cancel = context.WithCancel(ctx)
	return l
}

// notify sends a notification to the client, unless it has disconnected.
func (l *listener) notify(method string, params map[string]any) {
	if params == nil {
		params = map[string]any{}
	}
	l.send(l.m.Notification(method, params))
}

func (l *listener) send(n *protocol.Message) {
	select {
	case l.out <- n:
	case <-l.ctx.Done():
	}
}

// run acknowledges the subscription and sends its messages until the client disconnects or end is closed.
func (l *listener) run(notify protocol.Notify, acknowledged protocol.Filter, end <-chan struct{}) (*protocol.Message, error) {
	defer l.work.Wait()
	defer l.cancel()
	if err := notify(l.m.Acknowledgment(acknowledged)); err != nil {
		return nil, err
	}
	for {
		select {
		case n := <-l.out:
			if err := notify(n); err != nil {
				return nil, err
			}
		case <-end:
			return l.m.EndSubscription(), nil
		case <-l.ctx.Done():
			return nil, l.ctx.Err()
		}
	}
}

// Bounds of the listen requests of one caller, and of all callers.
const (
	maxListens = 1024
	allListens = 4096
)

var errListens = interact.Errorf(interact.Overloaded, "end a subscription", "too many subscriptions of this caller or of all callers")

// listen handles subscriptions/listen.
func (t *thing) listen(ctx context.Context, f *features.Features, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error) {
	want, leave, e := t.h.enterListen(ctx, m)
	if e != nil {
		return protocol.RespondError(m.ID(), e), nil
	}
	defer leave()
	l := newListener(ctx, m)
	tasks := map[string]taskID{}
	want.URIs = slices.DeleteFunc(want.URIs, func(uri string) bool {
		r := f.Resource(uri)
		return r == nil || !r.Observable
	})
	want.Tasks = slices.DeleteFunc(want.Tasks, func(token string) bool {
		var id taskID
		if t.h.sealer.Open(tasksOf(ctx), token, &id) != nil || id.Ref != t.ref {
			return true
		}
		tasks[token] = id
		return false
	})
	for _, uri := range want.URIs {
		changed, leave := t.feeds.join(f.Resource(uri))
		l.work.Go(func() {
			defer leave()
			l.updates(uri, changed)
		})
	}
	for token, id := range tasks {
		l.work.Go(func() { t.watchTask(l, token, id) })
	}
	if want.Tools || want.Prompts || want.Resources {
		l.work.Go(func() { t.watchLists(l, f, want) })
	}
	return l.run(notify, want, t.runs.ctx.Done())
}

// updates sends an update of a resource for each signal of changed.
func (l *listener) updates(uri string, changed <-chan struct{}) {
	for {
		select {
		case <-changed:
			l.notify(protocol.ResourceUpdated, map[string]any{"uri": uri})
		case <-l.ctx.Done():
			return
		}
	}
}

// watchTask sends the state of a task after each change, until the task ends.
func (t *thing) watchTask(l *listener, token string, id taskID) {
	last := ""
	for {
		s, _, e := t.state(l.ctx, l.m, token, id)
		if e != nil {
			return
		}
		text := protocol.Encode(s)
		if string(text) != last {
			last = string(text)
			var params map[string]any
			_ = json.Unmarshal(text, &params) // cannot fail: text was encoded above
			l.notify(protocol.TaskUpdated, params)
		}
		if s.Ended() {
			return
		}
		if backoff.Sleep(l.ctx, pollInterval) != nil {
			return
		}
	}
}

// watchLists sends the changes of the lists after a change of the description.
func (t *thing) watchLists(l *listener, f *features.Features, want protocol.Filter) {
	q := td.Query{ID: f.Desc.Thing.ID, Owner: f.Desc.Record.Owner}
	watch(l, t.h, q, func() {
		now, err := t.features(l.ctx)
		if err != nil {
			now = &features.Features{} // the Thing was removed
		}
		l.changed(want, listsOf(f), listsOf(now))
		f = now
	})
}

// lists are the features of a server, for comparison.
type lists struct{ tools, prompts, resources, templates any }

func listsOf(f *features.Features) lists { return lists{f.Tools, f.Prompts, f.Resources, f.Templates} }

// changed sends a notification for each list that differs.
func (l *listener) changed(want protocol.Filter, was, is lists) {
	differ := func(a, b any) bool { return !bytes.Equal(protocol.Encode(a), protocol.Encode(b)) }
	if want.Tools && differ(was.tools, is.tools) {
		l.notify(protocol.ToolsChanged, nil)
	}
	if want.Prompts && differ(was.prompts, is.prompts) {
		l.notify(protocol.PromptsChanged, nil)
	}
	if want.Resources && (differ(was.resources, is.resources) || differ(was.templates, is.templates)) {
		l.notify(protocol.ResourcesChanged, nil)
	}
}

// watch calls f at the start and after changes of the Things that match q, until the client disconnects. Changes in quick succession
// cause one call.
func watch(l *listener, h *Handler, q td.Query, f func()) {
	dirty := make(chan struct{}, 1)
	l.work.Go(func() {
		for {
			latest := h.o.Mesh.Latest()
			signal(dirty) // covers the changes before latest
			for _, err := range h.o.Mesh.Watch(l.ctx, q, latest) {
				if err != nil {
					break
				}
				signal(dirty)
			}
			if backoff.Sleep(l.ctx, resubscribeDelay) != nil {
				return
			}
		}
	})
	for {
		select {
		case <-dirty:
		case <-l.ctx.Done():
			return
		}
		if backoff.Sleep(l.ctx, debounce) != nil {
			return
		}
		select {
		case <-dirty: // covers the changes during the delay
		default:
		}
		f()
	}
}

// signal sends to c without blocking. One pending signal is enough.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
