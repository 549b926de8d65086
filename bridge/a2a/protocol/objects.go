package protocol

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A State is the state of a task (A2A 1.0 §4.1.3).
//
//	SUBMITTED → WORKING ⇄ INPUT_REQUIRED | AUTH_REQUIRED
//	          ↘    ↘ COMPLETED | FAILED | CANCELED | REJECTED
type State string

// States of a task.
const (
	Unspecified   State = "TASK_STATE_UNSPECIFIED"
	Submitted     State = "TASK_STATE_SUBMITTED"
	Working       State = "TASK_STATE_WORKING"
	Completed     State = "TASK_STATE_COMPLETED"
	Failed        State = "TASK_STATE_FAILED"
	Canceled      State = "TASK_STATE_CANCELED"
	InputRequired State = "TASK_STATE_INPUT_REQUIRED"
	Rejected      State = "TASK_STATE_REJECTED"
	AuthRequired  State = "TASK_STATE_AUTH_REQUIRED"
)

// states are in the order of the proto numbers.
var states = []State{Unspecified, Submitted, Working, Completed, Failed, Canceled, InputRequired, Rejected, AuthRequired}

// Terminal reports whether s is final.
func (s State) Terminal() bool {
	return s == Completed || s == Failed || s == Canceled || s == Rejected
}

// Waits reports whether a task in s waits for its client.
func (s State) Waits() bool { return s == InputRequired || s == AuthRequired }

// Known reports whether s is a state of A2A 1.0.
func (s State) Known() bool {
	return slices.Contains(states, s)
}

// UnmarshalJSON decodes the name or the number of a state.
func (s *State) UnmarshalJSON(b []byte) error { return enum(b, states, s) }

// A Role is the sender of a message.
type Role string

// Roles.
const (
	User      Role = "ROLE_USER"
	AgentRole Role = "ROLE_AGENT"
)

var roles = []Role{"ROLE_UNSPECIFIED", User, AgentRole}

// UnmarshalJSON decodes the name or the number of a role.
func (r *Role) UnmarshalJSON(b []byte) error { return enum(b, roles, r) }

// enum decodes a ProtoJSON enum.
func enum[T ~string](b []byte, all []T, to *T) error {
	var n int
	if json.Unmarshal(b, &n) == nil {
		if n < 0 || n >= len(all) {
			return fmt.Errorf("unknown enum number %d, expected one of %v", n, all)
		}
		*to = all[n]
		return nil
	}
	var name string
	if err := json.Unmarshal(b, &name); err != nil {
		return err
	}
	*to = T(name)
	return nil
}

// A Message is a message of a conversation (A2A 1.0 §4.1.4).
type Message struct {
	ID         string          `json:"messageId"`
	ContextID  string          `json:"contextId,omitempty"`
	TaskID     string          `json:"taskId,omitempty"`
	Role       Role            `json:"role"`
	Parts      []Part          `json:"parts"`
	Metadata   json.RawMessage `json:"metadata,omitempty"`
	Extensions []string        `json:"extensions,omitempty"`
	References []string        `json:"referenceTaskIds,omitempty"`
}

// A Part has exactly one of Text, Raw (base64, of either alphabet), URL and Data (any JSON).
type Part struct {
	Text      *string         `json:"text,omitempty"`
	Raw       *string         `json:"raw,omitempty"`
	URL       *string         `json:"url,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	Filename  string          `json:"filename,omitempty"`
	MediaType string          `json:"mediaType,omitempty"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
}

// TextPart returns a part of text.
func TextPart(text string) Part { return Part{Text: &text} }

// DataPart returns a part of JSON.
func DataPart(data json.RawMessage) Part { return Part{Data: data, MediaType: "application/json"} }

// RawPart returns a part of bytes.
func RawPart(b []byte, media string) Part {
	text := base64.StdEncoding.EncodeToString(b)
	return Part{Raw: &text, MediaType: media}
}

// Bytes decodes Raw.
func (p Part) Bytes() ([]byte, error) {
	text := strings.TrimRight(strings.NewReplacer("-", "+", "_", "/").Replace(*p.Raw), "=")
	return base64.RawStdEncoding.DecodeString(text)
}

// Media returns the media type of p, or the default for its kind.
func (p Part) Media() string {
	switch {
	case p.MediaType != "":
		return p.MediaType
	case p.Text != nil:
		return "text/plain"
	case p.Data != nil:
		return "application/json"
	}
	return "application/octet-stream"
}

func (p Part) check() error {
	n := 0
	for _, has := range []bool{p.Text != nil, p.Raw != nil, p.URL != nil, p.Data != nil} {
		if has {
			n++
		}
	}
	if n != 1 {
		return fmt.Errorf("expected exactly one of text, raw, url and data in a part, got %d", n)
	}
	if p.Raw != nil {
		if _, err := p.Bytes(); err != nil {
			return fmt.Errorf("the raw part is not base64")
		}
	}
	return nil
}

// A Status is the state of a task since a time.
type Status struct {
	State     State    `json:"state"`
	Message   *Message `json:"message,omitempty"`
	Timestamp string   `json:"timestamp,omitempty"`
}

// An Artifact is a result of a task.
type Artifact struct {
	ID          string          `json:"artifactId"`
	Name        string          `json:"name,omitempty"`
	Description string          `json:"description,omitempty"`
	Parts       []Part          `json:"parts"`
	Metadata    json.RawMessage `json:"metadata,omitempty"`
	Extensions  []string        `json:"extensions,omitempty"`
}

