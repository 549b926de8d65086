// Package runlog logs what happens at a running node, one line each: peers and relays that come and go, agents of other nodes, and warnings. What the parts
// of the node log themselves, such as its own agents and the addresses of mesh.bootstrap, is not repeated.
package runlog

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/did"
)

const (
	window   = time.Second // events in one are counted together
	maxEach  = 4           // lines of one kind in a window; more are one line with their number
	maxNamed = 3           // names in such a line
)

// kinds are the events that are read.
var kinds = []string{"peer", "agent", "relay", "warning"}

// Start logs the events of the node of client, which is in this process, until ctx ends or stop is called. Those after since are new.
func Start(ctx context.Context, client *api.Client, self did.DID, since time.Time, log *slog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	events, done := make(chan api.NodeEvent, 64), make(chan struct{})
	go func() {
		defer close(events)
		for e, err := range client.WatchEvents(ctx, kinds, uint64(since.UnixMicro())) {
			if err != nil {
				return
			}
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	go func() {
		defer close(done)
		r := &recorder{self: self, log: log, names: func() map[did.DID]string { return namesOf(ctx, client) }}
		r.run(events)
	}()
	return func() { cancel(); <-done }
}

// namesOf returns the names of the connected peers.
func namesOf(ctx context.Context, client *api.Client) map[did.DID]string {
	names := map[did.DID]string{}
	if list, err := client.Peers(ctx); err == nil {
		for _, p := range list.Items {
			names[p.DID] = p.Name
		}
	}
	return names
}

// A recorder writes lines for events.
type recorder struct {
	self  did.DID
	log   *slog.Logger
	names func() map[did.DID]string
}

// run logs events in windows, until there are no more.
func (r *recorder) run(events <-chan api.NodeEvent) {
	for first := range events {
		b := []api.NodeEvent{first}
		end := time.NewTimer(window)
		for isOpen := true; isOpen; {
			select {
			case e, ok := <-events:
				if b = append(b, e); !ok {
					b, isOpen = b[:len(b)-1], false
				}
			case <-end.C:
				isOpen = false
			}
		}
		end.Stop()
		r.write(b)
	}
}

// A change is what became of one peer or agent in a window.
type change struct {
	first, last api.NodeEvent
}

// The words for one and for many, by kind.
var words = map[string][2]string{
	api.EventPeerConnected:    {"peer joined", "peers joined"},
	api.EventPeerDisconnected: {"peer left", "peers left"},
	api.EventAgentAdded:       {"agent found", "agents found"},
	api.EventAgentRemoved:     {"agent gone", "agents gone"},
	api.EventAgentUnreachable: {"agent unreachable", "agents unreachable"},
	api.EventAgentReachable:   {"agent reachable again", "agents reachable again"},
	api.EventRelayFound:       {"relay found", "relays found"},
	api.EventRelayLost:        {"relay lost", "relays lost"},
}

// write logs the events of a window: the last state of each peer and agent, unless it is the state before the window.
func (r *recorder) write(events []api.NodeEvent) {
	changes, order := map[string]*change{}, []string(nil)
	joined := false
	for _, e := range events {
		if e.Kind == api.EventWarningRaised || e.Kind == api.EventWarningCleared {
			r.warning(e)
			continue
		}
		if words[e.Kind][0] == "" || e.Thing != "" && e.DID == r.self {
			continue
		}
		part, _, _ := strings.Cut(e.Kind, ".")
		key := part + " " + e.Thing + " " + string(e.DID)
		joined = joined || e.Kind == api.EventPeerConnected
		if c := changes[key]; c != nil {
			c.last = e
			continue
		}
		changes[key] = &change{e, e}
		order = append(order, key)
	}
	names := map[did.DID]string{}
	if joined {
		names = r.names()
	}
	byKind, kindOrder := map[string][]api.NodeEvent{}, []string(nil)
	for _, key := range order {
		c := changes[key]
		e := c.last
		if opposite(c.first.Kind) == e.Kind {
			continue // it came and went, or went and came
		}
		if e.Name == "" {
			e.Name = names[e.DID]
		}
		if byKind[e.Kind] == nil {
			kindOrder = append(kindOrder, e.Kind)
		}
		byKind[e.Kind] = append(byKind[e.Kind], e)
	}
	for _, kind := range kindOrder {
		r.lines(kind, byKind[kind])
	}
}

// opposite returns the kind that undoes a kind.
func opposite(kind string) string {
	switch kind {
	case api.EventPeerConnected:
		return api.EventPeerDisconnected
	case api.EventPeerDisconnected:
		return api.EventPeerConnected
	case api.EventAgentAdded:
		return api.EventAgentRemoved
	case api.EventAgentRemoved:
		return api.EventAgentAdded
	case api.EventRelayFound:
		return api.EventRelayLost
	case api.EventRelayLost:
		return api.EventRelayFound
	}
	return ""
}

// lines logs the events of one kind: each, or their number with the first names.
func (r *recorder) lines(kind string, all []api.NodeEvent) {
	attr, _, _ := strings.Cut(kind, ".")
	if len(all) <= maxEach {
		for _, e := range all {
			r.log.Info(words[kind][0], attr, nameOf(e))
		}
		return
	}
	names := make([]string, 0, maxNamed)
	for _, e := range all[:maxNamed] {
		names = append(names, nameOf(e))
	}
	r.log.Info(words[kind][1], "count", len(all), attr+"s", fmt.Sprintf("%s and %d more", strings.Join(names, ", "), len(all)-maxNamed))
}

// nameOf returns the name of a peer or an agent with the beginning of its key.
func nameOf(e api.NodeEvent) string {
	if e.Thing != "" {
		return render.Name(api.Agent{Name: e.Name, Owner: e.DID, Ref: e.Thing})
	}
	return render.PeerName(e.Name, e.DID)
}

// warning logs a warning of the status that began or ended.
func (r *recorder) warning(e api.NodeEvent) {
	if e.Kind == api.EventWarningCleared {
		r.log.Info("warning ended", "code", e.Code, "warning", e.Name)
		return
	}
	r.log.Warn(e.Text, "code", e.Code)
}
