package protocol

import (
	"encoding/json"

	"github.com/lmosd/lmosd/internal/jsonedit"
)

// callerKey is the metadata member that identifies the caller to an agent: {"id", "did", "node", "name", "via"}.
const callerKey = "io.lmosd/caller"

// WithCaller returns op with caller in the metadata of the request if op sends a message; nil removes it. A value of the client there, or in
// the metadata of the message, is removed. The error is an [*Error] for params with duplicate fields.
func (op *Operation) WithCaller(caller json.RawMessage) (*Operation, *Error) {
	if op.Method != SendMessage && op.Method != SendStreamingMessage {
		return op, nil
	}
	params, e := setMetadata(op.Params, caller)
	if e != nil {
		return nil, e
	}
	message, e := Field(params, "message")
	if e != nil {
		return nil, e
	}
	if i := jsonedit.SkipSpace(message, 0); i < len(message) && message[i] == '{' {
		metadata, e := setMetadata(message, nil)
		if e != nil {
			return nil, e
		}
		name := spelledName(params, "message")
		var err error
		if params, err = jsonedit.Set(params, metadata, name); err != nil {
			return nil, Errorf(InvalidParams, "%v", err)
		}
	}
	withCaller := *op
	withCaller.Params = params
	return &withCaller, nil
}

// setMetadata sets the caller in the metadata of an object; nil removes it.
func setMetadata(text, caller json.RawMessage) (json.RawMessage, *Error) {
	if i := jsonedit.SkipSpace(text, 0); i >= len(text) || text[i] != '{' {
		return text, nil // the receiver rejects it
	}
	if _, e := Field(text, "metadata"); e != nil {
		return nil, e
	}
	text, err := jsonedit.Set(text, caller, spelledName(text, "metadata"), callerKey)
	if err != nil {
		return nil, Errorf(InvalidParams, "%v", err)
	}
	return text, nil
}

// spelledName returns the name of a field as an object that [Field] has read spells it.
func spelledName(text json.RawMessage, field string) string {
	all, _ := jsonedit.Members(nil, text[jsonedit.SkipSpace(text, 0):])
	for _, m := range all {
		if sameField(m.Name, field) {
			return string(m.Name)
		}
	}
	return field
}
