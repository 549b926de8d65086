package server

import (
	"encoding/json"
	"net/http"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/bridge/a2a/v03"
)

// rpc handles a request of the JSON-RPC binding. A2A errors have status 200, as usual for JSON-RPC over HTTP; authorization errors have
// the HTTP status (A2A 1.0 §7.4).
func (h *Handler) rpc(w http.ResponseWriter, r *http.Request, name string) {
	w.Header().Add("Vary", protocol.VersionParam)
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		answer(w, http.StatusMethodNotAllowed, jsonType, protocol.Response(nil, nil, protocol.Errorf(protocol.InvalidRequest,
			"JSON-RPC requires POST")))
		return
	}
	body, e := read(w, r, false)
	if e != nil {
		answer(w, http.StatusOK, jsonType, protocol.Response(nil, nil, e))
		return
	}
	in, e := protocol.ParseRequest(body)
	if e != nil {
		answer(w, http.StatusOK, jsonType, protocol.Response(in.ID, nil, e))
		return
	}
	c := &rpcCall{Handler: h, id: in.ID}
	op, e := c.operation(r, in)
	var agent protocol.Agent
	if e == nil {
		agent, e = h.agent(r, name, op)
	}
	encode := func(e result) (string, []byte) { return "", c.response(e) }
	switch {
	case e != nil && (op != nil && protocol.Streams(op.Method) || streams(in.Method)): // clients that request a stream decode nothing else
		if op != nil {
			c.method = op.Method
		}
		none := make(chan result)
		close(none)
		h.events(w, r, &result{err: e}, none, encode)
		return
	case e != nil:
		answer(w, http.StatusOK, jsonType, c.response(result{err: e}))
		return
	}
	c.method = op.Method
	if !protocol.Streams(op.Method) {
		result := one(r.Context(), agent, op)
		answer(w, statusOf(w, result.err), jsonType, c.response(result))
		return
	}
	out, stop := h.results(r.Context(), agent, op)
	defer stop()
	first, _ := h.first(out)
	if first != nil && first.err != nil && statusOf(w, first.err) != http.StatusOK { // an authorization error, which has an HTTP status
		answer(w, first.err.Status(), jsonType, c.response(*first))
		return
	}
	h.events(w, r, first, out, encode)
}

// streams reports whether a method of either version returns a stream.
func streams(method string) bool {
	return protocol.Streams(method) || method == "message/stream" || method == "tasks/resubscribe"
}

// statusOf returns the HTTP status of a JSON-RPC response.
func statusOf(w http.ResponseWriter, e *protocol.Error) int {
	if e == nil || e.Code != protocol.Unauthenticated && e.Code != protocol.Forbidden {
		return http.StatusOK
	}
	challenge(w, e)
	return e.Status()
}

// An rpcCall is one JSON-RPC request.
type rpcCall struct {
	*Handler
	id     json.RawMessage
	v03    bool // the client uses 0.3
	method string
}

// operation decodes the operation of a request. Without a version header the method determines the version: no name is in both.
func (c *rpcCall) operation(r *http.Request, in *protocol.Request) (*protocol.Operation, *protocol.Error) {
	v, e := versionOf(r)
	if e != nil {
		return nil, e
	}
	if c.v03 = v == version03 || v == unspecified && !protocol.Known(in.Method); c.v03 {
		op, e := v03.Operation(in.Method, in.Params)
		if e != nil {
			return nil, e
		}
		op.Service = service(r, version03)
		return op, nil
	}
	if !protocol.Known(in.Method) {
		return nil, protocol.Errorf(protocol.UnknownMethod, "A2A 1.0 has no method %q", in.Method)
	}
	return &protocol.Operation{Method: in.Method, Params: in.Params, Service: service(r, v)}, nil
}

// response encodes a result in the client's version.
func (c *rpcCall) response(r result) []byte {
	if c.v03 && r.err != nil {
		r.err = v03.Error(r.err)
	} else if c.v03 {
		r.raw = v03.RPC.Result(c.method, r.raw)
	}
	return protocol.Response(c.id, r.raw, r.err)
}
