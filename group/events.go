package group

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/internal/jcs"
)

// Limits of events.
const (
	maxWatchers = 64        // of one group
	maxWaiting  = 256       // events of one watcher
	maxSeen     = 4096      // ids of events of one group
	seenFor     = time.Hour // they are kept
	maxType     = 64
)

// Send sends an event with JSON data to the other members that the newest known entry of the group names, and to the watchers at this node. The
// sender is the caller of ctx. The result names the nodes that did not receive it.
func (g *Groups) Send(ctx context.Context, ref, typ string, data json.RawMessage) (*api.GroupDelivery, error) {
	switch _, err := jcs.Decode(data, api.MaxGroupEvent); {
	case len(data) > api.MaxGroupEvent:
		return nil, interact.Errorf(interact.TooLarge, "send less, or the address of an agent that has the data", "an event has at most %d bytes, got %d", api.MaxGroupEvent, len(data))
	case err != nil:
		return nil, interact.Errorf(interact.NotJSON, "", "the data of the event: %v", err)
	case len(typ) > maxType || interact.Readable(typ) != typ:
		return nil, interact.Errorf(interact.Usage, "", "the type of an event is at most %d characters", maxType)
	}
	g.mu.RLock()
	one, err := g.findLocked(ref)
	if err == nil {
		err = one.active(g.self)
	}
	if err != nil {
		g.mu.RUnlock()
		return nil, err
	}
	all := g.nodesLocked(one)
	sender := g.self // or an agent with a key of its own, for which the caller acts
	if agent := did.PrincipalOf(ctx).Agent(); agent != "" {
		sender = agent
	}
	m, is := one.State().Member(sender)
	g.mu.RUnlock()
	if !is || m.Node != g.self || sender == g.self && one.Leaving {
		return nil, interact.Errorf(interact.NotMember, "send as a member", "%s is not a member of the group %s at this node", sender.Short(), one.Name)
	}
	e := &event{ID: rand.Text(), Member: string(sender), Sender: g.o.Sender(did.PrincipalOf(ctx)), Time: g.o.Now().UnixMilli(), Type: typ, Data: data}
	g.deliver(one, e, g.self)
	d := &api.GroupDelivery{ID: e.ID}
	var mu sync.Mutex
	g.each(all, func(node did.DID) {
		err := g.reach(ctx, node, func() error { return g.sendTo(ctx, one, node, e) })
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			d.Delivered++
			return
		}
		if d.Failed == nil {
			d.Failed = map[did.DID]string{}
		}
		d.Failed[node] = interact.Excerpt(err.Error(), 200)
	})
	return d, nil
}

// sendTo sends an event to a node, if a member is reached through it now.
func (g *Groups) sendTo(ctx context.Context, one *group, node did.DID, e *event) error {
	g.mu.RLock()
	q := &request{Op: opEvent, Group: one.ID, Head: one.Head().ID, Event: e}
	ok := one.active(g.self) == nil && slices.Contains(g.nodesLocked(one), node) && g.countsLocked(one, node)
	g.mu.RUnlock()
	if !ok {
		return interact.Errorf(interact.NotMember, "", "%s is not a member now", node.Short())
	}
	_, err := g.ask(ctx, node, q)
	if e := interact.AsError(err); e != nil && e.Code == interact.NotMember {
		g.background(func(ctx context.Context) { _ = g.exchange(ctx, one, node) }) // it knows a newer entry
	}
	return err
}

// countsLocked reports whether a node has a member with rights here.
func (g *Groups) countsLocked(one *group, node did.DID) bool {
	lost := one.Lost()
	for _, m := range one.State().At(node) {
		if g.problemLocked(one, m, lost) == "" {
			return true
		}
	}
	return false
}

