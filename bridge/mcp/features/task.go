package features

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// A Task is the state of an invocation as an MCP task (MCP 2026-07-28, extension "Tasks").
type Task struct {
	Type     string                  `json:"resultType,omitempty"`
	ID       string                  `json:"taskId"`
	Status   string                  `json:"status"` // see StatusOf
	Message  string                  `json:"statusMessage,omitempty"`
	Created  time.Time               `json:"createdAt"`
	Updated  time.Time               `json:"lastUpdatedAt"`
	TTL      *int64                  `json:"ttlMs"` // null: the host of the Thing decides
	Poll     int64                   `json:"pollIntervalMs"`
	Requests map[string]InputRequest `json:"inputRequests,omitempty"`
	Result   json.RawMessage         `json:"result,omitempty"`
	Error    *protocol.Error         `json:"error,omitempty"`
}

// Ended reports whether the task is in a final state.
func (t *Task) Ended() bool { return t.Status != "working" && t.Status != "input_required" }

// Fail sets the failure of the task from a problem document (RFC 9457).
func (t *Task) Fail(problem []byte) {
	var p struct {
		Title, Detail, Code, Hint string
	}
	_ = json.Unmarshal(problem, &p) // a malformed problem has no members
	text := cmp.Or(p.Detail, p.Title)
	byAgent := p.Code == "" || p.Code == interact.AgentFailed.String()
	if t.Status = StateOf(interact.StatusFailed, byAgent); byAgent {
		t.Result = protocol.Encode(Failed(&interact.Error{Code: interact.AgentFailed, Title: text, Hint: p.Hint}))
		return
	}
	t.Message = interact.Clip(text, MaxText)
	t.Error = protocol.Errorf(protocol.InternalError, "%s", t.Message)
	if ours := protocol.InteractError(&protocol.Error{Data: problem}); ours != nil {
		t.Error = t.Error.With(protocol.ErrorData(ours))
	}
}

// states maps task states to action states, in both directions (MCP 2026-07-28, extension "Tasks"). A failed invocation is a failed task,
// except if the agent itself reported the failure: then the task is completed with isError.
var states = []struct {
	task   string
	failed bool // isError of the result
	status interact.Status
}{
	{"working", false, interact.StatusRunning},
	{"working", false, interact.StatusPending},
	{"input_required", false, interact.StatusInputRequired},
	{"completed", false, interact.StatusCompleted},
	{"completed", true, interact.StatusFailed},
	{"failed", false, interact.StatusFailed},
	{"cancelled", false, interact.StatusCancelled},
}

// StatusOf returns the action status of a task state; failed is the isError of its result. Unknown states map to StatusNone.
func StatusOf(task string, failed bool) interact.Status {
	for _, row := range states {
		if row.task == task && row.failed == failed {
			return row.status
		}
	}
	return interact.StatusNone
}

// StateOf returns the task state of an action status; byAgent means that the agent itself reported the failure. Unknown statuses map to
// "".
func StateOf(s interact.Status, byAgent bool) string {
	for _, row := range states {
		if row.status == s && row.failed == (byAgent && s == interact.StatusFailed) {
			return row.task
		}
	}
	return ""
}
