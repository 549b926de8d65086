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

// maxRefusal is how much of a refusal is read, in bytes: a secret in it must be complete to be recognized.
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

// ask sends the request and checks the response.
func (c *Client) ask(ctx context.Context, r *request) (*answer, error) {
	ctx = r.streams(ctx)
	defer r.release()
	resp, err := c.begin(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return c.judge(ctx, r, resp)
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
	return carry(ctx, c.transport, r, req)
}

// exchange sends a built request, and checks the response.
func (c *Client) exchange(ctx context.Context, r *request, req *http.Request) (*answer, error) {
	resp, err := carry(ctx, c.transport, r, req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return c.judge(ctx, r, resp)
}

// carry sends a request. The error has Started if any of it was written.
func carry(ctx context.Context, via http.RoundTripper, r *request, req *http.Request) (*http.Response, error) {
	var written atomic.Bool
	trace := &httptrace.ClientTrace{ // the last attempt counts: net/http makes another only if that does no harm
		GotConn:      func(httptrace.GotConnInfo) { written.Store(false) },
		WroteHeaders: func() { written.Store(true) },
	}
	sent := ctx
	if r.feed != nil {
		sent = httpbody.Bind(ctx, func() { _ = r.feed.CloseWithError(form.ErrLeft) })
	}
	resp, err := via.RoundTrip(req.WithContext(httptrace.WithClientTrace(sent, trace)))
	if err != nil {
		e := r.lost(ctx, err)
		e.Started = written.Load()
		return nil, e
	}
	return resp, nil
}

// judge reads a response within the limit and checks it against the description.
func (c *Client) judge(ctx context.Context, r *request, resp *http.Response) (*answer, error) {
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

// expected reports whether a status means success: htv:statusCodeValue of the form's responses decides, else the class.
func (r *request) expected(status int) bool {
	if r.Form != nil && bytes.Contains(r.Form.Raw, []byte("htv:statusCodeValue")) {
		if success, ok := declared(r.Form.Raw, status); ok {
			return success
		}
	}
	return status >= 200 && status < 300
}

// declared looks status up in the responses that a form declares (TD 1.1 §5.3.4.2.2; WoT HTTP binding, §4).
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

// body reads the whole body, or fails at the limit without reading on.
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
		return nil, form.Broken(r.What(), fmt.Sprintf("it broke off after %d bytes", len(body)))
	}
	return body, nil
}

// source is the decompressed body of a response.
func (c *Client) source(ctx context.Context, r *request, resp *http.Response) (io.Reader, error) {
	coding := strings.ToLower(resp.Header.Get("Content-Encoding"))
	src, err := decoded(coding, resp.Body)
	switch {
	case err == nil:
		return src, nil
	case ctx.Err() != nil:
		return nil, r.lost(ctx, err)
	}
	return nil, form.Broken(r.What(), "what it calls "+interact.Excerpt(coding, 40)+" is not")
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
	return interact.Errorf(interact.TooLarge, "ask for less, or let the agent answer in parts",
		"the answer of %s is larger than %d bytes (%s); it was cut and dropped", r.What(), c.limit, size)
}

// settle decides the media type of the data and checks it. The body counts, not the label: a JSON value that says it is
// text is JSON where the description promises JSON, and a missing Content-Type is that of the form.
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
		a.media, a.data = "", nil // the writing went well; no caller waits for its body
	case td.IsJSON(promised):
		return form.Broken(r.What(), "its description promises "+promised+", it sent "+sample(a.media, data, &r.Secrets))
	}
	return nil
}

func listed(types []string, media string) bool {
	for _, t := range types {
		if interact.MediaType(t) == media {
			return true
		}
	}
	return false
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
	} else if text := quote(&r.Secrets, words(resp.Header.Get("Content-Type"), raw)); text != "" {
		title += ": " + text
	}
	if resp.StatusCode == http.StatusLoopDetected { // the agent is a thing of a mesh, and it was this node's turn before
		return &interact.Error{Code: interact.Loop, Remote: true, Title: title, Hint: "see which nodes relay to each other"}
	}
	return &interact.Error{Code: interact.AgentFailed, Remote: true, Title: title, Hint: adviceFor(resp.StatusCode)}
}

func adviceFor(status int) string {
	switch {
	case status/100 == 3:
		return "redirects are not followed: put the final address into the form and publish again"
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return "the agent refused this node's credentials: see the credentials file on the agent's node"
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		return "the form of the description may be wrong: compare its href and htv:methodName with the agent"
	case status >= 500:
		return "see the agent's log"
	}
	return "the agent did not like the request; its own words are in the error"
}

// words returns the text of an error response: title and detail of a problem (RFC 9457 §3.1), else the body.
func words(contentType string, raw []byte) string {
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
