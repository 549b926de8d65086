package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/keys"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func newKeysCommand(a *app) *cobra.Command {
	cmd := keys.NewCommand(a.Console)
	cmd.AddCommand(newKeysSucceed(a))
	return cmd
}

// succeededFor is the life of the record of a move: the maximum of a record.
const succeededFor = 30 * 24 * time.Hour

func newKeysSucceed(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "succeed <old> <new>",
		Short: "replace the key of an agent; references follow",
		Long: "Signs with the old key of an agent that it has moved to the new key, and announces that for 30 days: its hosts " +
			"end, and references to it lead to the agent of the same name that lmosd expose --key offers with the new key. " +
			"A missing file of the new key is made. The new key is another DID: access rules that name the old one do not " +
			"follow. Delete the old key: its holder can offer the old agent again. For the key of a node see lmosd keys " +
			"rotate.",
		Example: `  lmosd keys succeed weather.pem weather2.pem
  lmosd keys succeed ~/.local/share/lmosd/agents/weather.pem weather2.pem`,
		Annotations: cli.About(cli.ScopeMesh, cli.Danger, "lmosd expose, lmosd keys rotate, lmosd move"),
		Args:        cli.Takes(2, 2),
		RunE:        func(cmd *cobra.Command, args []string) error { return a.succeed(cmd.Context(), args[0], args[1]) },
	}
}

// succeed moves the agents of the key in a file to the key in another one.
func (a *app) succeed(ctx context.Context, old, next string) error {
	from, _, err := keys.Agent(old, false)
	if err != nil {
		return err
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	list, err := client.Find(ctx, td.Query{Owner: from.DID(), Limit: 64}, 0)
	if err != nil {
		return err
	}
	refs := cli.Each(list.Items, func(g api.Agent) string { return g.Ref })
	if len(refs) == 0 {
		return interact.Errorf(interact.NotFound, "offer it first, or only replace the file", "the node knows no agent of the key in %s", old)
	}
	to, _, err := keys.Agent(next, true)
	if err != nil {
		return err
	}
	if to.DID() == from.DID() {
		return cli.Usage("name a file that does not exist, and it is made", "both files have the same key")
	}
	err = a.each(ctx, refs, func(ctx context.Context, c *api.Client, ref string) (*api.Publication, error) {
		record, err := signSuccession(ctx, c, ref, from, to)
		if err != nil {
			return nil, err
		}
		return c.WithdrawGranted(ctx, record)
	})
	if err == nil {
		a.Next("lmosd expose … --key " + terminal.Shell(next))
	}
	return err
}

// signSuccession signs the move of an agent to another key.
func signSuccession(ctx context.Context, c *api.Client, ref string, from, to *keystore.Key) ([]byte, error) {
	d, err := c.Agent(ctx, ref)
	if err != nil {
		return nil, err
	}
	t, err := td.Parse(d.TD)
	if err != nil {
		return nil, err
	}
	if d.Agent.Grant == nil {
		return nil, interact.Errorf(interact.Invalid, "rotate the key of the node", "%s is an agent of a node, and has no key of its own", ref)
	}
	now := time.Now()
	s, err := td.Move(from, t.ID, to.DID(), td.Lease{Seq: max(uint64(now.UnixMilli()), d.Agent.Grant.Number+1), Now: now, Lifetime: succeededFor, Audience: t.Visibility}, t.Terms()...)
	if err != nil {
		return nil, err
	}
	return s.Record, nil
}
