package executor

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/internal/opaque"
)

// Pages of ListTasks (A2A 1.0 §3.1.4).
const (
	defaultPage = 50
	maxPage     = 100
)

// list returns the principal's tasks at this Thing, newest status first; none if it is shared. A page token is the encrypted position of the last task of the
// page before; only its principal can use it, and only at this Thing.
func (a *agent) list(op *protocol.Operation) (json.RawMessage, error) {
	var p protocol.List
	if e := protocol.Read(op.Params, &p); e != nil {
		return nil, e
	}
	size, after, e := check(&p)
	if e != nil {
		return nil, e
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweepLocked(time.Now())
	var found []*task
	for _, t := range a.tasks {
		fits := t.principal == a.principal && !a.isShared() && t.thing == a.thing.Ref && (p.ContextID == "" || t.shown.ContextID == p.ContextID) &&
			(p.Status == "" || t.shown.Status.State == p.Status) && !t.at.Before(after)
		if fits {
			found = append(found, t)
		}
	}
	slices.SortFunc(found, newestFirst)
	total := len(found)
	if p.PageToken != "" {
		place, e := a.openPageToken(p.PageToken)
		if e != nil {
			return nil, e
		}
		found = slices.DeleteFunc(found, func(t *task) bool { return newestFirst(t, place) <= 0 })
	}
	next := ""
	if len(found) > size {
		found = found[:size]
		next = a.pageToken(found[size-1])
	}
	tasks := make([]*protocol.Task, len(found)) // never null
	for i, t := range found {
		tasks[i] = t.viewLocked(p.HistoryLength, p.Artifacts)
	}
	return protocol.Encode(map[string]any{"tasks": tasks, "nextPageToken": next, "pageSize": size, "totalSize": total}), nil
}

func newestFirst(x, y *task) int {
	return cmp.Or(y.at.Compare(x.at), strings.Compare(x.id, y.id))
}

// A position is the content of a page token: the last task of a page.
type position struct {
	At time.Time `json:"at"`
	ID string    `json:"id"`
}

// pageToken returns the page token of the position of a task.
func (a *agent) pageToken(t *task) string { return a.tokens.Seal(a.pages(), 0, position{t.at, t.id}) }

func (a *agent) openPageToken(token string) (*task, *protocol.Error) {
	var place position
	if a.tokens.Open(a.pages(), token, &place) != nil {
		return nil, protocol.Errorf(protocol.InvalidParams, "invalid page token").At("pageToken")
	}
	return &task{id: place.ID, at: place.At}, nil
}

// pages binds page tokens to the caller and the Thing.
func (a *agent) pages() opaque.For {
	return opaque.For{Purpose: "page of " + a.thing.Ref, Caller: a.principal}
}

func check(p *protocol.List) (size int, after time.Time, e *protocol.Error) {
	size = defaultPage
	if p.PageSize != nil {
		size = *p.PageSize
	}
	switch {
	case size < 1 || size > maxPage:
		return 0, after, protocol.Errorf(protocol.InvalidParams, "pageSize must be 1 to %d", maxPage).At("pageSize")
	case p.Status != "" && !p.Status.Known():
		return 0, after, protocol.Errorf(protocol.InvalidParams, "unknown status %q", p.Status).At("status")
	case p.HistoryLength != nil && *p.HistoryLength < 0:
		return 0, after, protocol.Errorf(protocol.InvalidParams, "historyLength is negative").At("historyLength")
	}
	if p.After != "" {
		t, err := time.Parse(time.RFC3339Nano, p.After)
		if err != nil {
			return 0, after, protocol.Errorf(protocol.InvalidParams, "statusTimestampAfter is not a timestamp").At("statusTimestampAfter")
		}
		after = t
	}
	return size, after, nil
}
