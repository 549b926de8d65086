package bridge

import (
	"context"
	"net/http"
)

// A Caller is whom the host of a [Handler] found to send a request. The zero value is nobody in particular.
type Caller struct {
	// Operator says that the caller proved that it may administer the host.
	Operator bool
	// Shown is the value of Authorization, unless it is what proved the caller. It tells callers apart and proves nothing.
	Shown string
}

type callerKey struct{}

// WithCaller returns the context of a request to a Handler, in which its host says who sends it.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns who sends a request. Where the host says nothing, it is nobody with what the request shows.
func CallerOf(r *http.Request) Caller {
	if c, ok := r.Context().Value(callerKey{}).(Caller); ok {
		return c
	}
	return Caller{Shown: r.Header.Get("Authorization")}
}
