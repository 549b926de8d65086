// Package gateway is the HTTP server of a node: directory, interactions, well-known resources, administration and metrics.
package gateway

import (
	"context"
	"iter"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
)

// A Node is served by the gateway. Package node implements it.
type Node interface {
	Directory
	Publisher
	Host
	// Mesh is the Thing that reaches all Things, here or at other hosts, through tracing, policy and limits. New calls it once. Messages of
	// authorized callers have no From, which policy takes as local.
	Mesh() interact.Thing
}

// A Directory finds Things (see directory.Directory).
type Directory interface {
	Find(ctx context.Context, q td.Query) iter.Seq2[*td.Description, error]
	Get(ctx context.Context, ref string) (*td.Description, error)
	// Page returns a part of the node's own index, Lookup the entries of an id; neither sends a request (tdd.Things).
	Page(s tdd.Scope, offset, limit int) tdd.Page
	Lookup(id string) []tdd.Item
	// Rank orders descriptions by score, with the factors (directory.Directory.Rank).
	Rank(ctx context.Context, q td.Query, found []*td.Description) []directory.Ranked
	// Latest returns the number of the last change; Watch yields the changes after a number (directory.Directory.Watch).
	Latest() uint64
	Watch(ctx context.Context, q td.Query, after uint64) iter.Seq2[directory.Change, error]
	// Route selects an agent for a task (package route).
	Route(ctx context.Context, q route.Request) (*route.Decision, error)
	// Presence returns the state of a Thing, as far as it is known; Look determines it, within some 100 ms.
	Presence(d *td.Description) reachability.Presence
	Look(ctx context.Context, things ...*td.Description)
	// Resembles returns the similar name of a Thing that is trusted more or known for longer; or "".
	Resembles(r *td.Record) string
	// Doubts returns the warnings of [Host.Status] about results that may be wrong or incomplete; it sends no request.
	Doubts() []api.Warning
	Hosted(d *td.Description) bool
	// Equivocation returns the latest equivocation about a Thing, as long as it is reported.
	Equivocation(r *td.Record) (directory.Equivocation, bool)
	// Namesakes returns a few exact references to other Things of the name in ref.
	Namesakes(ref string, d *td.Description) []string
}

// A Publisher publishes and withdraws Things.
type Publisher interface {
	// Publish signs, stores and announces a TD; Unpublish withdraws it. Both return when the change is durable and either announced or 2 s
	// have passed.
	Publish(ctx context.Context, raw []byte) (*api.Publication, error)
	Unpublish(ctx context.Context, ref string) (*api.Publication, error)
	// Move withdraws a Thing and names its successor: a DID, or the reference of the Thing at its new owner.
	Move(ctx context.Context, ref, to string) (*api.Publication, error)
	// Enter is Publish with a registration, Extend changes the end of a registration, and Registered returns the registration of one of
	// this node's Things (tdd.Publisher).
	Enter(ctx context.Context, raw []byte, r publication.Registration) (*api.Publication, error)
	Extend(ctx context.Context, thing string, r publication.Registration) error
	Registered(r *td.Record) (publication.Registration, bool)
}

// A Host is the node among its peers.
type Host interface {
	// Status returns a value that the caller may change. Metrics.FillCalls fills Calls. The gateway sets APIVersion, Kind and API, and
	// State while it drains.
	Status() *api.Status
	Peers() []api.Peer
	Connect(ctx context.Context, addr string) error
	// Description returns the signed TD of the node: a ThingDirectory and an lmos:Agent.
	Description() []byte
	// Ready returns nil if the node serves, else the reason.
	Ready() error
}
