package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	v03 "github.com/lmosd/lmosd/bridge/a2a/v03"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/httpbody"
	"github.com/lmosd/lmosd/internal/sse"
)

// A Remote is a remote agent at one of its interfaces. It is a [protocol.Agent], and safe for concurrent use.
type Remote struct {
	at     card.Interface
	client *http.Client
	auth   func(*http.Request) error
	count  atomic.Uint64
}

// New returns the agent at an interface from [Choose]. auth adds credentials to a request; nil adds none.
func New(at card.Interface, client *http.Client, auth func(*http.Request) error) *Remote {
	if auth == nil {
		auth = func(*http.Request) error { return nil }
	}
	return &Remote{at: at, client: client, auth: auth}
}

// Choose returns the preferred interface of an agent: the first supported one of 1.0, or else of 0.3, JSON-RPC before REST. The error is
// an [*interact.Error].
func Choose(c *card.Card) (card.Interface, error) {
	for _, fits := range []func(card.Interface) bool{
		func(i card.Interface) bool {
			return strings.HasPrefix(i.Version, "1.") && (i.Binding == card.JSONRPC || i.Binding == card.REST)
		},
		func(i card.Interface) bool { return isOld(i) && i.Binding == card.JSONRPC },
		func(i card.Interface) bool { return isOld(i) && i.Binding == card.REST },
	} {
		for _, i := range c.Interfaces {
			if fits(i) {
				return i, nil
			}
		}
	}
	var has []string
	for _, i := range c.Interfaces {
		has = append(has, i.Binding+" "+i.Version)
	}
	return card.Interface{}, interact.Errorf(interact.NotAllowed,
		"it needs an interface JSONRPC or HTTP+JSON of A2A 1.0",
		"%s has no supported interface, only %s", c.Name, interact.Clip(strings.Join(has, ", "), 128))
}

func isOld(i card.Interface) bool {
	return strings.HasPrefix(i.Version, "0.")
}

// Do implements [protocol.Agent].
func (r *Remote) Do(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		if r.at.Tenant != "" {
			c := *op
			c.Params = protocol.SetTenant(op.Params, r.at.Tenant)
			op = &c
		}
		call, e := r.call(op)
		if e != nil {
			yield(nil, e)
			return
		}
		call.run(ctx, yield)
	}
}

// A call is the request of one operation, with the decoders of its response.
type call struct {
	*Remote
	op        *protocol.Operation
	verb, url string
	body      []byte
	answer    func(status int, body []byte) (json.RawMessage, error)
	event     func(sse.Event) (json.RawMessage, error)
}

func (r *Remote) call(op *protocol.Operation) (*call, *protocol.Error) {
	c := &call{Remote: r, op: op, verb: http.MethodPost, url: r.at.URL}
	if r.at.Binding == card.REST {
		return c, c.overREST()
	}
	id := json.RawMessage(strconv.Quote("lmosd-" + strconv.FormatUint(r.count.Add(1), 10)))
	request := &protocol.Request{ID: id, Method: op.Method, Params: op.Params}
	translate := func(raw json.RawMessage) (json.RawMessage, error) { return raw, nil }
	if isOld(r.at) {
		var e *protocol.Error
		if request.Method, request.Params, e = v03.Request(op); e != nil {
			return nil, e
		}
		translate = func(raw json.RawMessage) (json.RawMessage, error) { return v03.NewResult(op.Method, raw) }
	}
	c.body = request.Bytes()
	c.answer = func(status int, body []byte) (json.RawMessage, error) {
		raw, err := protocol.ParseResponse(body, id)
		var remote *protocol.Error
		if errors.As(err, &remote) && status != http.StatusOK && !json.Valid(body) {
			return nil, protocol.FromREST(status, body)
		}
		if err != nil {
			return nil, err
		}
		return translate(raw)
	}
	c.event = func(e sse.Event) (json.RawMessage, error) { return c.answer(http.StatusOK, e.Data) }
	return c, nil
}

