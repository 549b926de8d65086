package bridge

import "encoding/json"

// TurnAction is the @type of an action that is a turn of a conversation: its input may be a [Turn], of the content type [TurnType].
// Then its output is an [Outcome] of the same type. Other inputs have outputs as of any action.
const TurnAction = "a2a:Turn"

// TurnType is the media type of a [Turn] and of an [Outcome].
const TurnType = "application/vnd.lmosd.turn+json"

// A Turn is what somebody says to an agent that keeps conversations and tasks (A2A 1.0 §3.4), for those who speak another protocol.
type Turn struct {
	// Message and Data are what is said; either may be empty.
	Message string          `json:"message,omitempty"`
	Data    json.RawMessage `json:"data,omitempty"`
	// Context goes on with a conversation, and Task with a task, as an [Outcome] named them. A task that has ended is referred to.
	Context string `json:"contextId,omitempty"`
	Task    string `json:"taskId,omitempty"`
	// Kinds are those of an input (package interact) that the consumer can be asked for; nil means all of them. If the agent wants to know
	// anything else, the turn ends there, its task stays open, and the state of the outcome says so.
	Kinds []string `json:"kinds"`
}

// States of an [Outcome]. A turn that failed, or was cancelled, has an error and no outcome.
const (
	TurnCompleted = "completed"
	TurnAsks      = "input-required" // the next turn of the task is the answer
	TurnAuth      = "auth-required"  // somebody is to prove who they are, at an address that the message has
)

// An Outcome is what came of a turn.
type Outcome struct {
	Context string `json:"contextId,omitempty"`
	Task    string `json:"taskId,omitempty"` // empty: the agent answered without making one
	State   string `json:"state"`
	// Message is what the agent says last, and Artifacts are what it made.
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
