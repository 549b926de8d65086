package topology

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// Limits of asking. Members are asked only while a caller requests a map.
const (
	askEvery  = 10 * time.Second // one member, at most
	retryDown = 30 * time.Second // one that could not be reached
	askTime   = 2 * time.Second  // for one member, with the dial
	roundTime = 2500 * time.Millisecond
	maxAsked  = 256 // members
	maxAtOnce = 32
	keepFor   = time.Minute // a report without a newer one
)

// An answer is the result of asking a member. Map.mu owns it.
type answer struct {
	asked    time.Time
	report   *report   // the newest; nil: none, or too old
	last     *report   // the last one, without the connections, for the name of a member that is away
	answered time.Time // of report
	isDown   bool      // it could not be reached
	wasLost  bool      // it was asked early since it was last connected, because its connection had ended
}

// due reports whether a member may be asked again.
func (a *answer) due(now time.Time) bool {
	switch {
	case a == nil:
		return true
	case a.isDown:
		return now.Sub(a.asked) >= retryDown
	}
	return now.Sub(a.asked) >= askEvery
}

// candidates returns the nodes to ask: the members of the organization, connected ones first; if nodes report to the whole mesh, all connected
// ones. truncated reports whether there are more.
func (m *Map) candidates(peers []api.Peer) (all []did.DID, truncated bool) {
	if m.ask == nil {
		return nil, false
	}
	members, connected := m.members(), map[did.DID]bool{}
	for _, p := range peers {
		connected[p.DID] = true
		if m.forWhom == ForMesh {
			all = append(all, p.DID)
		}
	}
	if m.forWhom != ForMesh {
		for _, id := range members {
			if connected[id] {
				all = append(all, id)
			}
		}
	}
	for _, id := range members {
		if !connected[id] && id != m.self {
			all = append(all, id)
		}
	}
	if len(all) > maxAsked {
		return all[:maxAsked], true
	}
	return all, false
}

// reports asks the members that are due, waits for them, and returns what is known now.
func (m *Map) reports(ctx context.Context, members []did.DID, peers []api.Peer) (map[did.DID]*report, api.TopologyCoverage) {
	if done := m.startRound(members, peers); done != nil {
		timer := time.NewTimer(roundTime)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	now, known := time.Now(), make(map[did.DID]*report, len(members))
	c := api.TopologyCoverage{Asked: len(members)}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range members {
		a := m.asked[id]
		switch {
		case a == nil:
		case a.report != nil && now.Sub(a.answered) < keepFor && !a.isDown:
			known[id] = a.report
			c.Answered++
			c.Truncated = c.Truncated || a.report.more
		case a.isDown:
			known[id] = a.last
			c.Unreachable++
		}
	}
	return known, c
}

// startRound asks the members that are due, unless a round is running, and returns the channel that the round closes; nil: none is running. It drops
// what is known of nodes that are no members any more.
func (m *Map) startRound(members []did.DID, peers []api.Peer) <-chan struct{} {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running != nil {
		return m.running
	}
	is, connected := make(map[did.DID]bool, len(members)), make(map[did.DID]bool, len(peers))
	for _, p := range peers {
		connected[p.DID] = true
	}
	var due []did.DID
	for _, id := range members {
		a := m.asked[id]
		isLost := a != nil && a.report != nil && !connected[id] && !a.wasLost // a member that has stopped is shown so at once
		if is[id] = true; isLost || a.due(now) {
			due = append(due, id)
		}
		if a != nil {
			a.wasLost = (a.wasLost || isLost) && !connected[id]
		}
	}
	for id := range m.asked {
		if !is[id] {
			delete(m.asked, id)
		}
	}
	if len(due) == 0 {
		return nil
	}
	for _, id := range due {
		if m.asked[id] == nil {
			m.asked[id] = new(answer)
		}
		m.asked[id].asked = now
	}
	done := make(chan struct{})
	m.running = done
	if !m.background(func(life context.Context) { m.round(life, due, connected, done) }) {
		m.running = nil
		return nil
	}
	return done
}

// round asks members at once, each for a bounded time: a slow one delays no answer of the others.
func (m *Map) round(ctx context.Context, due []did.DID, connected map[did.DID]bool, done chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	m.askAll(ctx, due, connected)
	m.mu.Lock()
	m.running = nil
	m.mu.Unlock()
	close(done)
}

// askAll asks nodes, [maxAtOnce] at once.
func (m *Map) askAll(ctx context.Context, due []did.DID, connected map[did.DID]bool) {
	var g sync.WaitGroup
	slots := make(chan struct{}, maxAtOnce)
	for _, id := range due {
		slots <- struct{}{}
		g.Go(func() {
			defer func() { <-slots }()
			m.askOne(ctx, id, connected[id])
		})
	}
	g.Wait()
}

// askOne asks a member and keeps its answer. A member for which the round left less than askTime is not down: the next round asks it.
func (m *Map) askOne(round context.Context, id did.DID, isConnected bool) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(round, askTime)
	defer cancel()
	var raw []byte
	var err error
	if !isConnected {
		err = m.dial(ctx, id)
	}
	if err == nil {
		raw, err = m.ask(ctx, id)
	}
	refusal := (*interact.Error)(nil)
	isDown := err != nil && !(errors.As(err, &refusal) && refusal.Remote)
	var r *report
	if err == nil {
		r, err = parseReport(raw, id, time.Now())
	}
	if err != nil {
		m.log.Debug("connections of a member unknown", "node", id.Short(), "err", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch a := m.asked[id]; {
	case a == nil:
	case isDown && round.Err() != nil && time.Since(start) < askTime:
		a.asked = time.Time{}
	default:
		if r != nil {
			a.last = &report{name: r.name, version: r.version, roles: r.roles, isOld: true}
		}
		a.report, a.isDown, a.answered = r, isDown, time.Now()
	}
}

// askNew asks the connected members that were not asked yet, and waits for them until [namesTime] or ctx ends.
func (m *Map) askNew(ctx context.Context) {
	peers, now := m.peers(), time.Now()
	members, _ := m.candidates(peers)
	members = members[:min(len(members), len(peers))] // the connected ones are first
	connected := make(map[did.DID]bool, len(peers))
	for _, p := range peers {
		connected[p.DID] = true
	}
	var fresh []did.DID
	m.mu.Lock()
	for _, id := range members {
		if connected[id] && m.asked[id] == nil {
			m.asked[id] = &answer{asked: now}
			fresh = append(fresh, id)
		}
	}
	m.mu.Unlock()
	if len(fresh) == 0 {
		return
	}
	done := make(chan struct{})
	if !m.background(func(life context.Context) {
		defer close(done)
		m.askAll(life, fresh, connected)
	}) {
		return
	}
	timer := time.NewTimer(namesTime)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}
