package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yosida95/uritemplate/v3"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// A server is an MCP server as a Thing: its tools and prompts are actions, its resources properties, and the action "mcp" carries MCP.
type server struct {
	protocol.Server
	back      *backend.Backend
	approvals *approvals
	source    *source
	self      protocol.Implementation // clientInfo
	log       *slog.Logger
	waiting   interact.InputWaiter

	info  atomic.Pointer[backend.Info] // of the last probe
	can   atomic.Pointer[capabilities]
	index atomic.Pointer[index] // of the last description

	mu        sync.Mutex
	busy      int           // calls in progress
	idleTimer *time.Timer   // ends the subscription of an idle server; nil without subscription
	sleeping  chan struct{} // closed by the next call; nil while subscribed
}

// listTimeout bounds the time for all lists of a running server.
const listTimeout = time.Minute

// describe reads the features of the server and returns a draft of its description. A server that does not respond is a Timeout.
func (s *server) describe(ctx context.Context, target string, o bridge.Import) (draft []byte, warnings []string, err error) {
	if _, err := s.about(ctx); err != nil { // the start may take longer
		return nil, nil, interactError(err, &interact.Message{})
	}
	limited, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	c, err := readFeatures(limited, s)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return nil, nil, interact.Errorf(interact.Timeout, "try another MCP client", "the server did not list its features within %v", listTimeout)
	}
	if err != nil {
		return nil, nil, interactError(err, &interact.Message{})
	}
	s.source.note(c.tools)
	c.warnings = append(c.warnings, s.approvals.warnings()...)
	draft, index, err := c.describe(target, o)
	if err != nil {
		return nil, nil, err
	}
	s.index.Store(index)
	return draft, c.warnings, nil
}

// about probes the server.
func (s *server) about(ctx context.Context) (*backend.Info, error) {
	info, err := s.back.Info(ctx)
	if err != nil {
		return nil, err
	}
	can := capabilitiesOf(info)
	s.info.Store(info)
	s.can.Store(&can)
	return info, nil
}

// commonCapabilities are the client capabilities of all requests to a legacy server.
var commonCapabilities = func() (all map[string]any) {
	if err := json.Unmarshal([]byte(backend.CommonCapabilities), &all); err != nil {
		panic(err) // a constant
	}
	return all
}()

// request sends a request of lmosd itself. An error response is returned as an error.
func (s *server) request(ctx context.Context, method string, params map[string]any) (*protocol.Message, error) {
	return s.send(ctx, method, params, &interact.Message{}, map[string]any{}, nil)
}

// send sends a request for the consumer of m with the given client capabilities. Notifications of the server go to notify, which may be
// nil.
func (s *server) send(ctx context.Context, method string, params map[string]any, m *interact.Message, capabilities map[string]any,
	notify protocol.Notify) (*protocol.Message, error) {
	if info := s.info.Load(); info != nil && !info.Modern {
		capabilities = commonCapabilities // the same for all requests: then the node needs only one process
	}
	meta := map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: capabilities,
		protocol.MetaClient: s.self}
	if m.TraceParent != "" {
		meta["traceparent"] = m.TraceParent
		if m.TraceState != "" {
			meta["tracestate"] = m.TraceState
		}
	}
	if notify != nil {
		meta["progressToken"] = 1 // the connection replaces it
	} else {
		notify = protocol.Ignore
	}
	params["_meta"] = meta
	q := protocol.Request("1", method, params)
	if len(q.Bytes()) > protocol.MaxMessage {
		return nil, interact.Errorf(interact.TooLarge, "send less at once", "the input of %s exceeds %d bytes", m.Name, protocol.MaxMessage)
	}
	r, err := s.Call(withCaller(ctx, m), q, notify)
	if err != nil {
		return nil, err
	}
	if e := r.Error(); e != nil {
		return nil, e
	}
	if raw := r.Result(); len(raw) == 0 || raw[0] != '{' {
		return nil, &protocol.Error{Code: protocol.InternalError, Message: "expected an object as the result"}
	}
	return r, nil
}

// withCaller returns the context of a request for the caller of m.
func withCaller(ctx context.Context, m *interact.Message) context.Context {
	return did.WithPrincipal(protocol.WithCaller(ctx, m.From.ID()), m.From)
}

// Do implements [interact.Thing]. It handles InvokeAction of a tool, a prompt or the tunnel, ContinueAction of an action that requires input,
// and ReadProperty and ObserveProperty of a resource or a template.
//
// The input of a tool or a prompt is an object of arguments, and that of a template an object of its variables. Progress of the server
// becomes a running state with the type [interact.Progress], and an input request an input-required state. The output is that of [output] or
// messages. A tool with isError fails with AgentFailed, Remote and its text; its other content is a part of the output before. Leaving the
// loop cancels the request or its task. An observed resource is read after each change notification.
func (s *server) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		defer s.use()()
		if !m.Deadline.IsZero() {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, m.Deadline)
			defer cancel()
		}
		switch {
		case m.Type == interact.InvokeAction && m.Name == tunnelAction:
			bridge.Accept(ctx, m, s.tunnel(m))(yield)
		case m.Type == interact.InvokeAction:
			s.invoke(ctx, m, yield)
		case m.Type == interact.ReadProperty:
			interact.Unary(s.read).Do(ctx, m)(yield)
		case m.Type == interact.ObserveProperty:
			s.observe(ctx, m, yield)
		case m.Type == interact.ContinueAction:
			yield(s.waiting.Continue(m))
		default:
			yield(nil, interact.Errorf(interact.NotAllowed, "call its actions, read its properties", "an MCP server does not support %s", m.Type.Op()))
		}
	}
}

