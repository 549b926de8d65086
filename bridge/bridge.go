// Package bridge defines the interface of protocol bridges, which import foreign agents as Things and export Things to foreign clients.
// Each package below implements one protocol.
//
// Operations that exist in one protocol only go through a tunnel: an action that carries the foreign protocol verbatim ([Dial],
// [Accept]). Messages between a client and an agent of the same protocol are not translated, so nothing is lost.
//
// Between protocols a conversation with an agent is a sequence of a [Turn] and its [Outcome]. An agent sees all callers as one, this
// node; [Owners] records which caller owns which task or conversation.
package bridge

import (
	"context"
	"iter"
	"net/http"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A Bridge implements one foreign protocol in both directions. It is safe for concurrent use.
type Bridge interface {
	// Name is the protocol, for example "mcp": the scheme of import targets, `lmosd expose mcp:…`.
	Name() string
	// Import connects to target, an address or a command line, and returns an agent for it. The error is an [*interact.Error].
	Import(ctx context.Context, target string, o Import) (*Agent, error)
	// Export serves the Things of a mesh at [Handler.Paths] until Close.
	Export(m Mesh) Handler
}

// A Handler serves clients of a foreign protocol.
type Handler interface {
	http.Handler
	// Paths returns the patterns that it serves, of [http.ServeMux] without a method: "/mcp", "/mcp/things/{name}".
	Paths() []string
	// Close ends everything that outlives a request, and waits for it.
	Close()
}

// A PolicyCheck returns nil if the policy of the node allows message m, and otherwise the reason for the refusal.
type PolicyCheck func(ctx context.Context, m *interact.Message) error

// A TunnelGuard is a [Bridge] that can apply the policy of the host to each message inside its tunnels, wherever the agent runs.
type TunnelGuard interface {
	// Guard returns the middleware for the Thing that d describes; nil if it has no tunnel of this bridge.
	Guard(d *td.Thing, check PolicyCheck) interact.Middleware
}

// Import configures how a foreign agent joins the mesh. All fields are optional.
type Import struct {
	// Name is the title; empty means the agent's own.
	Name, Description string
	// Capabilities are added to those that the agent declares.
	Capabilities []string
	// Dir is the working directory of a program; empty means the current one.
	Dir string
	// Approvals is the file with the definitions of the agent's first import; changed definitions require approval. Empty keeps
	// them in memory while the agent is connected. Approve accepts all changed definitions.
	Approvals string
	Approve   bool
	// PublishPrivate publishes an agent to other nodes even if it declares itself private.
	PublishPrivate bool
	// Env are additional environment variables of a program: "NAME=value", or the "NAME" of a variable of this process.
	Env []string
}

// An Agent is an imported foreign agent. The importer must close it.
type Agent struct {
	// TD is a draft of its Thing Description (td.Draft).
	TD []byte
	// Thing handles its messages.
	Thing interact.Thing
	// Warnings are about parts of the agent that could not be imported, one per line.
	Warnings []string
	// Changes yields a new draft after each change that the agent reports, until ctx ends. Nil: the agent reports no changes.
	Changes func(ctx context.Context) iter.Seq[[]byte]
	// Close ends the connections, processes and calls of the agent, and waits for them.
	Close func()
}

// A Mesh is the node that a bridge serves to its clients, with the policy of the node.
type Mesh interface {
	// Do handles messages to all Things, local and remote. The bridge sets the principal of each message to the caller that the
	// node authenticated (did.PrincipalOf of the request context); a message without a principal is refused.
	interact.Thing
	// Get returns the description that ref names, and Find those that match a query (see package directory). All methods with a context know
	// only the Things that its caller may see (did.PrincipalOf); Sees reports whether that is so for a description.
	Sees(ctx context.Context, d *td.Description) bool
	Get(ctx context.Context, ref string) (*td.Description, error)
	Find(ctx context.Context, q td.Query) iter.Seq2[*td.Description, error]
	// Rank orders search results by relevance.
	Rank(ctx context.Context, q td.Query, found []*td.Description) []directory.Ranked
	// Presence returns whether a Thing is known to be reachable; Look probes Things, for a few hundred milliseconds at most.
	Presence(d *td.Description) reachability.Presence
	Look(ctx context.Context, things ...*td.Description)
	// Resembles returns the existing name that the name of a Thing imitates, or "" (directory.Directory.Resembles).
	Resembles(r *td.Record) string
	// Affiliation returns the organization of the owner of a Thing as the caller of ctx may know it; nil: none (directory.Directory.Affiliation).
	Affiliation(ctx context.Context, d *td.Description) *directory.Affiliation
	// Latest returns the number of the last change of the directory, and Watch yields the changes after a number.
	Latest() uint64
	Watch(ctx context.Context, q td.Query, after uint64) iter.Seq2[directory.Change, error]
	// Signer signs for the node and holds its DID.
	Signer() did.Signer
	// PublicURL is the URL of the node's HTTP server; empty means the URL of the request.
	PublicURL() string
}
