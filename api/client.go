package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/httpbody"
	"github.com/lmosd/lmosd/td"
)

// maxResponse is the limit of a response, in bytes.
const maxResponse = 16 << 20

// A Client calls the HTTP API of a running node. Every error is an [*interact.Error] or wraps a context error: an error of the node
// keeps its code, hint and issues; [interact.NotRunning] means that no node listens at the address, and [interact.NodeLost] that the
// connection broke before the response was complete. It is safe for concurrent use.
type Client struct {
	target string // as given to Dial
	base   string // without a trailing slash
	token  string
	agent  did.DID                                // see As
	with   string                                 // see With
	begin  func(method, path string) (end func()) // see Observe
	http   *http.Client

	retries *backoff.Budget // of InvokeFirst
}

// Dial returns a client of the node at target: the path of its unix socket (absolute, or with the prefix "unix:"), or an http or https URL.
// Other targets are errors of code Usage. The token is sent as bearer token unless it is empty. The first request connects.
func Dial(target, token string) (*Client, error) {
	c := &Client{target: target, token: token, retries: &backoff.Budget{}}
	transport := &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second, DisableCompression: true}
	c.http = &http.Client{Transport: transport, CheckRedirect: noRedirect}
	if path, ok := SocketPath(target); ok {
		c.base = "http://localhost"
		transport.DialContext = httpbody.Dial(func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		})
		return c, nil
	}
	transport.DialContext, transport.ForceAttemptHTTP2 = httpbody.Dial(new(net.Dialer).DialContext), true
	u, err := url.Parse(target)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, interact.Errorf(interact.Usage, "", "expected the URL or the socket of a node, got %q", target).
			Then(interact.StepStatus, DefaultURL)
	}
	c.base = u.Scheme + "://" + u.Host + strings.TrimSuffix(u.EscapedPath(), "/")
	return c, nil
}

// AgentHeader names the agent for which a request is made; see [Client.As].
const AgentHeader = "Lmos-Agent"

// capabilityHeader has a delegation; see [Client.With].
const capabilityHeader = "Lmos-Capability"

// As makes the requests of c those of an agent with a key of its own, which is attached to the node: other nodes then know the caller by the DID of the
// agent. It is called before the first request.
func (c *Client) As(agent did.DID) { c.agent = agent }

// Observe calls begin before each request, and end when its response begins or it has failed. It is called before the first request.
func (c *Client) Observe(begin func(method, path string) (end func())) { c.begin = begin }

// With returns a client that shares the connections of c. By a delegation ([Delegation.Token]) its calls, reads, writes and watches use the right of
// another caller at its host. [CallOptions.With] replaces it.
func (c *Client) With(delegation string) *Client {
	other := *c
	other.with = strings.TrimSpace(delegation)
	return &other
}

// SocketPath returns the path of a target that is a unix socket (see [Dial]).
func SocketPath(target string) (path string, ok bool) {
	if path, ok = strings.CutPrefix(target, "unix:"); ok {
		return strings.TrimPrefix(path, "//"), true
	}
	return target, strings.HasPrefix(target, "/")
}

// NewClient returns a client that sends requests through t, to the host localhost, with the token as in [Dial]. Errors name the node
// target.
func NewClient(target, token string, t http.RoundTripper) *Client {
	return &Client{target: target, token: token, base: "http://localhost", http: &http.Client{Transport: t, CheckRedirect: noRedirect}, retries: &backoff.Budget{}}
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close closes idle connections. Running requests continue.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status returns the state of the node.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	return get[Status](ctx, c, "/v1/status")
}

// Ready returns nil if the node serves (GET /readyz), else the reason.
func (c *Client) Ready(ctx context.Context) error {
	_, err := get[json.RawMessage](ctx, c, "/readyz")
	return err
}

// Identity returns the DID, PeerID and DID document of the node.
func (c *Client) Identity(ctx context.Context) (*Identity, error) {
	return get[Identity](ctx, c, "/v1/id")
}

// Version returns the version of the program that the node runs.
func (c *Client) Version(ctx context.Context) (*Version, error) {
	return get[Version](ctx, c, "/version")
}

// Peers returns the connected nodes.
func (c *Client) Peers(ctx context.Context) (*PeerList, error) {
	return get[PeerList](ctx, c, "/v1/peers")
}

// Net returns how others reach the node, and what it relays for them.
func (c *Client) Net(ctx context.Context) (*Net, error) {
	return get[Net](ctx, c, "/v1/net")
}