// tunnel serves MCP in the tunnel.
func (s *server) tunnel(m *interact.Message) func(context.Context, io.ReadWriteCloser) error {
	return func(ctx context.Context, stream io.ReadWriteCloser) error {
		return backend.Serve(withCaller(ctx, m), s.Server, protocol.Lines(stream), s.approvals.authorize)
	}
}

// invoke runs a tool or a prompt.
func (s *server) invoke(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
	r, err := s.run(ctx, m, yield)
	switch {
	case errors.Is(err, errDisconnected):
	case err != nil:
		yield(nil, interactError(err, m))
	default:
		yield(r, nil)
	}
}

func (s *server) run(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) (*interact.Message, error) {
	if m.Name == moreTools {
		return s.more(ctx, m, yield)
	}
	target, ok := s.index.Load().actions[m.Name]
	if !ok {
		return nil, unknownFeature(m)
	}
	args, err := arguments(m)
	if err != nil {
		return nil, err
	}
	return s.callFeature(ctx, m, target, args, yield)
}

// unknownFeature is the error for a tool, prompt or resource that the server does not list, or no longer lists.
func unknownFeature(m *interact.Message) error {
	return interact.Errorf(interact.NoAffordance, "it may have been removed", "the server has no %s now", m.Name).Then(interact.StepShow, m.Thing)
}

// callFeature calls a tool or a prompt with arguments.
func (s *server) callFeature(ctx context.Context, m *interact.Message, target callTarget, args json.RawMessage,
	yield func(*interact.Message, error) bool) (*interact.Message, error) {
	c := &call{s: s, m: m, method: protocol.CallTool, params: map[string]any{"name": target.name, "arguments": args}, yield: yield}
	if target.prompt {
		c.method = protocol.GetPrompt
	}
	r, err := c.run(ctx)
	if err != nil {
		return nil, err
	}
	if target.prompt {
		return completed(m, messages(r)), nil
	}
	if raw, _ := r.InResult("isError"); string(raw) == "true" {
		return nil, s.failed(m, r, yield)
	}
	return completed(m, output(r)), nil
}

// failed returns the error of a tool with isError. Content other than text is a part of the output before.
func (s *server) failed(m *interact.Message, r *protocol.Message, yield func(*interact.Message, error) bool) error {
	text, whole := failureText(r)
	if !whole {
		v := output(r)
		if !yield(m.ReplyStatus(interact.StatusRunning, v.media, v.data), nil) {
			return errDisconnected
		}
	}
	text = cmp.Or(text, m.Name+" failed without a reason")
	return &interact.Error{Code: interact.AgentFailed, Title: text, Hint: "the tool reported this failure: see its description",
		Next: interact.Next(interact.StepShow, m.Thing), Remote: true, Started: true}
}

func completed(m *interact.Message, v value) *interact.Message {
	return m.ReplyStatus(interact.StatusCompleted, v.media, v.data)
}

// arguments returns the data of m, which must be an object.
func arguments(m *interact.Message) (json.RawMessage, error) {
	data, _, err := interact.Transcode(m.Data, m.Media(), interact.JSON)
	var object map[string]json.RawMessage
	switch {
	case err != nil:
		return nil, err
	case m.Chunks != nil:
		return nil, interact.Errorf(interact.Invalid, "send the input in one message", "%s does not support request streams", m.Name)
	case len(data) == 0:
		return json.RawMessage("{}"), nil
	case json.Unmarshal(data, &object) != nil || object == nil:
		return nil, interact.Errorf(interact.Invalid, `for example {"name":"value"}`, "expected an object of arguments as the input of %s", m.Name)
	}
	return data, nil
}

// address returns the URI of the resource of m.
func (s *server) address(m *interact.Message) (string, error) {
	r, ok := s.index.Load().properties[m.Name]
	if !ok {
		return "", unknownFeature(m)
	}
	if r.Template == "" {
		return r.URI, nil
	}
	data, err := arguments(m)
	if err != nil {
		return "", err
	}
	t, err := uritemplate.New(r.Template)
	if err != nil {
		return "", err
	}
	var given map[string]any
	if err := json.Unmarshal(data, &given); err != nil {
		return "", err
	}
	values := uritemplate.Values{}
	for _, name := range t.Varnames() {
		switch v := given[name].(type) {
		case nil:
		case string:
			values.Set(name, uritemplate.String(v))
		default:
			values.Set(name, uritemplate.String(string(protocol.Encode(v))))
		}
	}
	uri, err := t.Expand(values)
	if err != nil {
		return "", &interact.Error{Code: interact.Invalid, Title: "invalid variables for " + interact.Clip(r.Template, maxTitle), Err: err,
			Hint: "see the variables in its description", Next: interact.Next(interact.StepShow, m.Thing)}
	}
	return uri, nil
}

// read handles ReadProperty.
func (s *server) read(ctx context.Context, m *interact.Message) (*interact.Message, error) {
	uri, err := s.address(m)
	if err != nil {
		return nil, err
	}
	r, err := s.reading(ctx, m, uri)
	if err != nil {
		return nil, interactError(err, m)
	}
	return r, nil
}

func (s *server) reading(ctx context.Context, m *interact.Message, uri string) (*interact.Message, error) {
	c := &call{s: s, m: m, method: protocol.ReadResource, params: map[string]any{"uri": uri}}
	r, err := c.run(ctx)
	if err != nil {
		return nil, err
	}
	v, err := reading(r)
	if err != nil {
		return nil, err
	}
	return m.Reply(interact.PropertyReading, v.media, v.data), nil
}
