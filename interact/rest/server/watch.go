package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"os"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/rest"
	"github.com/lmosd/lmosd/internal/sse"
)

// Limits of read-ahead for a reader of events. A reader that stays at the limit for the time of a write is dropped.
const (
	aheadEvents = 128
	aheadBytes  = 1 << 20
)

func (v *visit) getEvents() error {
	how := "longpoll"
	if wantsEvents(v.r) {
		how = "sse"
	}
	return v.watch(v.subscribeType(), how)
}

func (v *visit) subscribeType() interact.Type {
	if v.at.name == "" {
		return interact.SubscribeAllEvents
	}
	return interact.SubscribeEvent
}

// postEvents subscribes with the subscription data of the event: by a stream of events, or by a webhook.
func (v *visit) postEvents() error {
	if wantsEvents(v.r) {
		return v.watch(v.subscribeType(), "sse")
	}
	return v.subscribe(v.subscribeType())
}

// watch sends changes or events, optionally since an event ID, as server-sent events or as the response to a long poll.
func (v *visit) watch(t interact.Type, how string) error {
	m, err := v.loaded(t)
	if err == nil {
		err = v.check(m)
	}
	if err != nil {
		return err
	}
	if v.r.Method == http.MethodHead {
		v.startStream(how)
		return nil
	}
	if err := v.enter(); err != nil {
		return err
	}
	defer v.leave()
	ctx, cancel := context.WithCancel(v.r.Context())
	defer cancel()
	defer context.AfterFunc(v.ending, cancel)()
	f := v.newFeed(ctx, m, v.o.pace.write)
	defer f.stop()
	if how == "longpoll" {
		return v.poll(m, f)
	}
	return v.stream(m, f, func(r *interact.Message) []byte {
		if data := jsonOf(r.Data, r.Media()); data != nil {
			return data
		}
		return []byte("null") // a browser does not dispatch events without data
	})
}

// startStream responds to HEAD: some clients open a long poll with it, and wait 1 s for the response.
func (v *visit) startStream(how string) {
	h := v.w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", interact.JSON)
	if how == "sse" {
		h.Set("Content-Type", sse.MediaType)
	}
	v.w.WriteHeader(http.StatusOK)
}

// enter counts a request that waits for events. The error means that the limit is reached, or that the server ends.
func (s *Server) enter() error {
	if s.ending.Err() != nil {
		return stopping()
	}
	if n := s.watchers.Add(1); n > int64(s.o.MaxWatchers) {
		s.watchers.Add(-1)
		return interact.Errorf(interact.Overloaded, "end some of them, or use another node", "%d consumers wait for events", s.o.MaxWatchers)
	}
	return nil
}

func (s *Server) leave() { s.watchers.Add(-1) }

func stopping() error {
	return interact.ShutdownError("continue after the last event when the node is back")
}

// stream sends the replies of f as events with the data that value returns. A reply with nil data is not sent.
func (v *visit) stream(m *interact.Message, f *feed, value func(*interact.Message) []byte) error {
	e := v.eventStream()
	defer e.End()
	begin, alive := time.NewTimer(v.o.pace.commit), time.NewTicker(v.o.pace.keepAlive)
	defer begin.Stop()
	defer alive.Stop()
	for {
		var err error
		select {
		case r, ok := <-f.replies:
			if !ok {
				return v.streamed(m, e, f.err)
			}
			f.taken(r)
			if data := value(r); data != nil {
				err = e.Send(cmp.Or(r.Name, m.Name), r.ID, data)
				v.countSent(m, err)
			}
		case <-begin.C:
			err = e.Begin()
		case <-alive.C:
			err = e.Comment("")
		}
		if err != nil {
			return nil // the consumer has disconnected
		}
	}
}

// streamed ends a stream of events, with the error if any. Before the first byte the error can still be a status.
func (v *visit) streamed(m *interact.Message, e *eventStream, err error) error {
	switch {
	case v.r.Context().Err() != nil:
		return nil
	case err == errSlow && m.Type.Long():
		v.o.Count("sse", true)
	case v.ending.Err() != nil && m.Type.Long():
		err = stopping()
	}
	if err != nil && !e.Started() {
		return v.explained(m, err)
	}
	if err != nil {
		problem.Send(e.Writer, err)
		return nil
	}
	_ = e.Begin() // an error means that the consumer has disconnected
	return nil
}

