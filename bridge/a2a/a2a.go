// Package a2a imports A2A agents as Things and serves Things to A2A clients.
//
// An imported agent has an action, "a2a", that carries A2A verbatim: its input is an operation of the JSON-RPC binding, and its output
// are the results (package protocol). A2A clients use this action, and nothing is converted. For all other consumers the agent's skills
// are actions (thing.go), which also take turns of a conversation (bridge.Turn, result.go). Things that are not A2A agents are served to
// A2A clients as agents (package executor).
//
// The packages below: protocol has the data types and encodings; card the Agent Cards; v03 the conversion from and to A2A 0.3; server
// the HTTP server; client the HTTP client; executor the tasks of Things; push the webhooks.
//
// Sources: A2A 1.0.1; A2A 0.3.0.
package a2a

import (
	"cmp"
	"context"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/executor"
	"github.com/lmosd/lmosd/bridge/a2a/push"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
)

// verbatim is the action of an imported agent that carries A2A.
const verbatim = "a2a"

// namespace is the IRI of the terms of A2A in descriptions.
const namespace = "https://lmosd.dev/ns/a2a#"

// libp2pBinding is the URI of the custom binding between nodes (A2A 1.0 §5.8): the action [verbatim] of a Thing.
const libp2pBinding = "https://lmosd.dev/a2a/bindings/libp2p/v1"

// Options configure a [Bridge]. The zero value works.
type Options struct {
	// Credentials has the secrets that imported agents require, under "a2a:" and the target, by the name of the scheme in the card.
	Credentials credentials.Store
	// KeyOrigins are trusted origins of key sets, "https://keys.example", for cards that name one ("jku"), in addition to the origin
	// of the card.
	KeyOrigins []string
	// CardRefresh is the interval at which cards of imported agents are fetched again; 0 means 1 min.
	CardRefresh time.Duration
	// Executor and Push configure the tasks of Things, and the webhooks.
	Executor executor.Options
	Push     push.Options
	Log      *slog.Logger
}

// A Bridge implements [bridge.Bridge].
type Bridge struct{ o Options }

// New returns the bridge.
func New(o Options) *Bridge {
	o.Log, o.CardRefresh = cmp.Or(o.Log, slog.New(slog.DiscardHandler)), cmp.Or(max(o.CardRefresh, 0), defaultRecheck)
	o.Executor.Log, o.Push.Log = cmp.Or(o.Executor.Log, o.Log), cmp.Or(o.Push.Log, o.Log)
	return &Bridge{o}
}

// Name implements [bridge.Bridge].
func (b *Bridge) Name() string { return "a2a" }

// Import implements [bridge.Bridge]. The target is the URL of an agent, or of its card. A card with an invalid signature is refused with
// BadSignature.
func (b *Bridge) Import(ctx context.Context, target string, o bridge.Import) (*bridge.Agent, error) {
	u, err := url.Parse(target)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, interact.Errorf(interact.Usage, "", "expected the URL of an A2A agent, got %q", target).
			Then(interact.StepExpose, "a2a:https://agent.example")
	}
	i := newImported(b.o, u, target, o)
	if _, err := i.load(ctx); err != nil {
		i.close()
		return nil, interact.AsError(err)
	}
	draft, err := i.describe()
	if err != nil {
		i.close()
		return nil, err
	}
	return &bridge.Agent{TD: draft, Thing: i, Warnings: i.warnings(), Changes: i.changes, Close: i.close}, nil
}

// key converts the id of a skill to the name of an action: one path segment.
func key(id string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == ' ' || r < ' ' {
			return '_'
		}
		return r
	}, id)
}
