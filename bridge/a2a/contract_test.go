package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/a2aproject/a2a-go/v2/a2asrv/taskstore"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/executor"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/a2atest"
)

// TestContract runs the contract of all bridges with agents and clients of the official Go library, over both bindings.
func TestContract(t *testing.T) {
	const failed = string(sdk.TaskStateFailed)
	for name, binding := range map[string]sdk.TransportProtocol{"JSON-RPC": sdk.TransportProtocolJSONRPC, "REST": sdk.TransportProtocolHTTPJSON} {
		t.Run(name, func(t *testing.T) {
			bridgetest.Run(t, bridgetest.Kit{
				Bridge: func(testing.TB) bridge.Bridge {
					return New(Options{CardRefresh: 10 * time.Millisecond, Executor: executor.Options{MaxBytes: protocol.MaxMessage}})
				},
				Start:    func(t testing.TB, s *bridgetest.Script) *bridgetest.Foreign { return startActor(t, s, binding) },
				Target:   func(url string) string { return url },
				Nonsense: []string{"", "npx server", "ftp://x", "https://", "http://%zz"},
				Connect: func(t testing.TB, url, name string) bridgetest.Client {
					return newCaller(t, url+"/a2a/"+name, binding)
				},
				Limit:    protocol.MaxMessage,
				Detached: true,
				Kinds: map[interact.Code]string{interact.AgentFailed: failed, interact.Forbidden: string(sdk.TaskStateRejected),
					interact.Invalid: failed, interact.Internal: failed, interact.TooLarge: failed,
					interact.NoAffordance: sdk.ErrorReason(sdk.ErrInvalidParams), interact.Withdrawn: sdk.ErrorReason(sdk.ErrMethodNotFound)},
				Lacks: map[bridgetest.Part]string{bridgetest.Schemas: "skills say in words what they take",
					bridgetest.Backpressure:  "the library of the agents keeps, and copies, all that they say",
					bridgetest.Notifications: "clients fetch a card again when they like",
					bridgetest.InputErrors:   "every client can be asked, for a task waits"},
			})
		})
	}
}

// An actor is an agent of the Go library that follows a script.
type actor struct {
	script *bridgetest.Script
	gone   context.Context // ends with the agent, and so do its runs
}

