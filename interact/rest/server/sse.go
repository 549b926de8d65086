package server

import "github.com/lmosd/lmosd/internal/sse"

// An eventStream responds with events.
type eventStream struct {
	*sse.Writer
	unnamed bool // ?named=false: events have no names, for clients that only handle events without one
}

func (v *visit) eventStream() *eventStream {
	return &eventStream{sse.NewWriter(v.w, v.o.pace.write), v.param("named") == "false"}
}

// Send sends an event of an affordance.
func (e *eventStream) Send(name, id string, data []byte) error {
	if e.unnamed {
		name = ""
	}
	return e.Writer.Send(name, id, data)
}
