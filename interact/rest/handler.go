package rest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// maxWait is the longest time a consumer may ask to wait.
const maxWait = 10 * time.Minute

// Handler serves interactions with things of the mesh (WoT Profile, HTTP Basic):
//
//	POST     /things/{id}/actions/{name}       200 with the output, or 204
//	GET HEAD /things/{id}/properties/{name}    200 with the value
//	PUT      /things/{id}/properties/{name}    204
//	GET HEAD /things/{id}/properties           200 with an object of the readable values
//	PUT      /things/{id}/properties           204; the body is an object of values by name
//
// The id is what find resolves: an id, a short name, or an exact reference (see [ThingID] for its spelling in a path).
// Variables of an affordance's address may stand in the query, or in the body as for [Client.Thing]. Prefer: wait=SECONDS
// (RFC 7240 §4.3) or ?timeout=5s says how long the consumer waits; the default is 30 s, the most 10 min. A consumer that
// goes away cancels the interaction.
//
// A body has at most 4 MiB, and its Content-Type must be one that the affordance takes. Every failure is a [Problem], and
// there are no redirects. The input is checked against the description before the mesh is asked. Messages are sent with an
// empty From: who the caller is, is for the mesh that is given here; an Authorization header is not looked at.
//
// find's error is answered as it is; it must be an [*interact.Error] to say anything but "internal error".
func Handler(mesh interact.Thing, find func(ctx context.Context, ref string) (*td.Description, error)) http.Handler {
	return &handler{mesh: mesh, find: find}
}

type handler struct {
	mesh interact.Thing
	find func(ctx context.Context, ref string) (*td.Description, error)
}

// ServeHTTP implements [http.Handler].
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, rest := ThingID(r, "/things/")
	m, err := route(w, r, rest)
	if err != nil {
		Problem(w, r, err)
		return
	}
	wait, err := patience(r)
	if err != nil {
		Problem(w, r, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	m.Deadline, _ = ctx.Deadline()
	reply, err := h.ask(ctx, w, r, id, m)
	if err != nil {
		Problem(w, r, err)
		return
	}
	respond(w, r, m, reply)
}

// verbs are the message types of a resource by method; none where it has none.
type verbs struct{ get, put, post interact.Type }

// route says what the method and the rest of the path ask for.
func route(w http.ResponseWriter, r *http.Request, rest string) (*interact.Message, error) {
	word, name, _ := strings.Cut(rest, "/")
	m := &interact.Message{ID: uuid(), Name: unescape(name)}
	m.TraceParent, m.TraceState = trace(r.Header)
	switch {
	case word == "actions" && name != "" && !strings.Contains(name, "/"):
		return m, verbs{post: interact.InvokeAction}.pick(w, r, m)
	case word == "properties" && name != "":
		return m, verbs{get: interact.ReadProperty, put: interact.WriteProperty}.pick(w, r, m)
	case word == "properties":
		return m, verbs{get: interact.ReadAllProperties, put: interact.WriteMultipleProperties}.pick(w, r, m)
	}
	return nil, interact.Errorf(interact.NotFound,
		"things have /things/{id}/properties, /properties/{name} and /actions/{name}",
		"nothing is served at %s", clip(readable(r.URL.Path), 200))
}

// pick sets the type of m by the method, or says which methods there are (RFC 9110 §10.2.1).
func (v verbs) pick(w http.ResponseWriter, r *http.Request, m *interact.Message) error {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		m.Type = v.get
	case http.MethodPut:
		m.Type = v.put
	case http.MethodPost:
		m.Type = v.post
	}
	if m.Type != 0 {
		return nil
	}
	allow := "POST"
	if v.get != 0 {
		allow = "GET, HEAD, PUT"
	}
	w.Header().Set("Allow", allow)
	return interact.Errorf(interact.NotAllowed, "use "+allow, "%s is not offered here", clip(readable(r.Method), 20))
}