// Execute implements [a2asrv.AgentExecutor].
func (a *actor) Execute(ctx context.Context, x *a2asrv.ExecutorContext) iter.Seq2[sdk.Event, error] {
	return func(yield func(sdk.Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(a.gone, cancel)()
		skill, _ := x.Message.Metadata["skillId"].(string)
		in, _ := json.Marshal(x.Message.Parts[0].Data())
		run := &performance{x: x, yield: yield}
		if x.StoredTask != nil { // an answer
			run.give(fmt.Sprint("in ", x.Message.Parts[0].Data().(map[string]any)["city"]))
			return
		}
		a.script.CountCall()
		if yield(sdk.NewSubmittedTask(x, x.Message), nil) {
			a.perform(ctx, run, skill, bridgetest.Read(in))
		}
	}
}

func (a *actor) perform(ctx context.Context, run *performance, skill string, in bridgetest.Input) {
	switch skill {
	case bridgetest.Echo:
		run.give(in.Text)
	case bridgetest.Slow:
		if run.status(sdk.TaskStateWorking, "") {
			a.script.Wait(ctx, in.Word)
			run.status(sdk.TaskStateFailed, "it was cut off")
		}
	case bridgetest.Count:
		for i := range in.N {
			if ctx.Err() != nil || !run.part(a.script.Step(ctx, i, in.Bytes)) {
				return
			}
		}
		run.status(sdk.TaskStateCompleted, "")
	case bridgetest.Ask:
		run.status(sdk.TaskStateInputRequired, bridgetest.Question)
	case bridgetest.Big:
		run.give(strings.Repeat("x", in.Bytes))
	case bridgetest.Extra:
		run.give("more")
	default:
		run.status(sdk.TaskStateFailed, bridgetest.Trouble)
	}
}

// Cancel implements [a2asrv.AgentExecutor].
func (a *actor) Cancel(_ context.Context, x *a2asrv.ExecutorContext) iter.Seq2[sdk.Event, error] {
	return func(yield func(sdk.Event, error) bool) {
		yield(sdk.NewStatusUpdateEvent(x, sdk.TaskStateCanceled, nil), nil)
	}
}

// A performance is one run.
type performance struct {
	x     *a2asrv.ExecutorContext
	yield func(sdk.Event, error) bool
}

func (p *performance) status(s sdk.TaskState, words string) bool {
	var m *sdk.Message
	if words != "" {
		m = sdk.NewMessageForTask(sdk.MessageRoleAgent, p.x, sdk.NewTextPart(words))
	}
	return p.yield(sdk.NewStatusUpdateEvent(p.x, s, m), nil)
}

func (p *performance) part(words string) bool {
	return p.yield(sdk.NewArtifactEvent(p.x, sdk.NewTextPart(words)), nil)
}

func (p *performance) give(words string) {
	if p.part(words) {
		p.status(sdk.TaskStateCompleted, "")
	}
}

// A store keeps tasks without their outputs: the library would copy all of it for each part of a flood.
type store struct{ taskstore.Store }

func (s store) Update(ctx context.Context, u *taskstore.UpdateRequest) (taskstore.TaskVersion, error) {
	c, task := *u, *u.Task
	task.Artifacts = nil
	c.Task = &task
	return s.Store.Update(ctx, &c)
}

// startActor serves an actor over one binding.
func startActor(t testing.TB, s *bridgetest.Script, binding sdk.TransportProtocol) *bridgetest.Foreign {
	gone, stop := context.WithCancel(context.Background())
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	card := &sdk.AgentCard{Name: "Actor", Description: "Does what it is asked.", Version: "1", DefaultInputModes: []string{"application/json"},
		DefaultOutputModes: []string{"text/plain"}, Capabilities: sdk.AgentCapabilities{Streaming: true},
		SupportedInterfaces: []*sdk.AgentInterface{sdk.NewAgentInterface(server.URL+"/rpc", binding)}}
	can := func(skill string) {
		card.Skills = append(card.Skills, sdk.AgentSkill{ID: skill, Name: skill, Description: "Does " + skill + ".", Tags: []string{"acts"}})
	}
	for skill := range bridgetest.Acts {
		can(skill)
	}
	var mu sync.Mutex // owns card
	mux.HandleFunc("/.well-known/agent-card.json", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		a2asrv.NewStaticAgentCardHandler(card).ServeHTTP(w, r)
	})
	h := a2asrv.NewHandler(&actor{s, gone}, a2asrv.WithTaskStore(store{taskstore.NewInMemory(nil)}),
		a2asrv.WithLogger(slog.New(slog.DiscardHandler)), a2asrv.WithEventQueueManager(a2atest.Queues()))
	if binding == sdk.TransportProtocolJSONRPC {
		mux.Handle("/rpc", a2asrv.NewJSONRPCHandler(h))
	} else {
		mux.Handle("/rpc/", http.StripPrefix("/rpc", a2asrv.NewRESTHandler(h)))
	}
	end := sync.OnceFunc(func() {
		server.Listener.Close()
		server.CloseClientConnections()
		stop()
		server.Close()
	})
	t.Cleanup(end)
	return &bridgetest.Foreign{Target: server.URL, Stop: end, Change: func() {
		mu.Lock()
		defer mu.Unlock()
		can(bridgetest.Extra)
	}}
}

// A caller is a client of the Go library.
type caller struct {
	*a2aclient.Client
	card func(context.Context) (*sdk.AgentCard, error)
}