// Connect connects the node to the peer at addr, a multiaddr that ends in /p2p/…. It requires the token or the socket.
func (c *Client) Connect(ctx context.Context, addr string) error {
	body, err := json.Marshal(ConnectRequest{Addr: addr})
	if err != nil {
		return err
	}
	_, _, err = c.do(ctx, http.MethodPost, "/v1/peers", interact.JSON, body)
	return err
}

// Find returns the Things that match q, the best first, and the coverage of the search. The node searches for at most timeout; zero
// means 2 s. An empty result is not an error.
func (c *Client) Find(ctx context.Context, q td.Query, timeout time.Duration) (*AgentList, error) {
	return get[AgentList](ctx, c, "/v1/find?"+findValues(q, timeout).Encode())
}

// NextPage returns the page after a result, by its Next.
func (c *Client) NextPage(ctx context.Context, cursor string, timeout time.Duration) (*AgentList, error) {
	v := url.Values{"page": {cursor}}
	if timeout > 0 {
		v.Set("timeout", timeout.String())
	}
	return get[AgentList](ctx, c, "/v1/find?"+v.Encode())
}

// Explain is [Client.Find] with the factors of each score.
func (c *Client) Explain(ctx context.Context, q td.Query, timeout time.Duration) (*AgentList, error) {
	v := findValues(q, timeout)
	v.Set("explain", "true")
	return get[AgentList](ctx, c, "/v1/find?"+v.Encode())
}

// Resolve is [Client.Find] of the Things that provide the one capability of q, in the order of versions that the strategy defines.
func (c *Client) Resolve(ctx context.Context, q td.Query, s td.Strategy, timeout time.Duration) (*AgentList, error) {
	v := findValues(q, timeout)
	v.Set("strategy", string(s))
	return get[AgentList](ctx, c, "/v1/find?"+v.Encode())
}

// WatchFind yields each Thing that matches q as a change "known", then a change "ready" with the coverage, then the changes, until ctx
// or the loop ends. The client reconnects for up to 1 min, and continues after the last change.
func (c *Client) WatchFind(ctx context.Context, q td.Query) iter.Seq2[AgentChange, error] {
	return func(yield func(AgentChange, error) bool) {
		for e, err := range c.watch(ctx, "/v1/find?"+findValues(q, 0).Encode(), "") {
			var change AgentChange
			if err == nil {
				if err = json.Unmarshal(e.Data, &change); err != nil {
					err = c.notANode(err)
				}
			}
			if err != nil {
				yield(change, err)
				return
			}
			if !yield(change, nil) {
				return
			}
		}
	}
}

// Route returns the agent that the node selects for a task.
func (c *Client) Route(ctx context.Context, q RouteRequest) (*RouteAnswer, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	return request[RouteAnswer](ctx, c, http.MethodPost, "/v1/route", interact.JSON, body)
}

// findValues writes q as the parameters of GET /v1/find.
func findValues(q td.Query, timeout time.Duration) url.Values {
	v := url.Values{}
	if text := q.String(); text != "" {
		v.Set("q", text)
	}
	for part := range q.Parts() {
		if part.Claimed {
			v.Set("claimed", "true")
		}
	}
	if q.Limit != 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	if timeout != 0 {
		v.Set("timeout", timeout.String())
	}
	return v
}

// Agent returns the Thing that ref names (see [td.Ref]) with its TD and the result of its verification.
func (c *Client) Agent(ctx context.Context, ref string) (*AgentDetail, error) {
	return get[AgentDetail](ctx, c, "/v1/agents/"+url.PathEscape(ref))
}

// Thing returns the TD of a Thing, with the bytes that its owner signed: their SHA-256 is the Hash of its [Signature].
func (c *Client) Thing(ctx context.Context, ref string) ([]byte, error) {
	raw, _, err := c.do(ctx, http.MethodGet, "/things/"+url.PathEscape(ref), "", nil)
	return raw, err
}

// Publish signs, stores and announces a TD, with or without an id. It requires the token or the socket, as do Unpublish and Move.
func (c *Client) Publish(ctx context.Context, raw []byte) (*Publication, error) {
	return request[Publication](ctx, c, http.MethodPost, "/v1/publish", "application/td+json", raw)
}

// Unpublish withdraws a Thing.
func (c *Client) Unpublish(ctx context.Context, ref string) (*Publication, error) {
	return request[Publication](ctx, c, http.MethodDelete, "/v1/agents/"+url.PathEscape(ref), "", nil)
}

