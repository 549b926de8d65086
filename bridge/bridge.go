// Package bridge is what every bridge has: the agents of a foreign protocol join the mesh as things, and the things of the mesh are
// served to clients of that protocol. The bridges themselves are the packages below, one protocol each.
//
// What a thing can say in its own protocol and not in another goes through a tunnel: an action that carries the foreign protocol
// verbatim ([Dial], [Accept]). Between a client and an agent of one protocol nothing is translated, so that nothing is lost.
//
// Between protocols a conversation with an agent is a [Turn] and its [Outcome]. To the agent all callers are this node: whose its tasks and
// conversations are, is remembered as [Claims].
package bridge

import (
	"context"
	"iter"
	"net/http"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A Bridge speaks one foreign protocol, both ways. It is safe for concurrent use.
type Bridge interface {
	// Name is the protocol, "mcp": the scheme under which agents are imported, `lmosd expose mcp:…`.
	Name() string
	// Import asks what is at target, an address or a command line, and makes an agent of it. The error is an [*interact.Error].
	Import(ctx context.Context, target string, o Import) (*Agent, error)
	// Export serves the things of a mesh, at Paths, until Close.
	Export(m Mesh) Handler
}

// A Handler serves clients of a foreign protocol.
type Handler interface {
	http.Handler
	// Paths are what it serves, as patterns of [http.ServeMux] without a method: "/mcp", "/mcp/things/{name}".
	Paths() []string
	// Close ends what goes on longer than a request, and waits for it.
	Close()
}

// A Judge asks a node's policy whether m may be asked of the thing that it names; the error is why not.
type Judge func(ctx context.Context, m *interact.Message) error

// A Guard is a [Bridge] whose tunnels the host can look into, so that its policy holds for each message in them, wherever the agent
// runs.
type Guard interface {
	// Guard returns what is put around the thing that d describes; nil if it has no tunnel of this bridge.
	Guard(d *td.Thing, judge Judge) interact.Wrap
}

// Import says how a foreign agent is called in the mesh. All of it may be left out.
type Import struct {
	// Name is the title; empty takes the agent's own.
	Name, Description string
	// Capabilities are added to those that the agent names.
	Capabilities []string
	// Dir is where a program runs; empty means here.
	Dir string
	// Pins is the file in which is kept what the agent said of itself when it was first imported, so that what it changes later is
	// held back; empty keeps it while the agent is there. Approve takes what has changed as it is.
	Pins    string
	Approve bool
	// Listed has other nodes told of an agent that would be for this node alone, by what it says of itself.
	Listed bool
	// Env are variables of a program's environment beside those that every program has, "NAME=value" or the "NAME" of one of this
	// process.
	Env []string
}

// An Agent is a foreign agent as it joins the mesh. Whoever imported it closes it.
type Agent struct {
	// TD is a draft of its description (td.Draft).
	TD []byte
	// Thing answers.
	Thing interact.Thing
	// Warnings are what could not be taken over.
	Warnings []string
	// Changes yields a new draft whenever the agent says that it has changed, until ctx ends. Nil: it never says.
	Changes func(ctx context.Context) iter.Seq[[]byte]
	// Close ends what the agent runs, and waits for it.
	Close func()
}

// A Mesh is what a bridge serves to its clients: a node, with its policy.
type Mesh interface {
	// Do asks any thing, here or elsewhere. Who asks is the bridge's to say in each message: whom the node found to send the
	// request (did.PrincipalOf of its context); a message without is refused.
	interact.Thing
	// Get returns the description of the thing that ref names, Find those that a query fits (see package directory).
	Get(ctx context.Context, ref string) (*td.Description, error)
	Find(ctx context.Context, q td.Query) iter.Seq2[*td.Description, error]
	// Rank orders what was found by how well it fits.
	Rank(ctx context.Context, q td.Query, found []*td.Description) []directory.Ranked
	// Presence says whether a thing can be reached, as far as is known; Look finds that out, for some hundred milliseconds at most.
	Presence(d *td.Description) directory.Presence
	Look(ctx context.Context, things ...*td.Description)
	// Resembles returns the name that the name of a thing looks like and is not, or "" (directory.Directory.Resembles).
	Resembles(r *td.Record) string
	// Latest numbers the last change of what is known, and Watch yields those that come after a number.
	Latest() uint64
	Watch(ctx context.Context, q td.Query, after uint64) iter.Seq2[directory.Change, error]
	// Signer signs for the node, and is its name.
	Signer() did.Signer
	// PublicURL is where clients reach the node's HTTP server; empty means wherever they asked.
	PublicURL() string
}
