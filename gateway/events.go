package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/sse"
	"github.com/lmosd/lmosd/journal"
	"github.com/lmosd/lmosd/td"
)

// Limits of the events.
const (
	maxEventStreams = 128
	ownEventStreams = 16                    // of these, for callers with full rights only
	maxEventList    = 1000                  // events in a list
	eventBatch      = 256                   // events of one source that are read at once
	eventPause      = 20 * time.Millisecond // in which the next ones are collected, so that many changes cost few writes
	maxSince        = 1<<53 - 1             // the largest integer of JSON numbers
)

// activityRoutes are the routes of what the node did lately.
func (g *Gateway) activityRoutes() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /v1/events": g.protect(read, g.events),
		"GET /v1/series": g.protect(read, g.series),
		"GET /v1/calls":  g.protect(admin, g.listCalls),
	}
}

// eventKinds are the kinds of events, and whether they need full rights.
var eventKinds = map[string]bool{
	api.EventPeerConnected: false, api.EventPeerDisconnected: false,
	api.EventAgentAdded: false, api.EventAgentChanged: false, api.EventAgentRemoved: false, api.EventAgentReachable: false, api.EventAgentUnreachable: false,
	api.EventTaskStarted: false, api.EventTaskChanged: false, api.EventTaskEnded: false,
	api.EventCallDone: true, api.EventWarningRaised: false, api.EventWarningCleared: false,
	api.EventTrustChanged: true, api.EventTrustPolicy: true, api.EventTrustToken: true, api.EventTrustKey: true,
	api.EventBootstrapReached: true, api.EventBootstrapFailed: true, api.EventRelayFound: false, api.EventRelayLost: false, api.EventEquivocation: false, api.EventConfigReloaded: false,
	api.EventGap: false,
}

// An eventRequest is a parsed GET /v1/events.
type eventRequest struct {
	kinds []string // or their first parts; empty: all
	since uint64   // 0: not given
	limit int
	full  bool // the caller has full rights
}

// parseEvents reads a GET /v1/events. A caller without full rights gets an error of mayAll if it names kinds that need them.
func parseEvents(r *http.Request, mayAll func() error) (q eventRequest, err error) {
	v, err := tdd.Params(r, "types", "since", "cursor", "limit")
	if err != nil {
		return q, err
	}
	refused := mayAll()
	q.full = refused == nil
	for kind := range strings.SplitSeq(v.Get("types"), ",") {
		if kind = strings.TrimSpace(kind); kind == "" {
			continue
		}
		known, secret := isEventKind(kind)
		switch {
		case !known:
			return q, interact.Errorf(interact.Usage, "for example types=peer,agent.added,task", "unknown kind of events %q", tdd.Clip(kind))
		case secret && refused != nil:
			return q, refused
		}
		if !slices.Contains(q.kinds, kind) {
			q.kinds = append(q.kinds, kind)
		}
	}
	if q.limit, err = tdd.Integer(v, "limit", 1, maxEventList, maxEventList); err != nil {
		return q, err
	}
	for _, name := range [...]string{"since", "cursor"} {
		if !v.Has(name) {
			continue
		}
		if q.since, err = strconv.ParseUint(v.Get(name), 10, 64); err != nil || q.since == 0 || q.since > maxSince {
			return q, interact.Errorf(interact.Usage, "use the seq of an event, or leave it out", "%s is %q; expected the number of an event", name,
				tdd.Clip(v.Get(name)))
		}
	}
	return q, nil
}

// isEventKind reports whether text is a kind or the first part of one, and whether all of these need full rights.
func isEventKind(text string) (known, secret bool) {
	secret = true
	for kind, full := range eventKinds {
		if isKindOf(kind, text) {
			known, secret = true, secret && full
		}
	}
	return known, secret
}

// isKindOf reports whether kind is text, or begins with it before a dot.
func isKindOf(kind, text string) bool {
	rest, ok := strings.CutPrefix(kind, text)
	return ok && (rest == "" || rest[0] == '.')
}

