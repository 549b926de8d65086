package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// maxRequests bounds the concurrent input requests.
const maxRequests = 32

// A request is an input request of a server.
type request struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// requests parses the input requests in a result.
func requests(r *protocol.Message) (all map[string]request, _ error) {
	raw, _ := r.InResult("inputRequests")
	if raw != nil && json.Unmarshal(raw, &all) != nil || len(all) > maxRequests {
		return nil, interact.Errorf(interact.AgentFailed, "the server is at fault", "malformed input requests, or more than %d", maxRequests)
	}
	for key, one := range all {
		if one.Method != protocol.Elicit && one.Method != protocol.Sample && one.Method != protocol.ListRoots {
			return nil, interact.Errorf(interact.AgentFailed, "use an MCP client that knows it", "unknown input request %q with the method %q",
				interact.Clip(key, maxShort), interact.Clip(one.Method, maxShort))
		}
	}
	return all, nil
}

// urlRequests returns the URL elicitations in an error of a legacy server (2025-11-25, "URL elicitation required").
func urlRequests(err error) map[string]request {
	var e *protocol.Error
	if !errors.As(err, &e) || e.Code != urlNeeded {
		return nil
	}
	var data struct{ Elicitations []json.RawMessage }
	if json.Unmarshal(e.Data, &data) != nil || len(data.Elicitations) > maxRequests {
		return nil
	}
	all := map[string]request{}
	for i, params := range data.Elicitations {
		all[fmt.Sprint(i+1)] = request{protocol.Elicit, params}
	}
	return all
}

// answers passes input requests to the consumer and returns the responses for the server, by key.
func (c *call) answers(ctx context.Context, requests map[string]request) (map[string]any, error) {
	if c.yield == nil {
		return nil, interact.NeedsInput(c.m.Name)
	}
	in := interact.Inputs{}
	for key, one := range requests {
		in[key] = one.input()
	}
	given, left, err := c.s.waiting.Ask(ctx, c.m, in, c.yield)
	if left {
		return nil, errDisconnected
	}
	if err != nil {
		return nil, err
	}
	out := make(map[string]any, len(requests))
	for key, one := range requests {
		if out[key], err = one.response(given[key]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// input converts a request for the consumer.
func (r request) input() interact.Input {
	var p struct {
		Mode, Message, URL string
		Schema             json.RawMessage `json:"requestedSchema"`
	}
	_ = json.Unmarshal(r.Params, &p) // malformed params are empty, and passed on verbatim
	in := interact.Input{Message: clip(p.Message, maxText), Params: r.Params}
	switch {
	case r.Method == protocol.Sample:
		in.Kind = interact.InputModel
	case r.Method == protocol.ListRoots:
		in.Kind = interact.InputRoots
	case p.Mode == "url":
		in.Kind, in.URL = interact.InputURL, p.URL
	default:
		in.Kind, in.Schema = interact.InputForm, p.Schema
	}
	return in
}

// response converts the answer of the consumer for the server. Declined sampling ends the call; declined roots are an empty list.
func (r request) response(a interact.Answer) (any, error) {
	content := a.Content
	if len(content) == 0 {
		content = json.RawMessage("{}")
	}
	switch {
	case r.Method == protocol.Elicit && a.Action == interact.Accept && len(a.Content) > 0:
		return map[string]any{"action": a.Action, "content": a.Content}, nil
	case r.Method == protocol.Elicit:
		return map[string]any{"action": a.Action}, nil
	case a.Action == interact.Accept && content[0] == '{':
		return content, nil
	case a.Action == interact.Accept:
		return nil, interact.Errorf(interact.Invalid, "the content is the result of "+r.Method, "expected an object as the answer")
	case r.Method == protocol.ListRoots:
		return map[string]any{"roots": []any{}}, nil
	}
	return nil, interact.Errorf(interact.Cancelled, "call it again, and accept the request", "the sampling request of the server was declined")
}
