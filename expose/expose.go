// Package expose turns a command, an OpenAPI document, a self-describing web server or a Thing Description into an agent. The caller
// publishes it: `lmosd expose` attaches it to a node, and a node publishes the agents of its configuration.
package expose

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/command"
	"github.com/lmosd/lmosd/td"
)

// A Spec is a target to expose, with its settings. Target is required:
//
//	exec:COMMAND     a process for each call (package interact/command)
//	openapi:FILE     a web server that an OpenAPI document describes; FILE may be a URL
//	http(s)://…      a web server that has a TD or an OpenAPI document, at this URL or at a well-known path
//	FILE             a Thing Description
//	mcp:COMMAND      an MCP server as a local process; mcp:https://… a remote one
//	a2a:URL          an A2A agent, by its address or that of its card
//	NAME:…           a target of the bridge with this name
type Spec struct {
	Target string
	// Name is the title. Empty means that of the document, or the name of the command's file. A TD has its own name, description and
	// capabilities, so it accepts none of these three.
	Name, Description string
	// Capabilities are added to those of the document.
	Capabilities []string
	// For are callers that may find and call the agent, in addition to those of the access rules (publication.WithCallers).
	For []string
	// Actions are the names of the actions of a command; none means one, "run".
	Actions []string
	// Inputs are inputs of the actions of a command or an OpenAPI document, "[ACTION.]NAME:TYPE": see [parseInput]. A command without one accepts
	// any input. They refine or complete the inputs of a document: see [openapi.Input].
	Inputs []string
	// Delimiter ends a part of a command's output; each part is sent at once. \n, \t, \0 and \\ are escapes. Empty sends the whole output
	// at the end.
	Delimiter string
	// Dir is the folder in which a command runs; empty means the current one.
	Dir string
	// Server replaces the server of an OpenAPI document.
	Server string
	// Env are environment variables of an MCP server, "NAME=value", or "NAME" for that of this process; it inherits few others.
	Env []string
	// Approvals is the file of the approved tool definitions of an MCP server; empty keeps them in memory. Approve approves changed
	// definitions, which are disabled otherwise.
	Approvals string
	Approve   bool
	// Key is the file of the key of the agent; OwnKey uses a file in the data directory, which is made if it is missing. Without either, the node
	// owns the agent. Visibility is that of a TD which states none, of an agent with a key.
	Key        string
	OwnKey     bool
	Visibility string
	// Roles are roles of the node's credential that an agent with a key has when it calls others.
	Roles []string
	// PublishPrivate announces an MCP server to other nodes even if it declares its lists private.
	PublishPrivate bool
}

// An Agent can be published.
type Agent struct {
	// TD is its description; with a Thing it is a draft, see [td.Draft].
	TD []byte
	// Thing handles the interactions; nil if the forms of the TD do.
	Thing interact.Thing
	// Warnings are the parts that could not be converted.
	Warnings []string
	// Changes yields the TD after each change of the agent, until ctx ends; nil if changes are not detected.
	Changes func(ctx context.Context) iter.Seq[[]byte]

	close    func()
	identify func(did.DID)
}

// Identify gives the processes of a command the DID of their agent, which has a key of its own. It is called before the agent is published.
func (a *Agent) Identify(agent did.DID) {
	if a.identify != nil {
		a.identify(agent)
	}
}

// Close stops the processes of the agent and waits for them.
func (a *Agent) Close() {
	if a.close != nil {
		a.close()
	}
}

