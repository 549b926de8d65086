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
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// The subprotocols of forms (WoT Profile §7; longpoll has no document).
const (
	sse      = "sse"
	longpoll = "longpoll"
	webhook  = "webhook"
)

// Claims reports whether this binding can use the form: over http or https, plain or with the subprotocol sse, longpoll or
// webhook. A client without [Options].Webhook cannot use the last.
func Claims(f *td.Form) bool {
	if scheme.Lookup(f.Scheme()).Protocol != "http" {
		return false
	}
	switch subprotocol(f) {
	case "", sse, longpoll, webhook:
		return true
	}
	return false
}

// subprotocol returns the subprotocol of f. The example of WoT Profile, HTTP Webhook, misspells the member.
func subprotocol(f *td.Form) string {
	if f.Subprotocol != "" || !bytes.Contains(f.Raw, []byte(`"suprotocol"`)) {
		return f.Subprotocol
	}
	var misspelled struct{ Suprotocol string }
	_ = json.Unmarshal(f.Raw, &misspelled) // what is no text is none
	return misspelled.Suprotocol
}

// offers tells whether this binding can carry out op with the form.
func offers(f *td.Form, op string) bool {
	if !Claims(f) || !slices.Contains(f.Ops, op) {
		return false
	}
	switch long := interact.TypeOf(op).Long(); subprotocol(f) {
	case "":
		return true
	case sse, longpoll: // the property's address serves both; Accept decides (WoT Profile §7.2)
		return long || strings.HasPrefix(op, "read") && interact.MediaType(f.ResponseType) != eventsType
	default:
		return long
	}
}

// carrier returns the subprotocol that brings the changes or events of a form. One that names none answers when there is
// something new, as a longpoll.
func carrier(f *td.Form) string {
	switch s := subprotocol(f); {
	case s != "":
		return s
	case interact.MediaType(f.ResponseType) == eventsType:
		return sse
	}
	return longpoll
}

// carriers are the subprotocols in the order in which they are taken: sse loses nothing, a webhook needs a way back.
var carriers = []string{sse, longpoll, webhook}

// A choice is a form that a request can be sent by, with its secrets.
type choice struct {
	form    *td.Form
	secrets secrets
	rank    int // lower is better
}

// choices returns the forms that offer the operation, take the input, and have their credentials here; the best is the first,
// else the description's order counts. If none has all of it, the error is about the first that offers the operation.
func (c *Client) choices(r *request) ([]choice, error) {
	var fit []choice
	var first error
	for i := range r.forms {
		f := &r.forms[i]
		if !offers(f, r.op) {
			continue
		}
		s, err := c.usable(r, f)
		switch {
		case err == nil:
			fit = append(fit, choice{f, s, r.rank(f)})
		case first == nil:
			first = err
		}
	}
	if len(fit) == 0 && first == nil {
		first = noForm(r)
	}
	if len(fit) > 0 {
		first = nil
	}
	slices.SortStableFunc(fit, func(a, b choice) int { return a.rank - b.rank })
	return fit, first
}

// choose takes the best form.
func (c *Client) choose(r *request) error {
	fit, err := c.choices(r)
	if err == nil {
		r.form, r.secrets = fit[0].form, fit[0].secrets
	}
	return err
}

// rank counts what speaks against a form: its carrier, an answer of another type than the consumer wants, an input that has to
// be converted.
func (r *request) rank(f *td.Form) int {
	rank := 0
	if r.message.Type.Long() {
		rank = 4 * slices.Index(carriers, carrier(f))
	}
	if want := r.message.Accept; want != "" && !strings.Contains(want, "*") && !alike(f.ResponseType, want) {
		rank += 2
	}
	if len(r.body) > 0 && !alike(f.ContentType, r.media) {
		rank++
	}
	return rank
}

// alike tells whether data of type a needs no conversion to be of type b.
func alike(a, b string) bool {
	a, b = interact.MediaType(a), interact.MediaType(b)
	return a == b || td.IsJSON(a) && td.IsJSON(b) || interact.IsCBOR(a) && interact.IsCBOR(b)
}

// structured tells whether data of a type can be converted to JSON.
func structured(media string) bool { return td.IsJSON(media) || interact.IsCBOR(media) }

func (c *Client) usable(r *request, f *td.Form) (secrets, error) {
	if !r.fits(f) {
		return secrets{}, interact.Errorf(interact.UnsupportedType, "send "+interact.MediaType(f.ContentType), "%s takes %s, not %s",
			r.what(), interact.MediaType(f.ContentType), interact.MediaType(r.media))
	}
	if c.webhook == nil && r.message.Type.Long() && carrier(f) == webhook {
		return secrets{}, interact.Errorf(interact.NotAllowed, "offer it by sse too, or give this node an address for callbacks",
			"%s comes by webhook, and this node has no address to be called at", r.what())
	}
	switch strings.ToLower(f.ContentCoding) {
	case "", "identity", "gzip":
	default:
		return secrets{}, interact.Errorf(interact.NotAllowed, "offer a form with gzip or without contentCoding",
			"%s wants the coding %q, which lmosd does not have", r.what(), f.ContentCoding)
	}
	return c.secrets(r, f)
}

