package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// TestContract runs the contract of all bridges with servers and clients of the Go SDK, of both revisions, over HTTP and as programs.
func TestContract(t *testing.T) {
	const isError = "isError"
	k := bridgetest.Kit{
		Bridge: func(testing.TB) bridge.Bridge { return New(Options{}) },
		Limit:  protocol.MaxMessage,
		Kinds: map[interact.Code]string{interact.AgentFailed: isError, interact.Forbidden: isError, interact.Invalid: isError,
			interact.Internal: isError, interact.TooLarge: isError, interact.NoAffordance: strconv.Itoa(protocol.InvalidParams),
			interact.Withdrawn: strconv.Itoa(protocol.InvalidParams), interact.InputNeeded: strconv.Itoa(protocol.MissingCapability)},
	}
	for revision, versions := range revisions {
		web := k
		web.Nonsense = []string{"http://", "https:///x", "http://user:secret@127.0.0.1:1/mcp"}
		web.Target = func(url string) string { return url + "/mcp" }
		web.Start = func(t testing.TB, s *bridgetest.Script) *bridgetest.Foreign { return onSite(t, s, versions) }
		web.Connect = func(t testing.TB, url, name string) bridgetest.Client {
			return newCaller(t, url+"/mcp/things/"+name, versions[0])
		}
		t.Run(revision+" over HTTP", func(t *testing.T) { bridgetest.Run(t, web) })

		program := web
		program.Nonsense = []string{"", "  "}
		program.Target, program.Silent, program.AgentOnly = nil, "sleep 1000", true
		program.Bad = map[string]string{"no program": filepath.Join(t.TempDir(), "nothing"), "who ends at once": "true", "who fails": "false",
			"who prints something else": "echo hello", "who prints without end": "yes", "who prints no text": "head -c 100000 /dev/zero"}
		if revision == "session" {
			program.Limit = 0 // the framing of lines is the same in all revisions
		}
		program.Start = func(t testing.TB, s *bridgetest.Script) *bridgetest.Foreign { return asProgram(t, s, versions) }
		t.Run(revision+" as a program", func(t *testing.T) { bridgetest.Run(t, program) })
	}
}

// An actor is a server of the Go SDK that follows a script.
type actor struct {
	*sdk.Server
	script *bridgetest.Script
	gone   context.Context // ends with the server, and so do its runs
	stop   context.CancelFunc
}

func newActor(s *bridgetest.Script, versions []string) *actor {
	a := &actor{script: s}
	a.gone, a.stop = context.WithCancel(context.Background())
	a.Server = newServer(versions, func(server *sdk.Server) {
		for name, schema := range bridgetest.Acts {
			server.AddTool(&sdk.Tool{Name: name, InputSchema: schema}, a.perform)
		}
	})
	return a
}

// change adds an act.
func (a *actor) change() {
	a.AddTool(&sdk.Tool{Name: bridgetest.Extra, InputSchema: object}, a.perform)
}

func (a *actor) perform(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.gone, cancel)()
	return perform(ctx, a.script, r)
}

