package mcp

import (
	"encoding/json"
	"testing"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// TestStatesOfTasks maps each state of a server's task to the end of the run of its tool (docs/interop.md). Reading the result decides
// whether isError makes it a failure ([server.run]).
func TestStatesOfTasks(t *testing.T) {
	t.Parallel()
	result := json.RawMessage(`{"content":[]}`)
	for name, row := range map[string]struct {
		task  task
		ended bool
		err   string
	}{
		"working":            {task{Status: "working"}, false, ""},
		"input_required":     {task{Status: "input_required"}, false, ""},
		"completed":          {task{Status: "completed", Result: result}, true, ""},
		"isError":            {task{Status: "completed", Result: json.RawMessage(`{"isError":true}`)}, true, ""},
		"failed":             {task{Status: "failed", Error: protocol.Errorf(-1, "no ink")}, false, "no ink"},
		"failed, wordless":   {task{Status: "failed", Message: "oh"}, false, "print failed: oh"},
		"cancelled":          {task{Status: "cancelled"}, false, "the server cancelled print"},
		"without a result":   {task{Status: "completed"}, false, `malformed task with the status "completed"`},
		"of another dialect": {task{Status: "canceled"}, false, `malformed task with the status "canceled"`},
		"yet to come":        {task{Status: "paused"}, false, `malformed task with the status "paused"`},
		"none":               {task{}, false, `malformed task with the status ""`},
	} {
		end, err := row.task.end(&interact.Message{Name: "print"})
		text := ""
		if e, own := err.(*interact.Error); own {
			text = e.Title
		} else if e, theirs := err.(*protocol.Error); theirs {
			text = e.Message
		}
		if (end != nil) != row.ended || text != row.err {
			t.Errorf("%s: %v, %q, want %q", name, end, text, row.err)
		}
	}
}
