// Package mcp imports MCP servers as Things and serves Things to MCP clients of all protocol revisions.
//
// Messages between an MCP client and an MCP server pass unchanged: the Thing of the server has an action "mcp", a tunnel (package
// bridge), with packages server and backend at its ends. For other consumers the tools and prompts of the server are actions and its
// resources are properties (describe.go, thing.go). Things that are not MCP servers are served to MCP clients as servers (export.go).
//
// Sources: MCP 2026-07-28 and 2025-11-25.
package mcp

import (
	"cmp"
	"context"
	"log/slog"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/command"
	"github.com/lmosd/lmosd/interact/credentials"
)

// tunnelAction is the action of an imported server that carries MCP, one message per line.
const tunnelAction = "mcp"

// Options configure a [Bridge].
type Options struct {
	// Pins are the features that /mcp lists besides its own tools ([aggregator.Options]).
	Pins []string
	// Credentials holds the secrets of remote servers, by address (package client).
	Credentials credentials.Store
	// Show opens an address in the browser of the user, to log in at a remote server; ClientID identifies this host
	// ([client.LoginOptions]). If Show is nil, the error of a login that needs a user names the command.
	Show     func(ctx context.Context, address string) error
	ClientID string
	// Version is the version of lmosd for clientInfo and serverInfo; empty means "dev".
	Version string
	Log     *slog.Logger
}

// A Bridge implements [bridge.Bridge].
type Bridge struct{ o Options }

// New returns a bridge.
func New(o Options) *Bridge {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Bridge{o}
}

// Name implements [bridge.Bridge].
func (b *Bridge) Name() string { return "mcp" }

// Import implements [bridge.Bridge]. The target is the URL of a Streamable HTTP server, or the command line of a program that uses
// standard input and output. The program is started at once to list its features, and stopped when idle.
func (b *Bridge) Import(ctx context.Context, target string, o bridge.Import) (*bridge.Agent, error) {
	approved, err := openApprovals(o.Approvals, o.Approve, b.o.Log)
	if err != nil {
		return nil, err
	}
	var from *source
	if strings.HasPrefix(target, "http://") || strings.HasPrefix(target, "https://") {
		from, err = b.remote(target)
	} else {
		from, err = b.program(target, o)
	}
	if err != nil {
		return nil, err
	}
	// The name appears in errors at other nodes, and a command line may contain secrets.
	to := backend.Options{Name: cmp.Or(o.Name, "the MCP server"), Version: b.o.Version, MaxConns: maxChildren, Log: b.o.Log}
	if from.persistent {
		to.Silent = webTimeout
	}
	return imported(ctx, shortName(target), o, to, approved, from)
}

// shortName returns the host of a URL, or the program of a command line. The rest may contain secrets.
func shortName(target string) string {
	if at, err := url.Parse(target); err == nil && at.Host != "" {
		return at.Host
	}
	program, _, _ := strings.Cut(strings.TrimSpace(target), " ")
	return path.Base(strings.Trim(program, `'"`))
}

// imported returns the agent of a server. The target is its name if it has none.
func imported(ctx context.Context, target string, o bridge.Import, to backend.Options, approved *approvals,
	from *source) (*bridge.Agent, error) {
	to.Dial = from.dial
	back := backend.New(to)
	closing := func() {
		back.Close()
		from.close()
	}
	s := &server{Server: &filteredServer{back, approved}, back: back, approvals: approved, source: from, self: protocol.Self(to.Version),
		log: approved.log}
	draft, warnings, err := s.describe(ctx, target, o)
	if err != nil {
		closing()
		return nil, err
	}
	o.Name = cmp.Or(o.Name, titleOf(draft)) // determines the id
	return &bridge.Agent{TD: draft, Thing: s, Warnings: warnings, Changes: s.changes(target, o, draft), Close: closing}, nil
}

// program returns a source that starts a process per connection.
func (b *Bridge) program(line string, o bridge.Import) (*source, error) {
	env, err := environment(o.Env)
	if err != nil {
		return nil, err
	}
	run, err := command.New(command.Options{Command: line, Dir: o.Dir, Env: env, Inherit: inherited, MaxConcurrent: maxChildren, Log: b.o.Log})
	if err != nil {
		return nil, err
	}
	return &source{close: run.Close, dial: func(ctx context.Context) (protocol.Conn, error) {
		return protocol.Lines(bridge.Dial(ctx, run, &interact.Message{Name: tunnelAction, ID: interact.NewID()})), nil
	}}, nil
}

// inherited are the environment variables that every program gets: paths, locale and proxies. Secrets are passed explicitly
// ([bridge.Import.Env]).
var inherited = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "XDG_*",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "npm_config_*", "NPM_CONFIG_*", "UV_*", "PIP_*",
	"SystemRoot", "APPDATA", "LOCALAPPDATA", "TEMP", "TMP", "USERPROFILE"}

// environment resolves variables that are given by name only.
func environment(given []string) ([]string, error) {
	var env []string
	for _, v := range given {
		if !strings.Contains(v, "=") {
			value, there := os.LookupEnv(v)
			if !there {
				return nil, interact.Errorf(interact.Usage, "export "+interact.Quote(v)+"=…, or use NAME=value", "environment variable %s is not set", v)
			}
			v += "=" + value
		}
		env = append(env, v)
	}
	return env, nil
}

const (
	maxChildren = 64               // processes of one server
	webTimeout  = 30 * time.Second // time for the first response of a remote server, including a login
)
