// Package expose turns a command, an OpenAPI document, a self-describing web server or a Thing Description into an agent. What it
// makes is offered by others: by `lmosd expose`, which attaches to a node, and by a node that runs the agents of its configuration.
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
	"path/filepath"
	"strings"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/command"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/openapi"
)

// A Spec says what is exposed, and what it is called. Target is needed:
//
//	exec:COMMAND     a process for each call (package interact/command)
//	a2a:URL          an A2A agent, by its address or that of its card; other protocols by the names of their bridges
//	openapi:FILE     a web server that an OpenAPI document describes; FILE may be a URL
//	http(s)://…      a web server that answers with a TD or with an OpenAPI document, there or at a well-known place
//	FILE             a Thing Description
//	mcp:COMMAND      an MCP server that runs here; mcp:https://… one that is elsewhere; and so on, for each bridge
type Spec struct {
	Target string
	// Name is the title. Empty means that of the document, or the name of the command's file. A TD says itself what it is called
	// and can do, and takes none of the first three.
	Name, Description string
	// Capabilities are added to those of the document.
	Capabilities []string
	// Actions are those of a command; none means one, "run".
	Actions []string
	// Delimiter is what ends a part of a command's output: each is sent at once. \n, \t, \0 and \\ are what they are in C. Empty sends
	// all at the end.
	Delimiter string
	// Dir is the folder in which a command runs; empty means the present one.
	Dir string
	// Server replaces the server that an OpenAPI document names.
	Server string
	// Env are variables of an MCP server's environment, "NAME=value", or "NAME" for that of this process; it has few others.
	Env []string
	// Approvals is the file that keeps the tools of an MCP server as they were first; empty keeps them in memory. Approve takes those that
	// the server has changed since as they are; others are held back.
	Approvals string
	Approve   bool
	// PublishPrivate tells other nodes of an MCP server that says that its lists are private, too.
	PublishPrivate bool
}

// An Agent can be offered to the mesh.
type Agent struct {
	// TD describes it. With a Thing it is a draft, see [td.Draft].
	TD []byte
	// Thing answers; nil if the forms of the TD do.
	Thing interact.Thing
	// Warnings are what could not be taken over.
	Warnings []string
	// Changes yields another TD whenever the agent has changed, until ctx ends; nil: it never says.
	Changes func(ctx context.Context) iter.Seq[[]byte]

	close func()
}

// Close ends what the agent runs, and waits for it.
func (a *Agent) Close() {
	if a.close != nil {
		a.close()
	}
}

// Open makes an agent of s, which the caller closes. Nothing runs before it is called, but a web server is asked what it is. The
// error is an [*interact.Error]: Usage for a target or setting that is wrong, ConfigInvalid for a command or folder that is,
// BadTD, NotJSON and TooLarge for documents, Unreachable and AgentFailed for web servers; or it wraps the error of ctx. A nil log
// discards.
func Open(ctx context.Context, s Spec, bridges []bridge.Bridge, log *slog.Logger) (*Agent, error) {
	kind, rest, found := strings.Cut(s.Target, ":")
	if !found {
		kind, rest = "file", s.Target
	}
	if err := s.fits(kind); err != nil {
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
			return bridged(ctx, s, rest, b)
		}
	}
	if kind == "mcp" || kind == "a2a" {
		return nil, interact.Errorf(interact.Usage, "expose it as a command or an HTTP server", "%s: is not spoken here", kind).Then(interact.StepHelp, "expose")
	}
	raw, err := load(ctx, s.Target)
	if err != nil {
		return nil, err
	}
	return described(s, raw)
}

// fits says which setting makes no sense for a kind of target.
func (s Spec) fits(kind string) error {
	if strings.TrimSpace(s.Target) == "" {
		return interact.Errorf(interact.Usage, "", "nothing is named that could be exposed").
			Then(interact.StepExpose, "exec:./agent.sh", "name", "weather")
	}
	for _, setting := range []struct {
		name  string
		given bool
		kinds string
	}{
		{"action", len(s.Actions) > 0, "exec"}, {"delimiter", s.Delimiter != "", "exec"}, {"dir", s.Dir != "", "exec mcp"},
		{"server", s.Server != "", "openapi http https"},
		{"env", len(s.Env) > 0, "mcp"}, {"approvals", s.Approvals != "", "mcp"}, {"approve", s.Approve, "mcp"},
		{"publish-private", s.PublishPrivate, "mcp"},
	} {
		if setting.given && !strings.Contains(setting.kinds, kind) {
			only, _, _ := strings.Cut(setting.kinds, " ")
			return interact.Errorf(interact.Usage, "leave it out", "--%s is for %s: only", setting.name, only)
		}
	}
	return nil
}