// Move withdraws a Thing and publishes its new owner: to is the DID of the owner, or the reference of the Thing there.
func (c *Client) Move(ctx context.Context, ref, to string) (*Publication, error) {
	body, err := json.Marshal(MoveRequest{To: to})
	if err != nil {
		return nil, err
	}
	return request[Publication](ctx, c, http.MethodPost, "/v1/move/"+url.PathEscape(ref), interact.JSON, body)
}

// Call invokes an action and returns its output with the content type, both empty without an output. A nil body sends no input; an empty
// contentType means JSON. The node waits for the agent until the deadline of ctx, at most 10 min, by default 30 s, also in Read and Write.
// If the action continues as a task, the output is its state: use [Client.Invoke] to distinguish them.
func (c *Client) Call(ctx context.Context, ref, action, contentType string, body []byte) ([]byte, string, error) {
	if contentType == "" && body != nil {
		contentType = interact.JSON
	}
	return c.do(ctx, http.MethodPost, affordance(ref, "actions", action), contentType, body)
}

// Read returns the value of a property with its content type; an empty property reads all.
func (c *Client) Read(ctx context.Context, ref, property string) ([]byte, string, error) {
	return c.do(ctx, http.MethodGet, affordance(ref, "properties", property), "", nil)
}

// ReadMultiple returns an object of the values of the named properties, with its content type.
func (c *Client) ReadMultiple(ctx context.Context, ref string, names ...string) ([]byte, string, error) {
	return c.do(ctx, http.MethodGet, affordance(ref, "properties", "")+"?"+url.Values{"name": names}.Encode(), "", nil)
}

// Write sets the value of a property; an empty contentType means JSON.
func (c *Client) Write(ctx context.Context, ref, property, contentType string, body []byte) error {
	contentType = cmp.Or(contentType, interact.JSON)
	_, _, err := c.do(ctx, http.MethodPut, affordance(ref, "properties", property), contentType, body)
	return err
}

// KnownTasks is [Client.Tasks] with the last known states: the node queries no host.
func (c *Client) KnownTasks(ctx context.Context) (*TaskList, error) {
	return get[TaskList](ctx, c, "/v1/tasks?known=true")
}

// Tasks returns the tasks of the node, newest first, with their current states.
func (c *Client) Tasks(ctx context.Context) (*TaskList, error) {
	return get[TaskList](ctx, c, "/v1/tasks")
}

// Task returns the state of a task. The error is [interact.NoTask] if the node or the host has no such task.
func (c *Client) Task(ctx context.Context, id string) (*Task, error) {
	return get[Task](ctx, c, "/v1/tasks/"+url.PathEscape(id))
}

// CancelTask cancels a task and returns its state. It requires the token or the socket.
func (c *Client) CancelTask(ctx context.Context, id string) (*Task, error) {
	return request[Task](ctx, c, http.MethodDelete, "/v1/tasks/"+url.PathEscape(id), "", nil)
}

// Paths returns the paths to the Thing that ref names, the best first.
func (c *Client) Paths(ctx context.Context, ref string) (*PathList, error) {
	return get[PathList](ctx, c, "/v1/paths/"+url.PathEscape(ref))
}

// Ping measures the round-trip time to the host of the Thing that ref names n times, from 1 to 100.
func (c *Client) Ping(ctx context.Context, ref string, n int) (*Ping, error) {
	return request[Ping](ctx, c, http.MethodPost, "/v1/ping/"+url.PathEscape(ref)+"?n="+strconv.Itoa(n), "", nil)
}

func affordance(ref, kind, name string) string {
	path := "/things/" + url.PathEscape(ref) + "/" + kind
	if name != "" {
		path += "/" + url.PathEscape(name)
	}
	return path
}

func get[T any](ctx context.Context, c *Client, path string) (*T, error) {
	return request[T](ctx, c, http.MethodGet, path, "", nil)
}

// request sends a request whose response is one JSON document of type T.
func request[T any](ctx context.Context, c *Client, method, path, contentType string, body []byte) (*T, error) {
	raw, _, err := c.do(ctx, method, path, contentType, body)
	if err != nil {
		return nil, err
	}
	v := new(T)
	if err := json.Unmarshal(raw, v); err != nil {
		return nil, c.notANode(err)
	}
	return v, nil
}

