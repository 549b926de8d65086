package help

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// A row is one line of the first page: the commands that it names, and what they do.
type row struct {
	names string // separated by ", "
	text  string
}

// firstPage has the rows of each group of commands. Related commands share a row, so that the page fits on a screen.
var firstPage = map[string][]row{
	"use": {
		{"find, show, route", "find agents, describe one, select one for a task"},
		{"call, task", "call an action; follow those that take long"},
		{"read, write, watch", "properties and events of an agent"},
		{"ping, trace", "measure the way to an agent, the stages of a call"},
		{"delegate", "let another node call an agent for a while"},
	},
	"clients": {
		{"install, mcp", "add the mesh to an MCP client; what the client starts"},
	},
	"offer": {
		{"expose, login", "serve a command, an MCP server or a web server"},
		{"publish, unpublish", "publish a Thing Description; withdraw it"},
		{"new, validate", "write a new agent; check Thing Descriptions"},
		{"hosting, move", "one agent at several nodes; at another node"},
	},
	"node": {
		{"run, console", "run the node of this host; open its page"},
		{"status, doctor", "show the state of the node; check what fails"},
		{"wait, top", "wait for a state; watch the load"},
		{"peers, net", "connected nodes; how others reach this one"},
		{"events, calls, logs", "what happened, the last calls, the log records"},
		{"id, keys", "the identity of the node; its key"},
		{"context", "select the node that commands use"},
	},
	"trust": {
		{"org, trust", "organizations: members, partners, revocation"},
		{"group", "groups of nodes of any organization"},
		{"policy, token", "the access rules; the access tokens"},
		{"audit", "the log of decisions and changes"},
	},
	"operate": {
		{"service, upgrade", "run as a service; try a new version"},
		{"config", "show, check, change and reload the configuration"},
		{"metrics, bridges", "the figures of the node; its protocol bridges"},
	},
	"develop": {
		{"demo, testnet", "a scripted demo; a test network on this machine"},
		{"errors, help", "explain an error code, a command or a topic"},
		{"completion, man", "scripts for shells; manual pages"},
		{"version", "the version of this program"},
	},
}

// writeRows writes the rows of a group, without commands that root does not have.
func writeRows(b *strings.Builder, root *cobra.Command, group string) {
	for _, r := range firstPage[group] {
		names := slices.DeleteFunc(strings.Split(r.names, ", "), func(name string) bool {
			c, _, err := root.Find([]string{name})
			return err != nil || c == root
		})
		if len(names) > 0 {
			fmt.Fprintf(b, "  %-21s%s\n", strings.Join(names, ", "), r.text)
		}
	}
}
