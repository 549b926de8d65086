package stdio

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// node is one connection of a relay: the messages that it received, and those that it sends.
type node struct {
	protocol.Conn
	out *io.PipeWriter
}

// A desk is a client before a relay, in a bubble of its own time.
type desk struct {
	t      *testing.T
	client protocol.Conn
	runs   chan bool // whether there is a node, from now on
	nodes  chan node
	conns  []protocol.Conn // of nodes
	told   []string
	end    func()
}

// between is what one end reads and writes.
type between struct {
	io.Reader
	io.WriteCloser
}

func open(t *testing.T, runs bool) *desk {
	said, user := io.Pipe()
	heard, program := io.Pipe()
	d := &desk{t: t, client: protocol.Lines(between{heard, user}), nodes: make(chan node, 8), runs: make(chan bool, 1)}
	d.runs <- runs
	done := make(chan error, 1)
	go func() {
		done <- Run(t.Context(), Options{In: said, Out: program, Version: "7.8.9", Dial: d.dial, OnConnection: func(err error) {
			word := "there"
			if err != nil {
				word = err.Error()
			}
			d.told = append(d.told, word)
		}})
	}()
	d.end = func() {
		user.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		program.Close()
		for _, c := range append(d.conns, d.client) {
			c.Close()
		}
	}
	return d
}

func (d *desk) dial(_ context.Context, in io.Reader) (io.ReadCloser, error) {
	runs := <-d.runs
	d.runs <- runs
	if !runs {
		return nil, interact.Errorf(interact.NotRunning, "", "the node does not run").Then(interact.StepRun)
	}
	body, out := io.Pipe()
	n := node{protocol.Lines(between{in, out}), out}
	d.conns = append(d.conns, n)
	d.nodes <- n
	return body, nil
}

func (d *desk) set(runs bool) { <-d.runs; d.runs <- runs }

func (d *desk) say(c protocol.Conn, m *protocol.Message) {
	d.t.Helper()
	if err := c.Write(d.t.Context(), m); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) hear(c protocol.Conn, parts ...string) {
	d.t.Helper()
	m, err := c.Read(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	for _, part := range parts {
		if !strings.Contains(string(m.Bytes()), part) {
			d.t.Fatalf("got %s, want %s", m.Bytes(), part)
		}
	}
}

var (
	initialize  = protocol.Request(`1`, protocol.Initialize, map[string]any{"protocolVersion": "2025-06-18"})
	initialized = protocol.Request("", protocol.Initialized, nil)
	meta        = map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: struct{}{}}
)

// When the node disconnects, waiting requests get errors, and a session continues at the next node, which receives its state.
func TestSessionContinuesAtTheNextNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := open(t, true)
		defer d.end()
		first := <-d.nodes
		d.say(d.client, initialize)
		d.hear(first, protocol.Initialize)
		d.say(first, protocol.Respond(`1`, map[string]any{"a": 1}))
		d.hear(d.client, `"a":1`)
		d.say(d.client, initialized)
		d.hear(first, protocol.Initialized)
		for _, m := range []*protocol.Message{protocol.Request(`2`, "logging/setLevel", map[string]string{"level": "info"}),
			protocol.Request(`3`, "resources/subscribe", map[string]string{"uri": "a:1"}),
			protocol.Request(`4`, "resources/subscribe", map[string]string{"uri": "a:2"}),
			protocol.Request(`5`, "resources/unsubscribe", map[string]string{"uri": "a:1"})} {
			d.say(d.client, m)
			d.hear(first, m.Method())
			d.say(first, protocol.Respond(m.ID(), struct{}{}))
			d.hear(d.client, string(m.ID()))
		}
		d.say(d.client, protocol.Request(`6`, "tools/call", nil))
		d.hear(first, "tools/call")
		first.out.Close()
		d.hear(d.client, "LMOS-3002")
		second := <-d.nodes
		for _, want := range []string{protocol.Initialize, protocol.Initialized, "logging/setLevel", `"uri":"a:2"`} {
			m, err := second.Read(t.Context())
			if err != nil || !strings.Contains(string(m.Bytes()), want) {
				t.Fatalf("got %v, %v, want %s", m, err, want)
			}
			if m.IsRequest() {
				d.say(second, protocol.Respond(m.ID(), map[string]any{"b": 1})) // the client does not receive it
			}
		}
		for _, want := range []string{protocol.ToolsChanged, protocol.PromptsChanged, protocol.ResourcesChanged} {
			d.hear(d.client, want)
		}
		d.say(d.client, protocol.Request(`7`, "tools/list", nil))
		d.hear(second, `"id":7`)
		d.say(second, protocol.Respond(`7`, map[string]any{"c": 1}))
		d.hear(d.client, `"c":1`)
	})
}

