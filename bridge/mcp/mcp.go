// Package mcp imports MCP servers as Things and serves Things to MCP clients of all protocol revisions.
//
// Between an MCP client and an MCP server every message is passed on as it is: the server's thing has an action, "mcp", that is a
// tunnel (package bridge), and packages serve and backend stand at its ends. For all others the server's tools and prompts are
// actions and its resources properties (describe.go, thing.go); and what is no MCP server is one to MCP clients (export.go).
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

// Tunnel is the action of an imported server that carries MCP, one message a line.
const Tunnel = "mcp"

// Options are the settings of a [Bridge].
type Options struct {
	// Pins are what /mcp lists beside its own tools (facade.Options).
	Pins []string
	// Credentials has the secrets of servers elsewhere, by their addresses (package client).
	Credentials credentials.Store
	// Show has somebody open an address in a browser, to log in at a server elsewhere; ClientID is what this host calls itself then
	// ([client.LoginOptions]). Nil: nobody is there, and a server that wants a login is an error that names the command for it.
	Show     func(ctx context.Context, address string) error
	ClientID string
	// Version is that of lmosd, for the clients and servers that ask; empty means "dev".
	Version string
	Log     *slog.Logger
}

// A Bridge implements [bridge.Bridge].
type Bridge struct{ o Options }

// New returns the bridge.
func New(o Options) *Bridge {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Bridge{o}
}

// Name implements [bridge.Bridge].
func (b *Bridge) Name() string { return "mcp" }

// Import implements [bridge.Bridge]. The target is the address of a server that speaks Streamable HTTP, or a command line of a program
// that speaks MCP on its standard input and output. The program is started at once, to be asked what it offers, and stopped when nobody
// needs it.
func (b *Bridge) Import(ctx context.Context, target string, o bridge.Import) (*bridge.Agent, error) {
	pins, err := openPins(o.Pins, o.Approve, b.o.Log)
	if err != nil {
		return nil, err
	}
	var from *source
	if strings.HasPrefix(target, "http://") || strings.HasPrefix(target, "https://") {
		from, err = b.site(target)
	} else {
		from, err = b.program(target, o)
	}
	if err != nil {
		return nil, err
	}
	// Callers elsewhere see the name in errors: a command line may have secrets in it.
	to := backend.Options{Name: cmp.Or(o.Name, "the MCP server"), Version: b.o.Version, MaxConns: maxChildren, Log: b.o.Log}
	if from.stays {
		to.Silent = webPatience
	}
	return imported(ctx, shortly(target), o, to, pins, from)
}

// shortly names a target for descriptions and logs: the host of an address, or the program of a command line. What else is in them may
// be secret.
func shortly(target string) string {
	if at, err := url.Parse(target); err == nil && at.Host != "" {
		return at.Host
	}
	program, _, _ := strings.Cut(strings.TrimSpace(target), " ")
	return path.Base(strings.Trim(program, `'"`))
}

// imported makes an agent of a server. The target is how it is called if it does not say.
func imported(ctx context.Context, target string, o bridge.Import, to backend.Options, pins *pins, from *source) (*bridge.Agent, error) {
	to.Dial = from.dial
	back := backend.New(to)
	closing := func() {
		back.Close()
		from.end()
	}
	s := &server{Server: &guarded{back, pins}, back: back, pins: pins, from: from, self: protocol.Self(to.Version), log: pins.log}
	draft, warnings, err := s.describe(ctx, target, o)
	if err != nil {
		closing()
		return nil, err
	}
	o.Name = cmp.Or(o.Name, titleOf(draft)) // by which it has its id
	return &bridge.Agent{TD: draft, Thing: s, Warnings: warnings, Changes: s.changes(target, o, draft), Close: closing}, nil
}

// program starts a process for each connection.
func (b *Bridge) program(line string, o bridge.Import) (*source, error) {
	env, err := environment(o.Env)
	if err != nil {
		return nil, err
	}
	run, err := command.New(command.Options{Command: line, Dir: o.Dir, Env: env, Inherit: inherited, MaxConcurrent: maxChildren, Log: b.o.Log})
	if err != nil {
		return nil, err
	}
	return &source{end: run.Close, dial: func(ctx context.Context) (protocol.Conn, error) {
		return protocol.Lines(bridge.Dial(ctx, run, &interact.Message{Name: Tunnel, ID: interact.NewID()})), nil
	}}, nil
}

// inherited are the variables that every program gets of lmosd's own environment: where things are, and the ways out of the network. Keys
// and tokens are for those that they are given to ([bridge.Import.Env]).
var inherited = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "XDG_*",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "npm_config_*", "NPM_CONFIG_*", "UV_*", "PIP_*",
	"SystemRoot", "APPDATA", "LOCALAPPDATA", "TEMP", "TMP", "USERPROFILE"}

// environment completes variables that are given by their name with what this process has.
func environment(given []string) ([]string, error) {
	var env []string
	for _, v := range given {
		if !strings.Contains(v, "=") {
			value, there := os.LookupEnv(v)
			if !there {
				return nil, interact.Errorf(interact.Usage, "export "+interact.Quote(v)+"=…, or give it as NAME=value", "there is no variable %s to hand on", v)
			}
			v += "=" + value
		}
		env = append(env, v)
	}
	return env, nil
}

const (
	maxChildren = 64               // processes of one server
	webPatience = 30 * time.Second // for what a web server that starts, or somebody who has to log in, takes to answer
)