// Open returns the agent of s, which the caller closes. Web servers are probed at once; processes start with a call. The error is an
// [*interact.Error]: Usage for a wrong target or setting, ConfigInvalid for a wrong command or folder, BadTD, NotJSON and TooLarge for
// documents, Unreachable and AgentFailed for web servers; or it wraps the error of ctx. A nil log discards.
func Open(ctx context.Context, s Spec, bridges []bridge.Bridge, log *slog.Logger) (*Agent, error) {
	kind, rest, found := strings.Cut(s.Target, ":")
	if !found {
		kind, rest = "file", s.Target
	}
	if err := s.check(kind); err != nil {
		return nil, err
	}
	switch kind {
	case "exec":
		return openCommand(s, rest, log)
	case "openapi":
		raw, err := load(ctx, rest)
		if err != nil {
			return nil, err
		}
		return openDocument(s, raw, rest)
	case "http", "https":
		return probe(ctx, s)
	}
	for _, b := range bridges {
		if b.Name() == kind {
			if words := strings.Fields(rest); kind == "mcp" && len(words) > 0 && !strings.Contains(rest, "://") {
				if err := checkProgram(words[0], s.Dir); err != nil {
					return nil, err
				}
			}
			return openBridged(ctx, s, rest, b)
		}
	}
	if kind == "mcp" || kind == "a2a" {
		return nil, interact.Errorf(interact.Usage, "expose it as a command or an HTTP server", "the protocol %s: is not supported", kind).
			Then(interact.StepHelp, "expose")
	}
	raw, err := load(ctx, s.Target)
	if err != nil {
		return nil, err
	}
	if err := s.withoutScheme(raw); err != nil {
		return nil, err
	}
	return openTD(s, raw)
}

// withoutScheme returns an error for a file that is not a Thing Description but another target, which needs its scheme: a program or an
// OpenAPI document. A program is not run without exec:, because a file name alone does not say so.
func (s Spec) withoutScheme(raw []byte) error {
	path := s.Target
	if !strings.ContainsRune(path, '/') {
		path = "./" + path
	}
	info, err := os.Stat(s.Target)
	isProgram := err == nil && info.Mode()&0o111 != 0 || strings.HasPrefix(string(raw), "#!")
	var doc struct {
		OpenAPI string `json:"openapi"`
	}
	switch text := strings.TrimSpace(string(raw)); {
	case strings.HasPrefix(text, "{") && (json.Unmarshal(raw, &doc) != nil || doc.OpenAPI == ""):
		return nil
	case doc.OpenAPI != "", strings.HasPrefix(text, "openapi:"), strings.Contains(text, "\nopenapi:"):
		return interact.Errorf(interact.Usage, "", "%s is an OpenAPI document", s.Target).Then(interact.StepExpose, "openapi:"+s.Target)
	case isProgram && info.Mode()&0o111 == 0:
		return interact.Errorf(interact.Usage, "chmod +x "+interact.Quote(path)+" makes it executable; then", "%s is a program", s.Target).
			Then(interact.StepExpose, s.flagged("exec:"+path)...)
	case isProgram:
		return interact.Errorf(interact.Usage, "", "%s is a program, and not a Thing Description", s.Target).
			Then(interact.StepExpose, s.flagged("exec:"+path)...)
	}
	return nil
}

// flagged returns the arguments of a step that exposes target with the settings of s.
func (s Spec) flagged(target string) []string {
	args := []string{target}
	add := func(name string, values ...string) {
		for _, v := range values {
			args = append(args, name, v)
		}
	}
	Flags(&s, func(to *string, name, _ string) {
		if *to != "" {
			add(name, *to)
		}
	}, func(to *[]string, name, _ string) { add(name, *to...) }, func(*bool, string, string) {})
	if s.OwnKey {
		args = append(args, "own-key")
	}
	return args
}

// check returns an error for a setting that does not apply to a kind of target.
func (s Spec) check(kind string) error {
	if strings.TrimSpace(s.Target) == "" {
		return interact.Errorf(interact.Usage, "", "the target is missing").
			Then(interact.StepExpose, "exec:./agent.sh", "name", "weather")
	}
	if len(s.Roles) > 0 && !s.HasKey() {
		return interact.Errorf(interact.Usage, "give it one, or write access rules for the node", "--role is for an agent with a key of its own")
	}
	if s.Key != "" && s.OwnKey {
		return interact.Errorf(interact.Usage, "give one of them", "--key and --own-key exclude each other")
	}
	if err := s.checkVisibility(); err != nil {
		return err
	}
	for _, setting := range []struct {
		name  string
		given bool
		kinds string
	}{
		{"action", len(s.Actions) > 0, "exec"}, {"input", len(s.Inputs) > 0, "exec openapi http https"}, {"delimiter", s.Delimiter != "", "exec"}, {"dir", s.Dir != "", "exec mcp"},
		{"server", s.Server != "", "openapi http https"},
		{"env", len(s.Env) > 0, "mcp"}, {"approvals", s.Approvals != "", "mcp"}, {"approve", s.Approve, "mcp"},
		{"publish-private", s.PublishPrivate, "mcp"},
	} {
		if setting.given && !strings.Contains(setting.kinds, kind) {
			only := strings.ReplaceAll(strings.TrimSuffix(setting.kinds, " http https"), " ", ": and ")
			return interact.Errorf(interact.Usage, "leave it out", "--%s is for %s: only", setting.name, only)
		}
	}
	return nil
}

