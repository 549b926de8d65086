package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
)

const (
	maxRounds = 32 // bounds the rounds of input requests
	// A server sets the poll interval of a task, within these bounds.
	shortestPoll = 100 * time.Millisecond
	longestPoll  = time.Minute
	defaultPoll  = time.Second
)

// errDisconnected ends a call whose consumer has left the loop.
var errDisconnected = errors.New("consumer disconnected")

// A call is the call of a tool or a prompt, or the reading of a resource, with its input requests. It runs in the goroutine of the
// consumer's loop.
type call struct {
	s      *server
	m      *interact.Message
	method string
	params map[string]any
	yield  func(*interact.Message, error) bool // nil: the consumer accepts only the result
}

// run returns the result. The error is errDisconnected or an error for the consumer.
func (c *call) run(ctx context.Context) (*protocol.Message, error) {
	for range maxRounds {
		r, err := c.s.send(ctx, c.method, c.params, c.m, c.capabilities(), c.progress)
		if urls := urlRequests(err); len(urls) > 0 {
			if _, err = c.answers(ctx, urls); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		switch r.ResultType() {
		case "", "complete":
			return r, nil
		case "task":
			return c.follow(ctx, r)
		case "input_required":
			err = c.nextRound(ctx, r)
		default:
			err = interact.Errorf(interact.AgentFailed, "use an MCP client that knows it", "unknown resultType %q",
				interact.Clip(r.ResultType(), maxShort))
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, interact.Errorf(interact.AgentFailed, "the server is at fault", "%s still requires input after %d rounds", c.m.Name, maxRounds)
}

// capabilities returns the client capabilities of the consumer. Consumers of actions support forms, URLs and sampling. Roots are not
// declared to legacy servers, which request them for every session.
func (c *call) capabilities() map[string]any {
	caps := map[string]any{}
	if c.yield == nil {
		return caps
	}
	caps["elicitation"], caps["sampling"] = map[string]any{"form": struct{}{}, "url": struct{}{}}, struct{}{}
	info := c.s.info.Load()
	if info == nil || !info.Modern {
		return caps
	}
	caps["roots"] = struct{}{}
	if _, has := c.s.can.Load().Extensions[protocol.Tasks]; has && c.method == protocol.CallTool {
		caps["extensions"] = map[string]any{protocol.Tasks: struct{}{}}
	}
	return caps
}

// progress passes on a progress notification (MCP 2026-07-28, "Progress").
func (c *call) progress(n *protocol.Message) error {
	if n.Method() != protocol.Progress || c.yield == nil {
		return nil
	}
	p := n.WithParam(nil, "progressToken").WithParam(nil, "_meta")
	return c.notify(p.Params())
}

func (c *call) notify(progress []byte) error {
	if !c.yield(c.m.ReplyStatus(interact.StatusRunning, interact.Progress, progress), nil) {
		return errDisconnected
	}
	return nil
}

// nextRound prepares the next round after input requests (MCP 2026-07-28, "Multi round-trip requests").
func (c *call) nextRound(ctx context.Context, r *protocol.Message) error {
	delete(c.params, "inputResponses")
	delete(c.params, "requestState")
	if state, _ := r.InResult("requestState"); state != nil {
		c.params["requestState"] = state
	}
	required, err := requests(r)
	if err != nil || len(required) == 0 {
		return err
	}
	answers, err := c.answers(ctx, required)
	if err == nil {
		c.params["inputResponses"] = answers
	}
	return err
}

// follow polls a task until it ends (MCP extension "Tasks"). If the consumer disconnects before, it cancels the task.
func (c *call) follow(ctx context.Context, r *protocol.Message) (_ *protocol.Message, err error) {
	raw, _ := r.InResult("taskId")
	var id string
	if json.Unmarshal(raw, &id) != nil || id == "" {
		return nil, interact.Errorf(interact.AgentFailed, "the server is at fault", "task without an id")
	}
	params := func() map[string]any { return map[string]any{"taskId": id} }
	defer func() {
		if err != nil && (ctx.Err() != nil || errors.Is(err, errDisconnected)) {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
			defer cancel()
			_, _ = c.s.send(last, protocol.CancelTask, params(), c.m, c.capabilities(), nil) // best effort
		}
	}()
	for lastMessage := ""; ; {
		t := taskOf(r)
		if t.Message != lastMessage && t.Message != "" {
			lastMessage = t.Message
			if err := c.notify(protocol.Encode(map[string]string{"message": t.Message})); err != nil {
				return nil, err
			}
		}
		switch end, err := t.end(c.m); {
		case err != nil:
			return nil, err
		case end != nil:
			return end, nil
		case features.StatusOf(t.Status, false) == interact.StatusInputRequired:
			if err := c.update(ctx, r, id); err != nil {
				return nil, err
			}
		default:
			if err := backoff.Sleep(ctx, t.wait()); err != nil {
				return nil, err
			}
		}
		if r, err = c.s.send(ctx, protocol.GetTask, params(), c.m, c.capabilities(), nil); err != nil {
			return nil, err
		}
	}
}

const cancelTimeout = 5 * time.Second

// update provides the input that a task requires.
func (c *call) update(ctx context.Context, r *protocol.Message, id string) error {
	required, err := requests(r)
	if err != nil {
		return err
	}
	if len(required) == 0 {
		return backoff.Sleep(ctx, defaultPoll) // the response is still being processed
	}
	answers, err := c.answers(ctx, required)
	if err != nil {
		return err
	}
	_, err = c.s.send(ctx, protocol.UpdateTask, map[string]any{"taskId": id, "inputResponses": answers}, c.m, c.capabilities(), nil)
	return err
}

// A task is the state of a task at the server (MCP extension "Tasks").
type task struct {
	Status  string          `json:"status"`
	Message string          `json:"statusMessage"`
	Poll    float64         `json:"pollIntervalMs"`
	Result  json.RawMessage `json:"result"`
	Error   *protocol.Error `json:"error"`
}

func taskOf(r *protocol.Message) (t task) {
	_ = json.Unmarshal(r.Result(), &t) // a malformed task has an unknown status, which is an error
	return t
}

// end returns the result of a completed task; nil while it runs. The error is another end of the task.
func (t *task) end(m *interact.Message) (*protocol.Message, error) {
	switch features.StatusOf(t.Status, false) {
	case interact.StatusRunning, interact.StatusInputRequired:
		return nil, nil
	case interact.StatusCompleted:
		if len(t.Result) > 0 && t.Result[0] == '{' {
			return protocol.Respond("1", t.Result), nil
		}
	case interact.StatusFailed:
		if t.Error != nil {
			return nil, t.Error
		}
		return nil, &interact.Error{Code: interact.AgentFailed, Remote: true, Started: true, Hint: hints[interact.AgentFailed],
			Title: interact.Excerpt(m.Name+" failed: "+t.Message, maxFailureText)}
	case interact.StatusCancelled:
		return nil, &interact.Error{Code: interact.Cancelled, Title: "the server cancelled " + m.Name, Remote: true, Started: true}
	}
	return nil, interact.Errorf(interact.AgentFailed, "the server is at fault", "malformed task with the status %q",
		interact.Clip(t.Status, maxShort))
}

// wait returns the delay before the next poll.
func (t *task) wait() time.Duration {
	if !(t.Poll > 0) {
		return defaultPoll
	}
	return min(max(time.Duration(min(t.Poll, 1e9)*float64(time.Millisecond)), shortestPoll), longestPoll)
}
