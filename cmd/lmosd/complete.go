package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/td"
)

// completeTime limits the request of a completion.
const completeTime = 300 * time.Millisecond

const noFiles = cobra.ShellCompDirectiveNoFileComp

// completeAgent completes the names of agents. It ignores errors, which a shell cannot show.
func (a *app) completeAgent(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *api.Client) ([]string, error) {
		list, err := c.Find(ctx, td.Query{Limit: 100}, completeTime/2)
		if err != nil {
			return nil, err
		}
		return cli.Each(list.Items, func(g api.Agent) string { return render.Name(g) + "\t" + terminal.OneLine(g.Title) }), nil
	})
}

// complete returns the candidates that ask returns within [completeTime].
func (a *app) complete(cmd *cobra.Command, ask func(context.Context, *api.Client) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	client, err := a.client()
	if err != nil {
		return nil, noFiles
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	names, _ := ask(ctx, client)
	return names, noFiles
}

func (a *app) completeAction(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return a.completeSecond(cmd, args, word, func(d *api.AgentDetail) []string { return d.Agent.Actions })
}

// completeWatched completes an agent, then any number of its events and observable properties.
func (a *app) completeWatched(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return a.completeSecond(cmd, args[:min(len(args), 1)], word, func(d *api.AgentDetail) (names []string) {
		t, err := td.Parse(d.TD)
		if err != nil {
			return nil
		}
		for name, p := range t.Properties {
			if p.Observable {
				names = append(names, name)
			}
		}
		return append(names, slices.Collect(maps.Keys(t.Events))...)
	})
}

// completeTask completes the ids of tasks.
func (a *app) completeTask(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, noFiles
	}
	return a.complete(cmd, func(ctx context.Context, c *api.Client) ([]string, error) {
		list, err := c.KnownTasks(ctx)
		if err != nil {
			return nil, err
		}
		return cli.Each(list.Items, func(t api.Task) string { return t.ID + "\t" + terminal.OneLine(t.Name+" "+t.Action+" "+t.Status) }), nil
	})
}

func (a *app) completeProperty(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return a.completeSecond(cmd, args, word, func(d *api.AgentDetail) []string { return d.Agent.Properties })
}

// completeSecond completes an agent, then one of its affordances.
func (a *app) completeSecond(cmd *cobra.Command, args []string, word string, choose func(*api.AgentDetail) []string) (
	[]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.completeAgent(cmd, args, word)
	}
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.complete(cmd, func(ctx context.Context, _ *api.Client) ([]string, error) {
		detail, err := a.agent(ctx, args[0])
		if err != nil {
			return nil, err
		}
		return choose(detail), nil
	})
}

// bashWords replaces a function of the script for bash, which calls one of the package bash-completion that may not be installed.
const bashWords = `
# Sets cur, prev, words and cword. bash splits words at "=" and ":", which are joined here.
__lmosd_init_completion()
{
    local i word line=${COMP_LINE}
    COMPREPLY=() words=() cword=0
    for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
        word=${COMP_WORDS[i]}
        if ((i > 0)) && [[ ${line} != [[:space:]]* && ( -n ${line} || ${COMP_LINE} != *[[:space:]] ) ]]; then
            words[${#words[@]}-1]+=${word}
        else
            words+=("${word}")
        fi
        ((i == COMP_CWORD)) && cword=$((${#words[@]} - 1))
        line=${line#*"${word}"}
    done
    cur=${words[cword]} prev=
    ((cword > 0)) && prev=${words[cword-1]}
    return 0
}
`

func newCompletionCommand(a *app) *cobra.Command {
	shells := map[string]func(*cobra.Command) error{
		"bash": func(root *cobra.Command) error {
			return errors.Join(root.GenBashCompletionV2(a.Out, true), a.Print([]byte(bashWords)))
		},
		"zsh":        func(root *cobra.Command) error { return root.GenZshCompletion(a.Out) },
		"fish":       func(root *cobra.Command) error { return root.GenFishCompletion(a.Out, true) },
		"powershell": func(root *cobra.Command) error { return root.GenPowerShellCompletionWithDesc(a.Out) },
	}
	names := slices.Sorted(maps.Keys(shells))
	return &cobra.Command{
		Use:   "completion <shell>",
		Short: "print the completion script of a shell",
		Long: "Prints the script with which a shell completes commands, flags, and the names of agents, actions and properties.\n" +
			"Shells: " + strings.Join(names, ", ") + ".",
		Example: `  lmosd completion bash > ~/.local/share/bash-completion/completions/lmosd
  lmosd completion fish > ~/.config/fish/completions/lmosd.fish`,
		Annotations:       cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: cobra.FixedCompletions(names, noFiles),
		RunE: func(cmd *cobra.Command, args []string) error {
			generate, ok := shells[args[0]]
			if !ok {
				return cli.Similar(cli.Usage("", "no completion for %q: %s", args[0], strings.Join(names, ", ")), args[0], names,
					"lmosd completion bash")
			}
			return generate(cmd.Root())
		},
	}
}
