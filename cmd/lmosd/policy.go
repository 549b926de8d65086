package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
)

func newPolicyCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "show, change and check the access rules of the node",
		Long: `Access rules (policy.yaml in the data directory) allow or deny operations of callers on agents. A rule that
denies wins; without a rule, trust.untrusted decides. Callers: anyone, own, partners, local, untrusted,
PARTNER, PARTNER/ROLE, own/ROLE, token:NAME, oidc:PROVIDER:SUBJECT, group:NAME, group:NAME/ROLE, DIDs.
Operations: find, read, write, invoke, subscribe, call (the last four), "*"; of the node connect and store.`,
		Example: `  lmosd policy allow globex/logistics --to invoke --on weather/getWeather
  lmosd policy show --on weather
  lmosd policy check policy.yaml`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd trust why, lmosd expose"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPolicyAllow(a), newPolicyDeny(a), newPolicyRm(a), newPolicyLs(a), newPolicyCheck(a), newPolicyShow(a))
	return cmd
}

func newPolicyAllow(a *app) *cobra.Command {
	var r api.RuleRequest
	cmd := &cobra.Command{
		Use:   "allow <who…> --to <operations>",
		Short: "add a rule that allows operations",
		Long: "Adds a rule to the file of the node, at its end, and puts it in force. Comments and other lines stay. Rules that\n" +
			"do not compile change nothing.",
		Example: `  lmosd policy allow anyone --to find,call --on weather
  lmosd policy allow globex --to invoke --on quote/price --when 'context.input.amount <= 1000'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd policy show"),
		Args:        cli.Takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(r.To) == 0 {
				return cli.Usage("", "--to is missing: it names the operations").
					Then(cli.StepCommand, "lmosd policy allow "+shellWords(args)+" --to find,call --on AGENT")
			}
			r.Allow = args
			return a.addRule(cmd.Context(), r)
		},
	}
	addRuleFlags(cmd, &r, "`OPERATIONS`, separated by commas")
	return cmd
}

func newPolicyDeny(a *app) *cobra.Command {
	var r api.RuleRequest
	cmd := &cobra.Command{
		Use:   "deny <who…>",
		Short: "add a rule that denies operations",
		Long:  "Adds a rule as lmosd policy allow does. It wins over all rules that allow. Running subscriptions and streams end.",
		Example: `  lmosd policy deny did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH
  lmosd policy deny globex --to write --on weather`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd policy show"),
		Args:        cli.Takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if r.Deny = args; len(r.To) == 0 {
				r.To = []string{"*"}
			}
			return a.addRule(cmd.Context(), r)
		},
	}
	addRuleFlags(cmd, &r, "`OPERATIONS`, separated by commas (default: all)")
	return cmd
}

func addRuleFlags(cmd *cobra.Command, r *api.RuleRequest, to string) {
	cmd.Flags().StringSliceVar(&r.To, "to", nil, to)
	cmd.Flags().StringArrayVar(&r.On, "on", nil, "`THING` or THING/AFFORDANCE, in which * matches any text; cap:ID or node; may repeat (default: all)")
	cmd.Flags().StringVar(&r.When, "when", "", "`CONDITION` in Cedar on context.input, .affordance, .via, .hops and .time")
}

// shellWords quotes words for a shell.
func shellWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = terminal.Shell(w)
	}
	return strings.Join(quoted, " ")
}

func (a *app) addRule(ctx context.Context, r api.RuleRequest) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	change, err := client.AddRule(ctx, r)
	if err != nil {
		return err
	}
	if err := a.showRules(change, "added", change.Added); err != nil {
		return err
	}
	if a.ForPeople() && len(change.Added) > 0 {
		a.Next("lmosd policy show --who " + terminal.Shell(append(r.Allow, r.Deny...)[0]))
	}
	return nil
}

// showRules prints rules that were added or removed.
func (a *app) showRules(change *api.PolicyChange, verb string, rules []api.Rule) error {
	err := a.Show(cli.View{Doc: change, Names: cli.Each(rules, ruleID), People: func(s *terminal.Screen, _ bool) {
		for _, r := range rules {
			s.Line(s.Paint(terminal.Green, verb) + " " + terminal.OneLine(r.ID+" "+r.Text))
		}
	}})
	if err == nil && a.ForPeople() {
		a.Note("file %s", change.File)
		for _, w := range change.Warnings {
			a.Warn(w)
		}
	}
	return err
}

func ruleID(r api.Rule) string { return r.ID }

func newPolicyRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "rm <rule|who…>",
		Aliases: []string{"remove"},
		Short:   "remove rules, by their ids or their callers",
		Long: "Removes rules from the file of the node, and puts the others in force: the rule with an id that lmosd policy ls\n" +
			"prints (policy.yaml:12, or 12), or all rules of a caller.",
		Example: `  lmosd policy rm policy.yaml:12
  lmosd policy rm globex`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd policy ls"),
		Args:        cli.Takes(1, -1),
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return a.complete(cmd, func(ctx context.Context, c *api.Client) ([]string, error) {
				p, err := c.Policy(ctx)
				if err != nil {
					return nil, err
				}
				return cli.Each(p.Items, func(r api.Rule) string { return r.ID + "\t" + terminal.OneLine(r.Text) }), nil
			})
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			change, err := client.RemoveRules(cmd.Context(), args...)
			if err != nil {
				return err
			}
			return a.showRules(change, "removed", change.Removed)
		},
	}
}

func newPolicyLs(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the rules in force",
		Long: "Lists the rules in force: those of policy.yaml and policy.cedar, and those for the callers of publications\n" +
			"(lmosd expose --for).",
		Example: `  lmosd policy ls
  lmosd policy ls -o json --jq '.items[] | select(.deny) | .id'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd policy show"),
		Args:        cli.Takes(0, 0),
		RunE:        func(cmd *cobra.Command, _ []string) error { return a.listRules(cmd.Context()) },
	}
}

