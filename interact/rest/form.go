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
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// offers tells whether this binding can carry out op with the form.
func offers(f *td.Form, op string) bool {
	scheme, _, _ := strings.Cut(f.Href, ":")
	if scheme = strings.ToLower(scheme); scheme != "http" && scheme != "https" || !slices.Contains(f.Ops, op) {
		return false
	}
	switch f.Subprotocol {
	case "":
		return true
	case "sse", "longpoll": // the property's address serves both; Accept decides (WoT Profile §7.2)
		return op == "readproperty"
	}
	return false
}

// choose picks the first form that offers the operation, takes the input's media type, and has its credentials here. If
// none has all of it, the error is about the first that offers the operation.
func (c *Client) choose(r *request) (*td.Form, secrets, error) {
	var first error
	for i := range r.forms {
		f := &r.forms[i]
		if !offers(f, r.op) {
			continue
		}
		s, err := c.usable(r, f)
		if err == nil {
			return f, s, nil
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		first = noForm(r)
	}
	return nil, secrets{}, first
}

func (c *Client) usable(r *request, f *td.Form) (secrets, error) {
	if len(r.body) > 0 && !accepts(f.ContentType, r.message.Media(), r.body) {
		return secrets{}, interact.Errorf(interact.UnsupportedType, "send "+mediaType(f.ContentType), "%s takes %s, not %s",
			r.what(), mediaType(f.ContentType), mediaType(r.message.Media()))
	}
	switch strings.ToLower(f.ContentCoding) {
	case "", "identity", "gzip":
	default:
		return secrets{}, interact.Errorf(interact.NotAllowed, "offer a form with gzip or without contentCoding",
			"%s wants the coding %q, which lmosd does not have", r.what(), f.ContentCoding)
	}
	return c.secrets(r, f)
}

// what names the affordance and the thing in errors.
func (r *request) what() string {
	if r.message.Name == "" {
		return r.op + " of " + label(r.thing)
	}
	return r.message.Name + " of " + label(r.thing)
}

func noForm(r *request) error {
	e := interact.Errorf(interact.NotAllowed, "", "%s offers no %s over HTTP", r.what(), r.op)
	offered := []string{}
	for _, f := range r.forms {
		scheme, _, _ := strings.Cut(f.Href, ":")
		offered = append(offered, strings.TrimSpace(clip(scheme, 20)+" "+f.Subprotocol)+" "+strings.Join(f.Ops, "+"))
	}
	if e.Hint = "it has no forms"; len(offered) > 0 {
		e.Hint = "its forms offer: " + strings.Join(slices.Compact(offered), ", ")
	}
	return e
}

// method is htv:methodName, else the default of the operation (WoT HTTP binding, §4).
func (r *request) method() string {
	switch {
	case r.form.HTTPMethod != "":
		return r.form.HTTPMethod
	case strings.HasPrefix(r.op, "read"):
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
	req.Header.Set("Accept", mediaType(r.form.ResponseType))
	if len(body) > 0 {
		req.Header.Set("Content-Type", media)
	}
	if strings.EqualFold(r.form.ContentCoding, "gzip") {
		compress(req, body)
	}
	for _, h := range r.form.HTTPHeaders {
		if !headerOK(h.Name, h.Value) {
			return nil, badForm(r.form.Href, "has an impossible field in htv:headers")
		}
		req.Header.Set(h.Name, h.Value)
	}
	if r.repeatable {
		// Empty, so never sent: it tells net/http that the request may go again over a fresh connection.
		req.Header["Idempotency-Key"] = nil
	}
	r.secrets.apply(req)
	return req, nil
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
	return req, nil
}

// content returns the body as the form wants it, and its media type.
func (r *request) content() ([]byte, string, error) {
	method, media, secret := r.method(), r.form.ContentType, r.secrets.inBody()
	bodyless := method == http.MethodGet || method == http.MethodHead
	switch {
	case secret && (bodyless || !td.IsJSON(media) || !td.IsJSON(r.message.Media())):
		return nil, "", badForm(r.form.Href, "has a security scheme in the body, and no JSON body for it")
	case bodyless && len(r.body) > 0 && string(r.body) != "{}":
		return nil, "", interact.Errorf(interact.NotAllowed,
			"declare the members of the input as uriVariables, or use POST",
			"%s is asked with %s, which has no body for the input", r.what(), method)
	case bodyless:
		return nil, "", nil
	case secret:
		body, err := r.secrets.fill(r.body)
		return body, media, err
	case !td.IsJSON(r.message.Media()):
		return r.body, r.message.ContentType, nil
	case strings.HasPrefix(mediaType(media), "text/"):
		text, _ := textOf(r.body)
		return []byte(text), media, nil
	}
	return r.body, media, nil
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

// accepts tells whether a form of type want takes a body of type have: the same type, JSON of any kind for JSON, or a
// JSON string for text.
func accepts(want, have string, body []byte) bool {
	want, have = mediaType(want), mediaType(have)
	if td.IsJSON(have) && strings.HasPrefix(want, "text/") {
		_, ok := textOf(body)
		return ok
	}
	return want == have || td.IsJSON(want) && td.IsJSON(have)
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

// mediaType returns a content type in lower case without parameters; nothing means JSON (TD 1.1 §5.4).
func mediaType(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	if media == "" {
		return interact.JSON
	}
	return media
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
	return clip(href, 200)
}