func newCaller(t testing.TB, url string, binding sdk.TransportProtocol) *caller {
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	c := &caller{card: func(ctx context.Context) (*sdk.AgentCard, error) { return agentcard.NewResolver(hc).Resolve(ctx, url) }}
	card, err := c.card(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Client, err = a2aclient.NewFactory(a2aclient.WithDefaultsDisabled(), a2aclient.WithJSONRPCTransport(hc), a2aclient.WithRESTTransport(hc),
		a2aclient.WithConfig(a2aclient.Config{PreferredTransports: []sdk.TransportProtocol{binding}})).CreateFromCard(t.Context(), card)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *caller) Changed() <-chan struct{} { return nil }

func (c *caller) Names(ctx context.Context) (names []string, err error) {
	card, err := c.card(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range card.Skills {
		names = append(names, s.ID)
	}
	return names, nil
}

func (c *caller) Call(ctx context.Context, call bridgetest.Call) (string, error) {
	var in any = map[string]any{}
	if call.Input != nil {
		if err := json.Unmarshal(call.Input, &in); err != nil {
			return "", err
		}
	}
	m := sdk.NewMessage(sdk.MessageRoleUser, sdk.NewDataPart(in))
	m.Metadata = map[string]any{"skillId": call.Name}
	for {
		last, out, err := c.follow(ctx, m, call)
		switch {
		case err != nil:
			return "", refusal(err)
		case last.Status.State == sdk.TaskStateInputRequired && call.Answer != nil:
			var answer any
			if err := json.Unmarshal(call.Answer(messageTextAndData(last.Status.Message)), &answer); err != nil {
				return "", err
			}
			m = sdk.NewMessageForTask(sdk.MessageRoleUser, last, sdk.NewDataPart(answer))
		case last.Status.State != sdk.TaskStateCompleted:
			return "", &bridgetest.Failure{Kind: string(last.Status.State), Text: messageTextAndData(last.Status.Message)}
		default:
			return out, nil
		}
	}
}

// follow sends a message, and returns the last state of the task, and its output so far.
func (c *caller) follow(ctx context.Context, m *sdk.Message, call bridgetest.Call) (last *sdk.Task, out string, err error) {
	var text strings.Builder
	last = &sdk.Task{}
	output := func(a *sdk.Artifact) {
		for _, p := range a.Parts {
			text.WriteString(p.Text())
			if call.OnProgress != nil {
				call.OnProgress(p.Text())
			}
		}
	}
	know := sync.OnceFunc(func() {
		if call.OnStart != nil {
			id := last.ID
			call.OnStart(func(ctx context.Context) error {
				_, err := c.CancelTask(ctx, &sdk.CancelTaskRequest{ID: id})
				return err
			})
		}
	})
	for e, err := range c.SendStreamingMessage(ctx, &sdk.SendMessageRequest{Message: m}) {
		if err != nil {
			return nil, "", err
		}
		switch e := e.(type) {
		case *sdk.Task:
			last = e
			know()
			for _, a := range e.Artifacts { // artifacts from before the stream started
				output(a)
			}
		case *sdk.Message:
			last.Status.State = sdk.TaskStateCompleted
			text.WriteString(messageTextAndData(e))
		case *sdk.TaskStatusUpdateEvent:
			last.Status = e.Status
		case *sdk.TaskArtifactUpdateEvent:
			output(e.Artifact)
		}
	}
	return last, text.String(), ctx.Err()
}

// messageTextAndData returns the text of a message.
func messageTextAndData(m *sdk.Message) (words string) {
	if m != nil {
		for _, p := range m.Parts {
			words += p.Text()
		}
	}
	return words
}

// refusal returns an error of the protocol as a failure. Other errors are those of the connection.
func refusal(err error) error {
	var said *sdk.Error
	reason := sdk.ErrorReason(err)
	switch {
	case errors.As(err, &said):
		return &bridgetest.Failure{Kind: reason, Text: fmt.Sprint(said.Message, said.Details)}
	case reason != sdk.ErrorReason(sdk.ErrInternalError):
		return &bridgetest.Failure{Kind: reason, Text: err.Error()}
	}
	return err
}
