package rest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// The subprotocols of forms (WoT Profile §7; longpoll has no document).
const (
	sse      = "sse"
	longpoll = "longpoll"
	webhook  = "webhook"
)

// Supports reports whether this binding can use the form: over http or https, plain or with the subprotocol sse, longpoll or
// webhook. A client without [Options].Webhook cannot use the last.
func Supports(f *td.Form) bool {
	if scheme.Lookup(f.Scheme()).Protocol != "http" {
		return false
	}
	switch subprotocol(f) {
	case "", sse, longpoll, webhook:
		return true
	}
	return false
}

// subprotocol returns the subprotocol of f. An example of the WoT Profile, HTTP Webhook, misspells the member.
func subprotocol(f *td.Form) string {
	if f.Subprotocol != "" || !bytes.Contains(f.Raw, []byte(`"suprotocol"`)) {
		return f.Subprotocol
	}
	var misspelled struct{ Suprotocol string }
	_ = json.Unmarshal(f.Raw, &misspelled) // a value of another type counts as absent
	return misspelled.Suprotocol
}

// fits reports whether the form can be used for op.
func fits(f *td.Form, op string) bool {
	of := interact.TypeOf(op)
	switch of {
	case interact.QueryAction, interact.CancelAction, interact.QueryAllActions, interact.ContinueAction: // the node keeps the states of actions
		return false
	}
	if !Supports(f) || !slices.Contains(f.Ops, op) {
		return false
	}
	switch long := of.Long(); subprotocol(f) {
	case "":
		return true
	case sse, longpoll: // the address of the property serves both; Accept selects one (WoT Profile §7.2)
		return long || strings.HasPrefix(op, "read") && interact.MediaType(f.ResponseType) != eventsType
	default:
		return long
	}
}

// carrier returns the subprotocol for the changes or events of a form. A form without a subprotocol is a longpoll.
func carrier(f *td.Form) string {
	switch s := subprotocol(f); {
	case s != "":
		return s
	case interact.MediaType(f.ResponseType) == eventsType:
		return sse
	}
	return longpoll
}

// carriers are the subprotocols in order of preference: sse loses no event, a webhook needs a callback address.
var carriers = []string{sse, longpoll, webhook}

// method returns htv:methodName, else the default of the operation (WoT HTTP binding, §4; WoT Profile §7.2, §7.3).
func (r *request) method() string {
	long := r.Message.Type.Long()
	switch {
	case r.Form.HTTPMethod != "":
		return r.Form.HTTPMethod
	case strings.HasPrefix(r.op, "read"), long && carrier(r.Form) != webhook:
		return http.MethodGet
	case strings.HasPrefix(r.op, "write"):
		return http.MethodPut
	}
	return http.MethodPost
}

// build returns the HTTP request for the form.
func (r *request) build(ctx context.Context) (*http.Request, error) {
	u, err := form.Expand(r.Form.Href, r.Secrets.Variables(r.Vars))
	if err != nil {
		return nil, err
	}
	body, err := r.content()
	if err != nil {
		return nil, err
	}
	req, err := newRequest(ctx, r, r.method(), u, body)
	if err != nil {
		return nil, err
	}
	set(req, "Accept", interact.MediaType(r.Form.ResponseType))
	if len(body) > 0 || r.feed != nil {
		set(req, "Content-Type", r.Media)
	}
	switch zip := r.zipped(); {
	case r.feed != nil:
		r.attach(req)
	case zip:
		compress(req, body)
	}
	for _, h := range r.Form.HTTPHeaders {
		if !form.HeaderOK(h.Name, h.Value) {
			return nil, form.Bad(r.Form.Href, "has an invalid field in htv:headers")
		}
		req.Header.Set(h.Name, h.Value)
	}
	if err := r.setKey(req); err != nil {
		return nil, err
	}
	r.Secrets.Apply(req.Header, req.URL)
	if len(r.Form.HTTPHeaders) > 0 || !r.Secrets.IsEmpty() {
		removeCaller(req.Header)
		setTrusted(req, r) // again: a description cannot change these fields
	}
	setCaller(req, r.Message)
	return req, nil
}

// The headers with the caller, for agents of this node: [did.Principal.ID], Via, Org, Roles separated by spaces, [did.Principal.GroupsText], and the ID of the
// delegator. Org and Roles are absent without a verified membership, the next one without a group, the last one without a delegation.
const (
	callerHeader       = "Lmos-Caller"
	callerViaHeader    = "Lmos-Caller-Via"
	callerOrgHeader    = "Lmos-Caller-Org"
	callerRolesHeader  = "Lmos-Caller-Roles"
	callerGroupsHeader = "Lmos-Caller-Groups"
	callerLentByHeader = "Lmos-Caller-Lent-By"
)

// callerSecretHeader is the header with the secret of the agent. It proves that the node set the headers of the caller.
const callerSecretHeader = "Lmos-Caller-Secret"

// HopsHeader is the header with the number of nodes that relayed a request, for the detection of loops.
const HopsHeader = "Lmos-Hops"

