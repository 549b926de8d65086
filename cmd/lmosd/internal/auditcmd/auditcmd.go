// Package auditcmd implements lmosd audit: it lists, follows and verifies the audit log in the data directory, without the node.
package auditcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/keys"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
)

// NewCommand returns lmosd audit.
func NewCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "list, follow or verify the log of decisions and changes",
		Long: "The node records denied requests, and changes of trust, policy and tokens, in the folder audit of its data\n" +
			"directory; trust.audit.level selects which allowed requests it records as well. The commands read the files: no\n" +
			"node needs to run.",
		Example: `  lmosd audit ls --denied
  lmosd audit verify`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd config describe"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLs(c), newTail(c), newVerify(c))
	return cmd
}

func newLs(c *cli.Console) *cobra.Command {
	var f filter
	var limit int
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list recorded decisions and changes",
		Long:    "Lists recorded decisions and changes, the newest last. Equal decisions of one second are one line with their number.",
		Example: `  lmosd audit ls
  lmosd audit ls --denied --since 24h
  lmosd audit ls --who acme --code 1403 -o jsonl`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(0, 0),
		RunE:        func(*cobra.Command, []string) error { return list(c, f, limit) },
	}
	f.add(cmd)
	cmd.Flags().DurationVar(&f.since, "since", 0, "only the lines of the last `DURATION`, for example 24h")
	cmd.Flags().IntVar(&limit, "limit", 100, "the newest `N` lines; 0: all")
	return cmd
}

func newTail(c *cli.Console) *cobra.Command {
	var f filter
	var limit int
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "print decisions and changes as they are recorded",
		Long:  "Prints the newest decisions and changes, and then further ones as they are recorded, until Ctrl-C or --timeout.",
		Example: `  lmosd audit tail --denied
  lmosd audit tail --thing weather --limit 0 -o jsonl`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(0, 0),
		RunE:        func(cmd *cobra.Command, _ []string) error { return follow(cmd.Context(), c, f, limit, timeout) },
	}
	f.add(cmd)
	cmd.Flags().IntVar(&limit, "limit", 10, "begin with the newest `N` lines")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "end after this time")
	return cmd
}

