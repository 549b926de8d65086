package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest"
)

// An Event is what [Client.Watch] yields: one event of a thing, or one value of a property.
type Event struct {
	// Name is the event or the property.
	Name string
	// ID is what to continue after; empty if the thing's host keeps nothing.
	ID string
	// Data is the value in JSON; null if there is none.
	Data json.RawMessage
}

// How a watcher comes back.
const (
	firstPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second
	maxAbsence = time.Minute // of a node; then the watcher gives up
)

// Watch yields what happens to the thing that ref names: kind is "events" or "properties", name the event or the property; empty
// means all. It begins after the event with the ID after, as far as that is kept; empty means now. A connection that breaks is
// made again, for up to a minute, and continues after the last event. The sequence ends with an error, when ctx or the loop does,
// or when the thing has nothing more to say.
func (c *Client) Watch(ctx context.Context, ref, kind, name, after string) iter.Seq2[Event, error] {
	return c.watch(ctx, affordance(ref, kind, name), after)
}

// WaitTask waits until a run of an action has ended, and returns its last state: with the output, or the error, which is none of
// WaitTask's. Of t it needs Thing, Action and ID.
func (c *Client) WaitTask(ctx context.Context, t *Task) (*Task, error) {
	path := affordance(t.Thing, "actions", t.Action) + "/" + url.PathEscape(t.ID)
	for e, err := range c.watch(ctx, path, "") {
		if err != nil {
			return nil, err
		}
		now, err := readTask(e.Data, t.Thing, t.Action)
		if err != nil {
			return nil, c.stranger(err)
		}
		if now.Name = t.Name; now.Final() {
			return now, nil
		}
	}
	return nil, interact.Errorf(interact.NodeLost, "lmosd status", "the node does not tell how %s went on", clip(t.ID))
}

// watch yields the events at path over as many connections as it takes.
func (c *Client) watch(ctx context.Context, path, after string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		w := &watcher{Client: c, path: path, after: after, yield: yield}
		pause, since := firstPause, time.Now()
		for {
			before := w.seen
			connected, err := w.connect(ctx)
			if connected {
				since = time.Now()
			}
			if w.seen > before {
				pause = firstPause
			}
			switch {
			case w.left || err == nil:
				return
			case ctx.Err() != nil, !w.connected, !comesBack(err), time.Since(since) > maxAbsence:
				yield(Event{}, err)
				return
			}
			select {
			case <-time.After(pause):
				pause = min(2*pause, mostPause)
			case <-ctx.Done():
			}
		}
	}
}

// comesBack reports whether it is worth to try again after err.
func comesBack(err error) bool {
	var strange strangeError
	return interact.AsError(err).Code.Retryable() && !errors.As(err, &strange)
}

// A watcher reads a stream of events.
type watcher struct {
	*Client
	path, after string
	yield       func(Event, error) bool
	seen        int  // events
	left        bool // the loop was
	connected   bool // at least once
}

// connect reads events until the connection ends; nil if the node or the loop ended it. It reports whether there was one.
func (w *watcher) connect(ctx context.Context) (connected bool, err error) {
	header := http.Header{"Accept": {"text/event-stream"}}
	if w.after != "" {
		header.Set("Last-Event-Id", w.after)
	}
	resp, err := w.send(ctx, http.MethodGet, w.path, header, nil)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		_, _, err := w.read(ctx, resp)
		if err == nil {
			err = w.stranger(fmt.Errorf("status %d for events", resp.StatusCode))
		}
		return false, err
	}
	w.connected = true
	err = readEvents(resp.Body, maxAnswer, w.event)
	var told *toldError
	switch {
	case w.left:
		return true, nil
	case ctx.Err() != nil: // inside of a process that is an end like any other
		return true, w.lost(ctx, ctx.Err())
	case err == nil:
		return true, nil
	case errors.As(err, &told):
		return true, told.error
	}
	return true, w.lost(ctx, err)
}

// A toldError is why a stream ended, as the node said or its events show: not the connection's.
type toldError struct{ error }

// event hands an event on.
func (w *watcher) event(name, id string, data []byte) error {
	if name == "lmos:problem" {
		resp := &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{"Content-Type": {rest.ProblemType}}}
		return &toldError{rest.FromProblem(resp, data)}
	}
	if !json.Valid(data) {
		return &toldError{w.stranger(errors.New("an event that is not JSON"))}
	}
	if w.seen++; id != "" {
		w.after = id
	}
	if !w.yield(Event{Name: name, ID: id, Data: data}, nil) {
		w.left = true
		return io.EOF
	}
	return nil
}

// readEvents reads server-sent events (HTML Living Standard §9.2.6) and calls f with each: name is "message" if it has none, and
// id is the event's own. An event has at most limit bytes. It returns nil at the end, or the error of the reader or of f.
func readEvents(r io.Reader, limit int, f func(name, id string, data []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, limit)
	lines.Split(eventLines())
	name, id, data, has := "", "", []byte(nil), false
	for lines.Scan() {
		line := lines.Bytes()
		if len(line) == 0 {
			if has {
				if name == "" {
					name = "message"
				}
				if err := f(name, id, data[:len(data)-1]); err != nil {
					return err
				}
			}
			name, id, data, has = "", "", nil, false
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			name = string(value)
		case "id":
			id = string(value)
		case "data":
			if len(data)+len(value) > limit {
				return bufio.ErrTooLong
			}
			data, has = append(append(data, value...), '\n'), true
		}
	}
	return lines.Err()
}

// eventLines splits at CR LF, LF and CR. A CR at the end of what has come may be the first half of CR LF: the line is given, and
// an LF that follows is skipped.
func eventLines() bufio.SplitFunc {
	afterCR := false
	return func(data []byte, atEOF bool) (int, []byte, error) {
		skip := 0
		if afterCR && len(data) > 0 {
			afterCR = false
			if data[0] == '\n' {
				skip = 1
			}
		}
		end := bytes.IndexAny(data[skip:], "\r\n")
		if end < 0 {
			if atEOF {
				return len(data), nil, bufio.ErrFinalToken // a line without an end is of no event
			}
			return skip, nil, nil
		}
		afterCR = data[skip+end] == '\r'
		return skip + end + 1, data[skip : skip+end], nil
	}
}
