package main

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/ucan"
	"github.com/lmosd/lmosd/interact"
)

func newDelegateCommand(a *app) *cobra.Command {
	var q api.DelegationRequest
	var to string
	var life time.Duration
	cmd := &cobra.Command{
		Use:   "delegate <agent/action>",
		Short: "let another node call one action for a while, by a token",
		Long: "Prints a token by which another node calls one action that this node may call and delegate: lmosd call --with. The\n" +
			"token is for that node only, and for one host. It ends with its time, with lmosd delegate revoke, and when this node\n" +
			"loses the right. --where restricts the input. --op delegates a property or an event instead: read, write and\n" +
			"watch have --with, too. The operator of the host permits it: lmosd policy allow WHO --to delegate --on AGENT.",
		Example: `  lmosd delegate payout/pay --to did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH --for 10m
  lmosd delegate payout/pay --to did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH --for 1h --where 'amount<=100'
  lmosd delegate weather/units --op read --to z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH -o json`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd call, lmosd policy, lmosd trust why"),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: a.completeRight,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if q.Agent, q.Name, err = rightOf(args[0]); err != nil {
				return err
			}
			if q.To, err = delegateOf(to); err != nil {
				return err
			}
			if life < time.Second || life > ucan.MaxDelegation {
				return cli.Usage("", "--for is %v; expected 1s to %v, which is 30 days", life, ucan.MaxDelegation).Then(interact.StepOption, "for", "10m")
			}
			q.Life = life.String()
			d, err := send(a, func(c *api.Client) (*api.Delegation, error) { return c.Delegate(cmd.Context(), q) })
			if err != nil {
				return err
			}
			if err := a.Show(cli.View{Doc: d, Names: []string{d.Token}, People: cli.Line(d.Token)}); err != nil {
				return err
			}
			verb := map[string]string{"invoke": "call", "subscribe": "watch"}[d.Op]
			a.elsewhere("lmosd "+cmp.Or(verb, d.Op)+" "+terminal.Shell(q.Agent)+" "+terminal.Shell(q.Name)+" --with TOKEN", "at the other node, until "+render.Stamp(d.Expires))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&to, "to", "", "the `DID` of the node that may use it; required")
	f.DurationVar(&life, "for", 10*time.Minute, "how long, from 1s to 720h (30 days)")
	f.StringArrayVar(&q.Where, "where", nil, "a `CONDITION` on the input, such as amount<=100, by == != < <= > >=; repeatable, all must hold")
	f.StringVar(&q.Op, "op", "invoke", "the `OPERATION` that is delegated: invoke, read, write or subscribe")
	_ = cmd.RegisterFlagCompletionFunc("op", cobra.FixedCompletions([]string{"invoke", "read", "write", "subscribe"}, noFiles))
	cmd.AddCommand(newDelegateLs(a), newDelegateRevoke(a))
	return cmd
}

// rightOf reads AGENT/ACTION. The reference of an agent may have slashes.
func rightOf(text string) (agent, name string, err error) {
	at := strings.LastIndexByte(text, '/')
	if at > 0 && at < len(text)-1 {
		return text[:at], text[at+1:], nil
	}
	e := cli.Usage("", "%q does not name an agent and its action: expected AGENT/ACTION", interact.Excerpt(text, 80))
	return "", "", cli.Similar(e, text, []string{"ls", "revoke"}, "lmosd delegate payout/pay --to DID")
}

// delegateOf reads the DID of the node that may use a delegation.
func delegateOf(text string) (did.DID, error) {
	if text == "" {
		return "", cli.Usage("", "--to is missing: it names the only node that may use the delegation").Then(cli.StepCommand, "lmosd id   # on that node")
	}
	ids, err := hostsIn([]string{text})
	if err != nil {
		return "", err
	}
	return ids[0], nil
}

