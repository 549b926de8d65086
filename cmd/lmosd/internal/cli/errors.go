package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
)

// Exit codes (`lmosd help exit-codes`). [ExitOf] maps error codes to them.
const (
	exitOK          = 0
	ExitInternal    = 1
	ExitUsage       = 2
	ExitNoNode      = 3
	ExitNotFound    = 4
	ExitAgent       = 5
	ExitRefused     = 6
	ExitTimeout     = 7
	ExitConflict    = 8
	ExitUnavailable = 9
	ExitAsks        = 10
	ExitInterrupted = 130
)

// exits is the table of exit codes.
var exits = map[interact.Code]int{
	interact.Invalid:           ExitUsage,
	interact.Unauthenticated:   ExitRefused,
	interact.Forbidden:         ExitRefused,
	interact.NotFound:          ExitNotFound,
	interact.NoAffordance:      ExitNotFound,
	interact.NotAllowed:        ExitUsage,
	interact.Ambiguous:         ExitUsage,
	interact.NoPeer:            ExitNotFound,
	interact.NoTask:            ExitNotFound,
	interact.Withdrawn:         ExitNotFound,
	interact.TooLarge:          ExitUsage,
	interact.UnsupportedType:   ExitUsage,
	interact.ClockSkew:         ExitRefused,
	interact.CredentialInvalid: ExitRefused,
	interact.CredentialExpired: ExitRefused,
	interact.CredentialRevoked: ExitRefused,
	interact.DelegationInvalid: ExitRefused,
	interact.GroupDissolved:    ExitRefused,
	interact.NotMember:         ExitRefused,
	interact.GroupSplit:        ExitRefused,
	interact.StatusUnknown:     ExitUnavailable,
	interact.IssuerUntrusted:   ExitRefused,
	interact.InputNeeded:       ExitAsks,
	interact.RateLimited:       ExitUnavailable,
	interact.BadSignature:      ExitRefused,
	interact.Expired:           ExitRefused,
	interact.SenderMismatch:    ExitRefused,
	interact.RolledBack:        ExitRefused,
	interact.Loop:              ExitAgent,
	interact.Cancelled:         ExitInterrupted,
	interact.Internal:          ExitInternal,
	interact.AgentFailed:       ExitAgent,
	interact.Unreachable:       ExitTimeout,
	interact.Timeout:           ExitTimeout,
	interact.Overloaded:        ExitUnavailable,
	interact.RelayLimited:      ExitUnavailable,
	interact.Usage:             ExitUsage,
	interact.ConfigUnknown:     ExitUsage,
	interact.ConfigInvalid:     ExitUsage,
	interact.ConfigFile:        ExitUsage,
	interact.InlineSecret:      ExitUsage,
	interact.WildcardBind:      ExitUsage,
	interact.InvalidInvite:     ExitUsage,
	interact.PolicyInvalid:     ExitUsage,
	interact.NotJSON:           ExitUsage,
	interact.BadTD:             ExitUsage,
	interact.NotRunning:        ExitNoNode,
	interact.NodeLost:          ExitNoNode,
	interact.TokenRejected:     ExitRefused,
	interact.PortBusy:          ExitConflict,
	interact.DataDirLocked:     ExitConflict,
	interact.KeyPermissions:    ExitRefused,
	interact.StoreCorrupt:      ExitInternal,
	interact.DiskFull:          ExitUnavailable,
	interact.StoreTooNew:       ExitInternal,
	interact.ShuttingDown:      ExitUnavailable,
	interact.NotReady:          ExitUnavailable,
	interact.KeystoreLocked:    ExitRefused,
	interact.AuditBroken:       ExitRefused,
}

// ExitOf returns the exit code of c; never 0.
func ExitOf(c interact.Code) int {
	if exit, ok := exits[c]; ok {
		return exit
	}
	return ExitInternal
}

// A SilentError ends the program with a code, after all results were printed as data.
type SilentError int

// Error implements error, for logs.
func (e SilentError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// Fail prints err, which ends the program: in lines for people, or as one line of JSON. It returns the exit code, never 0.
func (c *Console) Fail(err error, asJSON bool) int {
	var silent SilentError
	if errors.As(err, &silent) {
		return int(silent)
	}
	e := complete(err)
	e.Hint, e.Next = c.Advice(e.Hint, e.Next, e.Remote), nil
	if asJSON {
		c.Talk.Line(string(problemOf(e)))
	} else {
		c.people(e)
	}
	return ExitOf(e.Code)
}

// Reason returns err without the path, for texts that contain the path.
func Reason(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// complete returns err with a title and a hint.
func complete(err error) *interact.Error {
	e := *interact.AsError(err)
	switch {
	case e.Code == interact.Cancelled && e.Title == "":
		e.Title, e.Err, e.Hint = "interrupted", nil, "run it again"
	case e.Code == interact.Internal && e.Title == "" && e.Err != nil:
		e.Title, e.Err = e.Err.Error(), nil // the only information
	}
	if e.Hint == "" && len(e.Next) == 0 {
		e.Hint = "lmosd errors explain " + e.Code.String()
	}
	return &e
}

// people prints three lines: what happened with the code at the right, why, and what to do.
func (c *Console) people(e *interact.Error) {
	title := e.Title
	if title == "" {
		title = e.Code.Title()
	}
	c.Talk.Line(c.headline(terminal.OneLine(title), e.Code))
	for line := range strings.Lines(e.Source) {
		c.Talk.Line(strings.TrimRight(terminal.Printable(line), "\n"))
	}
	if e.Err != nil {
		c.Talk.Item("  cause  ", 9, e.Err.Error())
	}
	if len(e.Issues) == 1 && strings.Contains(title, e.Issues[0].String()) {
		e.Issues = nil // the title contains it
	}
	for i, issue := range e.Issues {
		if i == maxIssues {
			c.Talk.Line(fmt.Sprintf("  at     … and %d more places", len(e.Issues)-i))
			break
		}
		c.Talk.Item("  at     ", 9, issue.String())
	}
	c.Talk.Line("  hint   " + terminal.OneLine(e.Hint)) // on one line, so that it can be copied
}

// maxIssues limits the listed issues of an error.
const maxIssues = 20

// headline puts the code at the right margin of a terminal, elsewhere two spaces after the text.
func (c *Console) headline(title string, code interact.Code) string {
	const label = "error: "
	gap := 2
	if c.Talk.TTY {
		gap = max(gap, min(c.Talk.Width, 100)-terminal.Columns(label+title+code.String()))
	}
	return c.Talk.Paint(terminal.Red, label) + title + strings.Repeat(" ", gap) + c.Talk.Paint(terminal.Dim, code.String())
}

// problemOf returns e as one line of JSON: the RFC 9457 problem of the API, in an envelope.
func problemOf(e *interact.Error) []byte {
	type document struct {
		problem.Document
		Cause string `json:"cause,omitempty"`
		Exit  int    `json:"exit"`
	}
	p := document{Document: problem.New(e), Exit: ExitOf(e.Code)}
	p.Detail, p.Instance = cmp.Or(e.Title, p.Title), "" // an instance names one response
	if e.Err != nil {
		p.Cause = e.Err.Error()
	}
	line, err := json.Marshal(struct {
		APIVersion string   `json:"apiVersion"`
		Error      document `json:"error"`
	}{api.APIVersion, p})
	if err != nil {
		panic(err) // strings, numbers and booleans always encode
	}
	return line
}