// A Task is a task (A2A 1.0 §4.1.1).
type Task struct {
	ID        string          `json:"id"`
	ContextID string          `json:"contextId"`
	Status    Status          `json:"status"`
	Artifacts []*Artifact     `json:"artifacts,omitempty"`
	History   []*Message      `json:"history,omitempty"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
}

// A StatusUpdate is an event with the new status of a task.
type StatusUpdate struct {
	TaskID    string          `json:"taskId"`
	ContextID string          `json:"contextId"`
	Status    Status          `json:"status"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
}

// An ArtifactUpdate is an event with an artifact of a task, or with further parts of one if Append is set.
type ArtifactUpdate struct {
	TaskID    string          `json:"taskId"`
	ContextID string          `json:"contextId"`
	Artifact  *Artifact       `json:"artifact"`
	Append    bool            `json:"append,omitempty"`
	LastChunk bool            `json:"lastChunk,omitempty"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
}

// A StreamResponse is one event: exactly one of its members is set. The result of SendMessage is one, too.
type StreamResponse struct {
	Task           *Task           `json:"task,omitempty"`
	Message        *Message        `json:"message,omitempty"`
	StatusUpdate   *StatusUpdate   `json:"statusUpdate,omitempty"`
	ArtifactUpdate *ArtifactUpdate `json:"artifactUpdate,omitempty"`
}

// TaskOf returns the task id of an event, and the state if the event has one. The event is valid JSON; other JSON has neither.
func TaskOf(event json.RawMessage) (id string, s State) {
	for _, of := range [...]struct{ event, id string }{{"task", "id"}, {"statusUpdate", "taskId"}, {"artifactUpdate", "taskId"}} {
		e, _ := Field(event, of.event)
		if e == nil {
			continue
		}
		id, _ = FieldText(e, of.id)
		if raw, _ := Field(e, "status", "state"); raw != nil {
			_ = s.UnmarshalJSON(raw) // an invalid state is empty
		}
		break
	}
	return id, s
}

// ContextOf returns the context id of an event; empty if there is none. The event is valid JSON.
func ContextOf(event json.RawMessage) string {
	for _, of := range [...]string{"task", "message", "statusUpdate", "artifactUpdate"} {
		if raw, _ := Field(event, of); raw != nil {
			id, _ := FieldText(raw, "contextId")
			return id
		}
	}
	return ""
}

// Parameters of operations (A2A 1.0 §3.1). Send is for SendMessage and SendStreamingMessage.
type (
	Send struct {
		Tenant        string          `json:"tenant,omitempty"`
		Message       *Message        `json:"message"`
		Configuration Configuration   `json:"configuration"`
		Metadata      json.RawMessage `json:"metadata,omitempty"`
	}
	Configuration struct {
		Modes         []string        `json:"acceptedOutputModes,omitempty"`
		Push          json.RawMessage `json:"taskPushNotificationConfig,omitempty"`
		HistoryLength *int            `json:"historyLength,omitempty"`
		Immediately   bool            `json:"returnImmediately,omitempty"`
	}
	Get struct {
		ID            string `json:"id"`
		HistoryLength *int   `json:"historyLength,omitempty"`
	}
	List struct {
		ContextID     string `json:"contextId"`
		Status        State  `json:"status"`
		PageSize      *int   `json:"pageSize"`
		PageToken     string `json:"pageToken"`
		HistoryLength *int   `json:"historyLength"`
		After         string `json:"statusTimestampAfter"`
		Artifacts     bool   `json:"includeArtifacts"`
	}
)

// Read decodes params into one of these; nil params are an empty object.
func Read(params json.RawMessage, to any) *Error {
	if len(bytes.TrimSpace(params)) == 0 || string(params) == "null" {
		params = json.RawMessage("{}")
	}
	if err := json.Unmarshal(Normal(params), to); err != nil {
		return Errorf(InvalidParams, "invalid params: %v", err)
	}
	return nil
}

// CheckMessage validates a message (A2A 1.0 §4.1.4).
func CheckMessage(m *Message) *Error {
	switch {
	case m == nil:
		return Errorf(InvalidParams, "the message is missing").At("message")
	case m.ID == "":
		return Errorf(InvalidParams, "the message has no messageId").At("message.messageId")
	case len(m.Parts) == 0:
		return Errorf(InvalidParams, "the message has no parts").At("message.parts")
	case m.Role != User && m.Role != AgentRole:
		return Errorf(InvalidParams, "the role must be %s or %s", User, AgentRole).At("message.role")
	}
	for i, p := range m.Parts {
		if err := p.check(); err != nil {
			return Errorf(InvalidParams, "%v", err).At(fmt.Sprintf("message.parts[%d]", i))
		}
	}
	return nil
}

// Time formats a time as A2A does: UTC, in milliseconds.
func Time(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// SetTenant sets the tenant of params. Params that are not an object stay unchanged.
func SetTenant(params json.RawMessage, tenant string) json.RawMessage {
	members := map[string]json.RawMessage{}
	if len(params) > 0 && json.Unmarshal(params, &members) != nil {
		return params
	}
	members["tenant"] = Encode(tenant)
	return object(members)
}
