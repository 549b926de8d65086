// Package errcatalog implements lmosd errors: it lists and explains error codes.
package errcatalog

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
)

// NewCommand returns `lmosd errors`.
func NewCommand(c *cli.Console) *cobra.Command {
	a := &app{c}
	cmd := &cobra.Command{
		Use:   "errors",
		Short: "list the error codes, or explain one",
		Long: "Lists and explains the error codes that commands, API and logs show, as LMOS-1404, and the warnings of lmosd status,\n" +
			"as LMOS-W020.",
		Example: `  lmosd errors ls
  lmosd errors explain LMOS-1404`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd help exit-codes"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newErrorsListCommand(a), newErrorsExplainCommand(a))
	return cmd
}

func newErrorsListCommand(a *app) *cobra.Command {
	var warnings bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "list every error code",
		Long:  "Lists every error code with its exit code and HTTP status, and whether a retry may succeed.",
		Example: `  lmosd errors ls
  lmosd errors ls --warnings
  lmosd errors ls --jq '.items[] | select(.retryable) | .code'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if warnings {
				return a.listWarnings()
			}
			return a.listErrors()
		},
	}
	cmd.Flags().BoolVar(&warnings, "warnings", false, "list the warnings of a node instead")
	return cmd
}

func newErrorsExplainCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "explain <code>",
		Short: "explain an error code or a warning",
		Long:  "Explains an error code or a warning: its meaning, its usual causes and the remedies. The prefix LMOS- is optional.",
		Example: `  lmosd errors explain LMOS-1404
  lmosd errors explain W020`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(1, 1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, e := range errorCodes() {
				names = append(names, e.Code+"\t"+e.Title)
			}
			for _, w := range warningCodes() {
				names = append(names, w.Code+"\t"+w.Slug)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.explainError(args[0]) },
	}
}

// An app is one execution of the command.
type app struct{ *cli.Console }

// An errorCode is one entry of the catalogue.
type errorCode struct {
	Code      string `json:"code"`
	Slug      string `json:"slug"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Exit      int    `json:"exit"`
	Retryable bool   `json:"retryable"`
	Meaning   string `json:"meaning"`
	Remedy    string `json:"remedy"`
}

func entry(c interact.Code) errorCode {
	return errorCode{Code: c.String(), Slug: c.Slug(), Title: c.Title(), Status: problem.Status(c), Exit: cli.ExitOf(c),
		Retryable: c.Retryable(), Meaning: explanations[c].meaning, Remedy: explanations[c].remedy}
}

func errorCodes() []errorCode {
	var list []errorCode
	for _, c := range slices.Sorted(slices.Values(interact.Codes())) {
		list = append(list, entry(c))
	}
	return list
}

func (a *app) listErrors() error {
	list := errorCodes()
	t := terminal.TableOf(list, false, []terminal.Column[errorCode]{
		{Name: "CODE", Keep: true, Cell: terminal.TextOf(func(e errorCode) string { return e.Code })},
		{Name: "EXIT", Keep: true, Cell: terminal.TextOf(func(e errorCode) string { return strconv.Itoa(e.Exit) })},
		{Name: "HTTP", Keep: true, Cell: terminal.TextOf(func(e errorCode) string { return strconv.Itoa(e.Status) })},
		{Name: "RETRY", Keep: true, Cell: terminal.TextOf(func(e errorCode) string {
			if e.Retryable {
				return "yes"
			}
			return "no"
		})},
		{Name: "NAME", Keep: true, Cell: terminal.TextOf(func(e errorCode) string { return e.Slug })},
		{Name: "MEANING", Cell: terminal.TextOf(func(e errorCode) string { return e.Meaning })},
	})
	return a.Show(cli.View{Doc: cli.List[errorCode]{Head: cli.NewHead("ErrorCodeList"), Items: list},
		Names: cli.Each(list, func(e errorCode) string { return e.Code }), People: cli.Body(t)})
}

func (a *app) explainError(name string) error {
	e, err := lookUp(name)
	if err != nil {
		if found, err := a.explainWarning(name); found {
			return err
		}
		return err
	}
	doc := struct {
		cli.Head
		errorCode
	}{cli.NewHead("ErrorCode"), e}
	s := &terminal.Sheet{}
	s.Add("code", e.Code+"  "+e.Slug)
	s.Add("meaning", e.Meaning)
	s.Add("remedy", e.Remedy)
	s.Add("exit", strconv.Itoa(e.Exit))
	s.Add("http", strconv.Itoa(e.Status))
	if e.Retryable {
		s.Add("retry", "the same may succeed later")
	}
	return a.Show(cli.View{Doc: doc, Names: []string{e.Code}, People: cli.Body(s)})
}

// lookUp finds a code by number or slug.
func lookUp(name string) (errorCode, error) {
	digits := strings.TrimPrefix(strings.ToUpper(name), "LMOS-")
	var near []string
	for _, e := range errorCodes() {
		if e.Slug == name || e.Code == "LMOS-"+digits {
			return e, nil
		}
		near = append(near, e.Code, e.Slug)
	}
	for _, w := range warningCodes() {
		near = append(near, w.Code, w.Slug)
	}
	return errorCode{}, cli.Similar(cli.Usage("", "no error has the code %q", name), name, near, "lmosd errors ls")
}

// An explanation is the meaning and the remedy of a code.
type explanation struct{ meaning, remedy string }

// explanations has an entry for every code.
var explanations = map[interact.Code]explanation{
	interact.Invalid: {"The input does not fit the schema of the agent, or the message is ill-formed.",
		"lmosd show AGENT lists what an action takes"},
	interact.Unauthenticated: {"The node or the agent requires the identity of the caller.",
		"set LMOSD_TOKEN to the content of api.token, or use the socket; for an agent, add its credentials to credentials.json"},
	interact.Forbidden: {"A policy of the node refused the caller.",
		"ask its operator for an invitation or a rule; there, lmosd trust why DID invoke AGENT names what decides"},
	interact.NotFound: {"No known agent has the name, in the index of the node or in the mesh.",
		"lmosd find WORD; if the coverage is incomplete, look again in a moment"},
	interact.NoAffordance: {"The agent has no property, action or event of that name.", "lmosd show AGENT lists its affordances"},
	interact.NotAllowed:   {"The agent does not offer the operation, for example writing to a read-only property.", "lmosd show AGENT lists the operations"},
	interact.Ambiguous:    {"Several agents have the name.", "add the owner: name@z6Mk…, as lmosd find prints it"},
	interact.NoPeer:       {"No such node is known or connected.", "lmosd peers"},
	interact.NoTask:       {"No action with that id runs, or its result has expired.", "call the action again"},
	interact.Withdrawn:    {"The owner has withdrawn the agent.", "lmosd find for another one"},
	interact.TooLarge:     {"A description, input or answer is larger than its limit.", "send or request less; a description may have 128 KiB, a call 4 MiB"},
	interact.UnsupportedType: {"The agent does not support the content type.",
		"lmosd show AGENT --td shows contentType in its forms"},
	interact.CredentialInvalid: {"The credential of a member of an organization, or of a foreign issuer, is not valid.",
		"issue it again: lmosd org renew; a foreign issuer makes a new one"},
	interact.CredentialExpired: {"The credential of a member of an organization has expired.", "connect the member to an issuer of its organization, and compare the clocks"},
	interact.CredentialRevoked: {"The organization revoked the member.", "ask the operator of the organization"},
	interact.DelegationInvalid: {"The delegation does not permit the call: it is for another host, Thing or caller, has ended, or its delegator has lost the right.", "compare its terms with lmosd delegate ls, or ask the delegator for a new one"},
	interact.GroupDissolved:    {"An admin has dissolved the group. Nothing follows its last entry.", "create another group; lmosd group show has the log as the proof"},
	interact.NotMember:         {"The node is not a member of the group, or not any more.", "ask an admin of the group for an invitation"},
	interact.GroupSplit:        {"The log of the group lacks an entry that it should have: another history was shown.", "ask an admin whom you know for a new invitation, and use it"},
	interact.StatusUnknown: {"The node does not know yet whether the member is revoked, because no issuer of the organization confirmed it; or the status of a " +
		"credential is in a list that is not read; or the node cannot check a token, because the identity provider cannot be reached.",
		"try again; connect the node to an issuer of the organization; lmosd token ls shows the identity providers"},
	interact.IssuerUntrusted: {"The credential is from an organization that is neither the own one nor a partner, or from an issuer that is not in the trust store.",
		"lmosd trust invite makes it a partner; lmosd trust issuer add adds an issuer"},
	interact.ClockSkew:      {"The clock of this node or of a peer is wrong, so that a description or certificate is not valid at this time.", "set the clock: timedatectl set-ntp true; lmosd status shows which one is wrong"},
	interact.InputNeeded:    {"The action requires input before it continues.", "lmosd call prompts on a terminal; elsewhere use --async, and then lmosd task answer"},
	interact.RateLimited:    {"The caller exceeded the rate limit of the node.", "wait, or raise trust.rate on that node"},
	interact.BadSignature:   {"A description or record was changed after it was signed, or signed by another key.", "do not use it; inform its owner"},
	interact.Expired:        {"The validity period of the description has ended.", "its node must announce it again; check that the node runs"},
	interact.SenderMismatch: {"A message claims another sender than the connection proves.", "the sender must use its own key"},
	interact.RolledBack:     {"A description is older than the known one.", "the publisher must use a higher revision; restore its data folder"},
	interact.Loop:           {"A message returned to a node that it had passed, or passed too many nodes.", "look for agents whose forms refer to each other"},
	interact.Cancelled:      {"The caller cancelled the request.", "nothing to do"},
	interact.Internal:       {"An unexpected error occurred in lmosd.", "see the log of the node, and report the error with the steps to reproduce it"},
	interact.AgentFailed:    {"The agent responded with an error.", "the message is that of the agent; contact its owner"},
	interact.Unreachable:    {"The agent is known, but none of its hosts could be reached.", "its node or its server is down or behind a firewall; try again, or lmosd find another one"},
	interact.Timeout:        {"There was no response in time.", "raise --timeout, or check whether the agent is busy"},
	interact.Overloaded: {"A limit of the node is reached: of calls, subscriptions, tasks, queries or connections.",
		"try again; or raise the key that the error names on that node: interact.concurrency, .per_caller, .per_thing or .subscriptions"},
	interact.RelayLimited: {"The host is connected only through a relay, and what is left of the limits of that connection is too little.",
		"try again: the nodes look for a direct connection; or let a node of the organization relay for the host (mesh.relay), whose limits are higher"},
	interact.Usage:          {"The command line is not valid.", "lmosd help COMMAND"},
	interact.ConfigUnknown:  {"The configuration has a key that does not exist.", "lmosd config describe shows every key"},
	interact.ConfigInvalid:  {"A key of the configuration has an invalid value.", "lmosd config describe lists the possible values"},
	interact.ConfigFile:     {"The configuration cannot be read, or is not YAML.", "check path, permissions and syntax: lmosd config validate FILE"},
	interact.InlineSecret:   {"The configuration contains a secret.", "put it into a file of mode 0600 and write file:PATH"},
	interact.WildcardBind:   {"The API would be open to other hosts without authentication.", "set http.auth: token, or listen on this machine only: lmosd config set http.listen 127.0.0.1:4668"},
	interact.PolicyInvalid:  {"The access rules have an error.", "lmosd policy check names the line"},
	interact.InvalidInvite:  {"An invitation is used, expired, altered, of another network or for another node.", "request a new invitation from the organization"},
	interact.NotJSON:        {"A description is not JSON, or has a duplicate member.", "lmosd validate FILE names line and column"},
	interact.BadTD:          {"A description breaks the rules of TD 1.1 or LMOS.", "lmosd validate FILE lists all issues"},
	interact.NotRunning:     {"No node responds at the address that the command uses.", "lmosd run, or name another one with --node"},
	interact.NodeLost:       {"The connection to the node broke before the response was complete.", "lmosd status, and the log of the node"},
	interact.TokenRejected:  {"The token is unknown to the node, expired or revoked.", "set LMOSD_TOKEN to the content of api.token in its data folder, or to an access token: lmosd token create NAME"},
	interact.PortBusy:       {"Another process uses the port that was configured.", "stop it, or choose another with --http.listen or --listen.p2p"},
	interact.DataDirLocked:  {"Another node runs on the data folder.", "stop it, or choose another with --data-dir"},
	interact.KeyPermissions: {"Other users can read the key of the node.", "chmod 600 identity.pem, and 700 for its folder"},
	interact.KeystoreLocked: {"The key of the node is encrypted, and there is no passphrase, or a wrong one.", "run the command on a terminal, or set node.passphrase to fd:N or credential:NAME"},
	interact.StoreCorrupt:   {"The store of the node cannot be read.", "restore a backup, or move the folder store away, and publish again"},
	interact.DiskFull:       {"There is no space, or no permission, to write.", "make space in the data folder"},
	interact.StoreTooNew: {"A newer version of lmosd wrote the data folder, in a format that this version cannot read.",
		"start the newer version again, or a later one; lmosd upgrade check tries a version on a copy of the data folder"},
	interact.AuditBroken: {"A file of the audit log is missing, cut or changed, or a checkpoint in it is not signed by the node.",
		"keep a copy of the folder audit as evidence; the log of another member has the last good head"},
	interact.ShuttingDown: {"The node is shutting down and accepts no new requests.", "try again when it is back"},
	interact.NotReady:     {"The node has started but does not serve yet.", "try again in a moment; lmosd status shows what is missing"},
}