func newVerify(c *cli.Console) *cobra.Command {
	var keys, heads []string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "check that no line was changed or removed",
		Long: "Checks the hashes of all lines and the signatures of the checkpoints with the key of the node. If the node runs, it\n" +
			"asks the connected members of its organization for the checkpoints of this log that they keep: these show whether\n" +
			"lines at the end are missing, or the log was changed and signed again. --head compares with a head that was noted\n" +
			"elsewhere. Damage is LMOS-3023, exit code 6.",
		Example: `  lmosd audit verify
  lmosd audit verify --jq '.chains[0].head'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd id"),
		Args:        cli.Takes(0, 0),
		RunE:        func(cmd *cobra.Command, _ []string) error { return verify(cmd.Context(), c, keys, heads) },
	}
	cmd.Flags().StringArrayVar(&keys, "key", nil, "accept checkpoints of this `DID` (default: the key in the data directory); can be repeated")
	cmd.Flags().StringArrayVar(&heads, "head", nil, "compare with the head `N:HASH` of the first chain; can be repeated")
	return cmd
}

// A filter has the flags that select lines.
type filter struct {
	audit.Filter
	denied bool
	since  time.Duration
}

// add defines the flags of f.
func (f *filter) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Who, "who", "", "only callers or organizations whose id contains `TEXT`")
	flags.StringVar(&f.Thing, "thing", "", "only agents whose reference contains `TEXT`")
	flags.StringVar(&f.Code, "code", "", "only the error `CODE`, for example 1403")
	flags.BoolVar(&f.denied, "denied", false, "only denied requests")
	flags.BoolVar(&f.All, "all", false, "also the lines of the log itself: first lines of files, and checkpoints")
}

// check completes the flags.
func (f *filter) check(limit int) error {
	if f.since < 0 || limit < 0 {
		return cli.Usage("for example --since 24h --limit 100", "--since and --limit cannot be negative")
	}
	if f.since > 0 {
		f.Since = time.Now().Add(-f.since)
	}
	if f.denied {
		f.Verdict = "deny"
	}
	if f.Code == "" {
		return nil
	}
	full := "LMOS-" + strings.TrimPrefix(strings.ToUpper(f.Code), "LMOS-")
	if _, ok := interact.ParseCode(full); !ok {
		return cli.Usage("", "no error has the code %q", f.Code).Then(cli.StepCommand, "lmosd errors ls")
	}
	f.Code = full
	return nil
}

// dirOf returns the folder of the log.
func dirOf(c *cli.Console) (string, error) {
	conf, err := configcmd.Load(c, nil)
	if err != nil {
		return "", err
	}
	return conf.AuditDir(), nil
}

func list(c *cli.Console, f filter, limit int) error {
	if err := f.check(limit); err != nil {
		return err
	}
	dir, err := dirOf(c)
	if err != nil {
		return err
	}
	r := audit.NewReader(dir)
	lines, err := r.Select(f.Filter, limit)
	if err != nil {
		return err
	}
	unreadable(c, r)
	if len(lines) == 0 {
		c.Note("no line in %s matches", dir)
	}
	return c.Show(cli.View{Doc: cli.List[audit.Line]{Head: cli.NewHead("AuditLineList"), Items: lines}, Names: cli.Each(lines, id),
		People: func(s *terminal.Screen, wide bool) { table(lines, wide).Write(s) }})
}

func id(l audit.Line) string { return l.ID() }

// unreadable warns of lines that were skipped.
func unreadable(c *cli.Console, r *audit.Reader) {
	if r.Unreadable > 0 {
		c.Warn(terminal.Count(r.Unreadable, "line", "lines") + " cannot be read: lmosd audit verify")
		r.Unreadable = 0
	}
}

// table returns the table of lines.
func table(lines []audit.Line, wide bool) *terminal.Table {
	return terminal.TableOf(lines, wide, []terminal.Column[audit.Line]{
		{Name: "TIME", Keep: true, Cell: func(l audit.Line) terminal.Cell {
			return terminal.Short(l.Time.Local().Format(shortTime), l.Time.Format(time.RFC3339Nano))
		}},
		{Name: "EVENT", Keep: true, Cell: terminal.TextOf(event)},
		{Name: "WHO", Cell: func(l audit.Line) terminal.Cell { return terminal.Short(short(l.Who), l.Who) }},
		{Name: "OP", Keep: true, Cell: terminal.TextOf(func(l audit.Line) string { return l.Op })},
		{Name: "SUBJECT", Cell: func(l audit.Line) terminal.Cell { return terminal.Short(shortSubject(l), subject(l)) }},
		{Name: "CODE", Keep: true, Cell: func(l audit.Line) terminal.Cell { return terminal.Short(strings.TrimPrefix(l.Code, "LMOS-"), l.Code) }},
		{Name: "TIMES", Keep: true, Cell: terminal.TextOf(times)},
		{Name: "ORGANIZATION", Wide: true, Cell: terminal.TextOf(func(l audit.Line) string { return string(l.Org) })},
		{Name: "RULE", Wide: true, Cell: terminal.TextOf(func(l audit.Line) string { return l.Rule })},
		{Name: "TRACE", Wide: true, Cell: terminal.TextOf(func(l audit.Line) string { return l.Trace })},
	})
}

// shortTime is the form of a time in a table.
const shortTime = "01-02 15:04:05"

// event returns the verdict of a decision, or the event.
func event(l audit.Line) string { return cmp.Or(l.Event, l.Verdict) }

// subject returns the Thing and the affordance of a decision, or the detail of another event.
func subject(l audit.Line) string {
	switch {
	case l.Broken != "":
		return "the log was damaged: " + l.Broken
	case l.Detail != "":
		return l.Detail
	case l.Name != "":
		return l.Thing + "/" + l.Name
	}
	return l.Thing
}

// shortSubject is subject with the name of the Thing in place of its id, which contains the DID of the node.
func shortSubject(l audit.Line) string {
	if strings.HasPrefix(l.Thing, "urn:lmos:did:key:") {
		l.Thing = l.Thing[strings.LastIndexByte(l.Thing, ':')+1:]
	}
	return subject(l)
}

func times(l audit.Line) string {
	if l.Times == 0 {
		return ""
	}
	return strconv.FormatUint(l.Times, 10)
}

// shortName limits the name of a consumer: that of a partner is a pseudonym of 22 characters.
const shortName = 10

// short returns the short form of the id of a caller.
func short(who string) string {
	base, name, named := strings.Cut(who, "#")
	if strings.HasPrefix(base, "did:") {
		base = did.DID(base).Short()
	}
	if named {
		base += "#" + interact.Excerpt(name, shortName)
	}
	return base
}

// pollEvery is the interval at which tail reads the files.
const pollEvery = 250 * time.Millisecond

// A document is a line as lmosd audit tail prints it.
type document struct {
	cli.Head
	audit.Line
}

func follow(ctx context.Context, c *cli.Console, f filter, limit int, timeout time.Duration) error {
	if err := f.check(limit); err != nil {
		return err
	}
	if timeout < 0 {
		return cli.Usage("for example --timeout 1m", "--timeout cannot be negative")
	}
	dir, err := dirOf(c)
	if err != nil {
		return err
	}
	wait, cancel := context.WithCancel(ctx)
	if timeout > 0 {
		wait, cancel = context.WithTimeout(ctx, timeout)
	}
	defer cancel()
	if c.ForPeople() && !c.Out.TTY {
		c.Out.Line("TIME\tEVENT\tWHO\tOP\tSUBJECT\tCODE\tTIMES")
	}
	r := audit.NewReader(dir)
	lines, err := r.Select(f.Filter, max(limit, 1))
	if limit == 0 {
		lines = nil
	}
	for err == nil {
		unreadable(c, r)
		for _, l := range lines {
			if err := c.ShowNext(cli.View{Doc: document{cli.NewHead("AuditLine"), l}, Names: []string{l.ID()}, People: people(l)}); err != nil {
				return err
			}
		}
		if backoff.Sleep(wait, pollEvery) != nil {
			break
		}
		lines, err = r.Select(f.Filter, 0)
	}
	if ctx.Err() != nil {
		return cli.SilentError(cli.ExitInterrupted)
	}
	return err
}

// people prints a line for people.
func people(l audit.Line) func(*terminal.Screen, bool) {
	return func(s *terminal.Screen, _ bool) {
		if !s.TTY {
			cells := []string{l.Time.Format(time.RFC3339Nano), event(l), l.Who, l.Op, subject(l), l.Code, times(l)}
			for i, text := range cells {
				cells[i] = terminal.OneLine(text)
			}
			s.Line(strings.Join(cells, "\t"))
			return
		}
		color := terminal.Bold
		if l.Verdict == "deny" || l.Broken != "" {
			color = terminal.Red
		}
		parts := []string{s.Paint(terminal.Dim, l.Time.Local().Format(time.TimeOnly)), s.Paint(color, event(l))}
		for _, text := range []string{short(l.Who), l.Op, shortSubject(l), l.Code} {
			if text != "" {
				parts = append(parts, terminal.OneLine(text))
			}
		}
		if l.Times > 1 {
			parts = append(parts, "×"+times(l))
		}
		s.Line(strings.Join(parts, "  "))
	}
}

// A verification is the document of lmosd audit verify.
type verification struct {
	cli.Head
	Dir      string    `json:"dir"`
	Keys     []did.DID `json:"keys"`
	Verified bool      `json:"verified"`
	*audit.Report
	Members members `json:"members"`
}

func verify(ctx context.Context, c *cli.Console, signers, heads []string) error {
	conf, err := configcmd.Load(c, nil)
	if err != nil {
		return err
	}
	dir := conf.AuditDir()
	check := audit.Check{}
	if check.Keys, err = keysOf(ctx, c, conf, signers); err != nil {
		return err
	}
	for _, text := range heads {
		number, hash, _ := strings.Cut(text, ":")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || n == 0 || hash == "" {
			return cli.Usage("as lmosd audit verify prints it", "expected --head N:HASH, got %q", text)
		}
		check.Heads = append(check.Heads, audit.Head{N: n, Hash: hash})
	}
	asked := askMembers(ctx, conf.Socket(), check.Keys)
	check.Members = asked.heads()
	report, err := audit.Verify(dir, check)
	var damage *interact.Error
	if err != nil && (!errors.As(err, &damage) || len(report.Problems) == 0) {
		return err
	}
	v := verification{cli.NewHead("AuditVerification"), dir, check.Keys, err == nil, report, asked}
	if shown := c.Show(cli.View{Doc: v, Names: names(report), People: v.people}); shown != nil {
		return shown
	}
	if err != nil && c.Programs() {
		return cli.SilentError(cli.ExitOf(damage.Code)) // the document has the problems
	}
	return err
}

// names returns the places of the problems.
func names(r *audit.Report) []string {
	return cli.Each(r.Problems, func(p audit.Problem) string { return p.File + ":" + strconv.Itoa(p.Line) })
}

// keysOf returns the accepted signers: those of the flags, else the key of the node.
func keysOf(ctx context.Context, c *cli.Console, conf *configs.Config, given []string) (accepted []did.DID, err error) {
	for _, text := range given {
		id, err := did.Parse(text)
		if err != nil {
			return nil, cli.Usage("", "%q is not a DID: %v", text, err).Then(interact.StepID)
		}
		accepted = append(accepted, id)
	}
	if len(accepted) > 0 {
		return accepted, nil
	}
	key, err := keys.Existing(ctx, c, conf)
	if errors.Is(err, keys.ErrNoKey) {
		file, _ := conf.KeyFile()
		return nil, cli.Usage("name the DID of the node with --key", "there is no key in %s", file)
	}
	if err != nil {
		return nil, err
	}
	return []did.DID{key.DID()}, nil
}

// people prints the chains and the problems.
func (v verification) people(s *terminal.Screen, _ bool) {
	for _, c := range v.Chains {
		signed := "not signed yet"
		if c.Signed > 0 {
			signed = fmt.Sprintf("signed up to line %d at %s", c.Signed, c.SignedAt.Local().Format(time.DateTime))
		}
		mark := s.Paint(terminal.Green, "✓")
		for _, p := range v.Problems {
			if strings.HasPrefix(p.File, "denied-") == (c.Chain == "denied") {
				mark = s.Paint(terminal.Red, "✗")
			}
		}
		s.Item("  "+mark+" "+fmt.Sprintf("%-7s", c.Chain), 11, fmt.Sprintf("%s, %s, %s, head %d:%s", terminal.Count(c.Files, "file", "files"),
			terminal.Count(int(c.Lines), "line", "lines"), signed, c.Head.N, c.Head.Hash))
	}
	v.Members.people(s, v.Verified)
	for _, p := range v.Problems {
		s.Item("  "+s.Paint(terminal.Red, "✗")+" ", 4, p.String())
	}
}