// fits tells whether the form takes the body: of the same type, JSON of any kind for JSON, CBOR for JSON and the other way, a
// JSON string for text. A stream is not converted.
func (r *request) fits(f *td.Form) bool {
	want, have := interact.MediaType(f.ContentType), interact.MediaType(r.media)
	switch {
	case r.message.Chunks != nil:
		return alike(want, have)
	case len(r.body) == 0:
		return true
	case td.IsJSON(have) && strings.HasPrefix(want, "text/"):
		_, ok := textOf(r.body)
		return ok
	}
	return want == have || structured(want) && structured(have)
}

func noForm(r *request) error {
	e := interact.Errorf(interact.NotAllowed, "", "%s offers no %s over HTTP", r.what(), r.op)
	offered := []string{}
	for _, f := range r.forms {
		scheme, _, _ := strings.Cut(f.Href, ":")
		offered = append(offered, strings.TrimSpace(interact.Clip(scheme, 20)+" "+f.Subprotocol)+" "+strings.Join(f.Ops, "+"))
	}
	if e.Hint = "it has no forms"; len(offered) > 0 {
		e.Hint = "its forms offer: " + strings.Join(slices.Compact(offered), ", ")
	}
	return e
}

// method is htv:methodName, else the default of the operation (WoT HTTP binding, §4; WoT Profile §7.2, §7.3).
func (r *request) method() string {
	long := r.message.Type.Long()
	switch {
	case r.form.HTTPMethod != "":
		return r.form.HTTPMethod
	case strings.HasPrefix(r.op, "read"), long && carrier(r.form) != webhook:
		return http.MethodGet
	case strings.HasPrefix(r.op, "write"):
		return http.MethodPut
	}
	return http.MethodPost
}

// build makes the HTTP request of the chosen form.
func (r *request) build(ctx context.Context) (*http.Request, error) {
	u, err := expand(r.form.Href, r.secrets.variables(r.vars))
	if err != nil {
		return nil, err
	}
	body, media, err := r.content()
	if err != nil {
		return nil, err
	}
	req, err := newRequest(ctx, r, r.method(), u, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", interact.MediaType(r.form.ResponseType))
	if len(body) > 0 || r.feed != nil {
		req.Header.Set("Content-Type", media)
	}
	switch zip := r.zipped(); {
	case r.feed != nil:
		r.attach(req)
	case zip:
		compress(req, body)
	}
	for _, h := range r.form.HTTPHeaders {
		if !HeaderOK(h.Name, h.Value) {
			return nil, badForm(r.form.Href, "has an impossible field in htv:headers")
		}
		req.Header.Set(h.Name, h.Value)
	}
	if err := r.name(req); err != nil {
		return nil, err
	}
	r.secrets.apply(req)
	countHop(req, r)
	tellCaller(req, r.message)
	return req, nil
}

// The headers that tell an agent of this node who asks: [did.Principal.ID] and [did.Principal.Via].
const (
	CallerHeader    = "Lmos-Caller"
	CallerViaHeader = "Lmos-Caller-Via"
)

// callerPrefix begins every header that speaks of the caller.
const callerPrefix = CallerHeader

// tellCaller tells an agent who asks, and how long that one waits (RFC 7240, §4.3), if a message says so: one to another party's agent
// does not, and what is observed is observed for many. No form says it: what one has under these names is taken away, for a
// description may lead to an agent that is not its writer's.
func tellCaller(req *http.Request, m *interact.Message) {
	for name := range req.Header {
		if len(name) >= len(callerPrefix) && strings.EqualFold(name[:len(callerPrefix)], callerPrefix) {
			delete(req.Header, name)
		}
	}
	if m.Type.Long() {
		return
	}
	if until, ok := req.Context().Deadline(); ok && req.Header.Get("Prefer") == "" {
		if left := int(time.Until(until) / time.Second); left > 0 {
			req.Header.Set("Prefer", "wait="+strconv.Itoa(left))
		}
	}
	if id := m.From.ID(); id != "" && HeaderOK(CallerHeader, id) {
		req.Header.Set(CallerHeader, id)
		req.Header.Set(CallerViaHeader, string(m.From.Via))
	}
}

// countHop says how many nodes the message has passed: the agent may be another thing of a mesh. It is said again after what the
// form wants, so that no form says otherwise.
func countHop(req *http.Request, r *request) {
	req.Header.Set(HopsHeader, strconv.Itoa(int(r.message.Hops)+1))
}

// zipped tells whether the form wants bodies that are compressed.
func (r *request) zipped() bool { return strings.EqualFold(r.form.ContentCoding, "gzip") }

// name sets the key that makes an invocation repeatable for an agent that knows keys (draft-ietf-httpapi-idempotency-key-header). A
// nil one is never sent: it tells net/http that the request may go again over a fresh connection. A real one would tell it the same,
// of an agent that may not look at it: without a way to get the body again, net/http asks once.
func (r *request) name(req *http.Request) error {
	key := r.message.Key
	if r.message.Type != interact.InvokeAction {
		key = ""
	}
	switch {
	case key != "" && !HeaderOK("Idempotency-Key", key):
		return interact.Errorf(interact.Invalid, "use a key of printable characters", "the key of %s cannot be sent over HTTP",
			r.what())
	case key != "":
		if req.Header.Set("Idempotency-Key", key); !r.repeatable {
			req.GetBody = nil
			if req.Body == nil || req.Body == http.NoBody {
				req.Body = io.NopCloser(strings.NewReader(""))
			}
		}
	case r.repeatable:
		req.Header["Idempotency-Key"] = nil
	}
	return nil
}

// newRequest makes a request with the trace of the message.
func newRequest(ctx context.Context, r *request, method string, u *url.URL, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, "", bytes.NewReader(body))
	if err != nil {
		return nil, badForm(r.form.Href, "has an impossible htv:methodName")
	}
	req.URL, req.Host = u, u.Host
	req.URL.User = nil // secrets come from the credentials file, never from a description
	req.Header.Set("User-Agent", "lmosd")
	if r.message.TraceParent != "" {
		req.Header.Set("Traceparent", r.message.TraceParent)
	}
	if r.message.TraceState != "" {
		req.Header.Set("Tracestate", r.message.TraceState)
	}
	if r.message.Hops >= interact.MaxHops {
		return nil, interact.Errorf(interact.Loop, "see which nodes relay to each other", "the message passed %d nodes", r.message.Hops)
	}
	countHop(req, r)
	return req, nil
}