// HasKey reports whether the agent has a key of its own.
func (s Spec) HasKey() bool { return s.Key != "" || s.OwnKey }

// Audience returns the visibility of s; public without one.
func (s Spec) Audience() (v td.Visibility, err error) {
	if s.Visibility != "" {
		err = v.UnmarshalText([]byte(s.Visibility))
	}
	return v, err
}

// checkVisibility checks the visibility. The node cannot restrict the TD of an agent with a key, which signs it, to the audience of its callers.
func (s Spec) checkVisibility() error {
	const audiences = "use --visibility with public, partners or organization"
	v, err := s.Audience()
	switch {
	case err != nil, v == td.Private:
		return interact.Errorf(interact.Usage, audiences, "no other node may find an agent with the visibility %q", s.Visibility)
	case s.Visibility != "" && !s.HasKey():
		return interact.Errorf(interact.Usage, "state lmosd:visibility in the description", "--visibility is for an agent with a key of its own")
	case s.HasKey() && len(s.For) > 0 && s.Visibility == "" && !slices.Contains(s.For, "anyone"):
		return interact.Errorf(interact.Usage, audiences, "an agent with a key of its own signs who may find it: --visibility is missing beside --for")
	}
	return nil
}

// openBridged returns the agent of another protocol.
func openBridged(ctx context.Context, s Spec, target string, b bridge.Bridge) (*Agent, error) {
	a, err := b.Import(ctx, target, bridge.Import{Name: s.Name, Description: s.Description, Capabilities: s.Capabilities, Dir: s.Dir,
		Env: s.Env, Approvals: s.Approvals, Approve: s.Approve, PublishPrivate: s.PublishPrivate})
	if err != nil {
		return nil, err
	}
	return &Agent{TD: a.TD, Thing: a.Thing, Warnings: a.Warnings, Changes: a.Changes, close: a.Close}, nil
}

func openCommand(s Spec, line string, log *slog.Logger) (*Agent, error) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return nil, interact.Errorf(interact.Usage, "", "exec: requires a command").
			Then(interact.StepExpose, "exec:./agent.sh --fast", "name", "weather")
	}
	if err := checkProgram(words[0], s.Dir); err != nil {
		return nil, err
	}
	file := filepath.Base(words[0])
	name := cmp.Or(s.Name, strings.TrimSuffix(file, filepath.Ext(file)), file)
	raw, err := s.describe(command.Describe(name, "", s.Capabilities, s.Actions), nil)
	if err == nil && len(s.Inputs) > 0 {
		raw, err = s.withInputs(raw)
	}
	if err != nil {
		return nil, err
	}
	thing, err := parseDraft(raw)
	if err != nil {
		return nil, err
	}
	agent, err := command.New(command.Options{Command: line, Dir: s.Dir, Chunk: unescape(s.Delimiter), Agent: name, Thing: thing, Log: log})
	if err != nil {
		return nil, err
	}
	return &Agent{TD: raw, Thing: agent, close: agent.Close, identify: agent.Identify}, nil
}

// parseDraft parses a draft.
func parseDraft(raw []byte) (*td.Thing, error) {
	draft, err := td.Draft(raw)
	if err != nil {
		return nil, err
	}
	return td.Parse(draft)
}

