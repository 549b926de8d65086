package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

// askAgain is the pause between two requests of a node that waits for its admission.
const askAgain = time.Second

// joinByRequest joins the organization of a node on the local network, after a comparison of words on both screens.
func (a *app) joinByRequest(ctx context.Context, at, words string) error {
	list, err := send(a, func(c *api.Client) (*api.OfferList, error) { return c.Offers(ctx) })
	if err != nil {
		return err
	}
	o, err := choose(list.Items, at)
	if err != nil {
		return err
	}
	r, err := send(a, func(c *api.Client) (*api.JoinRequest, error) { return c.RequestJoin(ctx, api.JoinQuery{Node: o.Node}) })
	if err != nil {
		return err
	}
	if a.ForPeople() {
		render.JoinRequest(r, time.Now()).Write(a.Talk)
	}
	a.elsewhere("lmosd org admit "+strings.Join(r.Words, " "), "on that node, which must print the same words: lmosd org requests")
	if err := a.compare(ctx, r, words); err != nil {
		return err
	}
	tick := time.NewTicker(askAgain)
	defer tick.Stop()
	for end := r.Expires; !r.Joined; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if time.Now().After(end) {
			return interact.Errorf(interact.Timeout, "begin again", "%s did not admit this node", o.Node.Short()).Then(cli.StepCommand, "lmosd org join")
		}
		if r, err = send(a, func(c *api.Client) (*api.JoinRequest, error) {
			return c.RequestJoin(ctx, api.JoinQuery{Node: o.Node, SCID: o.SCID})
		}); err != nil {
			return err
		}
	}
	org, err := a.organization(ctx)
	if err != nil {
		return err
	}
	if err := a.showOrganization(org); err != nil {
		return err
	}
	a.Next("lmosd find", "lmosd trust ls")
	return nil
}

// choose returns the offer of the node that at names, or the only one.
func choose(all []api.Offer, at string) (api.Offer, error) {
	found := all
	if at != "" {
		found = slices.DeleteFunc(slices.Clone(all), func(o api.Offer) bool {
			return !strings.HasPrefix(string(o.Node), render.WithMethod(at))
		})
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		names := cli.Each(found[:min(len(found), 5)], func(o api.Offer) string { return string(o.Node) + " of " + o.Name })
		return api.Offer{}, interact.Errorf(interact.Ambiguous, "choose one with --at: "+strings.Join(names, ", "),
			"%d nodes on the local network let others ask to join", len(found))
	case len(all) > 0:
		return api.Offer{}, interact.Errorf(interact.NotFound, "leave out --at", "no node on the local network that lets others ask to join matches %q",
			interact.Excerpt(at, 200))
	}
	return api.Offer{}, interact.Errorf(interact.NotFound, "make an invitation on a node of the organization: lmosd org invite",
		"no connected node of the local network lets others ask to join")
}

// compare returns nil if the words of a request are those on the other screen.
func (a *app) compare(ctx context.Context, r *api.JoinRequest, words string) error {
	switch want := strings.Join(r.Words, " "); {
	case words == "" && !a.Interactive():
		return cli.Usage("compare them with the other node", "not confirmed: the words are %s", want).Then(interact.StepOption, "words", want)
	case words == "":
		return a.confirm(ctx, false, "Does lmosd org requests on that node print these six words, for this node?")
	case !slices.Equal(strings.Fields(words), r.Words):
		return interact.Errorf(interact.InvalidInvite, "another node answered: do not join", "the words differ: here they are %s", want)
	}
	return nil
}

func newOrgRequests(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "requests",
		Short: "list the nodes on the local network that ask to join",
		Long: "Lists the nodes that ask this issuer to make them members, with lmosd org join: at most three at a time, for ten\n" +
			"minutes. The words stand for the organization and the node: compare them with those on the screen of that node.",
		Example: `  lmosd org requests
  lmosd org requests -o json --jq '.items[].words | join(" ")'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd org admit, lmosd org join"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := send(a, func(c *api.Client) (*api.JoinRequestList, error) { return c.JoinRequests(cmd.Context()) })
			if err != nil {
				return err
			}
			err = a.Show(cli.View{Doc: list, Names: cli.Each(list.Items, func(r api.JoinRequest) string { return string(r.Node) }),
				People: func(s *terminal.Screen, wide bool) { render.JoinRequests(list.Items, time.Now(), wide).Write(s) }})
			switch {
			case err != nil:
				return err
			case len(list.Items) == 0:
				a.inform("no node asks to join")
				a.elsewhere("lmosd org join", "on the other node")
			default:
				a.Next("lmosd org admit WORDS   # that the other node prints")
			}
			return nil
		},
	}
}

func newOrgAdmit(a *app) *cobra.Command {
	var roles []string
	cmd := &cobra.Command{
		Use:   "admit <word…>",
		Short: "make a node that asks to join a member",
		Long: "Makes the node a member whose request has these six words. Type the words that the other node prints: another node\n" +
			"that asks, or one in between, has other words.",
		Example: `  lmosd org admit apple bird cloud door egg fox
  lmosd org admit apple bird cloud door egg fox --role customer-service`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd org requests, lmosd org issue"),
		Args:        cli.Takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			words := strings.Fields(strings.ToLower(strings.Join(args, " ")))
			list, err := send(a, func(c *api.Client) (*api.JoinRequestList, error) { return c.JoinRequests(cmd.Context()) })
			if err != nil {
				return err
			}
			i := slices.IndexFunc(list.Items, func(r api.JoinRequest) bool { return slices.Equal(r.Words, words) })
			if i < 0 {
				return interact.Errorf(interact.NotFound, "type all six words as the other node prints them; if they are right, another node answered it: do not join",
					"no request has these words").Then(cli.StepCommand, "lmosd org requests")
			}
			m := api.Member{DID: list.Items[i].Node}
			return a.perform(cmd.Context(), act{do: func(ctx context.Context, c *api.Client) error {
				return c.SetRoles(ctx, m.DID, append([]string{}, roles...))
			},
				done: change{Change: "admitted", DID: m.DID}, text: "admitted " + render.MemberName(m), next: []string{"lmosd org ls"}})
		},
	}
	cmd.Flags().StringArrayVar(&roles, "role", nil, "`ROLE` of the member; repeatable")
	return cmd
}