// content returns the body as the form wants it, and its media type.
func (r *request) content() ([]byte, string, error) {
	method, media, secret := r.method(), r.form.ContentType, r.secrets.inBody()
	bodyless := method == http.MethodGet || method == http.MethodHead
	streams := r.message.Chunks != nil
	switch {
	case secret && (bodyless || streams || !structured(media) || !structured(r.media)):
		return nil, "", badForm(r.form.Href, "has a security scheme in the body, and no JSON body for it")
	case bodyless && (streams || len(r.body) > 0 && string(r.body) != "{}"):
		return nil, "", interact.Errorf(interact.NotAllowed,
			"declare the members of the input as uriVariables, or use POST",
			"%s is asked with %s, which has no body for the input", r.what(), method)
	case bodyless, streams:
		return nil, r.message.Media(), nil
	case secret:
		return r.filled(media)
	case td.IsJSON(r.media) && strings.HasPrefix(interact.MediaType(media), "text/"):
		text, _ := textOf(r.body)
		return []byte(text), media, nil
	case structured(r.media) && structured(media):
		body, _, err := interact.Transcode(r.body, r.media, media)
		return body, media, err
	}
	return r.body, r.media, nil
}

// filled is the body with the secrets that stand in it.
func (r *request) filled(media string) ([]byte, string, error) {
	body, _, err := interact.Transcode(r.body, r.media, interact.JSON)
	if err != nil {
		return nil, "", err
	}
	if body, err = r.secrets.fill(body); err != nil {
		return nil, "", err
	}
	body, _, err = interact.Transcode(body, interact.JSON, media)
	return body, media, err
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

// textOf returns the string, number or boolean that body is as JSON, as text.
func textOf(body []byte) (string, bool) {
	var v any
	if len(body) == 0 {
		return "", true
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return "", false
	}
	switch v := v.(type) {
	case string:
		return v, true
	case float64, bool:
		return string(body), true
	}
	return "", false
}

// plain returns an address as it may be shown: without user, query and fragment.
func plain(href string) string {
	href, _, _ = strings.Cut(href, "#")
	href, _, _ = strings.Cut(href, "?")
	if scheme, rest, ok := strings.Cut(href, "://"); ok {
		authority, path, _ := strings.Cut(rest, "/")
		if at := strings.LastIndex(authority, "@"); at >= 0 {
			authority = authority[at+1:]
		}
		href = scheme + "://" + authority + "/" + path
	}
	return interact.Clip(href, 200)
}
