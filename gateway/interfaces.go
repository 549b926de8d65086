package gateway

import (
	"context"
	"iter"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact/choice"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
)

// A Directory finds Things (see directory.Directory).
type Directory interface {
	tdd.Things
	Index
	Find(ctx context.Context, q td.Query) iter.Seq2[*td.Description, error]
	// Rank orders descriptions by score, with the factors (directory.Directory.Rank).
	Rank(ctx context.Context, q td.Query, found []*td.Description) []directory.Ranked
	// Mark returns a number before the next change (directory.Directory.Watch).
	Mark() uint64
	// Before returns the number after which the last n changes come, and More a channel that is closed when there is a change after a number
	// (directory.Directory).
	Before(n int) uint64
	More(after uint64) <-chan struct{}
	// Resembles returns the similar name of a Thing that is trusted more or known for longer; or "".
	Resembles(r *td.Record) string
	// Affiliation returns the organization of the owner of a Thing as the caller of ctx may know it; nil: none. VerifyMembers determines those of
	// Things that are shown next.
	Affiliation(ctx context.Context, d *td.Description) *directory.Affiliation
	VerifyMembers(ctx context.Context, things ...*td.Description)
	// Namesakes returns up to limit exact references to other Things of the name in ref.
	Namesakes(ctx context.Context, ref string, d *td.Description, limit int) []string
}

// A Router selects an agent for a task (package route).
type Router interface {
	Route(ctx context.Context, q route.Request) (*route.Decision, error)
}

// A Presence reports the reachability of Things and the paths to them.
type Presence interface {
	// Presence returns the state of a Thing, as far as it is known; Look determines it, within some 100 ms.
	Presence(d *td.Description) reachability.Presence
	Look(ctx context.Context, things ...*td.Description)
	// Hosted reports whether this node hosts the Thing.
	Hosted(d *td.Description) bool
	// Choose returns Things in the order in which a caller should try them (choice.Meter.Order).
	Choose(things ...*td.Description) []choice.Choice
	// Paths returns the paths to a Thing, best first. The error is that of Directory.Get.
	Paths(ctx context.Context, ref string) ([]api.Path, error)
	// Ping measures n round trips to the host of a Thing; n is 1 to 100. The error is that of Directory.Get, or Unreachable.
	Ping(ctx context.Context, ref string, n int) (*api.Ping, error)
}

// A Publisher publishes and withdraws Things. The results have an APIVersion and a Kind.
type Publisher interface {
	// Enter signs, stores and announces a TD, with a registration, for the callers in ctx (publication.WithCallers); Unpublish withdraws it. Both return when the change is durable and either
	// announced or 2 s have passed.
	Enter(ctx context.Context, raw []byte, r publication.Registration) (*api.Publication, error)
	Unpublish(ctx context.Context, ref string) (*api.Publication, error)
	// Move withdraws a Thing and names its successor: a DID, or the reference of the Thing at its new owner.
	Move(ctx context.Context, ref, to string) (*api.Publication, error)
	// Extend changes the end of a registration, and Registered returns the registration of one of this node's Things (tdd.Publisher).
	Extend(ctx context.Context, thing string, r publication.Registration) error
	Registered(r *td.Record) (publication.Registration, bool)
	// AwaitLoad waits until the stored publications are loaded. The error is that of the load, or of ctx.
	AwaitLoad(ctx context.Context) error
	// Offered returns the publications in force, sorted by id. While they are loaded, some are missing.
	Offered() []*publication.Publication
	Hosting
}

// Hosting is the hosting of Things of other owners, who have granted it to the node.
type Hosting interface {
	// Host offers a Thing, for the callers in ctx (publication.WithCallers). grant and td are those of api.HostingGrant.
	Host(ctx context.Context, grant, td []byte) (*api.Publication, error)
	// IsAgent reports whether an agent with a key of its own, whose DID is agent, is at this node.
	IsAgent(agent did.DID) bool
	// HostedThings returns the state of the Things, sorted by id; never nil.
	HostedThings() []api.Hosted
	EndHosting(ctx context.Context, ref string) (*api.Publication, error)
	// WithdrawGranted announces the tombstone that an owner has signed.
	WithdrawGranted(ctx context.Context, record []byte) (*api.Publication, error)
}

// A Status reports the state of a node.
type Status interface {
	// Status returns a value that the caller may change. It counts the Things that the caller of ctx sees. Metrics.FillCalls fills Calls. The gateway sets APIVersion, Kind and API, and
	// State while it drains.
	Status(ctx context.Context) *api.Status
	// Ready returns nil if the node serves, else the reason.
	Ready() error
	// ResultWarnings returns the warnings of Status about results that may be wrong or incomplete; it sends no request.
	ResultWarnings() []api.Warning
	// Equivocation returns the latest equivocation about a Thing, as long as it is reported.
	Equivocation(r *td.Record) (directory.Equivocation, bool)
}

// Peers are the connected nodes.
type Peers interface {
	List() []api.Peer
	// OnConnection calls f when a node has connected and when its last connection has ended, until stop is called.
	OnConnection(f func(node did.DID, connected bool)) (stop func())
	Connect(ctx context.Context, addr string) error
	// Net returns how others reach the node, a value that the caller may change. The gateway sets APIVersion and Kind.
	Net() *api.Net
}

