package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/keys"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/group"
	"github.com/lmosd/lmosd/group/chain"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/invitation"
)

func newGroupCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "group",
		Short: "groups of nodes of any organization: members, roles, events",
		Long: "A group has nodes of any organization as members. Its signed log states who they are; each member keeps it, and no\n" +
			"server has it. Access rules name a group as group:NAME, lmosd expose --for group:NAME offers an agent to its members\n" +
			"only, and events go to each member directly. Who is removed gets nothing that follows.",
		Example: `  lmosd group create claims-2026 --tenant acme --channel web
  lmosd group invite claims-2026
  lmosd group show claims-2026`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd trust, lmosd policy, lmosd expose"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newGroupCreate(a), newGroupInvite(a), newGroupJoin(a), newGroupLs(a), newGroupShow(a), newGroupAdd(a), newGroupRemove(a),
		newGroupRole(a), newGroupLeave(a), newGroupDissolve(a), newGroupSend(a), newGroupWatch(a))
	return cmd
}

func newGroupCreate(a *app) *cobra.Command {
	var tenant, channel string
	var labels, join []string
	var threshold int
	cmd := &cobra.Command{
		Use:   "create <name>",
		Short: "create a group, whose first admin is this node",
		Long: "Creates a group, whose first admin is this node. With --join, members of an organization, or holders of a credential\n" +
			"of another issuer, join without an invitation: ISSUER/ROLE, or ISSUER/ROLE=ROLE-IN-THE-GROUP. With --threshold,\n" +
			"that many admins must agree to a change of the admins, and to the end of the group: each enters the same command.\n" +
			"A group with one admin cannot be managed when its key is lost: make a second one an admin.",
		Example: `  lmosd group create claims-2026 --tenant acme --channel web
  lmosd group create claims-2026 --join globex/adjuster --threshold 2`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd group invite, lmosd group role"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := api.GroupCreate{Name: args[0], Threshold: threshold, Labels: map[string]string{}}
			for name, value := range map[string]string{"tenant": tenant, "channel": channel} {
				if value != "" {
					q.Labels[name] = value
				}
			}
			for _, l := range labels {
				name, value, ok := strings.Cut(l, "=")
				if !ok {
					return cli.Usage("", "--label is NAME=VALUE, got %q", l)
				}
				q.Labels[name] = value
			}
			for _, j := range join {
				rule, as, _ := strings.Cut(j, "=")
				r := api.GroupRule{As: as}
				at := strings.LastIndexByte(rule, '/')
				if r.Issuer = rule; at >= 0 {
					r.Issuer, r.Role = rule[:at], rule[at+1:]
				}
				q.Join = append(q.Join, r)
			}
			g, err := send(a, func(c *api.Client) (*api.Group, error) { return c.CreateGroup(cmd.Context(), q) })
			if err != nil {
				return err
			}
			if err := a.showGroup(g, "created "+g.Name+", a group of this node"); err != nil {
				return err
			}
			a.Next("lmosd group invite " + terminal.Shell(g.Name))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&tenant, "tenant", "", "label: the `TENANT`")
	f.StringVar(&channel, "channel", "", "label: the `CHANNEL`")
	f.StringArrayVar(&labels, "label", nil, "another label, `NAME=VALUE`; repeatable")
	f.StringArrayVar(&join, "join", nil, "who may join by a credential: `ISSUER/ROLE`, with =ROLE for the role in the group; repeatable")
	f.IntVar(&threshold, "threshold", 1, "`NUMBER` of admins who must agree to a change of the admins and to the end, 1 to 8")
	return cmd
}

// showGroup prints a group: text for people.
func (a *app) showGroup(g *api.Group, text string) error {
	return a.Show(cli.View{Doc: g, Names: []string{g.ID}, People: cli.Line(text)})
}

