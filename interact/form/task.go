package form

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
)

// maxPause limits the pauses between two polls of a task, unless the agent requires a longer one.
const maxPause = 2 * time.Second

// CancelTimeout limits the cancellation of an interaction that its consumer has left.
const CancelTimeout = 2 * time.Second

// A State is the state of a task, in the terms of the WoT Profile (status) or of the Web Thing Protocol (state).
type State struct {
	State  string          `json:"state"`
	Status string          `json:"status"`
	Output json.RawMessage `json:"output"`
	Error  json.RawMessage `json:"error"`
	Href   string          `json:"href"` // of the resource of the state
}

// Of returns the status of s.
func (s State) Of() interact.Status { return interact.StatusOf(cmp.Or(s.State, s.Status)) }

// A Poller requests the state of a task, and cancels the task, in one protocol.
type Poller interface {
	// Poll requests the state; after is the pause that the agent requires.
	Poll(ctx context.Context) (s State, after time.Duration, err error)
	Cancel(ctx context.Context) error
	// Lost is the error of an interaction whose context ended between two polls.
	Lost(ctx context.Context, err error) error
}

// A Task is an action that the agent runs in the background.
type Task struct {
	Poller
	Message   *interact.Message
	What      string        // the name of the action in errors
	State     State         // the first state
	Pause     time.Duration // before the first poll; it doubles up to maxPause
	KeepsNull bool          // an output of null is a value
	// ErrorText returns the text of the error of a failed task, without secrets and bounded.
	ErrorText func(error json.RawMessage) string
	Log       *slog.Logger
}

// Follow yields each new state until the final one. If the consumer leaves the loop, or ctx ends, the action is cancelled at the agent.
func (t *Task) Follow(ctx context.Context, yield func(*interact.Message) bool) error {
	last := interact.StatusNone
	var after time.Duration // as the agent requires
	for pauses := (backoff.Backoff{First: t.Pause, Max: maxPause}); ; {
		s := t.State.Of()
		if s.Final() {
			last, err := t.end(s)
			if err == nil {
				yield(last)
			}
			return err
		}
		if s != last {
			if !yield(t.Message.ReplyStatus(s, "", nil)) {
				t.abandon(ctx)
				return ErrLeft
			}
		}
		last = s
		err := backoff.Sleep(ctx, max(pauses.Next(), after))
		if err != nil {
			err = t.Lost(ctx, err)
		} else {
			t.State, after, err = t.Poll(ctx)
		}
		if err != nil {
			if ctx.Err() != nil {
				t.abandon(ctx)
			}
			e := *interact.AsError(err)
			e.Started = true // also if the poll did not reach the agent
			return &e
		}
	}
}

// end returns the last message of a task, or its error.
func (t *Task) end(s interact.Status) (*interact.Message, error) {
	switch s {
	case interact.StatusCompleted:
		output := []byte(t.State.Output)
		if string(output) == "null" && !t.KeepsNull {
			output = nil
		}
		return t.Message.ReplyStatus(interact.StatusCompleted, interact.JSON, output), nil
	case interact.StatusCancelled:
		return nil, &interact.Error{Code: interact.Cancelled, Remote: true, Hint: "check which other consumers can cancel it",
			Title: t.What + " was cancelled at the agent"}
	}
	title := t.What + " failed"
	if why := t.ErrorText(t.State.Error); why != "" && why != "null" {
		title += ": " + why
	}
	return nil, &interact.Error{Code: interact.AgentFailed, Remote: true, Title: title, Hint: "see the agent's log"}
}

// abandon cancels the action at the agent, after ctx has ended.
func (t *Task) abandon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CancelTimeout)
	defer cancel()
	err := t.Cancel(ctx)
	t.Log.Debug("action cancelled", "thing", t.Message.Thing, "action", t.Message.Name, "err", err)
}