func (a *app) listRules(ctx context.Context) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	p, err := client.Policy(ctx)
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: p, Names: cli.Each(p.Items, ruleID), People: func(s *terminal.Screen, wide bool) {
		terminal.TableOf(p.Items, wide, []terminal.Column[api.Rule]{
			{Name: "RULE", Keep: true, Cell: terminal.TextOf(ruleID)},
			{Name: "TEXT", Keep: true, Cell: terminal.TextOf(func(r api.Rule) string { return r.Text })},
		}).Write(s)
	}})
	if err != nil || !a.ForPeople() {
		return err
	}
	if p.Error != "" {
		a.Warn("these rules are older than the file: " + terminal.OneLine(p.Error))
	}
	if len(p.Items) == 0 {
		a.Talk.Line("no rules; without a rule the relation of a caller decides (trust.untrusted is " + p.Untrusted + ")")
		a.Next("lmosd policy allow WHO --to call --on AGENT")
	}
	return nil
}

func newPolicyShow(a *app) *cobra.Command {
	var who, on string
	cmd := &cobra.Command{
		Use:   "show (--who <who> | --on <thing>)",
		Short: "show what callers may do",
		Long: "Shows which operations a caller, and its roles that rules name, may use on each agent of the node; or which callers\n" +
			"may use an agent. The last columns are the deciding rule and the reason. Rights that depend on a condition have a *.",
		Example: `  lmosd policy show --who globex
  lmosd policy show --on weather -o json --jq '.items[] | select(.allow) | .who'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd trust why"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (who == "") == (on == "") {
				return cli.Usage("", "expected one of --who and --on").Then(cli.StepCommand, "lmosd policy show --who anyone")
			}
			return a.showRights(cmd.Context(), who, on)
		},
	}
	cmd.Flags().StringVar(&who, "who", "", "`CALLER`, as rules name it")
	cmd.Flags().StringVar(&on, "on", "", "`THING` of this node, or node")
	return cmd
}

func (a *app) showRights(ctx context.Context, who, on string) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	var list *api.RightList
	if who != "" {
		list, err = client.Rights(ctx, who)
	} else {
		list, err = client.RightsOn(ctx, on)
	}
	if err != nil {
		return err
	}
	return a.Show(cli.View{Doc: list, Names: cli.Each(list.Items, func(r api.Right) string { return r.Who + " " + r.Op + " " + onOf(r) }),
		People: func(s *terminal.Screen, wide bool) {
			terminal.TableOf(list.Items, wide, []terminal.Column[api.Right]{
				{Name: "WHO", Keep: true, Cell: func(r api.Right) terminal.Cell { return terminal.Short(shortCaller(r.Who), r.Who) }},
				{Name: "OPERATION", Cell: terminal.TextOf(func(r api.Right) string { return r.Op })},
				{Name: "ON", Keep: true, Cell: terminal.TextOf(onOf)},
				{Name: "DECISION", Cell: terminal.TextOf(decisionOf)},
				{Name: "RULE", Cell: terminal.TextOf(func(r api.Right) string { return r.Rule })},
				{Name: "WHY", Cell: terminal.TextOf(func(r api.Right) string { return r.Why })},
			}).Write(s)
		}})
}

// onOf returns the Thing of a right, with its affordance.
func onOf(r api.Right) string {
	if r.Affordance != "" {
		return r.Thing + "/" + r.Affordance
	}
	return r.Thing
}

// shortCaller shortens a DID.
func shortCaller(who string) string {
	if strings.HasPrefix(who, "did:key:") {
		return did.DID(who).Short()
	}
	return who
}

func decisionOf(r api.Right) string {
	text := "deny"
	if r.Allow {
		text = "allow"
	}
	if r.Conditional {
		text += " *"
	}
	return text
}

func newPolicyCheck(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "check [file]",
		Short: "check a file of access rules, offline",
		Long: "Checks rules in YAML, or policies in Cedar (a file that ends with .cedar). It needs no node: names of organizations\n" +
			"are listed and not checked. Without a file, the files of the node on this host are checked. Exit code 2 if a file\n" +
			"is invalid.",
		Example: `  lmosd policy check
  lmosd policy check policy.yaml`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd trust why"),
		Args:        cli.Takes(0, 1),
		RunE:        func(_ *cobra.Command, args []string) error { return a.checkPolicy(args) },
	}
}

// A policyCheck is the document of `lmosd policy check`.
type policyCheck struct {
	cli.Head
	Items []checkedPolicy `json:"items"`
}

// A checkedPolicy is the result for one file.
type checkedPolicy struct {
	File      string   `json:"file"`
	Valid     bool     `json:"valid"`
	Rules     int      `json:"rules"`
	Line      int      `json:"line,omitempty"`
	Column    int      `json:"column,omitempty"`
	Error     string   `json:"error,omitempty"`
	Unchecked []string `json:"unchecked,omitempty"` // names of organizations
}

func (a *app) checkPolicy(files []string) error {
	if len(files) == 0 {
		var err error
		if files, err = a.policyFiles(); err != nil {
			return err
		}
	}
	doc, invalid := policyCheck{cli.NewHead("PolicyCheck"), []checkedPolicy{}}, false
	for _, name := range files {
		text, err := input.Content(a.Console, name, access.MaxFile)
		if err != nil {
			return err
		}
		c := checkRules(name, text)
		doc.Items, invalid = append(doc.Items, c), invalid || !c.Valid
	}
	err := a.Show(cli.View{Doc: doc, Names: files, People: func(s *terminal.Screen, _ bool) {
		for _, c := range doc.Items {
			if !c.Valid {
				s.Line(terminal.OneLine(c.Error))
				continue
			}
			s.Line(terminal.OneLine(c.File + ": " + terminal.Count(c.Rules, "rule", "rules")))
			if len(c.Unchecked) > 0 && a.ForPeople() {
				a.Talk.Line("note: names that only the node can check: " + terminal.OneLine(strings.Join(c.Unchecked, ", ")))
			}
		}
	}})
	if err == nil && invalid {
		return cli.SilentError(cli.ExitUsage)
	}
	return err
}

// policyFiles returns the files of the node on this host that exist.
func (a *app) policyFiles() (files []string, err error) {
	c, err := configcmd.Load(a.Console, nil)
	if err != nil {
		return nil, err
	}
	path := c.PolicyFile()
	for _, name := range []string{path, strings.TrimSuffix(path, filepath.Ext(path)) + ".cedar"} {
		if _, err := os.Stat(name); err == nil && name != "" {
			files = append(files, name)
		}
	}
	if len(files) == 0 {
		return nil, cli.Usage("", "there is no file of access rules at %s", path).Then(cli.StepCommand, "lmosd policy check FILE")
	}
	return files, nil
}

// checkRules compiles a file. All names of organizations are accepted.
func checkRules(name string, text []byte) checkedPolicy {
	c := checkedPolicy{File: input.Called(name)}
	b := access.NewBuilder(access.Options{Self: "did:webvh:own", Organization: func(name string) (did.DID, bool) {
		if !slices.Contains(c.Unchecked, name) {
			c.Unchecked = append(c.Unchecked, name)
		}
		return did.DID("did:webvh:" + name), true
	}})
	add := b.AddYAML
	if strings.HasSuffix(name, ".cedar") {
		add = b.AddCedar
	}
	if err := add(c.File, text); err != nil {
		c.Error = err.Error()
		if at := (*access.Error)(nil); errors.As(err, &at) {
			c.Line, c.Column = at.Line, at.Column
		}
		return c
	}
	c.Valid, c.Rules = true, len(b.Build().Entries())
	return c
}

// newWhyCommand returns `lmosd trust why`.
func newWhyCommand(a *app) *cobra.Command {
	var data, with string
	cmd := &cobra.Command{
		Use:   "why <who> <operation> [thing[/affordance]]",
		Short: "explain whether a caller may do something, and why",
		Long: "Prints the decision of the node about an operation on one of its agents, the deciding rule, and each property of the\n" +
			"caller with its source. The caller is a DID, local, token:NAME, oidc:PROVIDER:SUBJECT, group:NAME, an organization,\n" +
			"NAME/ROLE or anyone. The operation is not executed. --with decides by a file that is not in force. Exit code 6 if it is denied.",
		Example: `  lmosd trust why anyone invoke weather/getWeather
  lmosd trust why globex/logistics invoke quote/price --input '{"amount":500}'
  lmosd trust why globex read weather --with new-policy.yaml`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd policy show"),
		Args:        cli.Takes(2, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := api.WhyRequest{Who: args[0], Op: args[1]}
			if len(args) > 2 {
				q.On = args[2]
			}
			return a.why(cmd.Context(), q, data, with)
		},
	}
	cmd.Flags().StringVar(&data, "input", "", "`JSON` input, for rules with a condition")
	cmd.Flags().StringVar(&with, "with", "", "decide by this `FILE` of rules in place of the one in force (dry run)")
	return cmd
}

func (a *app) why(ctx context.Context, q api.WhyRequest, data, with string) error {
	if data != "" {
		if !json.Valid([]byte(data)) {
			return cli.Usage(`for example --input '{"amount":500}'`, "expected JSON after --input")
		}
		q.Input = json.RawMessage(data)
	}
	if with != "" {
		text, err := input.Content(a.Console, with, access.MaxFile)
		if err != nil {
			return err
		}
		q.With = &api.PolicyFile{Name: filepath.Base(with), Text: string(text)}
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	e, err := client.Why(ctx, q)
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: e, Names: []string{decisionOf(e.Right)}, People: func(s *terminal.Screen, _ bool) { explanation(s, e) }})
	if err == nil && !e.Allow {
		a.permit(q, e)
		return cli.SilentError(cli.ExitRefused)
	}
	return err
}

// permit suggests the rule that permits a denied request, if no rule denies it and a rule would help.
func (a *app) permit(q api.WhyRequest, e *api.Explanation) {
	barred := slices.ContainsFunc(e.Principal, func(p api.PrincipalPart) bool { return p.Name == "barred" })
	if e.Rule != "" || barred || q.On == "" || q.With != nil {
		return
	}
	to, on := q.Op, q.On
	if e.Code == interact.NotFound.String() {
		to, on = "find,"+to, e.Thing // a rule for an affordance does not let find its agent
	}
	a.Next("lmosd policy allow " + terminal.Shell(q.Who) + " --to " + to + " --on " + terminal.Shell(on))
}

// explanation prints a decision for people.
func explanation(s *terminal.Screen, e *api.Explanation) {
	verdict, color := "denied", terminal.Red
	if e.Allow {
		verdict, color = "allowed", terminal.Green
	}
	s.Line(s.Paint(color, verdict) + ": " + terminal.OneLine(render.Join(" ", shortCaller(e.Who), e.Op, onOf(e.Right))))
	rows := &terminal.Sheet{}
	rows.Add("why", e.Why)
	if e.Rule != "" {
		rows.Add("rule", strings.TrimSpace(e.Rule+" "+e.Text))
	}
	if e.Conditional {
		rows.Add("condition", "a rule with a condition concerns it: another input or another time may change the decision")
	}
	if e.Code != "" {
		rows.Add("error", e.Code)
	}
	if e.With != "" {
		rows.Add("rules of", e.With+", which is not in force")
	}
	for _, p := range e.Principal {
		rows.Add(p.Name, p.Value+" ("+p.From+")")
	}
	rows.Write(s)
}

// refusalHint returns what the operator can do about a refused message, for the log of the node.
func refusalHint(r policy.Refusal) string {
	on := access.NameOf(r.Request.Target)
	switch {
	case strings.Contains(r.Decision.Rule, ".cedar:") || r.Who.Barred != "":
		return ""
	case r.Decision.Rule != "":
		return "lmosd policy rm " + terminal.Shell(r.Decision.Rule)
	}
	who, to := r.Who.Base(), string(r.Request.Op)
	switch {
	case r.Who.Via == did.Token && r.Who.Name != "":
		who = "token:" + r.Who.Name
	case r.Who.Via == did.OIDC && r.Who.Name != "":
		who = r.Who.Name
	case r.Who.Node == "":
		who = r.Who.Relation.String()
	}
	if r.Hidden {
		to = "find," + to
	}
	hint := "lmosd policy allow " + terminal.Shell(who) + " --to " + to + " --on " + terminal.Shell(on)
	if r.Who.Relation == did.Untrusted {
		hint += ", or for all: lmosd expose … --for anyone"
	}
	return hint
}