// serveEvent takes an event of a member.
func (g *Groups) serveEvent(ctx context.Context, from *did.Principal, q *request) error {
	g.mu.RLock()
	one := g.groups[q.Group]
	known := one != nil && one.active(g.self) == nil
	behind := known && !one.Has(q.Head) && one.Until(from.Node) > 0
	g.mu.RUnlock()
	if !known {
		return refused
	}
	if behind { // its newest entry may have made it a member, or removed this node
		g.mu.Lock()
		asked := one.asked[string(from.Node)+q.Head]
		boundedmap.Put(&one.asked, string(from.Node)+q.Head, true, maxSeen, nil)
		g.mu.Unlock()
		if !asked {
			if err := g.exchange(ctx, one, from.Node); err != nil {
				g.o.Log.Debug("entries of a group not exchanged", "group", one.Name, "peer", from.Node.Short(), "err", err)
			}
		}
	}
	e := q.Event
	if len(e.Data) > api.MaxGroupEvent || !json.Valid(e.Data) || len(e.ID) > 64 || len(e.Sender) > 255 || len(e.Type) > maxType {
		return interact.Errorf(interact.Invalid, "", "the event is malformed or too large")
	}
	g.mu.RLock()
	m, is := one.State().Member(did.DID(e.Member))
	counts := is && m.Node == from.Node && g.problemLocked(one, m, one.Lost()) == ""
	former, ended := one.Until(from.Node) > 0, one.active(g.self)
	g.mu.RUnlock()
	switch {
	case ended != nil:
		return refused
	case !counts && former:
		return interact.Errorf(interact.NotMember, "ask an admin of the group", "%s is not a member of the group any more", did.DID(e.Member).Short())
	case !counts:
		return refused
	}
	g.deliver(one, e, from.Node)
	return nil
}

// deliver gives an event to the watchers, once.
func (g *Groups) deliver(one *group, e *event, node did.DID) {
	now := g.o.Now()
	g.mu.Lock()
	if _, again := one.seen[e.ID]; again {
		g.mu.Unlock()
		return
	}
	boundedmap.Put(&one.seen, e.ID, now, maxSeen, func(at time.Time) bool { return now.Sub(at) > seenFor })
	out := api.GroupEvent{ID: e.ID, Group: one.ID, Member: did.DID(e.Member), Node: node, Sender: interact.Readable(e.Sender), Time: time.UnixMilli(e.Time).UTC(),
		Type: interact.Readable(e.Type), Data: json.RawMessage(e.Data)}
	var all []*watcher
	for w := range one.watchers {
		all = append(all, w)
	}
	g.mu.Unlock()
	for _, w := range all {
		w.add(out)
	}
}

// A watcher receives the events of a group.
type watcher struct {
	events chan api.GroupEvent
	ended  chan struct{} // closed by stop
	once   sync.Once
	err    error // of stop
}

// add gives the watcher an event. One that is too slow ends.
func (w *watcher) add(e api.GroupEvent) {
	select {
	case w.events <- e:
	default:
		w.stop(interact.Errorf(interact.Overloaded, "start it again, and read faster", "%d events wait for this reader", maxWaiting))
	}
}

func (w *watcher) stop(err error) {
	w.once.Do(func() {
		w.err = err
		close(w.ended)
	})
}

// Watch yields the events of a group from now on. The sequence ends with an error when the membership of this node ends, or with ctx.
func (g *Groups) Watch(ctx context.Context, ref string) iter.Seq2[api.GroupEvent, error] {
	return func(yield func(api.GroupEvent, error) bool) {
		one, w, err := g.watch(ref)
		if err != nil {
			yield(api.GroupEvent{}, err)
			return
		}
		defer func() {
			g.mu.Lock()
			delete(one.watchers, w)
			g.mu.Unlock()
		}()
		for {
			select {
			case <-w.ended: // what is waiting came after the end, or is lost with it
				yield(api.GroupEvent{}, w.err)
				return
			default:
			}
			select {
			case e := <-w.events:
				if !yield(e, nil) {
					return
				}
			case <-w.ended:
			case <-ctx.Done():
				return
			case <-g.ctx.Done():
				yield(api.GroupEvent{}, interact.ShutdownError("try again when the node is back"))
				return
			}
		}
	}
}

func (g *Groups) watch(ref string) (*group, *watcher, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one, err := g.findLocked(ref)
	if err == nil {
		err = one.active(g.self)
	}
	switch {
	case err != nil:
		return nil, nil, err
	case len(one.watchers) >= maxWatchers:
		return nil, nil, interact.Errorf(interact.Overloaded, "try again later, or share one stream", "%d readers receive the events of the group already", maxWatchers)
	}
	w := &watcher{events: make(chan api.GroupEvent, maxWaiting), ended: make(chan struct{})}
	one.watchers[w] = struct{}{}
	return one, w, nil
}