// do sends one request and returns the body and content type of a 2xx response, else an error.
func (c *Client) do(ctx context.Context, method, path, contentType string, body []byte) ([]byte, string, error) {
	var reader io.Reader
	header := http.Header{}
	if body != nil {
		reader = bytes.NewReader(body)
		header.Set("Content-Type", contentType)
	}
	preferWait(ctx, header)
	resp, err := c.send(ctx, method, path, header, reader)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	return c.read(ctx, resp)
}

// preferWait makes the node wait as long as ctx, not 30 s (RFC 7240 §4.3).
func preferWait(ctx context.Context, h http.Header) {
	if deadline, ok := ctx.Deadline(); ok {
		h.Add("Prefer", fmt.Sprintf("wait=%d", int(math.Ceil(max(time.Until(deadline).Seconds(), 1)))))
	}
}

// send sends one request and returns the response, whose body the caller closes. A body that is not in memory is read by a goroutine,
// which ends with the next bytes after the end of the request.
func (c *Client) send(ctx context.Context, method, path string, header http.Header, body io.Reader) (*http.Response, error) {
	reqCtx, cancel := context.WithCancel(ctx)
	if _, inMemory := body.(*bytes.Reader); body != nil && !inMemory {
		r, w := io.Pipe()
		go func(source io.Reader) {
			_, err := io.Copy(w, source)
			w.CloseWithError(err)
		}(body)
		body, reqCtx = r, httpbody.Bind(reqCtx, func() { r.Close() })
	}
	req, err := http.NewRequestWithContext(reqCtx, method, c.base+path, body)
	if err != nil {
		cancel()
		return nil, interact.AsError(err)
	}
	req.Header = header
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.agent != "" {
		req.Header.Set(AgentHeader, string(c.agent))
	}
	if c.with != "" && header.Get(capabilityHeader) == "" {
		req.Header.Set(capabilityHeader, c.with)
	}
	end := func() {}
	if c.begin != nil {
		end = c.begin(method, path)
	}
	resp, err := c.http.Do(req)
	if end(); err != nil {
		cancel()
		return nil, c.lost(ctx, err)
	}
	resp.Body = &responseBody{resp.Body, cancel}
	return resp, nil
}

// A responseBody releases the context of its request when it is closed.
type responseBody struct {
	io.ReadCloser
	release context.CancelFunc
}

// Close implements [io.Closer].
func (b *responseBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}

// Stream posts body to a path of the node while it is read, and returns the response, which may start before body ends; the caller
// closes it. The stream ends with ctx.
func (c *Client) Stream(ctx context.Context, path, contentType string, body io.Reader) (io.ReadCloser, error) {
	resp, err := c.send(ctx, http.MethodPost, path, http.Header{"Content-Type": {contentType}}, body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		_, _, err := c.read(ctx, resp)
		return nil, cmp.Or(err, c.notANode(errors.New(resp.Status)))
	}
	return resp.Body, nil
}

func (c *Client) read(ctx context.Context, resp *http.Response) ([]byte, string, error) {
	body, err := httpbody.ReadAll(resp.Body, resp.ContentLength, maxResponse)
	switch {
	case errors.Is(err, httpbody.ErrTooLarge):
		return nil, "", interact.Errorf(interact.TooLarge, "request fewer results", "the response has more than %d bytes", maxResponse).
			Then(interact.StepOption, "limit", "20")
	case err != nil:
		return nil, "", c.lost(ctx, err)
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return nil, "", problem.Read(resp, body)
	}
	return body, resp.Header.Get("Content-Type"), nil
}

// DefaultURL is the API of a node with the default configuration.
const DefaultURL = "http://127.0.0.1:4668"

// notANode returns the error of a response that a node would not send.
func (c *Client) notANode(err error) error {
	return &interact.Error{Code: interact.NodeLost, Title: c.target + " is not a node of lmosd",
		Next: interact.Next(interact.StepStatus, DefaultURL), Err: foreignError{err}}
}

// A foreignError is an error in a response that a node would not send.
type foreignError struct{ error }

// lost returns the error of a request without a response: the context ended, no node listens, or the connection broke.
func (c *Client) lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("request to the node at %s: %w", c.target, ctx.Err())
	}
	// Drop the URL, which repeats the target.
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return &interact.Error{Code: interact.NotRunning, Title: "no node answers at " + c.target, Err: err,
			Next: interact.Next(interact.StepRun)}
	}
	return &interact.Error{Code: interact.NodeLost, Title: "the node at " + c.target + " broke the connection",
		Next: interact.Next(interact.StepStatus), Err: err}
}

// clip shortens received text and makes it printable.
func clip(s string) string { return interact.Excerpt(s, 200) }
