package frame

import "github.com/lmosd/lmosd/interact"

// call returns a message that invokes an action.
func call(name, data string) *interact.Message {
	return &interact.Message{Type: interact.InvokeAction, Thing: "urn:example:weather", ID: "id-1", Name: name, Data: []byte(data)}
}

// completed returns the last reply to m.
func completed(m *interact.Message, data string) *interact.Message {
	r := m.Reply(interact.ActionStatus, "", []byte(data))
	r.Status = interact.StatusCompleted
	return r
}
