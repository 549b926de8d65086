//lint:file-ignore SA1019 logs, sampling and roots are deprecated, and carried all the same

package backend_test

import (
	"context"
	"errors"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// A client of any revision can use all features of a server of any revision.
func TestRevisionsInterwork(t *testing.T) {
	t.Parallel()
	for server, versions := range map[string][]string{"stateless": {protocol.Modern}, "session": {protocol.Legacy}, "both": nil} {
		for _, client := range []string{protocol.Modern, protocol.Legacy} {
			t.Run(client+" before "+server, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, versions...)
				s, h := connect(t, open(t, backend.Options{Dial: f.dial, Name: "fixture"}), client)
				if got := s.InitializeResult(); got.ServerInfo.Name != "fixture" || got.ProtocolVersion != client {
					t.Errorf("got %+v", got)
				}
				useAllFeatures(t, f, s, h)
			})
		}
	}
}

// Two relays, as at two nodes, behave like one.
func TestRevisionsInterworkOverTwoRelays(t *testing.T) {
	t.Parallel()
	for server, versions := range map[string][]string{"stateless": {protocol.Modern}, "session": {protocol.Legacy}} {
		for _, client := range []string{protocol.Modern, protocol.Legacy} {
			t.Run(client+" before "+server, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, versions...)
				host := open(t, backend.Options{Dial: f.dial, Name: "fixture"})
				s, h := connect(t, open(t, backend.Options{Relay: true, Name: "relay", Dial: tunnelTo(t, host)}), client)
				useAllFeatures(t, f, s, h)
			})
		}
	}
}

func useAllFeatures(t *testing.T, f *fixture, s *mcp.ClientSession, h notifications) {
	if got := call(t, s, &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"a": 1}}); got != `{"a":1}` {
		t.Errorf("echo: got %s", got)
	}
	if got := call(t, s, &mcp.CallToolParams{Name: "ask"}); got != "accept Ada m file:///work" {
		t.Errorf("ask: got %s", got)
	}
	p := &mcp.CallToolParams{Name: "progress"}
	p.SetProgressToken("token")
	call(t, s, p)
	for range 3 {
		wait(t, "progress", h.progress)
	}
	p = &mcp.CallToolParams{Name: "log"}
	if s.InitializeResult().ProtocolVersion == protocol.Modern {
		p.Meta = mcp.Meta{protocol.MetaLogLevel: "info"}
	} else if err := s.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "info"}); err != nil {
		t.Error(err)
	}
	call(t, s, p)
	wait(t, "a log message", h.logs)
	if err := s.Subscribe(t.Context(), &mcp.SubscribeParams{URI: watched}); err != nil {
		t.Error(err)
	}
	if r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: watched}); err != nil || r.Contents[0].Text != "it" {
		t.Errorf("read: got %+v, %v", r, err)
	}
	until(t, "a resource", h.resources, func() { call(t, s, &mcp.CallToolParams{Name: "touch"}) })
	until(t, "the list of tools", h.tools, func() { call(t, s, &mcp.CallToolParams{Name: "change"}) })
	if r, err := s.ListTools(t.Context(), nil); err != nil || len(r.Tools) < 9 {
		t.Errorf("list: got %+v, %v", r, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	hangs := make(chan error, 1)
	go func() {
		_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "hang"})
		hangs <- err
	}()
	wait(t, "a call", f.hangEvents)
	cancel()
	wait(t, "its end", f.hangEvents)
	if err := <-hangs; !errors.Is(err, context.Canceled) {
		t.Errorf("hang: got %v", err)
	}
	if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "nothing"}); err == nil {
		t.Error("a call of an unknown tool succeeded")
	}
}
