package rest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/internal/httpbody"
	"github.com/lmosd/lmosd/td"
)

// maxText limits the text of an agent in an error, in bytes.
const maxText = 4 << 10

// maxRefusal limits the body of an error response, in bytes. It is large, because only a complete secret in the body is recognized.
const maxRefusal = 64 << 10

// An answer is a checked response.
type answer struct {
	client *Client
	status int
	header http.Header
	url    *url.URL // of the request
	media  string
	data   []byte
}

// roundTrip sends the request and checks the response.
func (c *Client) roundTrip(ctx context.Context, r *request) (*answer, error) {
	ctx = r.streams(ctx)
	defer r.release()
	resp, err := c.begin(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return c.read(ctx, r, resp)
}

// begin sends the request. The caller closes the body of the response.
func (c *Client) begin(ctx context.Context, r *request) (*http.Response, error) {
	if r.Message.Chunks != nil {
		if err := c.feed(r); err != nil {
			return nil, err
		}
	}
	req, err := r.build(ctx)
	if err != nil {
		return nil, err
	}
	return send(ctx, c.transport, r, req)
}

// exchange sends req, built for r, and checks the response.
func (c *Client) exchange(ctx context.Context, r *request, req *http.Request) (*answer, error) {
	resp, err := send(ctx, c.transport, r, req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return c.read(ctx, r, resp)
}

// send sends a request of newRequest. The error has Started if a part of the request was written.
func send(ctx context.Context, via http.RoundTripper, r *request, req *http.Request) (*http.Response, error) {
	resp, err := via.RoundTrip(req)
	if err != nil {
		e := r.lost(ctx, err)
		e.Started = stateOf(req).written.Load()
		return nil, e
	}
	return resp, nil
}

// A sending is the context of a request, with its state.
type sending struct {
	context.Context
	trace   httptrace.ClientTrace
	written atomic.Bool // a part of the last attempt: net/http repeats only requests that are safe to repeat
	values  [10]string  // memory of fields
	used    int         // elements of values
}

// newSending returns the context of a request of r within ctx.
func newSending(ctx context.Context, r *request) *sending {
	if r.feed != nil {
		ctx = httpbody.Bind(ctx, func() { _ = r.feed.CloseWithError(form.ErrLeft) })
	}
	s := &sending{}
	s.trace.GotConn = func(httptrace.GotConnInfo) { s.written.Store(false) }
	s.trace.WroteHeaders = func() { s.written.Store(true) }
	s.Context = httptrace.WithClientTrace(ctx, &s.trace)
	return s
}

// stateOf returns the state of a request of newRequest.
func stateOf(req *http.Request) *sending { return req.Context().(*sending) }

// set sets a field, whose name is canonical, of a request of newRequest.
func set(req *http.Request, name, value string) {
	s := stateOf(req)
	if s.used == len(s.values) {
		req.Header.Set(name, value)
		return
	}
	s.values[s.used] = value
	req.Header[name] = s.values[s.used : s.used+1 : s.used+1]
	s.used++
}

// read reads a response within the limit and checks it against the description.
func (c *Client) read(ctx context.Context, r *request, resp *http.Response) (*answer, error) {
	if !r.expected(resp.StatusCode) {
		return nil, c.refused(r, resp)
	}
	data, err := c.body(ctx, r, resp)
	if err != nil {
		return nil, err
	}
	a := &answer{client: c, status: resp.StatusCode, header: resp.Header, data: data}
	if resp.Request != nil {
		a.url = resp.Request.URL
	}
	return a, a.settle(r, resp.Header.Get("Content-Type"))
}

// expected reports whether a status means success: by htv:statusCodeValue in the responses of the form, else by its class.
func (r *request) expected(status int) bool {
	if r.Form != nil && bytes.Contains(r.Form.Raw, []byte("htv:statusCodeValue")) {
		if success, ok := declared(r.Form.Raw, status); ok {
			return success
		}
	}
	return status >= 200 && status < 300
}

// declared returns whether a status means success in the declared responses of a form (TD 1.1 §5.3.4.2.2; WoT HTTP binding, §4).
func declared(form json.RawMessage, status int) (success, ok bool) {
	var f struct {
		Response struct {
			Status int `json:"htv:statusCodeValue"`
		} `json:"response"`
		Additional []struct {
			Success bool `json:"success"`
			Status  int  `json:"htv:statusCodeValue"`
		} `json:"additionalResponses"`
	}
	if json.Unmarshal(form, &f) != nil {
		return false, false
	}
	for _, a := range f.Additional {
		if a.Status == status {
			return a.Success, true
		}
	}
	return true, f.Response.Status == status
}

// body reads the whole body, up to the limit.
func (c *Client) body(ctx context.Context, r *request, resp *http.Response) ([]byte, error) {
	length := resp.ContentLength
	if resp.Header.Get("Content-Encoding") != "" {
		length = -1
	}
	if length > c.limit {
		return nil, c.tooLarge(r, fmt.Sprintf("%d bytes", length))
	}
	src, err := c.source(ctx, r, resp)
	if err != nil {
		return nil, err
	}
	body, err := httpbody.ReadAll(src, length, c.limit)
	switch {
	case errors.Is(err, httpbody.ErrTooLarge):
		return nil, c.tooLarge(r, "more")
	case ctx.Err() != nil:
		return nil, r.lost(ctx, ctx.Err())
	case err != nil:
		return nil, r.incomplete(int64(len(body)))
	}
	return body, nil
}

// incomplete returns the error of a response whose connection was lost after n bytes.
func (r *request) incomplete(n int64) error {
	return form.Broken(r.What(), fmt.Sprintf("it broke off after %d bytes", n))
}

// source returns the decompressed body of a response.
func (c *Client) source(ctx context.Context, r *request, resp *http.Response) (io.Reader, error) {
	coding := strings.ToLower(resp.Header.Get("Content-Encoding"))
	src, err := decoded(coding, resp.Body)
	switch {
	case err == nil:
		return src, nil
	case ctx.Err() != nil:
		return nil, r.lost(ctx, err)
	}
	return nil, form.Broken(r.What(), "invalid content coding "+interact.Excerpt(coding, 40))
}

func decoded(coding string, body io.Reader) (io.Reader, error) {
	switch coding {
	case "", "identity":
		return body, nil
	case "gzip", "x-gzip": // RFC 9110 §8.4.1.3
		return gzip.NewReader(body)
	}
	return nil, errors.New("unknown coding")
}

func (c *Client) tooLarge(r *request, size string) error {
	return interact.Errorf(interact.TooLarge, "request less, or let the agent send the output in parts",
		"the response of %s is larger than %d bytes (%s)", r.What(), c.limit, size)
}

// settle determines the media type of the data and checks it. If the description declares JSON, a JSON value is JSON even with another
// Content-Type. A missing Content-Type is that of the form.
func (a *answer) settle(r *request, contentType string) error {
	promised := interact.MediaType(r.Form.ResponseType)
	a.media = interact.MediaType(contentType)
	if contentType == "" {
		a.media = promised
	}
	data := form.TrimJSON(a.data)
	switch {
	case a.status == http.StatusNoContent, len(data) == 0 && !r.isPromised:
		a.media, a.data = "", nil
	case a.media != promised && listed(r.Form.AdditionalTypes, a.media):
	case td.IsJSON(promised) && json.Valid(data) && utf8.Valid(data):
		a.data = data
		if !td.IsJSON(a.media) {
			a.media = promised
		}
	case interact.IsCBOR(a.media) && len(data) > 0:
	case form.IsStructured(promised) && strings.HasPrefix(r.op, "write"):
		a.media, a.data = "", nil // the write succeeded; its body is not needed
	case td.IsJSON(promised):
		return form.Broken(r.What(), "expected "+promised+" as in its description, got "+sample(a.media, data, &r.Secrets))
	}
	return nil
}

func listed(types []string, media string) bool {
	return slices.ContainsFunc(types, func(t string) bool { return interact.MediaType(t) == media })
}

// sample returns the beginning of unexpected data.
func sample(media string, data []byte, s *form.Secrets) string {
	if len(data) == 0 {
		return "nothing"
	}
	return fmt.Sprintf("%s %q", interact.Excerpt(media, 60), interact.Clip(quote(s, string(data[:min(len(data), maxRefusal)])), 200))
}

// refused returns the error of a response with an error status, with bounded text of the agent.
func (c *Client) refused(r *request, resp *http.Response) error {
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // an incomplete text is better than none
	title := fmt.Sprintf("%s: the agent answered %d", r.What(), resp.StatusCode)
	if resp.StatusCode/100 == 3 {
		title += " with a redirect"
		if to, err := resp.Location(); err == nil {
			title += " to " + quote(&r.Secrets, form.Plain(to.String()))
		}
	} else if text := quote(&r.Secrets, errorText(resp.Header.Get("Content-Type"), raw)); text != "" {
		title += ": " + text
	}
	if resp.StatusCode == http.StatusLoopDetected { // the agent is a Thing of a mesh, and this node has relayed the message before
		return &interact.Error{Code: interact.Loop, Remote: true, Title: title, Hint: "see which nodes relay to each other"}
	}
	return &interact.Error{Code: interact.AgentFailed, Remote: true, Title: title, Hint: hintFor(resp.StatusCode)}
}

func hintFor(status int) string {
	switch {
	case status/100 == 3:
		return "redirects are not followed: write the final address into the form and publish again"
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return "the agent refused this node's credentials: see the credentials file on the agent's node"
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		return "the form of the description may be wrong: compare its href and htv:methodName with the agent"
	case status >= 500:
		return "see the agent's log"
	}
	return "the agent rejected the request; the error has its reason"
}

// errorText returns the text of an error response: title and detail of a problem (RFC 9457 §3.1), else the body.
func errorText(contentType string, raw []byte) string {
	text := string(raw)
	if td.IsJSON(contentType) && contentType != "" {
		var p struct{ Title, Detail string }
		if json.Unmarshal(raw, &p) == nil && p.Title+p.Detail != "" {
			text = strings.TrimPrefix(p.Title+": "+p.Detail, ": ")
			text = strings.TrimSuffix(text, ": ")
		}
	}
	return text
}

// quote prepares the text of an agent for display: no secrets, one line, bounded.
func quote(s *form.Secrets, text string) string {
	return interact.Excerpt(s.Scrub(text), maxText)
}

// lost returns the error of a missing or incomplete response. The agent may have started.
func (r *request) lost(ctx context.Context, err error) *interact.Error {
	e := r.failure(ctx, err)
	e.Started = true
	return e
}

func (r *request) failure(ctx context.Context, err error) *interact.Error {
	var refused *interact.Error
	var stream streamError
	switch text := err.Error(); {
	case errors.As(context.Cause(ctx), &stream):
		e := *interact.AsError(stream.error)
		return &e
	case ctx.Err() != nil:
		return form.Ended(ctx, r.What(), r.Form.Href)
	case errors.As(err, &refused): // by Options.Dial
		e := *refused
		return &e
	case strings.Contains(text, "malformed"), strings.Contains(text, "headers exceeded"):
		return interact.Errorf(interact.AgentFailed, "see what serves that address",
			"the server at %s violates HTTP", form.Plain(r.Form.Href))
	}
	return form.Unreachable(r.What(), r.Form.Href, form.Reason(err, true))
}
