package server

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	v03 "github.com/lmosd/lmosd/bridge/a2a/v03"
	"github.com/lmosd/lmosd/interact"
)

// mediaOf returns the media type of a response for a REST client: that of Accept, or else of Content-Type.
func mediaOf(r *http.Request) string {
	for _, header := range []string{"Accept", "Content-Type"} {
		for part := range strings.SplitSeq(r.Header.Get(header), ",") {
			switch media := interact.MediaType(part); {
			case strings.TrimSpace(part) == "":
			case media == a2aType || media == jsonType:
				return media
			}
		}
	}
	return a2aType
}

// refuse writes an error of the REST binding of 1.0.
func refuse(w http.ResponseWriter, r *http.Request, e *protocol.Error) { (&restCall{}).refuse(w, r, e) }

// challenge sets the authentication challenge of an unauthenticated response (RFC 9110 §11.6.1).
func challenge(w http.ResponseWriter, e *protocol.Error) {
	if e.Status() == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
}

// refuse writes an error in the client's version.
func (c *restCall) refuse(w http.ResponseWriter, r *http.Request, e *protocol.Error) {
	challenge(w, e)
	answer(w, e.Status(), mediaOf(r), c.failure(e))
}

// rest handles a request of the REST binding.
func (h *Handler) rest(w http.ResponseWriter, r *http.Request, p protocol.RESTMatch) {
	w.Header().Add("Vary", protocol.VersionParam)
	c := &restCall{Handler: h, match: p}
	op, name, e := c.operation(w, r)
	var agent protocol.Agent
	if e == nil {
		agent, e = h.agent(r, name, op)
	}
	if e != nil {
		c.refuse(w, r, e)
		return
	}
	if !protocol.Streams(op.Method) {
		if e := one(r.Context(), agent, op); e.err != nil {
			c.refuse(w, r, e.err)
		} else {
			answer(w, http.StatusOK, mediaOf(r), c.result(op.Method, e.raw))
		}
		return
	}
	out, stop := h.results(r.Context(), agent, op)
	defer stop()
	first, more := h.first(out)
	switch {
	case first == nil && !more && r.Context().Err() != nil: // the client has disconnected
	case first == nil && !more:
		c.refuse(w, r, noResult.err)
	case first != nil && first.err != nil:
		c.refuse(w, r, first.err)
	default:
		h.events(w, r, first, out, func(e result) (string, []byte) {
			if e.err != nil { // the status is sent already: clients check the event name or the data
				return "error", c.failure(e.err)
			}
			return "", c.result(op.Method, e.raw)
		})
	}
}

// A restCall is one REST request.
type restCall struct {
	*Handler
	match protocol.RESTMatch
	v03   bool // the client uses 0.3
}

// operation decodes the operation and the agent name of a request. Without a version header the path determines the version.
func (c *restCall) operation(w http.ResponseWriter, r *http.Request) (op *protocol.Operation, name string, e *protocol.Error) {
	v, e := versionOf(r)
	c.v03 = v == version03 || v == unspecified && c.match.V03
	switch {
	case e != nil:
		return nil, "", e
	case c.match.Method == "":
		return nil, "", protocol.Errorf(protocol.UnknownMethod, "the method %s is not allowed here", interact.Clip(r.Method, 16))
	case v == version10 && c.match.V03, len(c.match.Prefix) > 2:
		return nil, "", protocol.Errorf(protocol.UnknownMethod, "unknown path %s", interact.Clip(r.URL.Path, 128))
	}
	var body []byte
	if r.Method == http.MethodPost {
		if body, e = read(w, r, true); e != nil {
			return nil, "", e
		}
	}
	params, e := c.match.Params(r.URL.Query(), body)
	if e != nil {
		return nil, "", e
	}
	op = &protocol.Operation{Method: c.match.Method, Params: params}
	if c.v03 {
		if op, e = v03.OfREST(c.match.Method, params); e != nil {
			return nil, "", e
		}
	}
	op.Service = service(r, v)
	if len(c.match.Prefix) > 0 {
		name = c.match.Prefix[0]
	}
	if len(c.match.Prefix) == 2 {
		op.Params = protocol.SetTenant(op.Params, c.match.Prefix[1])
	}
	return op, name, nil
}

// failure encodes an error in the client's version.
func (c *restCall) failure(e *protocol.Error) []byte {
	if c.v03 {
		return v03.RESTError(e)
	}
	return e.REST()
}

// result encodes a result in the client's version.
func (c *restCall) result(method string, raw json.RawMessage) []byte {
	if c.v03 {
		raw = v03.REST.Result(method, raw)
	}
	if len(raw) == 0 || string(raw) == "null" {
		return []byte("{}")
	}
	return raw
}
