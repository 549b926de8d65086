package bridge

import (
	"context"
	"net/http"
)

// A Caller describes the sender of a request to a [Handler]. The host of the handler sets it. The zero value is an anonymous caller.
type Caller struct {
	// Operator reports that the caller is authorized to administer the host.
	Operator bool
	// Authorization is the Authorization header, unless it authenticated the caller. It distinguishes callers, and is not verified.
	Authorization string
}

type callerKey struct{}

// WithCaller adds the caller to the context of a request to a Handler.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller of a request: the one that the host set, or else an anonymous one with the request's Authorization header.
func CallerOf(r *http.Request) Caller {
	if c, ok := r.Context().Value(callerKey{}).(Caller); ok {
		return c
	}
	return Caller{Authorization: r.Header.Get("Authorization")}
}
