package group

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/group/chain"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/internal/heartbeat"
)

// Times of the exchange of entries.
const (
	tick       = 15 * time.Second // between exchanges with a member
	dialTime   = 5 * time.Second
	spreadTime = 20 * time.Second
	atOnce     = 32 // nodes
	forwards   = 3  // connected members who get entries of others
	leaveEvery = time.Minute
	maxUnwell  = 1 << 12 // nodes that could not be reached
)

// Serve answers a request of a node (trust.Groups).
func (g *Groups) Serve(ctx context.Context, from *did.Principal, body []byte) ([]byte, error) {
	q, err := readRequest(body)
	if err != nil {
		return nil, err
	}
	r := &response{}
	switch q.Op {
	case opSync:
		r, err = g.serveSync(from.Node, q)
	case opEvent:
		err = g.serveEvent(ctx, from, q)
	case opJoin:
		r, err = g.serveJoin(from.Node, q)
	case opLeave:
		err = g.serveLeave(from.Node, q)
	case opOffer:
		err = g.serveOffer(from, q)
	default:
		return nil, interact.Errorf(interact.Invalid, "update lmosd there", "unknown operation %d", q.Op)
	}
	if err != nil {
		return nil, err
	}
	return cbor.Marshal(r)
}

// ask sends a request to a node.
func (g *Groups) ask(ctx context.Context, node did.DID, q *request, addrs ...string) (*response, error) {
	body, err := cbor.Marshal(q)
	if err != nil {
		return nil, err
	}
	raw, err := g.o.Ask(ctx, node, body, addrs...)
	if err != nil {
		return nil, err
	}
	return readResponse(raw)
}

