package api

import (
	"encoding/json"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// Task is one run of an action: GET /v1/tasks/{id}.
type Task struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"` // Task; both are left out in lists
	ID         string `json:"id"`             // the actionID
	Thing      string `json:"thing"`          // exact reference
	Name       string `json:"name"`           // of the thing
	Action     string `json:"action"`
	Status     string `json:"status"` // pending, running, input-required, completed, failed, cancelled, or unknown: its host does not say
	// LastStatus is the state that was heard of last, of one whose state is unknown; Reason is why it is. LastSeen is when a state was
	// heard of that is not final and was not asked for now.
	LastStatus string          `json:"last_status,omitempty"`
	LastSeen   time.Time       `json:"last_seen,omitzero"`
	Reason     string          `json:"reason,omitempty"`
	Output     json.RawMessage `json:"output,omitempty"`
	Error      json.RawMessage `json:"error,omitempty"`  // RFC 9457
	Inputs     interact.Inputs `json:"inputs,omitempty"` // what it wants to know, of one that is input-required
	Requested  time.Time       `json:"requested,omitzero"`
	Ended      time.Time       `json:"ended,omitzero"`
}

// UnknownTask is the Status of a task whose host does not say how it stands.
const UnknownTask = "unknown"

// maxReason bounds why the state of a task is not known, in bytes.
const maxReason = 300

// MarkUnknown makes the state of t unknown: what was heard of last is its last status.
func (t *Task) MarkUnknown(why error) {
	t.LastStatus, t.Status = t.Status, UnknownTask
	t.Reason = interact.Clip(interact.Readable(why.Error()), maxReason)
	if interact.AsError(why).Code == interact.NoTask {
		t.Reason = "its host does not know it any more: it has ended ten minutes ago or more, or the host was started anew"
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

// Path is one way to a thing; PathList is GET /v1/paths/{ref}.
type Path struct {
	Name string  `json:"name"` // "mesh", or scheme and subprotocol: "https", "ws lmosprotocol"
	Href string  `json:"href,omitempty"`
	Down bool    `json:"down"`              // it failed lately
	Took float64 `json:"took_ms,omitempty"` // on average; 0: not known
}

// PathList is GET /v1/paths/{ref}: the ways to a thing, best first.
type PathList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // PathList
	Ref        string `json:"ref"`  // as it was asked for
	Items      []Path `json:"items"`
}

// Ping is POST /v1/ping/{ref}: how far away the host of a thing is.
type Ping struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"` // Ping
	Ref        string    `json:"ref"`  // exact
	Node       did.DID   `json:"node"` // the host
	Path       string    `json:"path"` // "local", "mesh quic-v1"
	RTT        []float64 `json:"rtt_ms"`
}
