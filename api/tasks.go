package api

import (
	"encoding/json"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// Task is one run of an action: GET /v1/tasks/{id}.
type Task struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"` // Task; lists omit both
	ID         string `json:"id"`             // the actionID
	Thing      string `json:"thing"`          // exact reference
	Name       string `json:"name"`           // of the Thing
	Action     string `json:"action"`
	Status     string `json:"status"` // pending, running, input-required, completed, failed, cancelled, or unknown: not reported by the host
	// LastStatus is the last reported state of a task whose state is unknown; Reason is the cause. LastSeen is the time of a reported state
	// that is neither final nor current.
	LastStatus string          `json:"last_status,omitempty"`
	LastSeen   time.Time       `json:"last_seen,omitzero"`
	Reason     string          `json:"reason,omitempty"`
	Output     json.RawMessage `json:"output,omitempty"`
	Error      json.RawMessage `json:"error,omitempty"`  // RFC 9457
	Inputs     interact.Inputs `json:"inputs,omitempty"` // the required input of a task that is input-required
	Requested  time.Time       `json:"requested,omitzero"`
	Ended      time.Time       `json:"ended,omitzero"`
}

// UnknownTask is the Status of a task whose host does not report it.
const UnknownTask = "unknown"

// maxReason limits Reason, in bytes.
const maxReason = 300

// MarkUnknown makes the state of t unknown and keeps its last status.
func (t *Task) MarkUnknown(cause error) {
	t.LastStatus, t.Status = t.Status, UnknownTask
	t.Reason = interact.Excerpt(cause.Error(), maxReason)
	if interact.AsError(cause).Code == interact.NoTask {
		t.Reason = "its host has no such task: it ended 10 minutes ago or more, or the host was restarted"
	}
}

// Final reports whether the run has ended.
func (t *Task) Final() bool { return interact.StatusOf(t.Status).Final() }

// TaskList is GET /v1/tasks.
type TaskList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // TaskList
	Items      []Task `json:"items"`
}