func newDelegateLs(a *app) *cobra.Command {
	var issued bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list what this node delegated and that has not ended",
		Long: "Lists what consumers of this node delegated to other nodes and that has not ended, without the tokens, which no node\n" +
			"stores. -o wide adds the consumer, the conditions and the host. --issued lists what this node, as the host of agents,\n" +
			"permitted others to delegate: only the delegators know their delegates.",
		Example: `  lmosd delegate ls
  lmosd delegate ls --issued
  lmosd delegate ls --jq '.items[] | select(.name == "pay") | .id'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd delegate, lmosd delegate revoke"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, table := (*api.Client).Delegations, render.DelegationTable
			if issued {
				list, table = (*api.Client).IssuedDelegations, render.IssuedTable
			}
			l, err := send(a, func(c *api.Client) (*api.DelegationList, error) { return list(c, cmd.Context()) })
			if err != nil {
				return err
			}
			if err := a.Show(cli.View{Doc: l, Names: cli.Each(l.Items, func(d api.Delegation) string { return d.ID }),
				People: func(s *terminal.Screen, wide bool) { table(l.Items, wide, time.Now()).Write(s) }}); err != nil {
				return err
			}
			if len(l.Items) == 0 && !issued {
				a.Next("lmosd delegate AGENT/ACTION --to DID")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&issued, "issued", false, "list the delegations that are valid at this node, by delegator")
	return cmd
}

func newDelegateRevoke(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke <id | token | @file | ->",
		Short: "end a delegation, with its tasks and subscriptions",
		Long: "Ends a delegation at its host, with the tasks, streams and subscriptions by it. If the host cannot be reached, the\n" +
			"node repeats that until the delegation ends. The argument is an id of lmosd delegate ls, or the beginning of one; the\n" +
			"token itself; @file or - for one in a file or from standard input. With an id of lmosd delegate ls --issued, the host\n" +
			"ends what it issued.",
		Example: `  lmosd delegate revoke zdpuAyyH8fpE
  lmosd delegate revoke @pay.token
  lmosd delegate ls -o name | xargs -n 1 lmosd delegate revoke`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd delegate ls"),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: a.completeDelegation,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			id := args[0]
			if !strings.HasPrefix(id, "z") { // a CID; a token begins with one of BCOP
				if _, id, err = a.delegation(args[0]); err != nil {
					return err
				}
			}
			d, err := send(a, func(c *api.Client) (*api.Delegation, error) { return c.RevokeDelegation(cmd.Context(), id) })
			if err != nil {
				return err
			}
			text := "revoked " + d.Op + " " + d.Agent + "/" + d.Name
			if d.To != "" { // empty: the host revoked what it had issued
				text += " for " + d.To.Short()
			}
			if err := a.changed(change{Change: "revoked", Name: d.ID}, text); err != nil {
				return err
			}
			if d.Revoking {
				a.Warn("the host " + d.Host.Short() + " has not received it: the node repeats it, and the delegation may be used until then")
			}
			return nil
		},
	}
}

// A withFlag is the delegation in --with.
type withFlag struct {
	text string
	set  func() bool // it may be set and empty, as an unset variable of a shell is
}

func (f *withFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.text, "with", "", "`TOKEN` of a delegated right, @FILE or -")
	f.set = func() bool { return cmd.Flags().Changed("with") }
}

// use lets the requests of a conversation use the delegation. The words are its input.
func (f *withFlag) use(c *conversation, words []string) error {
	switch {
	case !f.set():
		return nil
	case f.text == "-" && len(words) == 1 && (words[0] == "-" || words[0] == "@-"):
		return cli.Usage("--with @FILE", "standard input cannot be both the delegation and the input")
	}
	token, _, err := c.delegation(f.text)
	if err == nil {
		c.client = c.client.With(token)
	}
	return err
}

// delegation returns a token and its id: the CID of its last link. The token is the text, or is in @FILE, or is read from standard input for "-".
// Errors do not quote it.
func (a *app) delegation(text string) (token, id string, err error) {
	if name, ok := strings.CutPrefix(text, "@"); ok || name == "-" {
		raw, err := input.Content(a.Console, name, 2*interact.MaxCapability)
		if err != nil {
			return "", "", err
		}
		text = string(raw)
	}
	token = strings.Join(strings.Fields(text), "")
	links, err := ucan.Unpack([]byte(token))
	for _, raw := range links {
		t, wrong := ucan.Parse(raw)
		if wrong != nil {
			err = wrong
			break
		}
		if l := t.Delegation(); l != nil && (id == "" || l.Issuer != l.Subject) { // the first link is that of the host
			id = t.CID().String()
		}
	}
	if err != nil || id == "" {
		return "", "", cli.Usage("copy the whole token that lmosd delegate printed", "this is not a token of a delegation")
	}
	return token, id, nil
}

// completeRight completes an agent, then its action: AGENT/ACTION.
func (a *app) completeRight(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, noFiles
	}
	at := strings.LastIndexByte(word, '/')
	if at < 0 {
		names, directive := a.completeAgent(cmd, args, word)
		return cli.Each(names, func(name string) string { return strings.Replace(name, "\t", "/\t", 1) }), directive | cobra.ShellCompDirectiveNoSpace
	}
	names, directive := a.completeAction(cmd, []string{word[:at]}, "")
	return cli.Each(names, func(name string) string { return word[:at+1] + name }), directive
}

// completeDelegation completes the ids of delegations.
func (a *app) completeDelegation(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, noFiles
	}
	return a.complete(cmd, func(ctx context.Context, c *api.Client) ([]string, error) {
		l, err := c.Delegations(ctx)
		if err != nil {
			return nil, err
		}
		issued, err := c.IssuedDelegations(ctx)
		if err != nil {
			return nil, err
		}
		return cli.Each(append(l.Items, issued.Items...), func(d api.Delegation) string { return d.ID + "\t" + terminal.OneLine(d.Agent+"/"+d.Name) }), nil
	})
}
