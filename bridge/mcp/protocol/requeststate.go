package protocol

import (
	"errors"

	"github.com/lmosd/lmosd/internal/opaque"
)

// StateError returns the error for a request state that could not be opened, with the code [InvalidParams]. If another node issued the
// state, the data name it: {"node":"did:…"}. Only that node can resume the suspended call.
func StateError(err error) *Error {
	elsewhere := new(opaque.ElsewhereError)
	switch {
	case errors.As(err, &elsewhere):
		return Errorf(InvalidParams, "the requestState was issued by another node, which holds the call: send it there, or repeat the request "+
			"without it").With(map[string]string{"node": elsewhere.Node})
	case errors.Is(err, opaque.ErrExpired):
		return Errorf(InvalidParams, "the requestState has expired: repeat the request without it")
	}
	return ForeignStateError()
}

// ForeignStateError returns the error for the request state of another request or another caller.
func ForeignStateError() *Error {
	return Errorf(InvalidParams, "the requestState does not belong to this request: repeat the request without it")
}

// UsedStateError returns the error for a valid request state that was used before.
func UsedStateError() *Error {
	return Errorf(InvalidParams, "the requestState was already used, or its call has ended: repeat the request without it")
}
