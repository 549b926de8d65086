package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge/mcp/wire"
)

// A node of a test is one connection of a relay: what it was sent, and what it says.
type mcpNode struct {
	in  wire.Conn
	out *io.PipeWriter
}

// When the node goes away, who waits is told, and a session goes on with the next node, which is told how it began.
func TestMCPGoesOnWithTheNextNode(t *testing.T) {
	t.Parallel()
	said, user := io.Pipe()
	heard, program := io.Pipe()
	nodes := make(chan mcpNode, 2)
	ctx, cancel := context.WithCancel(t.Context())
	r := &mcpRelay{ctx: ctx, client: wire.Lines(standard{said, program}), open: map[wire.ID]bool{}, answered: make(chan struct{}, 1),
		dial: func(_ context.Context, in io.Reader) (io.ReadCloser, error) {
			body, out := io.Pipe()
			nodes <- mcpNode{wire.Lines(struct {
				io.Reader
				io.WriteCloser
			}{in, out}), out}
			return body, nil
		}}
	done := make(chan error, 1)
	go func() { done <- r.run() }()
	client := wire.Lines(struct {
		io.Reader
		io.WriteCloser
	}{heard, user})
	say := func(c wire.Conn, m *wire.Message) {
		if err := c.Write(ctx, m); err != nil {
			t.Error(err)
		}
	}
	hear := func(c wire.Conn, part string) {
		t.Helper()
		if m, err := c.Read(ctx); err != nil || !strings.Contains(string(m.Bytes()), part) {
			t.Fatalf("got %v, %v, want %s", m, err, part)
		}
	}
	first := <-nodes
	say(client, wire.Request(`1`, wire.Initialize, map[string]any{"protocolVersion": wire.Legacy}))
	hear(first.in, wire.Initialize)
	say(first.in, wire.Respond(`1`, map[string]any{"a": 1}))
	hear(client, `"a":1`)
	say(client, wire.Request("", wire.Initialized, nil))
	hear(first.in, wire.Initialized)
	say(client, wire.Request(`2`, "tools/list", nil))
	hear(first.in, "tools/list")
	first.out.Close()
	hear(client, "LMOS-3002")
	go say(client, wire.Request(`3`, "tools/list", nil))
	second := <-nodes
	hear(second.in, wire.Initialize)
	say(second.in, wire.Respond(`1`, map[string]any{"b": 1})) // the client does not hear of it
	hear(second.in, wire.Initialized)
	hear(second.in, `"id":3`)
	say(second.in, wire.Respond(`3`, map[string]any{"c": 1}))
	hear(client, `"c":1`)
	user.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	cancel()
	program.Close()
}
