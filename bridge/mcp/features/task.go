package features

import (
	"encoding/json"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// A Task is how a run stands, as clients see it (MCP 2026-07-28, extension "Tasks").
type Task struct {
	Type     string                  `json:"resultType,omitempty"`
	ID       string                  `json:"taskId"`
	Status   string                  `json:"status"` // see StatusOf
	Message  string                  `json:"statusMessage,omitempty"`
	Created  time.Time               `json:"createdAt"`
	Updated  time.Time               `json:"lastUpdatedAt"`
	TTL      *int64                  `json:"ttlMs"` // null: as long as the host of the thing likes
	Poll     int64                   `json:"pollIntervalMs"`
	Requests map[string]InputRequest `json:"inputRequests,omitempty"`
	Result   json.RawMessage         `json:"result,omitempty"`
	Error    *protocol.Error         `json:"error,omitempty"`
}

// Ended tells that nothing more comes of the task.
func (t *Task) Ended() bool { return t.Status != "working" && t.Status != "input_required" }

// Fail takes over why the run failed, a problem of RFC 9457.
func (t *Task) Fail(problem []byte) {
	var p struct {
		Title, Detail, Code, Hint string
	}
	_ = json.Unmarshal(problem, &p) // what cannot be read says nothing
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	said := p.Code == "" || p.Code == interact.AgentFailed.String()
	if t.Status = StateOf(interact.StatusFailed, said); said {
		t.Result = written(Failed(&interact.Error{Code: interact.AgentFailed, Title: text, Hint: p.Hint}))
		return
	}
	t.Message = interact.Clip(text, MaxWords)
	t.Error = protocol.Errorf(protocol.InternalError, "%s", t.Message)
	if ours := protocol.InteractError(&protocol.Error{Data: problem}); ours != nil {
		t.Error = t.Error.With(protocol.ErrorData(ours))
	}
}

// states is the table of states (MCP 2026-07-28, extension "Tasks"): what a task is as a run of an action, both ways. A
// run that failed is a task that failed; but one whose agent says that it failed is completed, with isError.
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

// StatusOf is what a task of MCP is as a run; failed is the isError of its result. StatusNone is for what is not in the table: nobody
// knows what it means.
func StatusOf(task string, failed bool) interact.Status {
	for _, row := range states {
		if row.task == task && row.failed == failed {
			return row.status
		}
	}
	return interact.StatusNone
}

// StateOf is what a run is as a task; said tells of one that failed that its agent says so. It is empty for what is not in the table.
func StateOf(s interact.Status, said bool) string {
	for _, row := range states {
		if row.status == s && row.failed == (said && s == interact.StatusFailed) {
			return row.task
		}
	}
	return ""
}
