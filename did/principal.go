package did

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// A Via is a method of authentication.
type Via string

// The methods of authentication. Agents receive these values.
const (
	// Process is code of the node's own process: an embedder, or the node itself.
	Process Via = "process"
	// Socket is the node's Unix socket, which its file mode protects.
	Socket Via = "socket"
	// Loopback is a TCP or UDP port that only this machine reaches. The user is not authenticated.
	Loopback Via = "loopback"
	// Token is an access token of the node, on any listener.
	Token Via = "token"
	// OIDC is an access token of an identity provider that the node trusts, on any listener.
	OIDC Via = "oidc"
	// Session is the session of a browser, which another caller made ([Principal.Maker]).
	Session Via = "session"
	// Peer is another node, whose key the connection has proved.
	Peer Via = "peer"
	// Unproven is a request without a token that may come from another machine: not over loopback, or through a proxy on this
	// machine.
	Unproven Via = "unproven"
)

// The results of [Principal.ID] for consumers of this node. None of them can be a DID.
const (
	localID    = "local"
	unprovenID = "unproven"
)

// A Principal is an authenticated caller, as proven by the binding that received the request. Policy, limits, tasks and agents use no other
// information about the caller. Principals are shared and read-only, so that calls do not allocate them.
//
// The name of a consumer behind another node ([Principal.Name]) is a claim of that node. It only distinguishes the consumers of that node.
type Principal struct {
	// DID is the DID of the caller: that of its node, or of an agent with a key of its own ([Principal.Agent]). It is empty for other consumers of
	// this node.
	DID DID
	// Node is the node whose key the connection proved; empty: a consumer of this node.
	Node DID
	// Name is the node's name of a consumer behind it; empty for the node itself, or a consumer without a name.
	Name string
	// Via is the method of authentication.
	Via Via
	// Maker is the method by which the maker of a [Session] authenticated: the principal of a session has the name, the roles and the scopes of
	// its maker. It is empty for other methods.
	Maker Via
	// Org is the organization in which a credential proves the membership; empty: none. Roles is a subset of the roles in the credential. Of an
	// access token, whose Org is empty, they are words of this node, which other nodes do not receive.
	Org   DID
	Roles []string
	// Groups are the groups of which the caller is a member, and its role in each.
	Groups []Membership
	// Agents are the memberships of agents with keys of their own that are reached through a node.
	Agents []AgentMembership
	// Scopes are the rights that the configuration gives to a caller with a token of an identity provider, as those of access tokens. Other
	// nodes do not receive them.
	Scopes []string
	// Attested are the roles that credentials of foreign issuers give the node.
	Attested []Attestation
	// Relation is the relation of the organization of this node to the caller. Consumers of this node are Local, or Untrusted if their
	// request is [Unproven].
	Relation Relation
	// Barred is why the caller may do nothing, whatever the rules permit: its organization revoked it, for example. Empty: it is not barred.
	Barred string
	// Pending is why the membership cannot be decided yet; the caller counts as untrusted. Empty: it is decided.
	Pending string
	// Unconfirmed is the principal with the membership that the credential of a Pending caller states. Nil: there is none.
	Unconfirmed *Principal
	// Expires is the end of the membership, or of the token. Zero: it does not end by itself.
	Expires time.Time
	// Lent is the delegation that permits the message of this principal. Nil: it needs none.
	Lent *Lent
}

// A Lent is a delegation by which a principal uses a right of another one.
type Lent struct {
	By      DID       // the node of the delegator
	ByName  string    // the consumer of that node; empty: the node itself
	Command string    // "/lmos/invoke/urn%3aexample%3aweather/getweather"
	Link    string    // the CID of the delegation of the host
	Expires time.Time // of the whole chain
}

// Lender returns the [Principal.ID] of the delegator; empty for nil.
func (l *Lent) Lender() string {
	if l == nil {
		return ""
	}
	return (&Principal{Node: l.By, Name: l.ByName}).ID()
}