// patience is how long the consumer waits.
func patience(r *http.Request) (time.Duration, error) {
	if text := r.URL.Query().Get("timeout"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 || d > maxWait {
			return 0, interact.Errorf(interact.Invalid, "for example ?timeout=5s",
				"timeout must be a duration of at most %v", maxWait)
		}
		return d, nil
	}
	// RFC 7240 §2: a preference that cannot be met is ignored.
	for _, p := range strings.Split(strings.Join(r.Header.Values("Prefer"), ","), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(p), "=")
		seconds, err := strconv.ParseUint(strings.Trim(value, `" `), 10, 32)
		if strings.EqualFold(strings.TrimSpace(name), "wait") && err == nil && seconds > 0 {
			return min(time.Duration(seconds)*time.Second, maxWait), nil
		}
	}
	return DefaultTimeout, nil
}

// trace takes the W3C trace context over, if it is well formed (Trace Context §3.2.2).
func trace(h http.Header) (parent, state string) {
	parent = h.Get("Traceparent")
	if len(parent) < 55 || len(parent) > 256 || parent[2] != '-' || parent[35] != '-' || parent[52] != '-' {
		return "", ""
	}
	hex := func(r rune) bool { return r >= '0' && r <= '9' || r >= 'a' && r <= 'f' || r == '-' }
	if strings.IndexFunc(parent, func(r rune) bool { return !hex(r) }) >= 0 {
		return "", ""
	}
	if state = strings.Join(h.Values("Tracestate"), ","); len(state) > 512 {
		state = ""
	}
	return parent, state
}

// ask resolves the thing, completes and checks the message, and asks the mesh.
func (h *handler) ask(ctx context.Context, w http.ResponseWriter, r *http.Request, id string,
	m *interact.Message) (*interact.Message, error) {
	d, err := h.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if d == nil || d.Thing == nil {
		return nil, interact.Errorf(interact.NotFound, "lmosd find", "no agent matches %q", clip(readable(id), 200))
	}
	m.Thing = d.Ref()
	if err := load(w, r, d.Thing, m); err != nil {
		return nil, err
	}
	if err := fits(d.Thing, m); err != nil {
		return nil, allowed(w, d.Thing, m, err)
	}
	reply, err := interact.Ask(ctx, h.mesh, m)
	if err != nil {
		return nil, allowed(w, d.Thing, m, err)
	}
	return reply, outcome(reply)
}

// fits checks m against the description, as the agent's node does again.
func fits(t *td.Thing, m *interact.Message) error {
	var err error
	switch m.Type {
	case interact.WriteMultipleProperties:
		_, _, err = values(t, m)
	case interact.ReadProperty, interact.WriteProperty, interact.InvokeAction:
		_, err = check(t, m)
	}
	return err
}

// allowed adds what the resource does offer to an error that says "not this".
func allowed(w http.ResponseWriter, t *td.Thing, m *interact.Message, err error) error {
	if interact.AsError(err).Code != interact.NotAllowed {
		return err
	}
	p := t.Properties[m.Name]
	allow := ""
	switch {
	case m.Type == interact.WriteProperty && p != nil && !p.WriteOnly:
		allow = "GET, HEAD"
	case m.Type == interact.ReadProperty && p != nil && !p.ReadOnly:
		allow = "PUT"
	}
	w.Header().Set("Allow", allow)
	return err
}

// outcome is the error that a final status stands for.
func outcome(reply *interact.Message) error {
	const hint = "see the agent's log"
	switch reply.Status {
	case interact.StatusFailed:
		return &interact.Error{Code: interact.AgentFailed, Remote: true, Title: "the action failed", Hint: hint}
	case interact.StatusCancelled:
		return &interact.Error{Code: interact.Cancelled, Remote: true, Title: "the action was cancelled", Hint: hint}
	case interact.StatusPending, interact.StatusRunning:
		return &interact.Error{Code: interact.AgentFailed, Title: "the action ended without a result", Hint: hint}
	}
	return nil
}

// load reads the body and the variables of the query into m.
func load(w http.ResponseWriter, r *http.Request, t *td.Thing, m *interact.Message) error {
	a := affordance(t, m)
	if r.Method == http.MethodPut || r.Method == http.MethodPost {
		body, err := readBody(w, r)
		if err != nil {
			return err
		}
		if m.Data = body; len(body) > 0 {
			if m.ContentType, err = inputType(r, a); err != nil {
				return err
			}
		}
	}
	if a != nil && len(a.URIVariables) > 0 {
		m.Data = merge(m.Data, r.URL.Query(), a.URIVariables, input(t, m))
	}
	return nil
}

