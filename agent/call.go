package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
)

// call invokes an action and returns the whole output, in JSON.
func call(ctx context.Context, mesh *api.Client, agent, action string, input any) ([]byte, error) {
	// Request the states of the run instead of its output: they delimit partial JSON outputs.
	o := api.CallOptions{Accept: "text/event-stream"}
	switch body, streams := input.(io.Reader); {
	case streams:
		o.Stream, o.ContentType = body, octetStream
		if u, ok := input.(Upload); ok {
			o.ContentType = cmp.Or(u.ContentType, octetStream)
		}
	case input != nil:
		var err error
		if o.Body, err = json.Marshal(input); err != nil {
			return nil, &interact.Error{Code: interact.Invalid, Title: "the input cannot be encoded as JSON",
				Hint: "use a type that encoding/json encodes", Err: err}
		}
	}
	r, err := mesh.Invoke(ctx, agent, action, o)
	if err != nil {
		return nil, err
	}
	return readOutput(action, r.Output)
}

// A state is one state of a run (docs/api.md, "Events and changes").
type state struct {
	Status string          `json:"status"`
	Output json.RawMessage `json:"output"`
	Error  json.RawMessage `json:"error"`
}

// readOutput returns the output of a stream of states.
func readOutput(action string, stream []byte) ([]byte, error) {
	var parts []interact.Part
	for e, err := range problem.Events(bytes.NewReader(stream), len(stream)+1) {
		if err != nil {
			return nil, err
		}
		var s state
		if err := json.Unmarshal(e.Data, &s); err != nil {
			return nil, &interact.Error{Code: interact.NodeLost, Title: "a state of " + action + " cannot be read",
				Next: interact.Next(interact.StepStatus), Err: err}
		}
		switch status := interact.StatusOf(s.Status); {
		case status == interact.StatusFailed:
			return nil, problem.Unmarshal(http.StatusInternalServerError, s.Error)
		case status == interact.StatusCancelled:
			return nil, interact.Errorf(interact.Cancelled, "call it again", "%s was cancelled", action)
		case status == interact.StatusCompleted && (s.Output != nil || len(parts) == 0):
			return s.Output, nil
		case status == interact.StatusCompleted:
			data, _ := interact.Join(parts)
			return data, nil
		case s.Output != nil:
			parts = append(parts, interact.Part{Data: s.Output})
		}
	}
	return nil, interact.Errorf(interact.NodeLost, "", "%s ended without a result", action).Then(interact.StepStatus)
}
