package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/sse"
)

// An Event is one event of a Thing, or one value of a property.
type Event struct {
	// Name is the event or the property.
	Name string
	// ID is the position to resume after; empty if the host of the Thing stores no events.
	ID string
	// Data is the value in JSON; null for an event without data.
	Data json.RawMessage
}

// Reconnection of a watcher.
const (
	minPause   = 100 * time.Millisecond
	maxPause   = 5 * time.Second
	maxAbsence = time.Minute // of the node or the Thing; then the watcher fails
)

// Watch yields the events or property changes of a Thing: kind is "events" or "properties", name the event or the property; empty means
// all. It begins after the event with the ID after, if the host still has it; empty means now. It reconnects for up to 1 min and continues
// after the last event. During this time [interact.NotFound] is temporary, because a restarted node accepts requests before its agents are
// registered. The sequence ends with an error, with ctx, or when the stream of the Thing ends.
func (c *Client) Watch(ctx context.Context, ref, kind, name, after string) iter.Seq2[Event, error] {
	return c.watch(ctx, affordance(ref, kind, name), after)
}

// runPath returns the path of the state of a run.
func runPath(t *Task) string {
	return affordance(t.Thing, "actions", t.Action) + "/" + url.PathEscape(t.ID)
}

// WaitTask waits until a run has ended or requires input ([Client.AnswerTask]), and returns its state with the output, the required input,
// or the error of the run. It uses Thing, Action and ID of t.
func (c *Client) WaitTask(ctx context.Context, t *Task) (*Task, error) {
	for e, err := range c.watch(ctx, runPath(t), "") {
		if err != nil {
			return nil, err
		}
		now, err := readTask(e.Data, t.Thing, t.Action)
		if err != nil {
			return nil, c.notANode(err)
		}
		if now.Name = t.Name; now.Final() || len(now.Inputs) > 0 {
			return now, nil
		}
	}
	return nil, interact.Errorf(interact.NodeLost, "", "the node does not report the state of %s", clip(t.ID)).Then(interact.StepStatus)
}

// AnswerTask sends the input that a run requires. It uses Thing, Action and ID of t. The error is NoTask if the run requires none.
func (c *Client) AnswerTask(ctx context.Context, t *Task, answers interact.Answers) error {
	body, err := json.Marshal(answers)
	if err != nil {
		return &interact.Error{Code: interact.Invalid, Title: "the answers cannot be encoded as JSON", Err: err,
			Hint: "use JSON as the content of each answer"}
	}
	_, _, err = c.do(ctx, http.MethodPost, runPath(t), interact.JSON, body)
	return err
}

// watch yields the events at path and reconnects.
func (c *Client) watch(ctx context.Context, path, after string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		w := &watcher{Client: c, path: path, after: after, yield: yield}
		pauses, since := backoff.Backoff{First: minPause, Max: maxPause}, time.Now()
		for {
			before, start := w.seen, time.Now()
			err := w.connect(ctx)
			// A stream that ends at once with an error of the node counts as a failed connection.
			if w.seen > before || !w.opened.Before(start) && time.Since(w.opened) > maxPause {
				pauses.Reset()
				since = time.Now()
			}
			switch {
			case w.left || err == nil:
				return
			case ctx.Err() != nil, w.opened.IsZero(), !isTemporary(err), time.Since(since) > maxAbsence:
				yield(Event{}, err)
				return
			}
			_ = pauses.Sleep(ctx) // the next attempt fails with ctx
		}
	}
}

// isTemporary reports whether a client that was connected before retries after err.
func isTemporary(err error) bool {
	var foreign foreignError
	code := interact.AsError(err).Code
	return (code.Retryable() || code == interact.NotFound) && !errors.As(err, &foreign)
}

// A watcher reads a stream of events.
type watcher struct {
	*Client
	path, after string
	yield       func(Event, error) bool
	seen        int       // number of events
	left        bool      // the loop was left
	opened      time.Time // the last connection with a 2xx status; zero without one
}

// connect reads events until the connection ends; nil if the node or the loop ended it.
func (w *watcher) connect(ctx context.Context) error {
	header := http.Header{"Accept": {"text/event-stream"}}
	if w.after != "" {
		header.Set("Last-Event-Id", w.after)
	}
	resp, err := w.send(ctx, http.MethodGet, w.path, header, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		_, _, err := w.read(ctx, resp)
		if err == nil {
			err = w.notANode(fmt.Errorf("status %d for events", resp.StatusCode))
		}
		return err
	}
	w.opened = time.Now()
	for e, err := range problem.Events(resp.Body, maxResponse) {
		var reported *interact.Error
		switch {
		case errors.As(err, &reported):
			return reported
		case errors.Is(err, sse.ErrTooLarge):
			return interact.Errorf(interact.TooLarge, "send smaller events", "an event has more than %d bytes", maxResponse)
		case err != nil:
			return w.lost(ctx, err)
		}
		if err := w.event(e); err != nil || w.left {
			return err
		}
	}
	if ctx.Err() != nil { // in-process, a stream that ctx ended has no error
		return w.lost(ctx, ctx.Err())
	}
	return nil
}

// event yields an event. An invalid event is an error.
func (w *watcher) event(e sse.Event) error {
	if !json.Valid(e.Data) {
		return w.notANode(errors.New("an event that is not JSON"))
	}
	w.seen, w.after = w.seen+1, e.ID
	w.left = !w.yield(Event{Name: e.Name, ID: e.ID, Data: e.Data}, nil)
	return nil
}