// affordance returns what m asks for, or nil.
func affordance(t *td.Thing, m *interact.Message) *td.Affordance {
	if m.Type == interact.InvokeAction {
		if a := t.Actions[m.Name]; a != nil {
			return &a.Affordance
		}
	} else if p := t.Properties[m.Name]; p != nil {
		return &p.Affordance
	}
	return nil
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > MaxBody {
		w.Header().Set("Connection", "close") // rather than to read what nobody wants
		return nil, bodyTooLarge()
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, bodyTooLarge()
	case err != nil:
		return nil, &interact.Error{Code: interact.Invalid, Title: "the body broke off", Hint: "send it again", Err: err}
	}
	return body, nil
}

func bodyTooLarge() error {
	return interact.Errorf(interact.TooLarge, "send less", "the body is larger than %d bytes", MaxBody)
}

// inputType returns the media type of a body: JSON, or one that the affordance's forms name. To insist on it also keeps
// other web sites from sending what a browser sends without asking (text/plain, forms).
func inputType(r *http.Request, a *td.Affordance) (string, error) {
	said := r.Header.Get("Content-Type")
	coding := r.Header.Get("Content-Encoding")
	if coding != "" && !strings.EqualFold(coding, "identity") {
		return "", interact.Errorf(interact.UnsupportedType, "send the body as it is",
			"a body with Content-Encoding is not read")
	}
	if said != "" && td.IsJSON(said) {
		return interact.JSON, nil
	}
	named := func(f td.Form) bool { return mediaType(f.ContentType) == mediaType(said) }
	if said != "" && a != nil && slices.ContainsFunc(a.Forms, named) {
		return mediaType(said), nil
	}
	return "", interact.Errorf(interact.UnsupportedType, "Content-Type: "+interact.JSON,
		"a body of type %q is not taken here", clip(readable(said), 100))
}

// input is the schema of the body that m carries, or nil.
func input(t *td.Thing, m *interact.Message) *td.Schema {
	switch {
	case m.Type == interact.InvokeAction:
		return t.Actions[m.Name].Input
	case m.Type == interact.WriteProperty:
		return t.Properties[m.Name].Schema
	}
	return nil
}

// merge adds variables of the query to an input. What the body says holds. An input that is no object becomes the member
// "value" of one (see the package comment).
func merge(data []byte, query url.Values, schemas map[string]*td.Schema, input *td.Schema) []byte {
	fields, err := members(data)
	if err != nil && len(data) > 0 {
		if _, err := decode(data); err != nil || !isScalar(input) {
			return data // what is wrong with it is said by check
		}
		fields = []jcs.Member{{Name: scalarMember, Raw: data}}
	}
	before := len(fields)
	for name, schema := range schemas {
		if !query.Has(name) || slices.ContainsFunc(fields, func(f jcs.Member) bool { return f.Name == name }) {
			continue
		}
		fields = append(fields, jcs.Member{Name: name, Raw: typed(query.Get(name), schema)})
	}
	if len(fields) == before {
		return data
	}
	return join(fields)
}

// typed writes a value of the query as the JSON that the schema wants: a string if that fits, else the number or boolean
// that it spells.
func typed(text string, schema *td.Schema) []byte {
	asString, _ := json.Marshal(text)
	if len(schema.Check(text)) == 0 {
		return asString
	}
	if v, err := decode([]byte(text)); err == nil && v != nil && len(schema.Check(v)) == 0 {
		return []byte(text)
	}
	return asString
}

// respond writes the reply of a good interaction.
func respond(w http.ResponseWriter, r *http.Request, m, reply *interact.Message) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if m.TraceParent != "" {
		h.Set("Traceparent", m.TraceParent)
	}
	written := m.Type == interact.WriteProperty || m.Type == interact.WriteMultipleProperties
	if written || len(reply.Data) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	// The bytes are a stranger's, and the origin is the node's: a browser must not run them.
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	media := reply.Media()
	if !headerOK("Content-Type", media) {
		media = "application/octet-stream"
	}
	h.Set("Content-Type", media)
	h.Set("Content-Length", strconv.Itoa(len(reply.Data)))
	if r.Method == http.MethodHead {
		return
	}
	_, _ = w.Write(reply.Data) // the consumer is gone; there is nobody to tell
}