// A client that starts before the node gets a server without tools and with a hint, and is notified when a node runs.
func TestWithoutANode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := open(t, false)
		defer d.end()
		d.say(d.client, initialize)
		d.hear(d.client, `"protocolVersion":"2025-06-18"`, `"listChanged":true`, "start the node", `"serverInfo":{"name":"lmosd","version":"7.8.9"}`)
		d.say(d.client, initialized)
		d.say(d.client, protocol.Request(`2`, "ping", nil))
		d.hear(d.client, `"result":{}`)
		d.say(d.client, protocol.Request(`3`, "tools/list", nil))
		d.hear(d.client, `"result":{"tools":[]}`)
		d.say(d.client, protocol.Request(`4`, "tools/call", nil))
		d.hear(d.client, "LMOS-3001", `"hint":"ask the user to start the node of this machine"`, `"retryable":true`)
		d.say(d.client, protocol.Request(`5`, protocol.Discover, map[string]any{"_meta": meta}))
		d.hear(d.client, `"supportedVersions":["2026-07-28",`, `"resultType":"complete"`, `"ttlMs":0`, "start the node")
		d.say(d.client, protocol.Request(`6`, "resources/templates/list", map[string]any{"_meta": meta}))
		d.hear(d.client, `"resourceTemplates":[]`, `"cacheScope":"private"`)
		time.Sleep(time.Hour)
		d.set(true)
		n := <-d.nodes
		d.hear(n, protocol.Initialize)
		d.say(n, protocol.Respond(`1`, map[string]any{}))
		d.hear(n, protocol.Initialized)
		d.hear(d.client, protocol.ToolsChanged)
		d.hear(d.client, protocol.PromptsChanged)
		d.hear(d.client, protocol.ResourcesChanged)
		synctest.Wait()
		if want := []string{"the node does not run", "there"}; !slices.Equal(d.told, want) {
			t.Errorf("people are told %q, want %q", d.told, want)
		}
		d.set(false)
		n.out.Close()
		synctest.Wait()
		d.say(d.client, protocol.Request(`7`, "tools/list", nil)) // it is not empty: it is not known
		d.hear(d.client, "LMOS-3001")
	})
}

// The listens of a client of 2026-07-28 are repeated at the next node, and the client is notified that its tools may have changed.
func TestListensGoOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := open(t, false)
		defer d.end()
		listen := func(id protocol.ID, what string) *protocol.Message {
			return protocol.Request(id, protocol.Listen, map[string]any{"_meta": meta, "notifications": map[string]bool{what: true}})
		}
		ack := func(n node, id protocol.ID, what string) {
			d.say(n, protocol.Request("", protocol.Acknowledged, map[string]any{"notifications": map[string]bool{what: true},
				"_meta": map[string]any{protocol.MetaSubscription: json.RawMessage(id)}}))
		}
		d.say(d.client, listen(`1`, "toolsListChanged"))
		synctest.Wait()
		d.set(true)
		n := <-d.nodes
		d.hear(n, protocol.Listen)
		ack(n, `"1"`, "toolsListChanged") // of another: ids are compared as they are written
		d.hear(d.client, protocol.Acknowledged)
		ack(n, `1`, "toolsListChanged")
		d.hear(d.client, protocol.Acknowledged, `"toolsListChanged":true`)
		d.say(d.client, listen(`2`, "promptsListChanged"))
		d.hear(n, protocol.Listen)
		ack(n, `2`, "promptsListChanged")
		d.hear(d.client, protocol.Acknowledged)
		d.say(d.client, listen(`3`, "toolsListChanged"))
		d.hear(n, protocol.Listen)
		d.say(d.client, protocol.Request("", protocol.Cancelled, map[string]any{"requestId": 3}))
		d.hear(n, protocol.Cancelled)
		n.out.Close()
		n = <-d.nodes
		for range 2 {
			m, err := n.Read(t.Context())
			if err != nil || m.Method() != protocol.Listen || m.ID() == `3` {
				t.Fatalf("got %v, %v", m, err)
			}
		}
		ack(n, `2`, "promptsListChanged")
		ack(n, `1`, "toolsListChanged")
		d.hear(d.client, protocol.ToolsChanged, protocol.MetaSubscription+`":1`)
	})
}