// A Trust is the organization of the node, its partners, and what the node knows about others. The gateway sets APIVersion and Kind of the
// results and changes nothing else in them. Errors are those of [interact.Error]; NotFound means that the node has no organization, or
// that there is no such member, issuer, partner or invitation.
type Trust interface {
	Organizations
	Issuers
	Roots
	Partners
	ForeignCredentials
	// Standing returns what the node knows about a node, an agent or an organization.
	Standing(ctx context.Context, id did.DID) (*api.Standing, error)
	// Distrust excludes a node or an organization, or ends that.
	Distrust(ctx context.Context, id did.DID, on bool) error
	// CheckDomain fetches the log of the organization at a domain, and keeps the proof for its time to live.
	CheckDomain(ctx context.Context, domain string) (*api.DomainCheck, error)
	// KeptCheckpoints asks the connected members for the checkpoints of this node's audit log that they keep.
	KeptCheckpoints(ctx context.Context) []api.KeptCheckpoints
	// Credential returns the credential of the node (application/vc).
	Credential() ([]byte, error)
	// Document returns the content of a path: /.well-known/did.jsonl, /.well-known/did.json, or a status list below
	// /.well-known/lmosd/status/. It returns false for other paths, and if the node has no organization.
	Document(path string) (content []byte, mediaType string, ok bool)
}

// ForeignCredentials are the credentials of issuers that are no organization, and these issuers.
type ForeignCredentials interface {
	ForeignIssuers() []api.ForeignIssuer
	TrustIssuer(ctx context.Context, i api.ForeignIssuer) (*api.ForeignIssuer, error)
	RemoveForeignIssuer(ctx context.Context, name string) error
	// ForeignCredentials returns those that the node holds, and those that connected nodes have shown.
	ForeignCredentials() []api.ForeignCredential
	Present(ctx context.Context, p api.CredentialPresentation) (*api.ForeignCredential, error)
	FetchCredentials(ctx context.Context, q api.CredentialFetch) ([]api.ForeignCredential, error)
	RemoveCredential(ctx context.Context, hash string) error
}

// Organizations is the membership of the node in its organization.
type Organizations interface {
	Organization() (*api.Organization, error)
	Init(ctx context.Context, o api.OrganizationInit) (*api.Organization, error)
	Join(ctx context.Context, a api.Acceptance) (*api.Organization, error)
	// Offers returns the organizations of the local network that the node may ask to join, by RequestJoin.
	Offers(ctx context.Context) []api.Offer
	RequestJoin(ctx context.Context, q api.JoinQuery) (*api.JoinRequest, error)
	Renew(ctx context.Context) (*api.Organization, error)
	Leave(ctx context.Context) error
	// Export writes static files for a web server to a folder at the host of the node; dir is an absolute path.
	Export(ctx context.Context, dir string) error
}

// Issuers are the operations for which the node must be an issuer.
type Issuers interface {
	// Invite returns an invitation with its text, Invitations the open ones without.
	Invite(ctx context.Context, r api.InvitationRequest) (*api.Invitation, error)
	Invitations() []api.Invitation
	// JoinRequests returns the open requests of nodes to become members.
	JoinRequests() ([]api.JoinRequest, error)
	SetRoles(ctx context.Context, member did.DID, roles []string) error
	Revoke(ctx context.Context, member did.DID) error
	Restore(ctx context.Context, member did.DID) error
}

// Roots are the operations for which the node must have the root key, or gets it.
type Roots interface {
	AddIssuer(ctx context.Context, node did.DID) error
	RemoveIssuer(ctx context.Context, method string) error
	// SetBootstrap replaces the addresses of nodes in the document of the organization; nil: by those of this node.
	SetBootstrap(ctx context.Context, addrs []string) (*api.Organization, error)
	RotateRoot(ctx context.Context) error
	// ExportRoot returns the root key in PEM, encrypted unless the passphrase is empty. The key stays until RemoveRoot. ImportRoot stores it
	// again.
	ExportRoot(ctx context.Context, passphrase string) ([]byte, error)
	RemoveRoot(ctx context.Context) error
	ImportRoot(ctx context.Context, key []byte, passphrase string) error
	// Recover replaces the root key; key is the content of the recovery file, and newFile the absolute path of the next one.
	Recover(ctx context.Context, key []byte, newFile string) error
	Deactivate(ctx context.Context) error
}

// Partners are the partners of the organization, by their local names.
type Partners interface {
	Partners() []api.Partner
	Accept(ctx context.Context, a api.Acceptance) (*api.Partner, error)
	// Confirm confirms the check words of a partner. head is a versionId of the history that the operator chooses; empty: there is one.
	Confirm(ctx context.Context, name, head string) (*api.Partner, error)
	RemovePartner(ctx context.Context, name string) error
}

// Tokens are the access tokens of the node, with that of the operator (tokens.Store).
type Tokens interface {
	// Find returns the grant of a token. The error is an [*interact.Error] of code TokenRejected, or StatusUnknown if an identity provider cannot be
	// reached.
	Find(ctx context.Context, secret string) (*tokens.Grant, error)
	// Is reports whether text is a token for this node, valid or not, or has the form of one.
	Is(text string) bool
	// Issuers returns the identity providers, ordered by name.
	Issuers() []tokens.Issuer
	// List returns the tokens by name, without that of the operator.
	List() []tokens.Token
	// Create creates a token and returns its secret; Revoke ends one. The errors are those of tokens.Store.
	Create(t tokens.Token) (secret string, created tokens.Token, err error)
	Revoke(name string) error
	// Accept replaces the identity providers, and Preview their access rules before (tokens.Store).
	Accept(v tokens.Verifier)
	Preview(v tokens.Verifier, on bool)
}
