package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// Endless lists are cut with a warning; a rejected or missing list does not hide others.
func TestEndlessLists(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		page   func(n int, cursor string) string
		tools  [2]int // at least, at most
		pages  int    // at most
		warned string
	}{
		"one page": {func(int, string) string { return `{"tools":[{"name":"a"}]}` }, [2]int{1, 1}, 1, ""},
		"an empty cursor is one": {func(n int, cursor string) string {
			if n == 1 {
				return `{"tools":[{"name":"a"}],"nextCursor":""}`
			}
			return `{"tools":[{"name":"b"}]}`
		}, [2]int{2, 2}, 2, ""},
		"the same again": {func(int, string) string { return `{"tools":[{"name":"a"}],"nextCursor":"x"}` }, [2]int{1, 1}, maxPages, "more than 64 pages"},
		"ever more":      {func(n int, _ string) string { return fmt.Sprintf(`{"tools":[{"name":"t%d"}],"nextCursor":"%d"}`, n, n) }, [2]int{maxPages, maxPages}, maxPages, "more than 64 pages"},
		"giant pages": {func(n int, _ string) string {
			return fmt.Sprintf(`{"tools":[{"name":"t%d","description":"%s"}],"nextCursor":"x"}`, n, strings.Repeat("x", 5<<20))
		}, [2]int{1, 1}, 2, "too many items"},
		"a long page": {func(int, string) string {
			return `{"tools":[` + strings.TrimSuffix(strings.Repeat(`{"name":"x"},`, 3*maxListed), ",") + `]}`
		}, [2]int{1, 1}, 1, "too many items"},
		"no list":  {func(int, string) string { return `{"tools":7}` }, [2]int{0, 0}, 1, ""},
		"no tools": {func(int, string) string { return `{}` }, [2]int{0, 0}, 1, "expected a list"},
	} {
		pages := 0
		a := join(t, scripted(t, func(m *protocol.Message, say func(*protocol.Message)) {
			switch m.Method() {
			case protocol.Discover:
				say(protocol.Respond(m.ID(), json.RawMessage(`{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"prompts":{},"resources":{}}}`)))
			case "tools/list":
				pages++
				say(protocol.Respond(m.ID(), json.RawMessage(c.page(pages, m.Text("cursor")))))
			case "prompts/list":
				say(protocol.Respond(m.ID(), json.RawMessage(`{"prompts":[{"name":"fine"}]}`)))
			default:
				say(protocol.RespondError(m.ID(), protocol.Errorf(protocol.InternalError, "broken")))
			}
		}), bridge.Import{})
		thing := described(t, a.TD)
		n := len(thing.Actions) - 2 // the tunnel and the prompt
		if thing.Actions["fine"] == nil || n < c.tools[0] || n > c.tools[1] || pages > c.pages {
			t.Errorf("%s: %d tools of %d pages", name, n, pages)
		}
		if warned := strings.Join(a.Warnings, "\n"); !strings.Contains(warned, c.warned) || !strings.Contains(warned, "resources/list failed") {
			t.Errorf("%s: warned %q", name, warned)
		}
		a.Close()
	}
}

// Invalid messages of a Thing end its tunnel, and waiting clients get an error.
func TestGuardEndsAnInvalidTunnel(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		says string
		want string // of the client; empty: the end
	}{
		"too long":   {`{"jsonrpc":"2.0","id":7,"result":"` + strings.Repeat("x", protocol.MaxMessage+1<<20) + `"}`, `"id":7`},
		"no result":  {`{"jsonrpc":"2.0","id":7}`, `"id":7`},
		"some words": {"hello\n" + `{"jsonrpc":"2.0","id":7,"result":{}}`, `"result":{}`},
		"only words": {strings.Repeat("hello\n", 2*maxInvalid), ""},
	} {
		thing := interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return bridge.Accept(ctx, m, func(_ context.Context, stream io.ReadWriteCloser) error {
				line := make([]byte, 1<<10)
				if _, err := stream.Read(line); err != nil {
					return err
				}
				_, err := stream.Write([]byte(c.says + "\n"))
				_, _ = stream.Read(line) // until the client disconnects
				return err
			})
		})
		doc := described(t, []byte(`{"title":"x","actions":{"mcp":{"@type":"mcp:Session"}}}`))
		wrapped := New(Options{}).Guard(doc, func(context.Context, *interact.Message) error { return nil })(thing)
		conn := protocol.Lines(bridge.Dial(t.Context(), wrapped, &interact.Message{Name: tunnelAction}))
		if err := conn.Write(t.Context(), protocol.Request("7", "x", nil)); err != nil {
			t.Fatal(err)
		}
		m, err := conn.Read(t.Context())
		if (err == nil) != (c.want != "") || err == nil && !strings.Contains(string(m.Bytes()), c.want) {
			t.Errorf("%s: got %.200v, %v", name, m, err)
		}
		conn.Close()
	}
}

// A program gets the configured variables; a missing one is an error before the start.
func TestEnvironment(t *testing.T) {
	t.Setenv("LMOSD_TEST_TOKEN", "SECRET")
	got, err := environment([]string{"A=1", "LMOSD_TEST_TOKEN", "B="})
	if err != nil || !slices.Equal(got, []string{"A=1", "LMOSD_TEST_TOKEN=SECRET", "B="}) {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := environment([]string{"LMOSD_TEST_NOTHING"}); interact.AsError(err).Code != interact.Usage {
		t.Errorf("got %v", err)
	}
	for _, name := range inherited {
		if strings.Contains(name, "TOKEN") || strings.Contains(name, "KEY") || strings.Contains(name, "SECRET") || name == "*" {
			t.Errorf("%s is passed to the program", name)
		}
	}
	for target, want := range map[string]interact.Code{"http://": interact.Usage, "https://user:hunter2@x.example/": interact.Usage} {
		_, err := New(Options{}).Import(t.Context(), target, bridge.Import{})
		if interact.AsError(err).Code != want || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", target, err)
		}
	}
}