// checkProgram returns an error for a program that a shell does not find, or that is not executable. A program that the shell makes from its
// syntax is not checked.
func checkProgram(program, dir string) error {
	if strings.ContainsAny(program, "$`'\"\\*?[~=;&|(){}<>#!") {
		return nil
	}
	if !strings.ContainsRune(program, '/') {
		// The shell has commands of its own beside those in the PATH.
		if err := exec.Command("/bin/sh", "-c", `command -v "$1"`, "sh", program).Run(); errors.As(err, new(*exec.ExitError)) {
			hint, next := "install it, or name its file", []interact.Step(nil)
			if info, err := os.Stat(filepath.Join(dir, program)); err == nil && info.Mode().IsRegular() {
				hint, next = "a file in this folder needs ./", interact.Next(interact.StepExpose, "exec:./"+program)
			}
			return &interact.Error{Code: interact.ConfigInvalid, Title: fmt.Sprintf("no program is called %s", program), Hint: hint, Next: next}
		}
		return nil
	}
	path := program
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return interact.Errorf(interact.ConfigInvalid, "set the folder in which the command runs", "%s does not exist", path).
			Then(interact.StepOption, "dir", "DIR")
	case err == nil && info.IsDir():
		return interact.Errorf(interact.ConfigInvalid, "name a file in it", "%s is a directory", path)
	case err == nil && info.Mode()&0o111 == 0:
		return interact.Errorf(interact.ConfigInvalid, "chmod +x "+interact.Quote(path), "%s is not executable", path)
	}
	return nil
}

// openDocument returns the agent of an OpenAPI document from a file or URL.
func openDocument(s Spec, raw []byte, from string) (*Agent, error) {
	thing, warnings, err := s.convert(raw, s.Server)
	if at := serverFor(raw, from); err != nil && s.Server == "" && at != "" {
		thing, warnings, err = s.convert(raw, at)
	}
	if err == nil {
		thing, err = s.describe(thing, s.Capabilities)
	}
	if e := (*interact.Error)(nil); errors.As(err, &e) && e.Code == interact.Usage {
		return nil, e // of a declared input
	}
	if err != nil {
		bad := *interact.AsError(err)
		bad.Title = from + " is not an OpenAPI document that can be exposed"
		bad.Hint, bad.Next = "use a document of version 3, and set its server if it has none", interact.Next(interact.StepOption, "server", "URL")
		return nil, &bad
	}
	return &Agent{TD: thing, Warnings: warnings}, nil
}

// serverFor returns the server of a document without one, or with one without a host: relative to the document (OpenAPI 3.1 §4.8.5). It is
// "" if it is unknown: for a document from a file, and for YAML.
func serverFor(raw []byte, from string) string {
	base, err := url.Parse(from)
	if err != nil || base.Host == "" {
		return ""
	}
	var doc struct {
		Servers []struct {
			URL string `json:"url"`
		} `json:"servers"`
	}
	relative := "/"
	switch err := json.Unmarshal(raw, &doc); {
	case err != nil && strings.Contains(string(raw), "servers:"):
		return ""
	case len(doc.Servers) > 0:
		relative = doc.Servers[0].URL
	}
	at, err := base.Parse(relative)
	if err != nil {
		return ""
	}
	return at.String()
}

// openTD returns the agent of a TD.
func openTD(s Spec, raw []byte) (*Agent, error) {
	if _, err := td.Parse(raw); err != nil {
		return nil, interact.AsError(err)
	}
	if s.Name != "" || s.Description != "" || len(s.Capabilities) > 0 || len(s.Inputs) > 0 {
		return nil, interact.Errorf(interact.Usage, "change the description, or leave out name, description, capabilities and inputs",
			"a Thing Description has its own name, description, capabilities and inputs")
	}
	return &Agent{TD: raw}, nil
}

// describe adds the settings of s to a description; more are further capabilities.
func (s Spec) describe(raw []byte, more []string) ([]byte, error) {
	if s.Description == "" && len(more) == 0 {
		return raw, nil
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, interact.AsError(fmt.Errorf("read the generated description: %w", err))
	}
	if s.Description != "" {
		doc["description"] = s.Description
	}
	caps, _ := doc["lmos:capabilities"].([]any)
	for _, id := range more {
		caps = append(caps, map[string]any{"id": id, "name": id})
	}
	if len(caps) > 0 {
		doc["lmos:capabilities"] = caps
	}
	return json.Marshal(doc)
}
