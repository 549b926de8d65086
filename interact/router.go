package interact

import (
	"context"
	"iter"
	"time"

	"github.com/lmosd/lmosd/did"
)

// A Finder resolves references, for the caller in the context (did.PrincipalOf).
type Finder interface {
	// Locate returns the Thing of a reference. The error is an [*Error] of code [NotFound], [Ambiguous], [Withdrawn] or
	// [Unreachable], or wraps a context error.
	Locate(ctx context.Context, ref string) (Thing, error)
}

// Router returns a Thing that forwards each message to the Thing that f locates.
func Router(f Finder) Thing {
	return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
		return func(yield func(*Message, error) bool) {
			started := time.Time{}
			if m.Timing != nil {
				started = time.Now()
			}
			t, err := f.Locate(caller(ctx, m), m.Thing)
			if err != nil {
				yield(nil, err)
				return
			}
			if m.Timing != nil {
				resolved := time.Since(started)
				t = Timed(func(t *Timing, _ time.Duration) { t.Resolve = resolved })(t)
			}
			t.Do(ctx, m)(yield)
		}
	})
}

// NotOffered returns the error for a reference that names no Thing of this node. A caller that may not find a Thing gets the same error.
func NotOffered(ref string) *Error {
	return Errorf(NotFound, "see where it is now", "this node does not offer %s", ref).Then(StepFind)
}

// caller returns a context with the caller of m: a finder knows only Things that it may see.
func caller(ctx context.Context, m *Message) context.Context {
	if did.PrincipalOf(ctx) == m.From {
		return ctx
	}
	return did.WithPrincipal(ctx, m.From)
}