// A Membership is the role of a caller in a group, whose id is the hash of its first entry (group/chain).
type Membership struct {
	Group string `json:"group"`
	Role  string `json:"role"`
	// Org is the organization in which the caller was when it joined; empty: none. The membership counts while that is so.
	Org DID `json:"-"`
}

// An AgentMembership is the membership of an agent with a key of its own, which agreed to be reached through a node.
type AgentMembership struct {
	Agent DID
	Membership
}

// An Attestation is a role that a foreign issuer gives. The same word of another issuer is another role.
type Attestation struct {
	Issuer DID
	Role   string
}

// A Relation is the relation of this node to a caller. The zero value is Untrusted.
type Relation uint8

// The relations, from the least to the closest.
const (
	Untrusted Relation = iota
	Partner            // a member of a partner of this node's organization
	Own                // a member of this node's organization, or this node
	Local              // a consumer of this node
)

// String returns "untrusted", "partner", "own" or "local".
func (r Relation) String() string {
	return [...]string{"untrusted", "partner", "own", "local"}[min(r, Local)]
}

// consumers are the principals of consumers without a name.
var consumers = map[Via]*Principal{Process: consumer(Process, ""), Socket: consumer(Socket, ""), Loopback: consumer(Loopback, ""),
	Token: consumer(Token, ""), OIDC: consumer(OIDC, ""), Unproven: consumer(Unproven, "")}

func consumer(via Via, name string) *Principal {
	p := &Principal{Name: name, Via: via, Relation: Local}
	if via == Unproven {
		p.Relation = Untrusted
	}
	return p
}

// Consumer returns the principal of a consumer of this node. Principals without a name are shared.
func Consumer(via Via, name string) *Principal {
	if p := consumers[via]; p != nil && name == "" {
		return p
	}
	return consumer(via, name)
}

// Operator is the name of the node's own token, which has all rights.
const Operator = "operator"

// IsReservedName reports whether a name is the [Principal.ID] of consumers without one, which a token or a consumer may not have.
func IsReservedName(name string) bool { return name == localID || name == unprovenID }

// InSession returns the principal of a session that p made and that ends at a time; zero sets no end.
func (p *Principal) InSession(end time.Time) *Principal {
	c := *p
	c.Via, c.Maker = Session, p.Proof()
	if !end.IsZero() && (c.Expires.IsZero() || end.Before(c.Expires)) {
		c.Expires = end
	}
	return &c
}

// Proof returns the method by which p authenticated; of a session, that by which its maker did. Rights follow from it, so that a session never has
// more than its maker.
func (p *Principal) Proof() Via {
	if p.Via == Session {
		return p.Maker
	}
	return p.Via
}

// Scoped reports whether p is a caller with a token, of this node or of an identity provider, that has only the rights that rules give it.
func (p *Principal) Scoped() bool {
	return p != nil && (p.Proof() == OIDC || p.Proof() == Token && p.Name != Operator)
}

// NodePrincipal returns the principal of another node, or of its consumer name.
func NodePrincipal(node DID, name string) *Principal {
	return &Principal{DID: node, Node: node, Name: name, Via: Peer}
}

// ID returns the key of the state of a caller: limits, tasks, registrations, subscriptions, opaque tokens. It is "did:key:z6Mk…" for a node,
// "did:key:z6Mk…#name" for a consumer behind one, the DID of an agent with a key of its own, "local" and "local#name" for consumers of this node, and "unproven" for
// unauthenticated callers. It is empty for nil, for which no state may be stored.
func (p *Principal) ID() string {
	if p == nil {
		return ""
	}
	id := p.Base()
	if a := p.Agent(); a != "" {
		id = string(a)
	}
	if p.Name != "" {
		id += "#" + p.Name
	}
	return id
}

// Base returns the [Principal.ID] without the name, so that a node cannot exceed its limits with invented names. It does not allocate.
func (p *Principal) Base() string {
	switch {
	case p == nil:
		return ""
	case p.Node != "":
		return string(p.Node)
	case p.DID != "":
		return string(p.DID)
	case p.Proof() == Unproven:
		return unprovenID
	}
	return localID
}

