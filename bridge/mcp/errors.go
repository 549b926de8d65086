package mcp

import (
	"errors"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// urlNeeded is the error code of servers before 2026-07-28 that require the user to open a URL first (2025-11-25, "Elicitation").
const urlNeeded = -32042

// codes maps error codes of servers (JSON-RPC 2.0 §5.1; MCP 2026-07-28, "Error codes"). All others are AgentFailed.
var codes = map[int]interact.Code{
	protocol.UnknownMethod:     interact.NotAllowed,
	protocol.InvalidParams:     interact.Invalid,
	protocol.ResourceNotFound:  interact.NoAffordance,
	protocol.MissingCapability: interact.InputNeeded,
	urlNeeded:                  interact.InputNeeded,
}

// hints are the hints of errors that a server reported.
var hints = map[interact.Code]string{
	interact.NotAllowed:   "the server does not support this: see its description",
	interact.Invalid:      "see the input schema in its description",
	interact.NoAffordance: "it may have been removed: see its description",
	interact.InputNeeded:  "use an MCP client, through its own node",
	interact.AgentFailed:  "the MCP server reported this failure: see its log",
}

// interactError converts the error of a call.
func interactError(err error, m *interact.Message) error {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return interact.AsError(err)
	}
	if ours := backend.Relayed(e); ours != nil {
		return ours
	}
	code, known := codes[e.Code]
	if !known {
		code = interact.AgentFailed
	}
	if code == interact.Invalid && m.Type != interact.InvokeAction {
		code = interact.NoAffordance // unknown URI
	}
	ours := &interact.Error{Code: code, Title: interact.Excerpt(e.Error(), maxFailureText), Hint: hints[code], Remote: true, Started: true}
	if code != interact.InputNeeded && code != interact.AgentFailed {
		ours = ours.Then(interact.StepShow, m.Thing)
	}
	return ours
}