// A node that accepts the connection but does not respond is given up after 10 s; invalid messages are answered at once.
func TestBadPeers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		said, user := io.Pipe()
		heard, program := io.Pipe()
		defer program.Close()
		done := make(chan error, 1)
		go func() {
			done <- Run(t.Context(), Options{In: said, Out: program, OnConnection: func(error) {},
				Dial: func(ctx context.Context, _ io.Reader) (io.ReadCloser, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}})
		}()
		client := protocol.Lines(between{heard, user})
		d := &desk{t: t}
		began := time.Now()
		go func() { _, _ = user.Write([]byte("Hello\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\"}\n")) }()
		d.hear(client, "-32700")
		d.hear(client, `"id":1`, "the node does not answer")
		if took := time.Since(began); took > 4*drainTimeout {
			t.Errorf("it took %v", took)
		}
		user.Close()
		if err := <-done; err != nil && !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

// An agent that the node does not know yet is not an error forever: the client initializes, and is notified when the agent appears.
func TestUnknownAgentAtTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := open(t, true)
		defer d.end()
		unknown := protocol.RespondError(`1`, protocol.FromError(interact.Errorf(interact.NotFound, "", "no agent matches weather").Then(interact.StepFind)))
		first := <-d.nodes
		d.say(d.client, initialize)
		d.hear(first, protocol.Initialize)
		d.say(first, unknown)
		d.hear(d.client, `"id":1,"result":`, "no agent matches weather", "mesh_search")
		d.say(d.client, initialized)
		for range 3 { // it reconnects, with growing pauses
			n := <-d.nodes
			d.hear(n, protocol.Initialize)
			d.say(n, unknown)
		}
		n := <-d.nodes
		d.hear(n, protocol.Initialize)
		d.say(n, protocol.Respond(`1`, map[string]any{}))
		d.hear(n, protocol.Initialized)
		d.hear(d.client, protocol.ToolsChanged)
		d.hear(d.client, protocol.PromptsChanged)
		d.hear(d.client, protocol.ResourcesChanged)
	})
}

// TestLateConnection: a connection to the node that is made while the relay ends does not keep the relay from ending.
func TestLateConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := open(t, true)
		runs := <-d.runs // the relay dials, and waits for this
		time.Sleep(firstPause)
		synctest.Wait()
		go func() {
			synctest.Wait() // Run has no client now, and waits for its goroutines
			d.runs <- runs
		}()
		d.end()
	})
}

// TestANodeThatDoesNotAnswer: a Dial that returns only after the end of the request ends with the relay.
func TestANodeThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, user := io.Pipe()
		dial := func(_ context.Context, in io.Reader) (io.ReadCloser, error) {
			_, err := io.Copy(io.Discard, in)
			return nil, cmp.Or(err, io.EOF)
		}
		done := make(chan error, 1)
		go func() {
			done <- Run(t.Context(), Options{In: client, Out: io.Discard, Dial: dial, OnConnection: func(error) {}})
		}()
		time.Sleep(firstPause)
		synctest.Wait()
		user.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