// Agent returns the DID of the agent with a key of its own that calls through this node or through another one; empty for other callers.
func (p *Principal) Agent() DID {
	if p == nil || p.DID == p.Node {
		return ""
	}
	return p.DID
}

// WithAgent returns the principal of an agent with a key of its own at the node p, or at this node: with the groups of the agent, and the roles of p
// that has permits, until a time; zero sets no end. It has no name: whoever started it, the agent is the caller. What proves that the agent is there is the concern of the caller.
func (p *Principal) WithAgent(agent DID, has func(role string) bool, until time.Time) *Principal {
	c := p.Narrowed("", p.Relation, has)
	for _, c := range []*Principal{c, c.Unconfirmed} {
		if c == nil {
			continue
		}
		c.Groups = p.groupsOf(agent)
		if c.DID = agent; !until.IsZero() && (c.Expires.IsZero() || until.Before(c.Expires)) {
			c.Expires = until
		}
	}
	return c
}

// Narrowed returns the principal of a consumer name behind p, or of p with the rights that it had earlier: at most the relation most, and the
// roles that has permits; a nil has permits all, and the groups. All that derives a principal from that of a node uses it, so that the result is never more
// than the node is now.
func (p *Principal) Narrowed(name string, most Relation, has func(role string) bool) *Principal {
	c := *p
	c.Name, c.Relation = name, min(p.Relation, most)
	if has != nil {
		c.Groups = nil
		c.Roles = slices.DeleteFunc(slices.Clone(p.Roles), func(role string) bool { return !has(role) })
		c.Attested = slices.DeleteFunc(slices.Clone(p.Attested), func(a Attestation) bool { return !has(a.Role) })
	}
	c.Agents = nil
	if p.Unconfirmed != nil {
		c.Unconfirmed = p.Unconfirmed.Narrowed(name, most, has)
	}
	return &c
}

// Grouped reports whether p, or an agent that is reached through it, is in a group.
func (p *Principal) Grouped() bool { return len(p.Groups) > 0 || len(p.Agents) > 0 }

// maxGroupsText limits [Principal.GroupsText], in bytes: headers have limits.
const maxGroupsText = 4 << 10

// GroupsText returns the groups for agents that receive the caller as text: "ID/ROLE ID/ROLE", at most 4 KiB. Those beyond are left out.
func (p *Principal) GroupsText() string {
	text := ""
	for _, m := range p.Groups {
		if one := strings.TrimSpace(text + " " + m.Group + "/" + m.Role); len(one) <= maxGroupsText {
			text = one
		}
	}
	return text
}

// groupsOf returns the memberships of an agent that is reached through p.
func (p *Principal) groupsOf(agent DID) (all []Membership) {
	for _, m := range p.Agents {
		if m.Agent == agent {
			all = append(all, m.Membership)
		}
	}
	return all
}

// Lost reports whether p, the principal of the same caller at a later time, has less standing than before: a lower relation, another
// organization, fewer roles, groups or attestations.
func (p *Principal) Lost(before *Principal) bool {
	return p.Relation < before.Relation || before.Org != "" && p.Org != before.Org || p.Barred != "" && before.Barred == "" ||
		slices.ContainsFunc(before.Roles, func(role string) bool { return !slices.Contains(p.Roles, role) }) ||
		slices.ContainsFunc(before.Groups, func(m Membership) bool { return !slices.Contains(p.Groups, m) }) ||
		slices.ContainsFunc(before.Attested, func(a Attestation) bool { return !slices.Contains(p.Attested, a) })
}

// principalJSON is the form of a principal that agents receive.
type principalJSON struct {
	ID   string `json:"id"`
	DID  DID    `json:"did,omitempty"`
	Node DID    `json:"node,omitempty"`
	Name string `json:"name,omitempty"`
	Via  Via    `json:"via"`

	Maker  Via          `json:"maker,omitempty"`
	Org    DID          `json:"organization,omitempty"`
	Roles  []string     `json:"roles,omitempty"`
	Scopes []string     `json:"scopes,omitempty"`
	Groups []Membership `json:"groups,omitempty"`
	LentBy string       `json:"lentBy,omitempty"`
}

