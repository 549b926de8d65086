package gateway

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/sse"
)

// Limits of the streams of search results.
const (
	maxSearchStreams = 128
	findKeepAlive    = 15 * time.Second
)

// wantsEvents reports whether r accepts server-sent events and no JSON.
func wantsEvents(r *http.Request) bool {
	if r.Method == http.MethodHead {
		return false
	}
	accept := strings.Join(r.Header.Values("Accept"), ",")
	return strings.Contains(accept, sse.MediaType) && !strings.Contains(accept, interact.JSON)
}

// watchFind sends events: the known results, then changes. Last-Event-ID resumes after an earlier event.
func (g *Gateway) watchFind(w http.ResponseWriter, r *http.Request, f findRequest) error {
	if f.selects() {
		return interact.Errorf(interact.Usage, "leave the strategy and the order out", "a stream of changes cannot be ordered by version or for a call")
	}
	return g.stream(w, r, &g.searchStreams, maxSearchStreams, "search results", func(ctx context.Context, e *sse.Writer) {
		latest := g.o.Directory.Mark()
		after, err := strconv.ParseUint(r.Header.Get("Last-Event-Id"), 10, 64)
		if err != nil || after == 0 || after > latest { // a new client, or an id of another node
			if after = latest; g.sendKnown(r, e, f, after) != nil {
				return // the client disconnected
			}
		}
		sse.Follow(ctx, e, findKeepAlive, func(ctx context.Context) iter.Seq2[directory.Change, error] {
			return g.o.Directory.Watch(ctx, f.query, after)
		}, func(c directory.Change) error { return g.sendChange(ctx, e, c) })
	})
}

// sendKnown sends the agents that match now, and the coverage.
func (g *Gateway) sendKnown(r *http.Request, e *sse.Writer, f findRequest, at uint64) error {
	list, err := g.search(r, f, nil)
	if err != nil {
		problem.Send(e, err)
		return err
	}
	for i := range list.Items { // without an id: a reconnect from here starts again
		if err := send(e, "", api.AgentChange{Change: "known", Agent: &list.Items[i]}); err != nil {
			return err
		}
	}
	return send(e, strconv.FormatUint(at, 10), api.AgentChange{Change: "ready", Coverage: &list.Coverage})
}

// sendChange sends one change.
func (g *Gateway) sendChange(ctx context.Context, e *sse.Writer, c directory.Change) error {
	change := api.AgentChange{Change: kindNames[c.Kind], Reason: reasonNames[c.Reason], Time: c.Time.UTC()}
	if c.Thing != nil {
		a := g.agent(ctx, c.Thing)
		if c.Kind == directory.Removed {
			a.State = api.StateUnreachable
		}
		change.Agent = &a
	}
	return send(e, strconv.FormatUint(c.Seq, 10), change)
}

func send(e *sse.Writer, id string, c api.AgentChange) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return e.Send(c.Change, id, data)
}

var kindNames = map[directory.ChangeKind]string{directory.Added: "added", directory.Changed: "changed", directory.Removed: "removed",
	directory.Overflow: "overflow"}

var reasonNames = map[directory.Reason]string{directory.Published: "published", directory.Unreachable: "unreachable",
	directory.Reachable: "reachable", directory.Withdrawn: "withdrawn", directory.Moved: "moved", directory.Expired: "expired",
	directory.Left: "left", directory.Discovered: "discovered", directory.Vanished: "vanished", directory.Evicted: "evicted"}
