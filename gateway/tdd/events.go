package tdd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/sse"
	"github.com/lmosd/lmosd/td"
)

// Events of a directory (tdd-notification-event-types), and the event of lmosd for clients that missed changes.
const (
	created  = "thing_created"
	updated  = "thing_updated"
	deleted  = "thing_deleted"
	overflow = "lmosd:missed"
)

// events serves changes as server-sent events (tdd-notification-sse): all, or those of one type (tdd-notification-filter-type). The id of
// an event is the number of the change; Last-Event-ID resumes after it (tdd-notification-event-id).
func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	only := r.PathValue("type")
	if only != "" && only != created && only != updated && only != deleted {
		return interact.Errorf(interact.NoAffordance, "GET /events/"+created+", "+updated+" or "+deleted, "unknown event type %q",
			Clip(only))
	}
	q, err := Params(r, "diff", "lastEventId")
	if err != nil {
		return err
	}
	diff, err := Flag(q, "diff", false)
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		sse.SetHeader(w.Header())
		w.WriteHeader(http.StatusOK)
		return nil
	}
	if err := s.addWatcher(); err != nil {
		return err
	}
	defer s.removeWatcher()
	after := r.Header.Get("Last-Event-Id")
	if after == "" {
		after = q.Get("lastEventId")
	}
	st := &stream{Writer: sse.NewWriter(w, s.o.write), only: only, diff: diff}
	st.Plain = true
	defer st.End()
	s.follow(r.Context(), st, changeAfter(after, time.Now()))
	if lost, ok := errors.AsType[*interact.Error](context.Cause(r.Context())); ok { // the rights of the client have ended
		problem.Send(st.Writer, lost)
	}
	return nil
}

// addWatcher counts a client of events, within the limit.
func (s *Server) addWatcher() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drainCtx.Err() != nil {
		return interact.ShutdownError("try again when the node is back")
	}
	if s.watchers >= s.o.Watchers {
		return interact.Errorf(interact.Overloaded, "try again later, or share one stream", "%d clients receive events already",
			s.watchers)
	}
	s.watchers++
	return nil
}

func (s *Server) removeWatcher() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers--
}

// changeAfter returns the number of the change to resume after; 0 means now. Invalid ids, and numbers too far in the future (see
// directory.Change.Seq), are from another directory: the client receives an event of missed changes, then all changes in memory.
func changeAfter(id string, now time.Time) uint64 {
	if id == "" {
		return 0
	}
	n, err := strconv.ParseUint(id, 10, 64)
	if err != nil || n == 0 || n > uint64(now.Add(time.Hour).UnixMicro()) {
		return 1
	}
	return n
}

// follow writes the changes after a number to st until the client disconnects, ctx ends, or the server drains.
func (s *Server) follow(ctx context.Context, st *stream, after uint64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.drainCtx, cancel)()
	sse.Follow(ctx, st.Writer, s.o.beat, func(ctx context.Context) iter.Seq2[directory.Change, error] {
		return s.o.Things.Watch(ctx, td.Query{}, after)
	}, st.change)
}

// A stream writes changes to one client.
type stream struct {
	*sse.Writer
	only string // the requested type; "": all
	diff bool
}

// change writes a change of a TD of the requested type.
func (st *stream) change(c directory.Change) error {
	name, data := "", []byte(nil)
	switch {
	case c.Kind == directory.Overflow:
		name, data = overflow, []byte(`{"hint":"read /things again: changes before this one were missed"}`)
	case c.Kind == directory.Added:
		name, data = created, st.createdData(c.Thing)
	case c.Kind == directory.Changed && c.Reason == directory.Published:
		name, data = updated, st.updatedData(c)
	case c.Kind == directory.Removed:
		name, data = deleted, onlyID(c.Thing.ID) // without a TD (tdd-notification-data-delete-diff)
	}
	if name == "" || st.only != "" && name != st.only && name != overflow {
		return nil
	}
	return st.Send(name, strconv.FormatUint(c.Seq, 10), data)
}

// createdData returns the data of a created Thing: the signed TD (tdd-notification-data-create-full).
func (st *stream) createdData(d *td.Description) []byte {
	var b bytes.Buffer
	if !st.diff || json.Compact(&b, d.Raw) != nil {
		return onlyID(d.ID)
	}
	return b.Bytes()
}

// updatedData returns the data of an updated Thing (tdd-notification-data-update-diff). If only its hosts changed, the patch contains only the
// id.
func (st *stream) updatedData(c directory.Change) []byte {
	if st.diff && c.Was != nil {
		if patch, err := diffTD(c.Was.Raw, c.Thing.Raw, c.Thing.ID); err == nil {
			return patch
		}
	}
	return onlyID(c.Thing.ID)
}
