package bridge

import "encoding/json"

// TurnAction is the @type of an action that takes one turn of a conversation. If its input is a [Turn], of the content type [TurnType],
// its output is an [Outcome] of the same type. Other inputs have outputs as of any action.
const TurnAction = "a2a:Turn"

// TurnType is the media type of a [Turn] and of an [Outcome].
const TurnType = "application/vnd.lmosd.turn+json"

// A Turn is a message to an agent that keeps conversations and tasks (A2A 1.0 §3.4), for clients of other protocols.
type Turn struct {
	// Message and Data are the content; either may be empty.
	Message string          `json:"message,omitempty"`
	Data    json.RawMessage `json:"data,omitempty"`
	// Context continues a conversation, and Task a task: the ids of an earlier [Outcome]. If the task has ended, the turn starts another
	// task, which refers to it.
	Context string `json:"contextId,omitempty"`
	Task    string `json:"taskId,omitempty"`
	// Kinds are the kinds of input (package interact) that the consumer can provide; nil means all of them. If the agent requires
	// another kind, the turn ends, its task stays open, and the state of the outcome reports it.
	Kinds []string `json:"kinds"`
}

// States of an [Outcome]. A turn that failed, or was canceled, returns an error instead.
const (
	TurnCompleted     = "completed"
	TurnInputRequired = "input-required" // the next turn of the task provides the input
	TurnAuthRequired  = "auth-required"  // the user must authenticate at the URL in the message
)

// An Outcome is the result of a turn.
type Outcome struct {
	Context string `json:"contextId,omitempty"`
	Task    string `json:"taskId,omitempty"` // empty: the agent answered without a task
	State   string `json:"state"`
	// Message is the agent's last message, and Artifacts are the results of the task.
	Message   []Part          `json:"message,omitempty"`
	Artifacts []Artifact      `json:"artifacts,omitempty"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
}

// An Artifact is a named result (A2A 1.0 §4.1.7).
type Artifact struct {
	ID          string          `json:"artifactId,omitempty"`
	Name        string          `json:"name,omitempty"`
	Description string          `json:"description,omitempty"`
	Metadata    json.RawMessage `json:"metadata,omitempty"`
	Parts       []Part          `json:"parts"`
}

// A Part has one of Text, Raw, URL and Data (A2A 1.0 §4.1.6).
type Part struct {
	Text      *string         `json:"text,omitempty"`
	Raw       []byte          `json:"raw,omitempty"`
	URL       *string         `json:"url,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	Filename  string          `json:"filename,omitempty"`
	MediaType string          `json:"mediaType,omitempty"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
}
