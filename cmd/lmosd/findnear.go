package main

import (
	"context"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td"
)

// maxNear limits the suggested queries.
const maxNear = 3

// insteadOf returns the commands after a search without results: queries with names and capabilities that the node knows and that are
// similar to those of the search; else a search for everything, or what gives a lonely node agents. None is the command itself.
func (a *app) insteadOf(ctx context.Context, list *api.AgentList, f findFlags, words []string) []string {
	known, total := a.known(ctx)
	var commands []string
	add := func(command string) {
		if !slices.Contains(commands, command) && len(commands) < maxNear {
			commands = append(commands, command)
		}
	}
	for _, id := range f.query.Capability {
		for _, near := range alike(id, known.capabilities, id) {
			add("lmosd find --capability " + terminal.Shell(near))
		}
	}
	if near := cli.Nearest(f.query.Action, known.actions); f.query.Action != "" && near != "" && near != f.query.Action {
		add("lmosd find --action " + terminal.Shell(near))
	}
	asked := strings.Join(words, " ")
	for _, word := range words {
		for _, near := range alike(word, known.names, asked) {
			add("lmosd find " + terminal.Shell(near))
		}
		for _, near := range alike(word, known.capabilities, asked) {
			add("lmosd find --capability " + terminal.Shell(near))
		}
		for _, near := range alike(word, known.actions, asked) {
			add("lmosd find --action " + terminal.Shell(near))
		}
	}
	isAll := len(words) == 0 && !f.query.HasCriteria() && f.owner+f.host == ""
	switch {
	case len(commands) > 0:
		return commands
	case !list.Coverage.Complete():
		return []string{strings.TrimSpace("lmosd find "+a.rest()) + " --timeout 10s"}
	case total > 0 && !isAll:
		return []string{"lmosd find   # " + terminal.Count(total, "agent is known", "agents are known")}
	}
	return []string{"lmosd peers   # the nodes that were asked", "lmosd help expose"}
}

// rest returns the arguments of this command after its name, for a shell, without a timeout.
func (a *app) rest() string {
	at := commandAt(a.Args)
	var words []string
	for i := at + 1; i < len(a.Args); i++ {
		if a.Args[i] == "--timeout" {
			i++
			continue
		}
		if !strings.HasPrefix(a.Args[i], "--timeout=") {
			words = append(words, terminal.Shell(a.Args[i]))
		}
	}
	return strings.Join(words, " ")
}

// A vocabulary has the names in the index of a node.
type vocabulary struct{ names, capabilities, actions []string }

// known returns the names of the agents that the node knows, of about 1,000 of them, and the number of all. It is empty if the node does not
// answer quickly.
func (a *app) known(ctx context.Context) (v vocabulary, total int) {
	client, err := a.client()
	if err != nil {
		return v, 0
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	for list, err := range client.AgentPages(ctx, td.Query{Limit: pageOfAll}) {
		if err != nil {
			break
		}
		for _, g := range list.Items {
			v.names = append(v.names, g.Name)
			v.capabilities = append(v.capabilities, g.Capabilities...)
			v.actions = append(v.actions, g.Actions...)
		}
		if list.Total != nil {
			total = *list.Total
		}
		if len(v.names) >= pageOfAll {
			break
		}
	}
	for _, all := range []*[]string{&v.names, &v.capabilities, &v.actions} {
		slices.Sort(*all)
		*all = slices.Compact(*all)
	}
	return v, total
}

// alike returns the names that are similar to word as a whole or in one of their words, best first, without the name not.
func alike(word string, names []string, not string) (near []string) {
	if best := cli.Nearest(word, names); best != "" && best != not {
		near = append(near, best)
	}
	for _, part := range textmatch.Content(word) {
		for _, name := range names {
			if len(near) < maxNear && name != not && !slices.Contains(near, name) &&
				slices.ContainsFunc(textmatch.Split(name), func(w string) bool { return len(w) > 2 && textmatch.Like(part, w) }) {
				near = append(near, name)
			}
		}
	}
	return near
}
