package help

import (
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
		{"expose, login, logout", "serve a command, an MCP server or a web server"},
		{"publish, unpublish", "publish a Thing Description; withdraw it"},
		{"new, validate", "write a new agent; check Thing Descriptions"},
		{"hosting, move", "one agent at several nodes; at another node"},
	},
	"node": {
		{"run, console", "run the node of this host; open its page"},
		{"status, wait, top", "the state of the node; wait for one; watch it"},
		{"doctor, peers, net", "check what fails; connected nodes; reachability"},
		{"events, calls, logs", "what happened, the last calls, the log records"},
		{"id, keys, context", "the identity of the node; its key; the node to use"},
	},
	"trust": {
		{"org, trust", "organizations: members, partners, revocation"},
		{"group", "groups of nodes of any organization"},
		{"policy, token, audit", "access rules, access tokens, the log of decisions"},
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

// FirstPage returns the names of the commands of each group in the rows of the first page, also of those that the program does not have.
func FirstPage() map[string][]string {
	names := map[string][]string{}
	for group, rows := range firstPage {
		for _, r := range rows {
			names[group] = append(names[group], strings.Split(r.names, ", ")...)
		}
	}
	return names
}

// commonFlags are the flags of every command.
var commonFlags = []row{
	{"-c, --data-dir", "the configuration FILE; the folder DIR of key and store"},
	{"--node, -v", "URL, socket or context of the node; print more"},
	{"-o, --jq", "FORMAT table|wide|json|jsonl|yaml|name; EXPR of JSON"},
}

// rows adds the rows of a group, without commands that root does not have.
func (p *page) rows(root *cobra.Command, group string) {
	for _, r := range firstPage[group] {
		names := slices.DeleteFunc(strings.Split(r.names, ", "), func(name string) bool {
			c, _, err := root.Find([]string{name})
			return err != nil || c == root
		})
		if len(names) > 0 {
			p.row(strings.Join(names, ", "), r.text)
		}
	}
}

func (p *page) row(names, text string) { p.text("  %-21s  %s\n", names, text) }