func perform(ctx context.Context, s *bridgetest.Script, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	in := bridgetest.Read(r.Params.Arguments)
	s.CountCall()
	text := func(words string) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: words}}}, nil
	}
	switch r.Params.Name {
	case bridgetest.Echo:
		return text(in.Text)
	case bridgetest.Slow:
		s.Wait(ctx, in.Word)
		return nil, cmp.Or(ctx.Err(), errors.New("it was not cancelled"))
	case bridgetest.Count:
		for i := range in.N {
			if err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(),
				Progress: float64(i + 1), Message: s.Step(ctx, i, in.Bytes)}); err != nil {
				return nil, err
			}
		}
		return text("")
	case bridgetest.Ask:
		answer, ok := r.Params.InputResponses["where"].(*sdk.ElicitResult)
		switch {
		case !ok:
			return &sdk.CallToolResult{RequestState: "asked", InputRequests: sdk.InputRequestMap{"where": &sdk.ElicitParams{Mode: "form",
				Message:         bridgetest.Question,
				RequestedSchema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`)}}}, nil
		case answer.Action != interact.Accept:
			return text("nowhere")
		}
		return text(fmt.Sprint("in ", answer.Content["city"]))
	case bridgetest.Big:
		return text(strings.Repeat("x", in.Bytes))
	case bridgetest.Extra:
		return text("more")
	}
	return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: bridgetest.Trouble}}}, nil
}

// onSite serves an actor over HTTP.
func onSite(t testing.TB, s *bridgetest.Script, versions []string) *bridgetest.Foreign {
	server := newActor(s, versions)
	site := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server.Server },
		&sdk.StreamableHTTPOptions{Stateless: versions[0] == protocol.Modern, PropagateRequestCancellation: true, MaxRequestBodyBytes: 2 * protocol.MaxMessage}))
	stop := sync.OnceFunc(func() {
		server.stop()
		site.Listener.Close()
		site.CloseClientConnections()
		for one := range server.Sessions() { // sessions that their clients did not end
			one.Close()
		}
		site.Close()
	})
	t.Cleanup(stop)
	return &bridgetest.Foreign{Target: site.URL + "/mcp", Change: server.change, Stop: stop}
}

// relayTo is the variable that makes this test binary a program that forwards messages.
const relayTo = "LMOSD_TEST_RELAY"

// relay forwards standard input to an actor in another process, and its messages to standard output.
func relay(address string) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		_, _ = io.Copy(c, os.Stdin)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(os.Stdout, c)
}

// asProgram returns an actor behind a program, which is this test binary. Its runs end with the program.
func asProgram(t testing.TB, s *bridgetest.Script, versions []string) *bridgetest.Foreign {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := newActor(s, versions)
	var work sync.WaitGroup
	work.Go(func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			work.Go(func() {
				defer c.Close()
				defer context.AfterFunc(server.gone, func() { c.Close() })()
				_ = server.Run(server.gone, &sdk.IOTransport{Reader: c, Writer: c})
			})
		}
	})
	stop := sync.OnceFunc(func() {
		l.Close()
		server.stop()
		work.Wait()
	})
	t.Cleanup(stop)
	return &bridgetest.Foreign{Target: interact.Quote(self), As: bridge.Import{Env: []string{relayTo + "=" + l.Addr().String()}},
		Change: server.change, Stop: stop}
}

// A caller is a client of the Go SDK, with or without support for input.
type caller struct {
	able, plain *session
	changed     chan struct{}

	mu               sync.Mutex
	tokens           int
	progressHandlers map[string]func(string)               // by progress token
	answer           func(question string) json.RawMessage // of the call that requires input
}

func newCaller(t testing.TB, url, version string) *caller {
	c := &caller{changed: make(chan struct{}, 64), progressHandlers: map[string]func(string){}}
	connect := func(o *sdk.ClientOptions) *session {
		transport := &http.Transport{}
		o.ProgressNotificationHandler = c.progress
		client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o)
		s := &session{connect: func() (*sdk.ClientSession, error) {
			return client.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: transport}},
				&sdk.ClientSessionOptions{ProtocolVersion: version})
		}}
		var err error
		if s.ClientSession, err = s.connect(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			s.Close()
			transport.CloseIdleConnections()
		})
		return s
	}
	c.plain = connect(&sdk.ClientOptions{})
	c.able = connect(&sdk.ClientOptions{ElicitationHandler: c.elicit,
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { c.changed <- struct{}{} }})
	return c
}

// A session that the server has lost is started again, as clients must (2025-11-25, "Session Management").
type session struct {
	*sdk.ClientSession
	connect func() (*sdk.ClientSession, error)
	lost    atomic.Bool
}

func (s *session) call(ctx context.Context, p *sdk.CallToolParams) (*sdk.CallToolResult, error) {
	if !s.lost.Load() {
		r, err := s.CallTool(ctx, p)
		if !errors.Is(err, sdk.ErrSessionMissing) {
			return r, err
		}
		s.lost.Store(true)
	}
	next, err := s.connect()
	if err != nil {
		return nil, err
	}
	defer next.Close()
	return next.CallTool(ctx, p)
}

func (c *caller) progress(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if heard := c.progressHandlers[fmt.Sprint(r.Params.ProgressToken)]; heard != nil {
		heard(r.Params.Message)
	}
}

func (c *caller) elicit(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var content map[string]any
	if err := json.Unmarshal(c.answer(r.Params.Message), &content); err != nil {
		return nil, err
	}
	return &sdk.ElicitResult{Action: interact.Accept, Content: content}, nil
}

func (c *caller) Changed() <-chan struct{} { return c.changed }

func (c *caller) Names(ctx context.Context) (names []string, err error) {
	for tool, err := range c.plain.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		names = append(names, tool.Name)
	}
	return names, nil
}

func (c *caller) Call(ctx context.Context, call bridgetest.Call) (string, error) {
	p := &sdk.CallToolParams{Name: call.Name, Arguments: json.RawMessage(cmp.Or(string(call.Input), "{}"))}
	s := c.plain
	if call.Answer != nil {
		s = c.able
		c.mu.Lock()
		c.answer = call.Answer
		c.mu.Unlock()
	}
	if call.OnProgress != nil {
		c.onProgress(p, call.OnProgress)
	}
	r, err := s.call(ctx, p)
	var refused *jsonrpc.Error
	switch {
	case errors.As(err, &refused):
		return "", &bridgetest.Failure{Kind: strconv.FormatInt(refused.Code, 10), Text: refused.Message + string(refused.Data)}
	case err != nil:
		return "", err
	}
	var text strings.Builder
	for _, one := range r.Content {
		if t, ok := one.(*sdk.TextContent); ok {
			text.WriteString(t.Text)
		}
	}
	if r.IsError {
		return "", &bridgetest.Failure{Kind: "isError", Text: text.String()}
	}
	return text.String(), nil
}

// onProgress checks the progress of a call. The library may report the last one after the call has returned.
func (c *caller) onProgress(p *sdk.CallToolParams, heard func(string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens++
	token := strconv.Itoa(c.tokens)
	p.SetProgressToken(token)
	c.progressHandlers[token] = heard
}