// wants reports whether a caller may receive events of a kind and has not excluded them. A kind that is not in the table needs full rights.
func (q *eventRequest) wants(kind string) bool {
	secret, known := eventKinds[kind]
	return (q.full || known && !secret) &&
		(len(q.kinds) == 0 || kind == api.EventGap || slices.ContainsFunc(q.kinds, func(text string) bool { return isKindOf(kind, text) }))
}

// wantsAny is wants for the kinds that begin with a part.
func (q *eventRequest) wantsAny(part string) bool {
	for kind := range eventKinds {
		if isKindOf(kind, part) && q.wants(kind) {
			return true
		}
	}
	return false
}

// events returns the events after a number, or the newest ones. Clients that accept events receive those that follow.
func (g *Gateway) events(w http.ResponseWriter, r *http.Request) error {
	q, err := parseEvents(r, func() error { return g.guard.authorize(r, admin) })
	if err != nil {
		return err
	}
	if wantsEvents(r) {
		return g.watchEvents(w, r, q)
	}
	list := api.EventList{APIVersion: api.APIVersion, Kind: "EventList"}
	list.Items, list.Next, list.Latest = g.listEvents(r.Context(), &q)
	return writeJSON(w, http.StatusOK, list)
}

// listEvents returns up to limit events: the first ones after since, with the cursor of the next ones, or the last ones.
func (g *Gateway) listEvents(ctx context.Context, q *eventRequest) (items []api.NodeEvent, next string, latest uint64) {
	s := g.newEventSource(q, q.since)
	items = []api.NodeEvent{}
	if q.since == 0 {
		s.own, s.agents = g.journal.Before(math.MaxInt), g.o.Directory.Before(maxEventList)
	}
	for {
		found, more := s.next(ctx)
		if q.since == 0 {
			found = slices.DeleteFunc(found, func(e api.NodeEvent) bool { return e.Kind == api.EventGap })
		}
		items = append(items, found...)
		switch {
		case q.since == 0 && len(items) > q.limit:
			items = slices.Clone(items[len(items)-q.limit:])
		case q.since > 0 && (len(items) > q.limit || more && len(items) == q.limit):
			last := len(items) > q.limit && items[q.limit].Seq == items[q.limit-1].Seq // of another source
			items = items[:q.limit]
			cursor := cmp.Or(items[q.limit-1].Seq, items[q.limit-1].To) // a gap has no number
			if last {
				cursor--
			}
			return items, strconv.FormatUint(cursor, 10), cursor // upTo may be the number of an event that the caller may not see
		}
		if !more || ctx.Err() != nil {
			return items, "", s.upTo
		}
	}
}

// watchEvents sends the events that follow. Last-Event-ID resumes after an earlier one.
func (g *Gateway) watchEvents(w http.ResponseWriter, r *http.Request, q eventRequest) error {
	most := int64(maxEventStreams)
	if !q.full { // callers without a token cannot keep those out who manage the node
		most -= ownEventStreams
	}
	return g.stream(w, r, &g.eventStreams, most, "events", func(ctx context.Context, e *sse.Writer) {
		if !isInProcess(r) { // the process itself reads all the time: the state is not compared more often for it
			defer g.journal.Open()()
		}
		if last, err := strconv.ParseUint(r.Header.Get("Last-Event-Id"), 10, 64); err == nil && last > 0 && last <= maxSince {
			q.since = last
		}
		source := g.newEventSource(&q, cmp.Or(q.since, g.journal.Mark()))
		sse.Follow(ctx, e, findKeepAlive, source.follow, func(event api.NodeEvent) error {
			id := ""
			if event.Seq > 0 {
				id = strconv.FormatUint(event.Seq, 10)
			}
			data, err := json.Marshal(event)
			if err != nil {
				return err
			}
			return e.Send("", id, data)
		})
	})
}

// An eventSource reads the events of the journal, the changes of the directory, and the calls, in one order. What the caller may not see is in none of
// them: changes are those of directory.Directory.Watch.
type eventSource struct {
	g           *Gateway
	q           *eventRequest
	own, agents uint64 // the last numbers that were read
	upTo        uint64 // what next has read
}

