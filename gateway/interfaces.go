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

// A Node is what the gateway serves. Package node has it.
type Node interface {
	Directory
	Publisher
	Host
	// Mesh asks any thing, here or elsewhere, through trace, policy and limit. It is called once, by New. Messages of callers
	// that passed the gateway have no From: policy takes that for local.
	Mesh() interact.Thing
}

// A Directory knows things (see directory.Directory).
type Directory interface {
	Find(ctx context.Context, q td.Query) iter.Seq2[*td.Description, error]
	Get(ctx context.Context, ref string) (*td.Description, error)
	// Page returns a part of the node's own index, Lookup its entries of an id; both send no request (tdd.Things).
	Page(s tdd.Scope, offset, limit int) tdd.Page
	Lookup(id string) []tdd.Item
	// Rank orders descriptions by how well they fit, and says why (directory.Directory.Rank).
	Rank(ctx context.Context, q td.Query, found []*td.Description) []directory.Ranked
	// Latest numbers the last change, and Watch yields those that come after a number (directory.Directory.Watch).
	Latest() uint64
	Watch(ctx context.Context, q td.Query, after uint64) iter.Seq2[directory.Change, error]
	// Route picks an agent for a task (package route).
	Route(ctx context.Context, q route.Request) (*route.Decision, error)
	// Presence says whether a thing can be reached, as far as is known; Look finds that out, for some hundred milliseconds at most.
	Presence(d *td.Description) reachability.Presence
	Look(ctx context.Context, things ...*td.Description)
	// Resembles returns the name that the name of a thing looks like, of one that is trusted more or known for longer; or "".
	Resembles(r *td.Record) string
	// Doubts returns the warnings of [Host.Status] that say why answers may be wrong or lack something; it asks no peer.
	Doubts() []api.Warning
	// Hosted reports whether this node offers the thing.
	Hosted(d *td.Description) bool
	// Equivocation returns the equivocation about a thing that was seen last, as long as someone should know about it.
	Equivocation(r *td.Record) (directory.Equivocation, bool)
	// Namesakes returns exact references to others of the name by which d was asked for, a few at most.
	Namesakes(ref string, d *td.Description) []string
}

// A Publisher offers things and withdraws them.
type Publisher interface {
	// Publish signs, stores and announces a TD; Unpublish withdraws. Both are done when what is local is durable and the
	// mesh was told, or two seconds have passed.
	Publish(ctx context.Context, raw []byte) (*api.Publication, error)
	Unpublish(ctx context.Context, ref string) (*api.Publication, error)
	// Move withdraws, and tells whose the thing is from then on: to is a DID, or names the thing at its new owner.
	Move(ctx context.Context, ref, to string) (*api.Publication, error)
	// Enter is Publish with a registration, Extend changes when a thing ends, and Registered returns what was entered, of this
	// node's own things only (tdd.Publisher).
	Enter(ctx context.Context, raw []byte, r publication.Registration) (*api.Publication, error)
	Extend(ctx context.Context, thing string, r publication.Registration) error
	Registered(r *td.Record) (publication.Registration, bool)
}

// A Host is the node itself among its peers.
type Host interface {
	// Status returns a value that the caller may change. Calls comes from Metrics.FillCalls. The gateway sets APIVersion,
	// Kind and API, and State while it drains.
	Status() *api.Status
	Peers() []api.Peer
	Connect(ctx context.Context, addr string) error
	// Description is the node's own TD, signed: a ThingDirectory and an lmos:Agent.
	Description() []byte
	// Ready returns nil when the node serves, else why not.
	Ready() error
}