// removeCaller removes the fields that begin with callerHeader, because a description may have the address of another agent.
func removeCaller(h http.Header) {
	for name := range h {
		if len(name) >= len(callerHeader) && strings.EqualFold(name[:len(callerHeader)], callerHeader) {
			delete(h, name)
		}
	}
}

// setCaller sets the headers of the caller and of its timeout (RFC 7240 §4.3), if the message has them: messages to agents of other
// owners have no caller, and observations are shared.
func setCaller(req *http.Request, m *interact.Message) {
	if m.Type.Long() {
		return
	}
	if until, ok := req.Context().Deadline(); ok && req.Header.Get("Prefer") == "" {
		if left := int(time.Until(until) / time.Second); left > 0 {
			set(req, "Prefer", "wait="+strconv.Itoa(left))
		}
	}
	if id := m.From.ID(); id != "" && form.HeaderOK(callerHeader, id) {
		set(req, callerHeader, id)
		set(req, callerViaHeader, string(m.From.Via))
		if m.From.Org != "" {
			req.Header.Set(callerOrgHeader, string(m.From.Org))
			req.Header.Set(callerRolesHeader, strings.Join(m.From.Roles, " "))
		}
		if len(m.From.Groups) > 0 {
			req.Header.Set(callerGroupsHeader, m.From.GroupsText())
		}
		if m.From.Lent != nil {
			req.Header.Set(callerLentByHeader, m.From.Lent.Lender())
		}
	}
}

// setCallerSecret sets the secret of the agent if the address has the origin of the secret. Redirects are not followed. An error of the agent that
// repeats the secret is not passed on.
func setCallerSecret(req *http.Request, r *request) {
	if r.client.secretOf == nil {
		return
	}
	if secret := r.client.secretOf(r.Thing.ID, req.URL); secret != "" {
		set(req, callerSecretHeader, secret)
		r.Secrets.Hide(secret)
	}
}

// setTrusted sets the number of nodes that the message has passed, because the agent may be a Thing of another mesh, and the secret of the
// agent.
func setTrusted(req *http.Request, r *request) {
	set(req, HopsHeader, strconv.Itoa(int(r.Message.Hops)+1))
	setCallerSecret(req, r)
}

// zipped reports whether the form requires compressed bodies.
func (r *request) zipped() bool { return strings.EqualFold(r.Form.ContentCoding, "gzip") }

// setKey sets the idempotency key of an invocation (draft-ietf-httpapi-idempotency-key-header). With a key, net/http may repeat the
// request on a new connection. An agent may ignore the key: without GetBody, net/http sends the request once. A repeatable request gets a
// nil key, which is not sent.
func (r *request) setKey(req *http.Request) error {
	key := r.Message.Key
	if r.Message.Type != interact.InvokeAction {
		key = ""
	}
	switch {
	case key != "" && !form.HeaderOK("Idempotency-Key", key):
		return interact.Errorf(interact.Invalid, "use a key of printable characters", "the key of %s cannot be sent over HTTP",
			r.What())
	case key != "":
		if req.Header.Set("Idempotency-Key", key); !r.isRepeatable {
			req.GetBody = nil
			if req.Body == nil || req.Body == http.NoBody {
				req.Body = io.NopCloser(strings.NewReader(""))
			}
		}
	case r.isRepeatable:
		req.Header["Idempotency-Key"] = nil
	}
	return nil
}

// newRequest makes a request with the trace of the message.
func newRequest(ctx context.Context, r *request, method string, u *url.URL, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(newSending(ctx, r), method, "", bytes.NewReader(body))
	if err != nil {
		return nil, form.Bad(r.Form.Href, "has an invalid htv:methodName")
	}
	req.URL, req.Host = u, u.Host
	req.URL.User = nil // secrets come from the credentials file, never from a description
	set(req, "User-Agent", "lmosd")
	if r.Message.TraceParent != "" {
		set(req, "Traceparent", r.Message.TraceParent)
	}
	if r.Message.TraceState != "" {
		req.Header.Set("Tracestate", r.Message.TraceState)
	}
	setTrusted(req, r)
	return req, nil
}

// content returns the body, with the secrets that are members of it.
func (r *request) content() ([]byte, error) {
	if !r.Secrets.InBody() {
		return r.Body, nil
	}
	if r.isBodyless() || r.Message.Chunks != nil || !form.IsStructured(r.Media) {
		return nil, form.Bad(r.Form.Href, "has a security scheme in the body, and no JSON body for it")
	}
	body, _, err := interact.Transcode(r.Body, r.Media, interact.JSON)
	if err == nil {
		body, err = r.Secrets.Fill(body)
	}
	if err != nil {
		return nil, err
	}
	body, _, err = interact.Transcode(body, interact.JSON, r.Media)
	return body, err
}

func compress(req *http.Request, body []byte) {
	req.Header.Set("Accept-Encoding", "gzip")
	if len(body) == 0 {
		return
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	// Writes to a buffer do not fail.
	_, _ = z.Write(body)
	_ = z.Close()
	req.Header.Set("Content-Encoding", "gzip")
	req.ContentLength = int64(b.Len())
	req.Body = io.NopCloser(bytes.NewReader(b.Bytes()))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
}
