// Package a2a brings A2A agents into the mesh as things, and the things of the mesh to A2A clients.
//
// An imported agent has an action, "a2a", that carries A2A verbatim: its input is an operation of the JSON-RPC binding, its
// output the results (package wire). An A2A client that asks for such a thing goes through it, and nothing is translated. For all
// others the agent's skills are actions (thing.go), which take turns of a conversation, too (bridge.Turn, outcome.go); and what is no
// A2A agent is one to A2A clients (package desk).
//
// The packages below it: wire is what is said; card the agent cards, with their signatures; v03 the translation from and to A2A
// 0.3; serve the HTTP server; remote the HTTP client; desk the tasks of things that do not speak A2A; push the webhooks.
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

// Verbatim is the action of an imported agent that carries A2A.
const Verbatim = "a2a"

// Namespace is the IRI of the terms that say in a description what is A2A's own.
const Namespace = "https://lmosd.dev/ns/a2a#"

// Libp2pBinding is the URI of the custom binding by which nodes carry A2A (A2A 1.0 §5.8): the action [Verbatim] of a thing.
const Libp2pBinding = "https://lmosd.dev/a2a/bindings/libp2p/v1"

// Options are the settings of a [Bridge]. The zero value works.
type Options struct {
	// Credentials has the secrets that imported agents ask for, under "a2a:" and the target, by the scheme's name in the card.
	Credentials credentials.Store
	// KeyOrigins are origins, "https://keys.example", whose sets of keys are believed when a card that is imported names one ("jku"),
	// beside those at the card's own site.
	KeyOrigins []string
	// Recheck is how often the cards of imported agents are read again; 0 means 1 min.
	Recheck time.Duration
	// Desk and Push are the settings of the tasks of things that do not speak A2A, and of webhooks.
	Desk executor.Options
	Push push.Options
	Log  *slog.Logger
}

// A Bridge implements [bridge.Bridge].
type Bridge struct{ o Options }

// New returns the bridge.
func New(o Options) *Bridge {
	o.Log, o.Recheck = cmp.Or(o.Log, slog.New(slog.DiscardHandler)), cmp.Or(max(o.Recheck, 0), defaultRecheck)
	o.Desk.Log, o.Push.Log = cmp.Or(o.Desk.Log, o.Log), cmp.Or(o.Push.Log, o.Log)
	return &Bridge{o}
}

// Name implements [bridge.Bridge].
func (b *Bridge) Name() string { return "a2a" }

// Import implements [bridge.Bridge]. The target is the address of an agent, below which is its card, or that of the card. A card
// whose signature is wrong is refused with BadSignature.
func (b *Bridge) Import(ctx context.Context, target string, o bridge.Import) (*bridge.Agent, error) {
	u, err := url.Parse(target)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, interact.Errorf(interact.Usage, "lmosd expose a2a:https://agent.example", "%q is no address of an A2A agent",
			target)
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

// key makes the name of an action of the id of a skill: what stands in a path stays one segment.
func key(id string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == ' ' || r < ' ' {
			return '_'
		}
		return r
	}, id)
}