// serveSync takes entries of a node, and returns those that it may receive and lacks.
func (g *Groups) serveSync(from did.DID, q *request) (*response, error) {
	g.mu.RLock()
	one := g.groups[q.Group]
	known := one != nil && one.Joined && one.Until(from) > 0
	g.mu.RUnlock()
	if !known {
		return nil, refused
	}
	if err := g.take(one, q.Entries, from); err != nil {
		return nil, interact.Errorf(interact.Invalid, "", "%v", err)
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	entries, member := one.forNode(from, q.Locator)
	r := &response{}
	size := 0
	for _, e := range entries {
		if size += len(e.Raw); size > maxPage {
			r.More = true
			break
		}
		r.Entries = append(r.Entries, e.Raw)
	}
	if member {
		r.Locator = one.Locator()
	}
	return r, nil
}

// forNode returns the entries that a node may receive and lacks, and whether it is the node of a member. That of a former member receives the
// branch that counts, up to the end of its membership. mu is held.
func (one *group) forNode(node did.DID, locator []string) (entries []*chain.Entry, member bool) {
	if len(one.State().At(node)) > 0 {
		return one.Missing(locator), true
	}
	return one.UpTo(one.Until(node), locator), false
}

// take adds entries of a node, durably. One that no member accepts is an error that wraps [chain.ErrInvalid]; those before it are added. One that may be
// accepted later ends it without an error: the next exchange has it.
func (g *Groups) take(one *group, raw [][]byte, from did.DID) (err error) {
	if len(raw) == 0 {
		return nil
	}
	g.writing.Lock()
	var fresh [][]byte
	changed := false
	now := g.o.Now()
	g.mu.Lock()
	for _, entry := range raw {
		before := one.Len()
		moved, problem := one.Add(entry, now)
		if problem != nil {
			g.o.Log.Debug("entry of a group refused", "group", one.Name, "peer", from.Short(), "err", problem)
			if errors.Is(problem, chain.ErrInvalid) {
				err = problem
			}
			break
		}
		if one.Len() != before || moved {
			fresh = append(fresh, entry)
		}
		changed = changed || moved
	}
	for _, e := range one.Path()[max(0, len(one.Path())-len(raw)):] {
		if one.arrived[e.ID].IsZero() {
			one.arrived[e.ID] = now
		}
	}
	g.mu.Unlock()
	stored := g.append(one.ID, fresh)
	g.writing.Unlock()
	if stored != nil {
		g.o.Log.Error("entries of a group not stored", "group", one.Name, "err", stored)
	}
	if changed {
		g.changed(one)
	}
	if len(fresh) > 0 {
		g.forward(one, from)
		g.settle(one)
	}
	return err
}

// changed does what a new head requires: memberships, streams of events.
func (g *Groups) changed(one *group) {
	g.remember()
	g.mu.RLock()
	ended := one.active(g.self)
	var all []*watcher
	if ended != nil {
		for w := range one.watchers {
			all = append(all, w)
		}
	}
	g.mu.RUnlock()
	for _, w := range all {
		w.stop(ended)
	}
	if ended != nil && len(all) > 0 {
		g.o.Log.Info("streams of a group ended", "group", one.Name, "err", ended)
	}
}

// exchange brings this node and another one to the same entries, as far as both may have them.
func (g *Groups) exchange(ctx context.Context, one *group, node did.DID) error {
	var push []*chain.Entry
	for range maxRounds {
		g.mu.RLock()
		q := &request{Op: opSync, Group: one.ID, Locator: one.Locator()}
		g.mu.RUnlock()
		size, rest := 0, 0
		for i, e := range push {
			if size += len(e.Raw); i > 0 && size > maxPush || i >= maxPushed {
				rest = len(push) - i
				break
			}
			q.Entries = append(q.Entries, e.Raw)
		}
		r, err := g.ask(ctx, node, q)
		if err != nil {
			return err
		}
		if err := g.take(one, r.Entries, node); err != nil {
			return err
		}
		g.mu.RLock()
		if push = nil; len(r.Locator) > 0 {
			push, _ = one.forNode(node, r.Locator)
		}
		g.mu.RUnlock()
		if rest == 0 && len(q.Entries) > 0 && !r.More { // what was sent was all
			return nil
		}
		if len(push) == 0 && !r.More {
			return nil
		}
	}
	return errors.New("the exchange of entries does not end")
}

// nodesLocked returns the nodes of the members, without this one, in an order that differs each time.
func (g *Groups) nodesLocked(one *group) []did.DID {
	var all []did.DID
	for _, m := range one.State().Members {
		if m.Node != g.self && !slices.Contains(all, m.Node) && !g.isBarredLocked(m.Node) {
			all = append(all, m.Node)
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// forward exchanges with a few connected members after entries of others have come.
func (g *Groups) forward(one *group, from did.DID) {
	g.mu.RLock()
	all := slices.DeleteFunc(g.nodesLocked(one), func(id did.DID) bool { return id == from })
	g.mu.RUnlock()
	for _, node := range all[:min(len(all), forwards)] {
		g.background(func(ctx context.Context) {
			if err := g.exchange(ctx, one, node); err != nil {
				g.o.Log.Debug("entries of a group not forwarded", "group", one.Name, "peer", node.Short(), "err", err)
			}
		})
	}
}

// spread sends the newest entries to all members, and to those whose membership has ended with them. It dials those that are not connected.
func (g *Groups) spread(one *group, also ...did.DID) {
	g.mu.RLock()
	all := append(also, g.nodesLocked(one)...)
	g.mu.RUnlock()
	g.background(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, spreadTime)
		defer cancel()
		g.each(all, func(node did.DID) {
			if err := g.reach(ctx, node, func() error { return g.exchange(ctx, one, node) }); err != nil {
				g.o.Log.Debug("entries of a group not sent", "group", one.Name, "peer", node.Short(), "err", err)
			}
		})
	})
}

// each calls f for all nodes, [atOnce] at a time, and returns after the last.
func (g *Groups) each(all []did.DID, f func(did.DID)) {
	slots := make(chan struct{}, atOnce)
	var work sync.WaitGroup
	for _, node := range all {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			f(node)
		})
	}
	work.Wait()
}

