package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest"
	"github.com/lmosd/lmosd/td"
)

// call invokes an action and returns the whole output, in JSON.
func call(ctx context.Context, mesh *gateway.Client, agent, action string, input any) ([]byte, error) {
	o := gateway.CallOptions{Accept: interact.JSON}
	if input != nil {
		var err error
		if o.Body, err = json.Marshal(input); err != nil {
			return nil, &interact.Error{Code: interact.Invalid, Title: "the input cannot be written as JSON", Hint: "see its type", Err: err}
		}
	}
	r, err := mesh.Invoke(ctx, agent, action, o)
	switch {
	case err != nil:
		return nil, err
	case r.Task != nil:
		return finished(ctx, mesh, r.Task)
	}
	return whole(r.Output, r.Media)
}

// finished waits for the end of a long action and returns its output.
func finished(ctx context.Context, mesh *gateway.Client, t *gateway.Task) ([]byte, error) {
	t, err := mesh.WaitTask(ctx, t)
	if err != nil {
		return nil, err
	}
	switch interact.StatusOf(t.Status) {
	case interact.StatusCompleted:
		return t.Output, nil
	case interact.StatusCancelled:
		return nil, interact.Errorf(interact.Cancelled, "ask again", "%s was cancelled", t.Action)
	}
	resp := &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{"Content-Type": {rest.ProblemType}}}
	return nil, rest.FromProblem(resp, t.Error)
}

// whole makes one value of JSON of an output. Parts of a stream come as values one after the other; text becomes a string, and
// anything else one in base64, which a []byte takes.
func whole(output []byte, media string) ([]byte, error) {
	data, media, err := interact.Transcode(output, media, interact.JSON)
	switch {
	case err != nil:
		return nil, err
	case strings.HasPrefix(media, "text/"):
		return json.Marshal(string(data))
	case !td.IsJSON(media):
		return json.Marshal(data)
	}
	var parts []interact.Part
	for values := json.NewDecoder(bytes.NewReader(data)); ; {
		var v json.RawMessage
		switch err := values.Decode(&v); {
		case errors.Is(err, io.EOF) && len(parts) == 0:
			return nil, nil
		case errors.Is(err, io.EOF):
			data, _ = interact.Join(parts)
			return data, nil
		case err != nil:
			return nil, &interact.Error{Code: interact.AgentFailed, Title: "the output is no JSON", Err: err, Hint: "ask for it as it is: lmosd call"}
		}
		parts = append(parts, interact.Part{Data: v, ContentType: media})
	}
}
