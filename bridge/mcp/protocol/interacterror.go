package protocol

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/lmosd/lmosd/interact"
)

// maxTitle bounds the message of an error, in bytes.
const maxTitle = 2 << 10

// steps are hints for models, in place of hints that are commands: a model has the tools of the mesh, but no shell.
var steps = map[interact.Code]string{
	interact.Invalid:         "compare the arguments with the inputSchema of the tool, which tools/list and mesh_describe show",
	interact.Unauthenticated: "ask the user to log in to the server, on its host",
	interact.Forbidden:       "ask the user: a policy forbids it, and only an operator can change that",
	interact.NotFound:        "search for it with mesh_search: it may have another name, or it was removed",
	interact.NoAffordance:    "list the tools again, or call mesh_describe: they may have changed",
	interact.NotAllowed:      "call mesh_describe to see what it supports",
	interact.Ambiguous:       "several have this name: use the exact name that mesh_search returns",
	interact.NoTask:          "the task has ended or is unknown: call the tool again",
	interact.Withdrawn:       "its owner withdrew it: search for another with mesh_search",
	interact.TooLarge:        "request less at once",
	interact.InputNeeded:     "it requires input from the user that this client cannot request",
	interact.AgentFailed:     "the tool itself failed: change the arguments, or use another tool",
	interact.Unreachable:     "its host is unreachable: try again later, or search for another with mesh_search",
	interact.RelayLimited:    "the connection to its host is relayed and limited: try again later, or request less",
	interact.Timeout:         "it timed out: try again later, or request less",
	interact.NotRunning:      "ask the user to start the node of this machine",
	interact.NodeLost:        "ask the user whether the node of this machine still runs, and try again",
	interact.ShuttingDown:    "try again in a moment",
	interact.NotReady:        "try again in a moment",
}

// Hint returns the hint of e for a client. It contains no CLI command, because models read it.
func Hint(e *interact.Error) string { return e.HintFor(steps) }

// FromError converts an error of lmosd to the error of a response; an [*Error] stays unchanged. If the error has a title, the cause is
// left out: it may contain an address with a key.
func FromError(err error) *Error {
	if already := new(Error); errors.As(err, &already) {
		return already
	}
	e := interact.AsError(err)
	if e.Code == interact.Internal && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe)) {
		e = &interact.Error{Code: interact.Unreachable, Title: "connection closed before the response", Hint: "try again", Started: true}
	}
	return Errorf(InternalError, "%s", interact.Clip(cmp.Or(e.Title, e.Error()), maxTitle)).With(ErrorData(e))
}

// ErrorData returns the machine-readable part of an error: the data of an error response, or the _meta of a result.
func ErrorData(e *interact.Error) map[string]any {
	return map[string]any{"code": e.Code.String(), "hint": Hint(e), "retryable": e.Code.Retryable()}
}

// InteractError returns the error of lmosd that the data of e describes; nil if the data describes none. The data is not authenticated.
func InteractError(e *Error) *interact.Error {
	var data struct {
		Code, Hint string
		Next       interact.Steps
	}
	if e == nil || e.Data == nil || json.Unmarshal(e.Data, &data) != nil {
		return nil
	}
	for _, code := range interact.Codes() {
		if data.Code == code.String() {
			return &interact.Error{Code: code, Title: interact.Excerpt(e.Message, maxTitle),
				Hint: interact.Excerpt(data.Hint, maxTitle), Next: data.Next, Remote: true}
		}
	}
	return nil
}

// ErrShutdown is the error of a request that the node ends before the response, because it shuts down.
var ErrShutdown = interact.Errorf(interact.ShuttingDown, "try again later", "the node shut down before the response")

type streamContext struct{}

// WithStream returns a context for a session on one stream of messages. It ends early only if the node shuts down: a client that
// disconnects reads no response.
func WithStream(ctx context.Context) context.Context {
	return context.WithValue(ctx, streamContext{}, true)
}

// SessionEnd returns the error of a request whose session ended before the response; ctx is that of the session.
func SessionEnd(ctx context.Context) error {
	if ctx.Value(streamContext{}) != nil {
		return ErrShutdown
	}
	return interact.Errorf(interact.Cancelled, "begin another session", "the session ended before the response")
}