func (g *Gateway) newEventSource(q *eventRequest, after uint64) *eventSource {
	return &eventSource{g: g, q: q, own: after, agents: after}
}

// follow yields the events that follow, until ctx ends, and then its error.
func (s *eventSource) follow(ctx context.Context) iter.Seq2[api.NodeEvent, error] {
	return func(yield func(api.NodeEvent, error) bool) {
		for {
			found, more := s.next(ctx)
			for _, e := range found {
				if !yield(e, nil) {
					return
				}
			}
			if !more {
				s.wait(ctx)
			}
			if ctx.Err() != nil {
				yield(api.NodeEvent{}, ctx.Err())
				return
			}
		}
	}
}

// wait waits for the next event of a source, and a moment for others.
func (s *eventSource) wait(ctx context.Context) {
	var changes <-chan struct{}
	if s.q.wantsAny("agent") {
		changes = s.g.o.Directory.More(s.agents)
	}
	select {
	case <-s.g.journal.More(s.own, s.q.wants(api.EventCallDone)):
	case <-changes:
	case <-ctx.Done():
		return
	}
	pause := time.NewTimer(eventPause)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

// next returns the events that follow the last ones, in order, and whether there are more. A gap precedes them if some are not kept any more.
func (s *eventSource) next(ctx context.Context) (found []api.NodeEvent, more bool) {
	// Events that happen later have higher numbers in all sources, so that none is missed before those that are read now.
	s.upTo = s.g.journal.Mark()
	agents := s.q.wantsAny("agent")
	if agents {
		s.upTo = min(s.upTo, s.g.o.Directory.Mark())
	}
	if s.own > s.upTo+maxAhead { // of another node, or the clock was set back
		found = append(found, api.NodeEvent{Kind: api.EventGap, To: s.upTo})
		s.own, s.agents = s.upTo, s.upTo
		return found, false
	}
	events, lost := s.g.journal.Events(s.own, s.upTo, eventBatch)
	if len(events) == eventBatch {
		s.upTo, more = events[len(events)-1].Seq, true
	}
	if agents {
		changes, upTo, dropped := s.changes(ctx)
		more, s.upTo, lost = more || upTo < s.upTo, min(s.upTo, upTo), max(lost, dropped)
		events = append(changes, events...)
	}
	var lostCalls uint64
	if s.q.wants(api.EventCallDone) {
		var calls []api.NodeEvent
		calls, lostCalls = s.g.journal.Ended(s.own, s.upTo)
		events = append(events, calls...)
	}
	switch {
	case lost > 0:
		found = append(found, api.NodeEvent{Kind: api.EventGap, From: min(s.own, s.agents), To: lost})
	case lostCalls > 0:
		found = append(found, api.NodeEvent{Kind: api.EventGap, Name: "call", From: s.own, To: lostCalls})
	}
	slices.SortStableFunc(events, func(a, b api.NodeEvent) int { return cmp.Compare(a.Seq, b.Seq) })
	s.namePeers(ctx, events)
	for _, e := range events {
		if e.Seq <= s.upTo && s.q.wants(e.Kind) && s.sees(ctx, &e) {
			found = append(found, e)
		}
	}
	s.own, s.agents = s.upTo, s.upTo
	return found, more
}

// maxAhead is how far a number may be ahead of the clock: events in one microsecond have the numbers of the next ones.
const maxAhead = uint64(time.Second / time.Microsecond)

// changes returns the events of the changes of the directory that the caller of ctx may see, and the number up to which these are all. dropped is the
// number of the last change that is not kept any more, or 0.
func (s *eventSource) changes(ctx context.Context) (found []api.NodeEvent, upTo, dropped uint64) {
	now, cancel := context.WithCancel(ctx)
	cancel() // ends the changes after those that there are
	upTo = s.upTo
	for c, err := range s.g.o.Directory.Watch(now, td.Query{}, s.agents) {
		switch {
		case err != nil || c.Seq > upTo:
			return found, upTo, dropped
		case c.Kind == directory.Overflow:
			dropped = c.Seq
			continue
		}
		found = append(found, agentEvent(c))
		if len(found) == eventBatch {
			return found, c.Seq, dropped
		}
	}
	return found, upTo, dropped
}

// agentEvent returns the event of a change.
func agentEvent(c directory.Change) api.NodeEvent {
	e := api.NodeEvent{Seq: c.Seq, At: c.Time.UTC(), Text: reasonNames[c.Reason], Thing: c.Thing.Ref(), Name: c.Thing.Name(), DID: c.Thing.Record.Owner,
		Kind: map[directory.ChangeKind]string{directory.Added: api.EventAgentAdded, directory.Changed: api.EventAgentChanged,
			directory.Removed: api.EventAgentRemoved}[c.Kind]}
	switch c.Reason {
	case directory.Reachable:
		e.Kind = api.EventAgentReachable
	case directory.Unreachable:
		e.Kind = api.EventAgentUnreachable
	}
	return e
}

// namePeers adds the names of peers that the caller of ctx may know.
func (s *eventSource) namePeers(ctx context.Context, events []api.NodeEvent) {
	isNameless := func(e api.NodeEvent) bool { return e.Name == "" && e.Thing == "" && e.DID != "" }
	if s.g.o.Topology == nil || !slices.ContainsFunc(events, isNameless) {
		return
	}
	names := s.g.o.Topology.Names(ctx, false)
	for i := range events {
		if isNameless(events[i]) {
			events[i].Name = names[events[i].DID]
		}
	}
}

// sees reports whether the caller of ctx may see an event that the journal has, and removes from it what it may not.
func (s *eventSource) sees(ctx context.Context, e *api.NodeEvent) bool {
	switch {
	case s.q.full:
	case strings.HasPrefix(e.Kind, "task."):
		return s.g.o.Tasks != nil && s.g.o.Tasks.IsVisible(ctx, e.Thing)
	case e.Kind == api.EventEquivocation:
		return slices.ContainsFunc(s.g.o.Directory.Lookup(ctx, td.ParseRef(e.Thing).Name), func(item tdd.Item) bool { return item.Record.Owner == e.DID })
	case e.Kind == api.EventWarningRaised || e.Kind == api.EventWarningCleared:
		e.Text = e.Name // the text may name Things and files
	}
	return true
}

// series returns the samples of a window.
func (g *Gateway) series(w http.ResponseWriter, r *http.Request) error {
	v, err := tdd.Params(r, "window")
	if err != nil {
		return err
	}
	window, err := duration(v, "window", journal.Window, journal.Window)
	if err != nil {
		return err
	}
	samples, to := g.journal.Series(max(int(window/journal.Step), 1))
	s := api.Series{APIVersion: api.APIVersion, Kind: "Series", Step: journal.Step.Seconds(), To: to}
	p, full := did.PrincipalOf(r.Context()), g.guard.authorize(r, admin) == nil
	anonymous := p != nil && p.Via == did.Loopback && grantOf(r) == nil
	for _, x := range samples {
		agents, rss := -1, int64(-1)
		switch {
		case full:
			agents, rss = x.Agents, x.RSS
		case anonymous: // others may see more or less
			agents = x.Open
		}
		for _, value := range []struct {
			to *[]*float64
			v  float64
		}{{&s.Items.Calls, x.Calls}, {&s.Items.Errors, x.Errors}, {&s.Items.P50, x.P50}, {&s.Items.P99, x.P99}, {&s.Items.Peers, float64(x.Peers)},
			{&s.Items.Agents, float64(agents)}, {&s.Items.RSS, float64(rss)}} {
			*value.to = append(*value.to, known(value.v))
		}
	}
	return writeJSON(w, http.StatusOK, s)
}

// known returns a value of a sample; nil if it is unknown.
func known(v float64) *float64 {
	if v < 0 {
		return nil
	}
	v = math.Round(v*1000) / 1000
	return &v
}
