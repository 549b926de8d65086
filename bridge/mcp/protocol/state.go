package protocol

import (
	"errors"

	"github.com/lmosd/lmosd/internal/opaque"
)

// RefuseState is what the client of a request state is told that is not opened: [InvalidParams]. Its data name the node that made the
// state, if it is another, {"node":"did:…"}: the parked call is there, and cannot go on here.
func RefuseState(err error) *Error {
	elsewhere := new(opaque.ElsewhereError)
	switch {
	case errors.As(err, &elsewhere):
		return Errorf(InvalidParams, "the requestState was given by another node, where the call waits: send it there, or ask anew "+
			"without it").With(map[string]string{"node": elsewhere.Node})
	case errors.Is(err, opaque.ErrExpired):
		return Errorf(InvalidParams, "the requestState is too old: ask anew without it")
	}
	return Errorf(InvalidParams, "the requestState is not of this request: ask anew without it")
}

// UsedState is what the client of a request state is told that was good, once.
func UsedState() *Error {
	return Errorf(InvalidParams, "the requestState was used already, or its call has ended: ask anew without it")
}
