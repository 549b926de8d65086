package ws

import (
	"github.com/lmosd/lmosd/interact"
)

// A part is what a message of wtp is; LMOS has types instead.
type part uint8

const (
	none part = iota
	request
	response
	notification
)

var parts = map[string]part{"request": request, "response": response, "notification": notification}

var partNames = [...]string{request: "request", response: "response", notification: "notification"}

// A frame is one message of any dialect.
type frame struct {
	interact.Message
	style
	marks dialect       // what its spelling proves
	part  part          // none in LMOS
	op    interact.Type // what a reply answers or acknowledges; 0 where that is not known
	fault fault         // of an error

	streams bool   // of a registration: the agent takes request streams
	stream  uint32 // of an invocation: the number of the stream that is its input; 0 if there is none
	flow    *inflow
}

// asks reports whether f is a request.
func (f *frame) asks() bool {
	return f.Type.Op() != "" || f.Type == typeRegister || f.Type == typeUnregister
}

// correlation is what the replies to f carry (LMOS: correlationId, else the request's messageId).
func (f *frame) correlation() string {
	if f.Correlation != "" {
		return f.Correlation
	}
	return f.ID
}

// reply returns an answer to the request f, spelled as f was.
func (f *frame) reply(t interact.Type) *frame {
	r := &frame{style: f.style, op: f.Type}
	r.Type, r.Thing, r.ID, r.Correlation, r.Name = t, f.Thing, interact.NewID(), f.correlation(), f.Name
	if f.dialect == wtp {
		r.part = response
	}
	return r
}
