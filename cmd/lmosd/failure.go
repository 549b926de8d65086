package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/mattn/go-runewidth"

	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest"
	"github.com/lmosd/lmosd/td"
)

// Exit codes (`lmosd help exit-codes`).
const (
	exitOK          = 0
	exitInternal    = 1
	exitUsage       = 2
	exitNoNode      = 3
	exitNotFound    = 4
	exitAgent       = 5
	exitRefused     = 6
	exitTimeout     = 7
	exitConflict    = 8
	exitUnavailable = 9
	exitInterrupted = 130
)

// exits is the one table from the catalogue to exit codes.
var exits = map[interact.Code]int{
	interact.Invalid:         exitUsage,
	interact.Unauthenticated: exitRefused,
	interact.Forbidden:       exitRefused,
	interact.NotFound:        exitNotFound,
	interact.NoAffordance:    exitNotFound,
	interact.NotAllowed:      exitUsage,
	interact.Ambiguous:       exitUsage,
	interact.NoPeer:          exitNotFound,
	interact.NoTask:          exitNotFound,
	interact.Withdrawn:       exitNotFound,
	interact.TooLarge:        exitUsage,
	interact.UnsupportedType: exitUsage,
	interact.RateLimited:     exitUnavailable,
	interact.BadSignature:    exitRefused,
	interact.Expired:         exitRefused,
	interact.SenderMismatch:  exitRefused,
	interact.RolledBack:      exitRefused,
	interact.Loop:            exitAgent,
	interact.Cancelled:       exitInterrupted,
	interact.Internal:        exitInternal,
	interact.AgentFailed:     exitAgent,
	interact.Unreachable:     exitTimeout,
	interact.Timeout:         exitTimeout,
	interact.Overloaded:      exitUnavailable,
	interact.Usage:           exitUsage,
	interact.ConfigUnknown:   exitUsage,
	interact.ConfigInvalid:   exitUsage,
	interact.ConfigFile:      exitUsage,
	interact.InlineSecret:    exitUsage,
	interact.WildcardBind:    exitUsage,
	interact.NotJSON:         exitUsage,
	interact.BadTD:           exitUsage,
	interact.NotRunning:      exitNoNode,
	interact.NodeLost:        exitNoNode,
	interact.TokenRejected:   exitRefused,
	interact.PortBusy:        exitConflict,
	interact.DataDirLocked:   exitConflict,
	interact.KeyPermissions:  exitRefused,
	interact.StoreCorrupt:    exitInternal,
	interact.DiskFull:        exitUnavailable,
	interact.ShuttingDown:    exitUnavailable,
	interact.NotReady:        exitUnavailable,
}

// exitOf returns the exit code of c; never 0.
func exitOf(c interact.Code) int {
	if exit, ok := exits[c]; ok {
		return exit
	}
	return exitInternal
}

// A silentError ends the program with a code when everything that can be said was printed as data.
type silentError int

func (e silentError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// fail prints err and returns the exit code.
func (a *app) fail(err error, asJSON bool) int {
	var silent silentError
	if errors.As(err, &silent) {
		return int(silent)
	}
	e := a.complete(err)
	if asJSON {
		a.talk.line(string(problemOf(e)))
	} else {
		a.people(e, excerptOf(err))
	}
	return exitOf(e.Code)
}

// complete returns err with what only the command line knows: who holds the data folder, and a hint in any case.
func (a *app) complete(err error) *interact.Error {
	e := *interact.AsError(err)
	switch {
	case e.Code == interact.NotRunning && a.target.dataDir != "":
		e.Err, e.Hint = errors.New(a.target.holder()), a.startLine()
	case e.Code == interact.Cancelled && e.Title == "":
		e.Title, e.Err, e.Hint = "interrupted", nil, "run it again"
	case e.Code == interact.Internal && e.Title == "" && e.Err != nil:
		e.Title, e.Err = e.Err.Error(), nil // nobody knows more about it
	}
	if e.Hint == "" {
		e.Hint = "lmosd errors explain " + e.Code.String()
	}
	return &e
}

// excerptOf returns the lines of a configuration file that err is about.
func excerptOf(err error) string {
	var c *configs.Error
	if !errors.As(err, &c) {
		return ""
	}
	return c.Problems[0].Source
}

// people prints three lines: what happened with the code at the right, why, and what to do.
func (a *app) people(e *interact.Error, excerpt string) {
	title := e.Title
	if title == "" {
		title = e.Code.Title()
	}
	a.talk.line(a.headline(oneLine(title), e.Code))
	for line := range strings.Lines(excerpt) {
		a.talk.line(strings.TrimRight(printable(line), "\n"))
	}
	if e.Err != nil {
		a.talk.item("  cause  ", 9, e.Err.Error())
	}
	if len(e.Issues) == 1 && strings.Contains(title, place(e.Issues[0])) {
		e.Issues = nil // the title says it
	}
	for i, issue := range e.Issues {
		if i == maxIssues {
			a.talk.line(fmt.Sprintf("  at     … and %d more places", len(e.Issues)-i))
			break
		}
		a.talk.item("  at     ", 9, place(issue))
	}
	a.talk.line("  hint   " + oneLine(e.Hint)) // on one line, so that it can be copied
}

// maxIssues is how many places of an input an error lists.
const maxIssues = 20

func place(i td.Issue) string {
	if i.Pointer == "" {
		return i.Reason // of the whole document
	}
	return i.Pointer + ": " + i.Reason
}

// headline puts the code at the right margin of a terminal, and two spaces behind the text elsewhere.
func (a *app) headline(title string, c interact.Code) string {
	const label = "error: "
	gap := 2
	if a.talk.tty {
		gap = max(gap, min(a.talk.width, 100)-runewidth.StringWidth(label+title+c.String()))
	}
	return a.talk.paint(red, label) + title + strings.Repeat(" ", gap) + a.talk.paint(dim, c.String())
}

// problemOf returns e as one line of JSON: the problem of RFC 9457 that the API gives, in an envelope.
func problemOf(e *interact.Error) []byte {
	type problem struct {
		Type      string     `json:"type"`
		Code      string     `json:"code"`
		Title     string     `json:"title"`
		Status    int        `json:"status"`
		Detail    string     `json:"detail"`
		Cause     string     `json:"cause,omitempty"`
		Hint      string     `json:"hint"`
		Retryable bool       `json:"retryable"`
		Remote    bool       `json:"remote"`
		Exit      int        `json:"exit"`
		Issues    []td.Issue `json:"validationErrors,omitempty"`
	}
	p := problem{Type: "urn:lmosd:error:" + e.Code.Slug(), Code: e.Code.String(), Title: e.Code.Title(), Status: rest.StatusOf(e.Code),
		Detail: e.Title, Hint: e.Hint, Retryable: e.Code.Retryable(), Remote: e.Remote, Exit: exitOf(e.Code), Issues: e.Issues}
	if p.Detail == "" {
		p.Detail = p.Title
	}
	if e.Err != nil {
		p.Cause = e.Err.Error()
	}
	line, err := json.Marshal(struct {
		APIVersion string  `json:"apiVersion"`
		Error      problem `json:"error"`
	}{gateway.APIVersion, p})
	if err != nil {
		panic(err) // strings, numbers and bools have always a JSON form
	}
	return line
}