func newGroupInvite(a *app) *cobra.Command {
	var q api.GroupInvite
	var to string
	var life time.Duration
	cmd := &cobra.Command{
		Use:   "invite <group>",
		Short: "issue an invitation for the operator of another node",
		Long: "Issues an invitation of the group, which the operator of another node uses with lmosd group join. It is valid once,\n" +
			"for 24 hours, for any node; --for restricts it to one. Only an admin's node can issue it. The string is a\n" +
			"secret.",
		Example: `  lmosd group invite claims-2026
  lmosd group invite claims-2026 --for did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH --role adjuster`,
		Annotations:       cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd group join, lmosd group add"),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: a.completeGroups,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if to != "" {
				if q.For, err = did.Parse(to); err != nil {
					return cli.Usage("", "--for is the DID of a node: %s", err)
				}
			}
			q.Life = life.String()
			i, err := send(a, func(c *api.Client) (*api.GroupInvitation, error) { return c.InviteToGroup(cmd.Context(), args[0], q) })
			if err != nil {
				return err
			}
			if err := a.Show(cli.View{Doc: i, Names: []string{i.Invitation}, People: cli.Line(i.Invitation)}); err != nil {
				return err
			}
			a.elsewhere("lmosd group join "+invitation.Prefix+"…", "at the other node, until "+render.Stamp(i.Expires))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&to, "for", "", "the `DID` of the only node that may use it")
	f.StringVar(&q.Role, "role", "", "the `ROLE` in the group (default: member)")
	f.IntVar(&q.Uses, "uses", 1, "how many nodes may use it")
	f.DurationVar(&life, "expires", invitation.Life, "how long it is valid, at most 30 days")
	return cmd
}

func newGroupJoin(a *app) *cobra.Command {
	var q api.GroupJoin
	var key string
	cmd := &cobra.Command{
		Use:   "join <invitation | group>",
		Short: "join a group by an invitation or a credential",
		Long: "Makes this node a member. The argument is an invitation; the name of a group that an admin has offered (state\n" +
			"invited in lmosd group ls); or, with --at, the id of a group that lets the members of an organization join. The log\n" +
			"of the group must have the entry that the invitation names. With --key an agent with a key of its own joins in place\n" +
			"of the node, by an invitation; lmosd group leave has --key, too.",
		Example: `  lmosd group join lmos-invite:pgABAWRsbW9z
  lmosd group join claims-2026 --as claims
  lmosd group join QmYsVb3TqC9mCMKCZPG7uCZVZKkZcSiNd7E8wQq1mTXcM7 --at /ip4/192.0.2.7/tcp/4667/p2p/12D3KooW…`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd group invite, lmosd group ls"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch ref := strings.Join(strings.Fields(args[0]), ""); {
			case strings.HasPrefix(ref, invitation.Prefix):
				q.Invitation = ref
			case q.At != "":
				q.Group = ref
			default:
				q.Offer = ref
			}
			who, role := "", ""
			g, err := send(a, func(c *api.Client) (*api.Group, error) {
				if key != "" && q.Invitation == "" {
					return nil, cli.Usage("lmosd group join --help", "--key needs an invitation: an agent joins by one only")
				}
				if key != "" {
					st, err := joinAgent(cmd.Context(), c, q.Invitation, key)
					if err != nil {
						return nil, err
					}
					q.Statement, who, role = st.Raw, st.Member.Short()+" ", st.Role
				}
				return c.JoinGroup(cmd.Context(), q)
			})
			if err != nil {
				return err
			}
			if err := a.showGroup(g, fmt.Sprintf("%sjoined %s as %s: %s", who, g.Name, cmp.Or(role, g.Role), terminal.Count(g.Count, "member", "members"))); err != nil {
				return err
			}
			a.Next("lmosd group show " + terminal.Shell(g.Name))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.At, "at", "", "a node of an admin: a multiaddr with /p2p, or the `DID` of a connected node")
	f.StringVar(&q.Name, "as", "", "the `NAME` of the group at this node (default: its own)")
	addAgentKey(cmd, &key)
	return cmd
}

func addAgentKey(cmd *cobra.Command, key *string) {
	cmd.Flags().StringVar(key, "key", "", "the `FILE` with the key of an agent of this node, which is the member")
}

// joinAgent returns the statement of the agent with a key that it joins by an invitation, through the node of c.
func joinAgent(ctx context.Context, c *api.Client, text, path string) (*chain.Statement, error) {
	i, err := invitation.Parse(text)
	if err != nil {
		return nil, err
	}
	key, _, err := keys.Agent(path, false)
	if err != nil {
		return nil, err
	}
	node, err := c.Identity(ctx)
	if err != nil {
		return nil, err
	}
	role := chain.Plain
	if len(i.Roles) > 0 {
		role = i.Roles[0]
	}
	return chain.SignJoin(i.Group, i.Head, node.DID, role, key, time.Now())
}