// countSent counts an event, unless the consumer has disconnected.
func (v *visit) countSent(m *interact.Message, err error) {
	if m.Type.Long() && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)) {
		v.o.Count("sse", err != nil)
	}
}

// poll responds with the next event. It does not send an empty response before that, which clients would handle as an event.
func (v *visit) poll(m *interact.Message, f *feed) error {
	over := time.NewTimer(v.o.pace.hold)
	defer over.Stop()
	select {
	case r, ok := <-f.replies:
		if ok {
			return v.respondPoll(m, r)
		}
	case <-over.C:
		return interact.Errorf(interact.Timeout, "poll again", "no event within %v", v.o.pace.hold)
	}
	switch {
	case v.r.Context().Err() != nil:
		return f.err // the reader has left
	case v.ending.Err() != nil:
		return stopping()
	case f.err == nil:
		return interact.Errorf(interact.AgentFailed, "poll again, or see the agent's log", "%s ended the subscription",
			cmp.Or(v.desc.Thing.Title, v.desc.Thing.ID))
	}
	return v.explained(m, f.err)
}

func (v *visit) respondPoll(m, r *interact.Message) error {
	data, media := transcoded(r, m.Accept)
	v.describeReply(m, r)
	if h := v.w.Header(); form.HeaderOK(rest.EventIDHeader, r.ID) && r.ID != "" {
		h.Set(rest.EventIDHeader, r.ID)
	}
	if name := cmp.Or(r.Name, m.Name); form.HeaderOK(rest.EventNameHeader, name) {
		v.w.Header().Set(rest.EventNameHeader, name)
	}
	v.write(http.StatusOK, media, data)
	v.o.Count("longpoll", false)
	return nil
}

// A feed is an interaction whose replies a goroutine reads ahead, so that keep-alives can be sent in between.
type feed struct {
	replies chan *interact.Message // closed at the end
	err     error                  // why it ended; to be read when replies is closed
	cancel  context.CancelFunc
	done    chan struct{}
	ahead   *semaphore.Weighted // bytes of replies
	// timeout limits the time that a consumer may lag behind; zero means no limit.
	timeout time.Duration
}

// newFeed sends m and reads ahead of the consumer.
func (v *visit) newFeed(ctx context.Context, m *interact.Message, timeout time.Duration) *feed {
	ctx, cancel := context.WithCancel(ctx)
	f := &feed{replies: make(chan *interact.Message, aheadEvents), cancel: cancel, done: make(chan struct{}),
		ahead: semaphore.NewWeighted(aheadBytes), timeout: timeout}
	go f.run(ctx, v.o.Mesh, m)
	return f
}

func (f *feed) run(ctx context.Context, mesh interact.Thing, m *interact.Message) {
	defer close(f.done)
	defer close(f.replies)
	for r, err := range mesh.Do(ctx, m) {
		if err == nil {
			err = f.put(ctx, r)
		}
		if err != nil {
			f.err = err
			return
		}
	}
}

// weight returns the share of r in aheadBytes. The minimum limits the number of replies to aheadEvents.
func weight(r *interact.Message) int64 {
	return min(max(int64(len(r.Data)), aheadBytes/aheadEvents), aheadBytes)
}

func (f *feed) put(ctx context.Context, r *interact.Message) error {
	if !f.ahead.TryAcquire(weight(r)) {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if f.timeout > 0 {
			wait, cancel = context.WithTimeout(ctx, f.timeout)
		}
		defer cancel()
		if err := f.ahead.Acquire(wait, weight(r)); err != nil {
			return cmp.Or(ctx.Err(), errSlow)
		}
	}
	f.replies <- r // never blocks: weight limits the replies
	return nil
}

var errSlow error = interact.Errorf(interact.Overloaded, "read faster, and continue after the last event",
	"the reader is too slow")

// taken makes room for more.
func (f *feed) taken(r *interact.Message) { f.ahead.Release(weight(r)) }

// stop cancels the interaction and waits for its end.
func (f *feed) stop() {
	f.cancel()
	<-f.done
}