// MarshalJSON writes p as agents receive it: {"id", "did", "node", "name", "via", "maker", "organization", "roles", "scopes", "groups", "lentBy"}, without empty
// members.
func (p Principal) MarshalJSON() ([]byte, error) {
	return json.Marshal(principalJSON{p.ID(), p.DID, p.Node, p.Name, p.Via, p.Maker, p.Org, p.Roles, p.Scopes, p.Groups, p.Lent.Lender()})
}

// UnmarshalJSON reads the form of MarshalJSON; the id follows from the other members.
func (p *Principal) UnmarshalJSON(text []byte) error {
	var t principalJSON
	if err := json.Unmarshal(text, &t); err != nil {
		return err
	}
	*p = Principal{DID: t.DID, Node: t.Node, Name: t.Name, Via: t.Via, Maker: t.Maker, Org: t.Org, Roles: t.Roles, Scopes: t.Scopes, Groups: t.Groups}
	if t.LentBy != "" {
		node, name, _ := strings.Cut(t.LentBy, "#")
		if node == localID {
			node = ""
		}
		p.Lent = &Lent{By: DID(node), ByName: name}
	}
	return nil
}

// Local reports whether p is a consumer of this node, proven or not; false for nil.
func (p *Principal) Local() bool { return p != nil && p.Node == "" }

// Anonymous reports whether p stands for all callers whose requests prove nothing, of this node or behind another one. They are not one person:
// one of them may find the state of another only by an id that cannot be guessed.
func (p *Principal) Anonymous() bool {
	return p != nil && (p.Node == "" && p.Proof() == Unproven || p.Node != "" && p.Name == unprovenID)
}

// Class distinguishes consumers of this node that have different rights at other nodes: it is the DID of an agent with a key of its own, and empty for other nodes and for those with all rights
// of this node. Consumers of one class may share an observation.
func (p *Principal) Class() string {
	switch {
	case p.Local() && p.DID != "":
		return string(p.DID)
	case !p.Local() || p.Proof() == Process || p.Proof() == Socket:
		return ""
	case p.Proof() == Token && !p.Scoped():
		return ""
	}
	return string(p.Proof())
}

// Distrusted is why a caller is Barred whom only the operator of this node distrusts. Other reasons are revocations.
const Distrusted = "the operator of this node distrusts the node"

// IsRevoked reports whether the organization of a caller has revoked it.
func (p *Principal) IsRevoked() bool { return p.Barred != "" && p.Barred != Distrusted }

// Short returns a form for display: "z6MkpTHR…", "z6MkpTHR…#name", "local".
func (p *Principal) Short() string {
	switch {
	case p == nil:
		return "unknown"
	case p.DID == "" && p.Node == "":
		return p.ID()
	}
	id := DID(p.Base()).Short()
	if a := p.Agent(); a != "" {
		id = a.Short()
	}
	if p.Name != "" {
		id += "#" + p.Name
	}
	return id
}

// maxPrincipalName limits the name of a consumer behind another node, in bytes.
const maxPrincipalName = 64

// ValidPrincipalName reports whether a node may send name to other nodes: one to 64 of [a-z0-9._-]. Other names of consumers, such as
// "uid:1000", stay on the node.
func ValidPrincipalName(name string) bool {
	return name != "" && len(name) <= maxPrincipalName &&
		strings.IndexFunc(name, func(c rune) bool {
			return !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-')
		}) < 0
}

type principalKey struct{}

// WithPrincipal returns a context with the caller p. The listener of a request sets it, and bindings read it.
func WithPrincipal(ctx context.Context, p *Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// AsProcess returns a context with the principal of this process, for what the node does itself.
func AsProcess(ctx context.Context) context.Context { return WithPrincipal(ctx, consumers[Process]) }

// PrincipalOf returns the caller; nil without one.
func PrincipalOf(ctx context.Context) *Principal {
	p, _ := ctx.Value(principalKey{}).(*Principal)
	return p
}