func newGroupLs(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the groups of this node, and those that invite it",
		Long: "Lists the groups of this node with its role, and those that invite it. The state is active, invited, left, removed\n" +
			"or dissolved. The name of a group that ended stays reserved, so that access rules never change their meaning.",
		Example: `  lmosd group ls
  lmosd group ls --jq '.items[] | select(.labels.tenant == "acme") | .name'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd group show, lmosd group create"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := send(a, func(c *api.Client) (*api.GroupList, error) { return c.Groups(cmd.Context()) })
			if err != nil {
				return err
			}
			if err := a.Show(cli.View{Doc: l, Names: cli.Each(l.Items, func(g api.Group) string { return g.Name }), People: func(s *terminal.Screen, wide bool) { render.GroupTable(l.Items, wide).Write(s) }}); err != nil {
				return err
			}
			if len(l.Items) == 0 {
				a.Next("lmosd group create NAME")
			}
			return nil
		},
	}
}

func newGroupShow(a *app) *cobra.Command {
	var log bool
	cmd := &cobra.Command{
		Use:   "show <group | file>",
		Short: "show the members of a group, or its log",
		Long: "Shows the members of a group with their roles, changes that need more admins, and splits of the log. --log prints the\n" +
			"log instead: one signed entry per line, each with the hash of the one before it. It proves who was a member when, and\n" +
			"that the group was dissolved: with a file of that form, a path with a slash, the command verifies it without a node.",
		Example: `  lmosd group show claims-2026
  lmosd group show claims-2026 --log > claims-2026.jsonl
  lmosd group show ./claims-2026.jsonl`,
		Annotations:       cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd group ls, lmosd group role"),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: a.completeGroups,
		RunE: func(cmd *cobra.Command, args []string) error {
			if log {
				raw, err := send(a, func(c *api.Client) ([]byte, error) { return c.GroupLog(cmd.Context(), args[0]) })
				if err != nil {
					return err
				}
				_, err = a.Out.Write(raw)
				return err
			}
			g, err := a.groupOf(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.Show(cli.View{Doc: g, Names: cli.Each(g.Members, func(m api.GroupMember) string { return string(m.DID) }),
				People: func(s *terminal.Screen, wide bool) { render.GroupSheet(s, g, wide) }})
		},
	}
	cmd.Flags().BoolVar(&log, "log", false, "print the log")
	return cmd
}

// groupOf returns a group of the node, or what the log in a file states.
func (a *app) groupOf(ctx context.Context, ref string) (*api.Group, error) {
	if !strings.ContainsAny(ref, `/\`) {
		return send(a, func(c *api.Client) (*api.Group, error) { return c.Group(ctx, ref) })
	}
	raw, err := os.ReadFile(ref)
	if err != nil {
		return nil, input.Unreadable(ref, err)
	}
	g, err := group.ReadLog(raw, time.Now())
	if err != nil {
		return nil, err
	}
	g.APIVersion, g.Kind = api.APIVersion, "Group"
	return g, nil
}

func newGroupAdd(a *app) *cobra.Command {
	var role string
	cmd := &cobra.Command{
		Use:   "add <group> <did>",
		Short: "offer the membership to a node, whose operator accepts it",
		Long: "Sends an invitation to a node of the own organization or of a partner. Its operator finds the group in the state\n" +
			"invited and joins with lmosd group join. No node is a member of a group without the agreement of its operator.",
		Example: `  lmosd group add claims-2026 did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH
  lmosd group add claims-2026 did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH --role adjuster`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd group invite, lmosd group join"),
		Args:              cli.Takes(2, 2),
		ValidArgsFunction: a.completeGroups,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := memberDID(args[1])
			if err != nil {
				return err
			}
			return a.perform(cmd.Context(), act{do: func(ctx context.Context, c *api.Client) error {
				_, err := c.InviteToGroup(ctx, args[0], api.GroupInvite{For: id, Role: role, Offer: true})
				return err
			}, done: change{Change: "offered", DID: id, Name: args[0]}, text: "offered the membership to " + id.Short() + ": its operator joins with lmosd group join"})
		},
	}
	cmd.Flags().StringVar(&role, "role", "", "the `ROLE` in the group (default: member)")
	return cmd
}

// memberDID reads the DID of a member.
func memberDID(text string) (did.DID, error) {
	id, err := did.Parse(text)
	if err != nil {
		return "", cli.Usage("", "a member is named by its DID, as lmosd group show prints it with -o name: %s", err)
	}
	return id, nil
}

// changeGroup performs a change.
func (a *app) changeGroup(ctx context.Context, group string, q api.GroupChange, complete func(context.Context, *api.Client, string, *api.GroupChange) error,
	question string, yes bool, done string) error {
	return a.perform(ctx, act{question: question, yes: yes, do: func(ctx context.Context, c *api.Client) error {
		if complete != nil {
			if err := complete(ctx, c, group, &q); err != nil {
				return err
			}
		}
		g, err := c.ChangeGroup(ctx, group, q)
		if err != nil {
			return err
		}
		for _, p := range g.Pending {
			if p.Kind == q.Kind && p.Member == q.Member && p.Role == q.Role {
				a.inform(fmt.Sprintf("%d of %d admins have agreed: another admin enters the same command", p.Approved, p.Needed))
			}
		}
		return nil
	}, done: change{Change: q.Kind, DID: q.Member, Name: group}, text: done})
}

func newGroupRemove(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "remove <group> <did>",
		Short: "remove a member: it gets nothing that follows",
		Long: "Removes a member. Nodes that know that send it no events, their rules for the group do not concern it any more, and\n" +
			"what it had running by them ends. It keeps what it has received.",
		Example: `  lmosd group remove claims-2026 did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH
  lmosd group remove claims-2026 did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH -o json`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd group show, lmosd group role"),
		Args:              cli.Takes(2, 2),
		ValidArgsFunction: a.completeGroups,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := memberDID(args[1])
			if err != nil {
				return err
			}
			return a.changeGroup(cmd.Context(), args[0], api.GroupChange{Kind: api.GroupRemove, Member: id}, nil, "", true, "removed "+id.Short()+" from "+args[0])
		},
	}
}

func newGroupRole(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "role <group> <did> <role>",
		Short: "change the role of a member; admin lets it manage the group",
		Long: "Changes the role of a member. An admin may do all that this node may, and remove this node: of two admins, the one\n" +
			"of longer standing prevails for ten minutes. Access rules name a role as group:NAME/ROLE.",
		Example: `  lmosd group role claims-2026 did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH admin
  lmosd group role claims-2026 did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH adjuster`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd group show, lmosd policy"),
		Args:              cli.Takes(3, 3),
		ValidArgsFunction: a.completeGroups,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := memberDID(args[1])
			if err != nil {
				return err
			}
			return a.changeGroup(cmd.Context(), args[0], api.GroupChange{Kind: api.GroupSetRole, Member: id, Role: args[2]}, nil, "", true, id.Short()+" is "+args[2]+" in "+args[0])
		},
	}
}

func newGroupLeave(a *app) *cobra.Command {
	var key string
	sign := func(ctx context.Context, c *api.Client, group string, q *api.GroupChange) error {
		if key == "" {
			return nil
		}
		agent, _, err := keys.Agent(key, false)
		if err != nil {
			return err
		}
		g, err := c.Group(ctx, group)
		if err != nil {
			return err
		}
		st, err := chain.SignLeave(g.ID, g.Head, agent, time.Now())
		if err == nil {
			q.Statement = st.Raw
		}
		return err
	}
	cmd := newGroupEnd(a, api.GroupLeave, "Leave the group %s?", "left %s", sign, &cobra.Command{
		Use:   "leave <group>",
		Short: "leave a group",
		Long: "Ends the membership of this node at once; an admin's node signs that as soon as one can be reached. The last admin\n" +
			"makes another member an admin first, or dissolves the group. With --key an agent leaves, and the node stays.",
		Example: `  lmosd group leave claims-2026 --yes
  lmosd group leave claims-2026 --yes -o json`,
		Annotations: cli.About(cli.ScopeMesh, cli.Danger, "lmosd group dissolve, lmosd group ls"),
	})
	addAgentKey(cmd, &key)
	return cmd
}

func newGroupDissolve(a *app) *cobra.Command {
	return newGroupEnd(a, api.GroupDissolve, "Dissolve the group %s for good?", "dissolved %s", nil, &cobra.Command{
		Use:   "dissolve <group>",
		Short: "end a group for good",
		Long: "Ends a group for good. Its members have no rights by it any more, and streams of its events end. Nothing follows the\n" +
			"last entry of the log, which remains as the proof at all who were members. This cannot be undone.",
		Example: `  lmosd group dissolve claims-2026 --yes
  lmosd group dissolve claims-2026 --yes -o json`,
		Annotations: cli.About(cli.ScopeMesh, cli.Danger, "lmosd group show, lmosd group leave"),
	})
}

// newGroupEnd completes a command that ends something for good: a change of a group, after a question with its name.
// complete adds what the node needs to the change; nil: nothing.
func newGroupEnd(a *app, kind, question, done string, complete func(context.Context, *api.Client, string, *api.GroupChange) error, cmd *cobra.Command) *cobra.Command {
	var yes bool
	cmd.Args, cmd.ValidArgsFunction = cli.Takes(1, 1), a.completeGroups
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.changeGroup(cmd.Context(), args[0], api.GroupChange{Kind: kind}, complete, fmt.Sprintf(question, args[0]), yes, fmt.Sprintf(done, args[0]))
	}
	addYes(cmd, &yes)
	return cmd
}

func newGroupSend(a *app) *cobra.Command {
	var typ string
	cmd := &cobra.Command{
		Use:   "send <group> <data | ->",
		Short: "send an event to the members of a group",
		Long: "Sends an event to all other members that can be reached now, directly and encrypted. The data is JSON, or a text; - reads\n" +
			"it from standard input. Members that are away do not get it later: the output names them.",
		Example: `  lmosd group send claims-2026 '{"claim": 4711, "state": "open"}' --type claim
  lmosd group send claims-2026 "the meeting begins"`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd group watch, lmosd call"),
		Args:              cli.Takes(2, 2),
		ValidArgsFunction: a.completeGroups,
		RunE: func(cmd *cobra.Command, args []string) error {
			data := []byte(args[1])
			if args[1] == "-" {
				raw, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), api.MaxGroupEvent+1))
				if err != nil {
					return err
				}
				data = raw
			}
			if !json.Valid(data) {
				data, _ = json.Marshal(string(data)) // a string always encodes
			}
			d, err := send(a, func(c *api.Client) (*api.GroupDelivery, error) {
				return c.SendToGroup(cmd.Context(), args[0], typ, data)
			})
			if err != nil {
				return err
			}
			if err := a.Show(cli.View{Doc: d, Names: []string{d.ID}, People: cli.Line("sent to " + terminal.Count(d.Delivered, "member", "members"))}); err != nil {
				return err
			}
			for id, why := range d.Failed {
				a.Warn("not sent to " + id.Short() + ": " + terminal.OneLine(why))
			}
			if d.Delivered == 0 && len(d.Failed) > 0 {
				return interact.Errorf(interact.Unreachable, "see lmosd group show", "no member received the event")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&typ, "type", "", "the `TYPE` of the event, a word for its receivers")
	return cmd
}

func newGroupWatch(a *app) *cobra.Command {
	var limit int
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "watch <group>",
		Short: "print the events of a group as they arrive",
		Long: "Prints the events of a group as they arrive, until Ctrl-C, --limit or --timeout. It ends with an error when the\n" +
			"membership of this node ends.",
		Example: `  lmosd group watch claims-2026
  lmosd group watch claims-2026 -o jsonl --limit 1`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd group send, lmosd watch"),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: a.completeGroups,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			n := 0
			for e, err := range client.WatchGroup(ctx, args[0]) {
				switch {
				case err != nil && ctx.Err() != nil && cmd.Context().Err() == nil && limit == 0:
					return nil
				case err != nil:
					return err
				}
				if err := a.printEvent(e); err != nil {
					return err
				}
				if n++; n == limit {
					return nil
				}
			}
			if limit > 0 && cmd.Context().Err() == nil {
				return interact.Errorf(interact.Timeout, "", "%s of %d", terminal.Count(n, "event", "events"), limit)
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 0, "end after this number of events")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "end after this time")
	return cmd
}

// printEvent prints an event of a group.
func (a *app) printEvent(e api.GroupEvent) error {
	if !a.ForPeople() {
		return a.Show(cli.View{Doc: e, Names: []string{e.ID}})
	}
	from := e.Member.Short()
	if e.Sender != "" {
		from += "#" + e.Sender
	}
	a.Out.Line(terminal.OneLine(strings.Join([]string{e.Time.Local().Format(time.TimeOnly), from, e.Type, string(e.Data)}, "  ")))
	return nil
}

// completeGroups completes the names of groups.
func (a *app) completeGroups(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *api.Client) ([]string, error) {
		if len(args) == 1 {
			g, err := c.Group(ctx, args[0])
			if err != nil {
				return nil, err
			}
			return cli.Each(g.Members, func(m api.GroupMember) string { return string(m.DID) + "\t" + m.Role }), nil
		}
		l, err := c.Groups(ctx)
		if err != nil {
			return nil, err
		}
		return cli.Each(l.Items, func(g api.Group) string { return g.Name + "\t" + g.State }), nil
	})
}
