package aggregator

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/td"
)

// ackTimeout bounds the wait for the acknowledgments of Things.
const ackTimeout = 5 * time.Second

// A thingFilter is the part of a subscription that concerns one Thing.
type thingFilter struct {
	ref   string
	uris  map[string]string // by URI at the Thing: the URI in the mesh
	tasks map[string]string
	acked chan protocol.Filter // receives the filter that the Thing acknowledges, once
}

// listen handles subscriptions/listen. The mesh reports changes of lists; Things report changes of resources and tasks.
func (s *mesh) listen(ctx context.Context, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error) {
	want, leave, e := s.h.enterListen(ctx, m)
	if e != nil {
		return protocol.RespondError(m.ID(), e), nil
	}
	defer leave()
	l := newListener(ctx, m)
	v := s.pinned.view(ctx)
	parts := s.byThing(ctx, v, want)
	for _, one := range parts {
		l.work.Go(func() { s.listenTo(l, one) })
	}
	want.URIs, want.Tasks = nil, nil
	late := time.NewTimer(ackTimeout)
	defer late.Stop()
	for _, one := range parts {
		select {
		case f := <-one.acked:
			want.URIs, want.Tasks = append(want.URIs, f.URIs...), append(want.Tasks, f.Tasks...)
		case <-late.C:
			late.Reset(0) // do not wait for the others either
		case <-ctx.Done():
		}
	}
	if want.Tools || want.Prompts || want.Resources {
		l.work.Go(func() {
			watch(l, s.h, td.Query{}, func() {
				now := s.pinned.view(l.ctx)
				if now != v {
					l.changed(want, v.lists(), now.lists())
				}
				v = now
			})
		})
	}
	return l.run(notify, want, s.h.ctx.Done())
}

func (v *view) lists() lists { return lists{v.tools, v.prompts, v.resources, v.templates} }

// byThing splits a filter by Thing.
func (s *mesh) byThing(ctx context.Context, v *view, want protocol.Filter) []*thingFilter {
	var all []*thingFilter
	of := func(ref string) *thingFilter {
		i := slices.IndexFunc(all, func(one *thingFilter) bool { return one.ref == ref })
		if i < 0 {
			i, all = len(all), append(all, &thingFilter{ref, map[string]string{}, map[string]string{}, make(chan protocol.Filter, 1)})
		}
		return all[i]
	}
	for _, uri := range want.URIs {
		if ref, inner, ok := v.thingOf(uri); ok {
			of(ref).uris[inner] = uri
		}
	}
	for _, token := range want.Tasks {
		var id foreignTask
		if s.h.sealer.Open(meshTaskOf(ctx), token, &id) == nil {
			of(id.Ref).tasks[id.ID] = token
		}
	}
	return all
}

// listenTo subscribes to one Thing, and renews an ended subscription until the client disconnects. After a renewal it reports all
// resources as changed.
func (s *mesh) listenTo(l *listener, one *thingFilter) {
	f := protocol.Filter{}
	for inner := range one.uris {
		f.URIs = append(f.URIs, inner)
	}
	for inner := range one.tasks {
		f.Tasks = append(f.Tasks, inner)
	}
	m := l.m.WithParam(protocol.Encode(f), "notifications")
	pauses, acknowledged := backoff.Backoff{First: resubscribeDelay, Max: maxResubscribeDelay}, false
	for first := true; ; first = false {
		_, _ = s.forward(l.ctx, one.ref, m, func(n *protocol.Message) error {
			if n.Method() == protocol.Acknowledged {
				if first && acknowledged {
					return nil // duplicate
				}
				if acknowledged = true; first {
					one.acknowledge(n)
				} else {
					one.allChanged(l)
				}
				return nil
			}
			pauses.Reset()
			one.pass(l, n)
			return nil
		})
		if first && !acknowledged { // listen is not supported, or the Thing is unreachable: nothing is acknowledged
			one.acked <- protocol.Filter{}
			return
		}
		if pauses.Sleep(l.ctx) != nil {
			return
		}
	}
}

// acknowledge reports the filter that the Thing acknowledged, with the URIs and ids of the mesh.
func (one *thingFilter) acknowledge(n *protocol.Message) {
	raw, _ := n.Param("notifications")
	var f protocol.Filter
	_ = json.Unmarshal(raw, &f) // a malformed filter is empty
	for i, inner := range f.URIs {
		f.URIs[i] = one.uris[inner]
	}
	for i, inner := range f.Tasks {
		f.Tasks[i] = one.tasks[inner]
	}
	none := func(s string) bool { return s == "" }
	f.URIs, f.Tasks = slices.DeleteFunc(f.URIs, none), slices.DeleteFunc(f.Tasks, none)
	one.acked <- f
}

func (one *thingFilter) allChanged(l *listener) {
	for _, uri := range one.uris {
		l.notify(protocol.ResourceUpdated, map[string]any{"uri": uri})
	}
}

// pass sends a notification of the Thing to the client, with the URIs and ids of the mesh.
func (one *thingFilter) pass(l *listener, n *protocol.Message) {
	switch n.Method() {
	case protocol.ResourceUpdated:
		uri := n.Text("uri")
		if outer, ok := one.uris[uri]; ok {
			l.send(n.WithParam(protocol.Encode(outer), "uri"))
			return
		}
		for inner, outer := range one.uris { // the URI of a sub-resource
			if strings.HasPrefix(uri, inner) {
				l.send(n.WithParam(protocol.Encode(strings.TrimSuffix(outer, inner)+uri), "uri"))
				return
			}
		}
	case protocol.TaskUpdated:
		if outer, ok := one.tasks[n.Text("taskId")]; ok {
			l.send(n.WithParam(protocol.Encode(outer), "taskId"))
		}
	}
}
