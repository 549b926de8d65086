package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"net"
	"os"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(relayTo); address != "" {
		relay(address)
		return
	}
	if version := os.Getenv(counter); version != "" {
		serveCount(version)
		return
	}
	testmain.Run(m)
}

// revisions are the kinds of protocol revisions, as options of a server of the Go SDK.
var revisions = map[string][]string{"stateless": {protocol.Modern}, "session": {protocol.Legacy}}

// newServer returns a server of the Go SDK that supports the given revisions.
func newServer(versions []string, add func(*sdk.Server)) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "probe", Title: "Probe", Version: "1.2"}, &sdk.ServerOptions{
		Instructions: "Says what it is told.", SupportedProtocolVersions: versions, Capabilities: &sdk.ServerCapabilities{},
		SubscribeHandler:   func(context.Context, *sdk.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil }})
	add(s)
	return s
}

// piped dials a server in this process.
func piped(t *testing.T, s *sdk.Server) func(context.Context) (protocol.Conn, error) {
	return func(ctx context.Context) (protocol.Conn, error) {
		here, there := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Run(ctx, &sdk.IOTransport{Reader: there, Writer: there})
		}()
		t.Cleanup(func() { here.Close(); <-done })
		return protocol.Lines(here), nil
	}
}

// scripted connects to a server that responds by a function.
func scripted(t *testing.T, answer func(m *protocol.Message, say func(*protocol.Message))) func(context.Context) (protocol.Conn, error) {
	return func(ctx context.Context) (protocol.Conn, error) {
		here, there := net.Pipe()
		conn, done := protocol.Lines(there), make(chan struct{})
		go func() {
			defer close(done)
			for {
				m, err := conn.Read(ctx)
				if err != nil {
					return
				}
				answer(m, func(r *protocol.Message) { _ = conn.Write(ctx, r) })
			}
		}()
		t.Cleanup(func() { here.Close(); conn.Close(); <-done })
		return protocol.Lines(here), nil
	}
}

// join imports the server that dial connects to.
func join(t *testing.T, dial func(context.Context) (protocol.Conn, error), o bridge.Import) *bridge.Agent {
	t.Helper()
	pins, err := openApprovals(o.Approvals, o.Approve, New(Options{}).o.Log)
	if err != nil {
		t.Fatal(err)
	}
	a, err := imported(t.Context(), "probe", o, backend.Options{Name: "probe"}, pins, &source{dial: dial, close: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// described reads the draft of an agent.
func described(t *testing.T, raw []byte) *td.Thing {
	t.Helper()
	draft, err := td.Draft(raw)
	if err != nil {
		t.Fatal(err)
	}
	thing, err := td.Parse(draft)
	if err != nil {
		t.Fatalf("%v in %s", err, draft)
	}
	return thing
}

// repliesOf returns the replies as text: state or type, media type, data.
func repliesOf(t *testing.T, thing interact.Thing, m *interact.Message) (all []string, err error) {
	t.Helper()
	for r, err := range thing.Do(t.Context(), m) {
		if err != nil {
			return all, err
		}
		all = append(all, r.Status.String()+" "+cmp.Or(r.ContentType, "json")+" "+string(r.Data))
	}
	return all, nil
}

func invoke(name, input string) *interact.Message {
	return &interact.Message{Type: interact.InvokeAction, ID: interact.NewID(), Name: name, Data: []byte(input)}
}

func raw(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