// bridged is an agent of another protocol.
func bridged(ctx context.Context, s Spec, target string, b bridge.Bridge) (*Agent, error) {
	a, err := b.Import(ctx, target, bridge.Import{Name: s.Name, Description: s.Description, Capabilities: s.Capabilities, Dir: s.Dir,
		Env: s.Env, Pins: s.Approvals, Approve: s.Approve, PublishPrivate: s.PublishPrivate})
	if err != nil {
		return nil, err
	}
	return &Agent{TD: a.TD, Thing: a.Thing, Warnings: a.Warnings, Changes: a.Changes, close: a.Close}, nil
}

func openCommand(s Spec, line string, log *slog.Logger) (*Agent, error) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return nil, interact.Errorf(interact.Usage, "", "exec: names no command").
			Then(interact.StepExpose, "exec:./agent.sh --fast", "name", "weather")
	}
	if err := runnable(words[0], s.Dir); err != nil {
		return nil, err
	}
	file := filepath.Base(words[0])
	name := cmp.Or(s.Name, strings.TrimSuffix(file, filepath.Ext(file)), file)
	raw, err := s.describe(command.Describe(name, "", s.Capabilities, s.Actions), nil)
	if err != nil {
		return nil, err
	}
	thing, err := parsed(raw)
	if err != nil {
		return nil, err
	}
	agent, err := command.New(command.Options{Command: line, Dir: s.Dir, Chunk: unescape(s.Delimiter), Agent: name, Thing: thing, Log: log})
	if err != nil {
		return nil, err
	}
	return &Agent{TD: raw, Thing: agent, close: agent.Close}, nil
}

// parsed reads a draft.
func parsed(raw []byte) (*td.Thing, error) {
	draft, err := td.Draft(raw)
	if err != nil {
		return nil, err
	}
	return td.Parse(draft)
}

// runnable finds the mistake of many first tries: a script that is elsewhere, or has no execute bit. What a shell looks for in its
// own ways is left to it.
func runnable(program, dir string) error {
	if !strings.ContainsRune(program, '/') || strings.ContainsAny(program, "$`'\"\\*?[~=") {
		return nil
	}
	path := program
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return interact.Errorf(interact.ConfigInvalid, "is it in another folder? name the folder that the command runs in", "there is no %s", path).Then(interact.StepOption, "dir", "DIR")
	case err == nil && info.Mode()&0o111 == 0:
		return interact.Errorf(interact.ConfigInvalid, "chmod +x "+interact.Quote(path), "%s cannot be run", path)
	}
	return nil
}

// openDocument is an agent that an OpenAPI document from a file or URL describes.
func openDocument(s Spec, raw []byte, from string) (*Agent, error) {
	thing, warnings, err := openapi.Convert(raw, openapi.Options{Server: s.Server, Name: s.Name})
	if at := serverFor(raw, from); err != nil && s.Server == "" && at != "" {
		thing, warnings, err = openapi.Convert(raw, openapi.Options{Server: at, Name: s.Name})
	}
	if err == nil {
		thing, err = s.describe(thing, s.Capabilities)
	}
	if err != nil {
		bad := *interact.AsError(err)
		bad.Title, bad.Hint, bad.Next = from+" is no OpenAPI document that can be exposed", "give one of version 3, and its server if it names none",
			interact.Next(interact.StepOption, "server", "URL")
		return nil, &bad
	}
	return &Agent{TD: thing, Warnings: warnings}, nil
}

// serverFor is where the server of a document is that names none, or one without a host: relative to the document (OpenAPI 3.1
// §4.8.5). It is empty if that cannot be told: a document from a file is nowhere, and one in YAML may name what is not read here.
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

// described is an agent whose TD is there.
func described(s Spec, raw []byte) (*Agent, error) {
	if _, err := td.Parse(raw); err != nil {
		return nil, interact.AsError(err)
	}
	if s.Name != "" || s.Description != "" || len(s.Capabilities) > 0 {
		return nil, interact.Errorf(interact.Usage, "change the description, or leave out name, description and capabilities",
			"a Thing Description says itself what it is called and can do")
	}
	return &Agent{TD: raw}, nil
}

// describe adds to a description what s says beside the title; more are capabilities that it does not have yet.
func (s Spec) describe(raw []byte, more []string) ([]byte, error) {
	if s.Description == "" && len(more) == 0 {
		return raw, nil
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, interact.AsError(fmt.Errorf("read the description that was made: %w", err))
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