func (c *call) overREST() *protocol.Error {
	write, base := protocol.ToREST, strings.TrimSuffix(c.at.URL, "/")
	if isOld(c.at) {
		write, base = v03.RESTRequest, strings.TrimSuffix(base, "/v1") // the path has it, and some cards have it, too
	}
	route, e := write(c.op)
	if e != nil {
		return e
	}
	c.verb, c.url, c.body = route.Verb, base+route.Path, route.Body
	if len(route.Query) > 0 {
		c.url += "?" + route.Query.Encode()
	}
	c.answer = func(status int, body []byte) (json.RawMessage, error) {
		switch {
		case status < 200 || status > 299:
			return nil, restError(status, body)
		case len(bytes.TrimSpace(body)) == 0:
			return json.RawMessage("{}"), nil
		case !json.Valid(body):
			return nil, protocol.Errorf(protocol.InvalidAgentResponse, "the agent's response is not JSON")
		}
		return body, nil
	}
	c.event = func(e sse.Event) (json.RawMessage, error) {
		var failed struct {
			Code  int
			Error json.RawMessage
		}
		if err := json.Unmarshal(e.Data, &failed); err != nil {
			return nil, protocol.Errorf(protocol.InvalidAgentResponse, "an event of the agent is not JSON")
		}
		if failed.Code < 0 || e.Name == "error" || failed.Error != nil {
			return nil, restError(http.StatusInternalServerError, e.Data)
		}
		return e.Data, nil
	}
	if isOld(c.at) {
		c.overOldREST()
	}
	return nil
}

// restError decodes an error of REST, or one in the form of JSON-RPC, which servers of 0.3 send.
func restError(status int, body []byte) *protocol.Error {
	remote := &protocol.Error{}
	if json.Unmarshal(body, remote) == nil && remote.Code < 0 {
		return remote
	}
	return protocol.FromREST(status, body)
}

// overOldREST converts the results of a server of 0.3.
func (c *call) overOldREST() {
	answer, event := c.answer, c.event
	translate := func(raw json.RawMessage, err error) (json.RawMessage, error) {
		if err != nil {
			return nil, err
		}
		return v03.NewRESTResult(c.op.Method, raw)
	}
	c.answer = func(status int, body []byte) (json.RawMessage, error) { return translate(answer(status, body)) }
	c.event = func(e sse.Event) (json.RawMessage, error) { return translate(event(e)) }
}

func (c *call) request(ctx context.Context) (*http.Request, error) {
	q, err := http.NewRequestWithContext(ctx, c.verb, c.url, bytes.NewReader(c.body))
	if err != nil {
		return nil, interact.Errorf(interact.AgentFailed, "the agent card is invalid: report it to its operator", "invalid URL %q",
			interact.Clip(c.url, 128))
	}
	if c.body != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	q.Header.Set("Accept", "application/a2a+json, application/json")
	if protocol.Streams(c.op.Method) {
		q.Header.Set("Accept", protocol.EventStream+", application/a2a+json, application/json")
	}
	for name, value := range c.op.Service {
		if strings.HasPrefix(strings.ToLower(name), "a2a-") {
			q.Header.Set(name, value)
		}
	}
	q.Header.Set(protocol.VersionParam, "1.0")
	if isOld(c.at) {
		q.Header.Del(protocol.VersionParam)
	}
	return q, c.auth(q)
}

// run sends the request and yields the results.
func (c *call) run(ctx context.Context, yield func(json.RawMessage, error) bool) {
	q, err := c.request(ctx)
	if err != nil {
		yield(nil, err)
		return
	}
	answer, err := c.client.Do(q)
	if err != nil {
		yield(nil, c.unreachable(ctx, err, false))
		return
	}
	defer answer.Body.Close()
	media, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	if media == protocol.EventStream && answer.StatusCode == http.StatusOK {
		c.stream(ctx, answer.Body, yield)
		return
	}
	body, err := httpbody.ReadAll(answer.Body, answer.ContentLength, protocol.MaxMessage)
	switch {
	case errors.Is(err, httpbody.ErrTooLarge):
		yield(nil, protocol.Errorf(protocol.InvalidAgentResponse, "the agent's response exceeds %d bytes", protocol.MaxMessage))
	case err != nil:
		yield(nil, c.unreachable(ctx, err, true))
	default:
		yield(c.answer(answer.StatusCode, body))
	}
}

// stream yields the events of a body. A stream that breaks ends with an error.
func (c *call) stream(ctx context.Context, body io.Reader, yield func(json.RawMessage, error) bool) {
	for e, err := range protocol.Events(body) {
		var raw json.RawMessage
		if err == nil {
			raw, err = c.event(e)
		} else if remote := (*protocol.Error)(nil); !errors.As(err, &remote) {
			err = c.unreachable(ctx, err, true)
		}
		if !yield(raw, err) || err != nil {
			return
		}
	}
}

func (c *call) unreachable(ctx context.Context, err error, started bool) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &interact.Error{Code: interact.Unreachable, Title: fmt.Sprintf("the A2A agent at %s does not respond", c.at.URL),
		Started: started,
		Hint:    "is it running? it may have started a task: subscribe to that again", Err: err}
}