// reach calls f, and again after it has connected to a node that was not connected. A node that could not be reached is not dialed for a while.
func (g *Groups) reach(ctx context.Context, node did.DID, f func() error) error {
	err := f()
	known := (*interact.Error)(nil)
	if err == nil || errors.As(err, &known) && known.Remote || ctx.Err() != nil || errors.Is(err, chain.ErrInvalid) {
		return err
	}
	now := g.o.Now()
	g.mu.Lock()
	p := g.unwell[node]
	if p != nil && now.Before(p.until) {
		g.mu.Unlock()
		return err
	}
	g.mu.Unlock()
	dial, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	if failed := g.o.Connect(dial, node); failed != nil {
		g.mu.Lock()
		if p == nil {
			p = &pause{backoff: backoff.Backoff{First: time.Second, Max: 5 * time.Minute}}
			boundedmap.Put(&g.unwell, node, p, maxUnwell, func(p *pause) bool { return now.After(p.until) })
		}
		p.until = now.Add(p.backoff.Next())
		g.mu.Unlock()
		return failed
	}
	g.mu.Lock()
	delete(g.unwell, node)
	g.mu.Unlock()
	return f()
}

// Met exchanges the entries of the groups in common with a node that is connected now.
func (g *Groups) Met(node did.DID) {
	g.mu.Lock()
	delete(g.unwell, node)
	var all []*group
	for _, one := range g.groups {
		if one.Joined && one.Until(node) > 0 && !g.isBarredLocked(node) {
			all = append(all, one)
		}
	}
	g.mu.Unlock()
	for _, one := range all {
		g.background(func(ctx context.Context) {
			if err := g.exchange(ctx, one, node); err != nil {
				g.o.Log.Debug("entries of a group not exchanged", "group", one.Name, "peer", node.Short(), "err", err)
			}
		})
	}
}

// Run exchanges entries with members, one at a time, until ctx ends.
func (g *Groups) Run(ctx context.Context) error {
	left := time.Time{}
	loop := heartbeat.Start(ctx, "groups", time.Minute) // with the time of an exchange
	for backoff.Sleep(ctx, backoff.Jitter(tick, 0.2)) == nil {
		loop.Beat()
		g.pinOld()
		g.remember() // memberships end with their credentials
		for _, one := range g.joined() {
			loop.Beat()
			g.mu.RLock()
			all := g.nodesLocked(one)
			g.mu.RUnlock()
			if len(all) > 0 {
				node := all[0]
				if err := g.reach(ctx, node, func() error { return g.exchange(ctx, one, node) }); err != nil {
					g.o.Log.Debug("entries of a group not exchanged", "group", one.Name, "peer", node.Short(), "err", err)
				}
			}
			g.settle(one)
		}
		if g.o.Now().Sub(left) >= leaveEvery {
			left = g.o.Now()
			g.leaveAgain(ctx)
		}
	}
	return nil
}

// joined returns the groups in which this node takes part and that are not dissolved.
func (g *Groups) joined() (all []*group) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, one := range g.groups {
		if one.active(g.self) == nil {
			all = append(all, one)
		}
	}
	return all
}

// pinOld pins the entries that this node has had for a while.
func (g *Groups) pinOld() {
	g.writing.Lock()
	defer g.writing.Unlock()
	g.mu.Lock()
	now, pinned := g.o.Now(), false
	for _, one := range g.groups {
		before := one.Pinned()
		for id, at := range one.arrived {
			if now.Sub(at) >= chain.PinAfter {
				one.Pin(id)
				delete(one.arrived, id)
			}
		}
		pinned = pinned || one.Pinned() != before
	}
	g.mu.Unlock()
	if pinned {
		if err := g.save(); err != nil {
			g.o.Log.Error("list of groups not stored", "err", err)
		}
	}
}
