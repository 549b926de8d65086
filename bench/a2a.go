package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// a2aTable compares messages to an agent of the Go library over JSON-RPC, direct and through two nodes: the time to the response, and to
// the first event of a stream. Client, nodes and agent are separate processes.
func a2aTable(ctx context.Context, p plan) error {
	systems := append(a2aSystems(a2aCaller), system{"a tool of MCP that is the agent, two lmosd between (TCP)",
		startA2A("tcp", "/mcp/things/bench", func(ctx context.Context, url string) dialer {
			return mcpCaller(ctx, url, "ask_bench", "message")
		})})
	p.say("SendMessage:")
	if err := a2aAgainst(ctx, p, "SendMessage", systems, 2.2); err != nil {
		return err
	}
	p.say("SendStreamingMessage, until the first event (calls/s: whole streams of four events):")
	return a2aAgainst(ctx, p, "SendStreamingMessage", a2aSystems(a2aListener), 2)
}

// a2aAgainst compares systems with the first of them, the direct path. most is the goal of their p50 in relation to it.
func a2aAgainst(ctx context.Context, p plan, what string, systems []system, most float64) error {
	direct := systems[0].name
	all, err := against(ctx, p, systems, direct, "direct", 8)
	if err != nil {
		return err
	}
	for _, s := range systems[1:3] {
		p.atMost("p50 of "+what+", "+s.name+" / direct", all.time(s.name, direct), most, "")
	}
	return nil
}

func a2aSystems(dial func(ctx context.Context, url string) dialer) []system {
	return []system{
		{"A2A, direct", func(ctx context.Context) (dialer, func(), error) {
			url, stop, err := child(ctx, "a2a-agent")
			return dial(ctx, url), stop, err
		}},
		{"A2A, two lmosd between (TCP)", startA2A("tcp", "/a2a/bench", dial)},
		{"A2A, two lmosd between (QUIC)", startA2A("quic", "/a2a/bench", dial)},
	}
}

// startA2A runs an agent behind two nodes. dial makes callers of a path at the farther node.
func startA2A(kind, path string, dial func(ctx context.Context, url string) dialer) starter {
	return func(ctx context.Context) (dialer, func(), error) {
		agent, stopAgent, err := child(ctx, "a2a-agent")
		if err != nil {
			return nil, nil, err
		}
		api, _, stopNodes, err := between(ctx, kind, "import="+kind+",a2a:"+agent)
		if err != nil {
			stopAgent()
			return nil, nil, err
		}
		return dial(ctx, api+path), func() { stopNodes(); stopAgent() }, nil
	}
}

// An echo is an agent that returns the parts of a message, in a task if the message requests one.
type echo struct{}

func (echo) Execute(_ context.Context, x *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		if x.Message.Metadata["task"] == nil {
			yield(a2a.NewMessage(a2a.MessageRoleAgent, x.Message.Parts...), nil)
			return
		}
		_ = yield(a2a.NewSubmittedTask(x, x.Message), nil) &&
			yield(a2a.NewStatusUpdateEvent(x, a2a.TaskStateWorking, nil), nil) &&
			yield(a2a.NewArtifactEvent(x, x.Message.Parts...), nil) &&
			yield(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, nil), nil)
	}
}

func (echo) Cancel(_ context.Context, x *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		yield(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCanceled, nil), nil)
	}
}

// serveA2AAgent serves the agent over JSON-RPC at its URL, with a card below.
func serveA2AAgent(ctx context.Context, _ string) error {
	return serveHTTP(ctx, func(at string) http.Handler {
		card := &a2a.AgentCard{Name: "Echo", Description: "Echoes messages.", Version: "1",
			SupportedInterfaces: []*a2a.AgentInterface{a2a.NewAgentInterface(at, a2a.TransportProtocolJSONRPC)},
			DefaultInputModes:   []string{"text/plain"}, DefaultOutputModes: []string{"text/plain"},
			Capabilities: a2a.AgentCapabilities{Streaming: true},
			Skills:       []a2a.AgentSkill{{ID: "say", Name: "Say", Description: "Echoes it.", Tags: []string{"words"}}}}
		mux := http.NewServeMux()
		mux.Handle("/.well-known/agent-card.json", a2asrv.NewStaticAgentCardHandler(card))
		mux.Handle("/", a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(echo{})))
		return mux
	})
}

// a2aClient is the library's client for the agent at url.
func a2aClient(ctx context.Context, url string) (*a2aclient.Client, func(), error) {
	web := webClient()
	c, err := a2aclient.NewFromEndpoints(ctx, []*a2a.AgentInterface{a2a.NewAgentInterface(url, a2a.TransportProtocolJSONRPC)},
		a2aclient.WithDefaultsDisabled(), a2aclient.WithJSONRPCTransport(web))
	return c, web.CloseIdleConnections, err
}

// textMessage returns a message of payloadSize bytes.
func textMessage() *a2a.Message {
	return a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(string(payload)))
}

// a2aCaller makes callers that send a message and check the echo.
func a2aCaller(ctx context.Context, url string) dialer {
	return func() (caller, error) {
		c, stop, err := a2aClient(ctx, url)
		return caller{close: stop, call: func(ctx context.Context) error {
			r, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: textMessage()})
			if m, ok := r.(*a2a.Message); err == nil && (!ok || m.Parts[0].Text() != string(payload)) {
				err = errors.New("the response differs from the message")
			}
			return err
		}}, err
	}
}

// a2aListener makes callers that measure the first event of a stream, and read the others after it.
func a2aListener(ctx context.Context, url string) dialer {
	return func() (caller, error) {
		c, stop, err := a2aClient(ctx, url)
		var next func() (a2a.Event, error, bool)
		var end func()
		return caller{close: stop, call: func(ctx context.Context) error {
			m := textMessage()
			m.Metadata = map[string]any{"task": true}
			next, end = iter.Pull2(c.SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: m}))
			_, err, more := next()
			if err == nil && !more {
				err = errors.New("the stream is empty")
			}
			return err
		}, rest: func() error {
			defer end()
			n := 1
			for _, err, more := next(); more; _, err, more = next() {
				if err != nil {
					return err
				}
				n++
			}
			if n != 4 {
				return fmt.Errorf("received %d events", n)
			}
			return nil
		}}, err
	}
}
