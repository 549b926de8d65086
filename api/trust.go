package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// Organization is the organization of a node, as this node knows it: GET /v1/org.
type Organization struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"` // Organization
	DID        did.DID `json:"did"`
	SCID       string  `json:"scid"`           // the self-certifying identifier of its log
	Name       string  `json:"name"`           // its domain: a claim of the organization, not proven by DNS
	Auto       bool    `json:"auto,omitempty"` // the first run of the node made it
	Head       string  `json:"head"`           // the versionId of the last log entry
	// State is the state of the membership of this node: one of the Organization constants.
	State   string    `json:"state"`
	Roles   []string  `json:"roles"`          // of this node
	Until   time.Time `json:"until,omitzero"` // the end of the credential of this node
	Issuer  bool      `json:"issuer"`         // this node has an issuing key that the log lists
	Root    bool      `json:"root"`           // this node has the root key
	Issuers []Issuer  `json:"issuers"`
	// Bootstrap are the addresses of nodes in its document, through which others join its mesh.
	Bootstrap []string `json:"bootstrap,omitempty"`
	Members   []Member `json:"members,omitempty"` // only on issuers: the nodes for which they issued credentials
}

// The states of an organization. Unconfirmed: since the start of this node, no issuer has confirmed the status of members.
const (
	OrganizationConfirmed   = "confirmed"
	OrganizationUnconfirmed = "unconfirmed"
	OrganizationExpired     = "expired" // the credential of this node
	OrganizationEnded       = "ended"   // its log is deactivated: it has no members
)

// An Issuer is a node that issues the credentials of an organization.
type Issuer struct {
	Method      string    `json:"method"`         // of its key in the DID document, for example "#i1"
	Node        did.DID   `json:"node,omitempty"` // if it is known
	This        bool      `json:"this,omitempty"` // it is this node
	ListVersion uint64    `json:"list_version"`   // of its newest status list that this node has; 0: none
	ListFrom    time.Time `json:"list_from,omitzero"`
}

// A Member is a node for which this node issued a credential.
type Member struct {
	DID       did.DID   `json:"did"`
	Name      string    `json:"name,omitempty"` // of the node, if it is known
	Roles     []string  `json:"roles"`
	Until     time.Time `json:"until,omitzero"`
	Revoked   time.Time `json:"revoked,omitzero"` // zero: not revoked
	Connected bool      `json:"connected"`
}

// OrganizationInit is the body of POST /v1/org.
type OrganizationInit struct {
	Domain string `json:"domain"`
	// RecoveryFile is an absolute path on the host of the node, where the node writes the next root key. The file must not exist.
	RecoveryFile string `json:"recovery_file"`
	// Auto makes an organization for the nodes of one user, unless the node has one: its domain is a random name, and its next root key
	// stays on the node. Domain and RecoveryFile are empty then.
	Auto bool `json:"auto,omitempty"`
}

// The kinds of an invitation.
const (
	InviteNode    = "node"    // a node becomes a member of the organization
	InvitePartner = "partner" // another organization becomes a partner
)

// InvitationRequest is the body of POST /v1/org/invitations. Zero values mean the defaults of the node.
type InvitationRequest struct {
	Kind   string    `json:"kind"`             // InviteNode or InvitePartner
	Roles  []string  `json:"roles,omitempty"`  // of the new member, or those of the partner's roles that count; empty for partners: all
	For    did.DID   `json:"for,omitempty"`    // the only node or organization that may use it; empty: any that has the text
	Uses   int       `json:"uses,omitempty"`   // default 1
	Life   Duration  `json:"life,omitempty"`   // of the invitation; default 24 h, at most 30 d
	Until  time.Time `json:"until,omitzero"`   // the end of the partnership; zero: without limit
	Issuer bool      `json:"issuer,omitempty"` // the new member becomes an issuer, too
}

// Invitation is an open invitation. The node stores a hash of its secret, so only the response to its creation has the text.
type Invitation struct {
	APIVersion     string    `json:"apiVersion,omitempty"`
	Kind           string    `json:"kind,omitempty"` // Invitation; lists omit both
	ID             string    `json:"id"`
	Text           string    `json:"text,omitempty"` // "lmos-invite:…": a secret: any node that has it may use it
	InvitationKind string    `json:"invitation_kind"`
	For            did.DID   `json:"for,omitempty"`
	Roles          []string  `json:"roles,omitempty"`
	Issuer         bool      `json:"issuer,omitempty"`
	Uses           int       `json:"uses"` // that remain
	Expires        time.Time `json:"expires"`
	Organization   did.DID   `json:"organization"`
	SCID           string    `json:"scid"`
}

// InvitationList is GET /v1/org/invitations.
type InvitationList struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"` // InvitationList
	Items      []Invitation `json:"items"`
}

// Acceptance is the body of POST /v1/org/join and of POST /v1/trust/partners.
type Acceptance struct {
	Invitation string `json:"invitation"`
	Name       string `json:"name,omitempty"` // the local name of the partner; empty: from its domain
}

// Confirmation is the body of POST /v1/trust/partners/{name}/confirm.
type Confirmation struct {
	Head string `json:"head,omitempty"` // a versionId of the history that the operator chooses, of two
}

// Offer is an organization that a connected node of the local network lets others ask to join. Its name is a claim.
type Offer struct {
	Node         did.DID `json:"node"` // an issuer
	Organization did.DID `json:"organization"`
	SCID         string  `json:"scid"`
	Name         string  `json:"name"`
}

// OfferList is GET /v1/org/offers.
type OfferList struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"` // OfferList
	Items      []Offer `json:"items"`
}

// JoinQuery is the body of POST /v1/org/requests.
type JoinQuery struct {
	Node did.DID `json:"node"` // of an offer
	// SCID is that of the organization whose words the operators of both nodes have compared. The node joins no organization without it.
	SCID string `json:"scid,omitempty"`
}

// JoinRequest is the request of a node to become a member. Both sides have the same words, which stand for the organization and the node.
type JoinRequest struct {
	APIVersion   string    `json:"apiVersion,omitempty"`
	Kind         string    `json:"kind,omitempty"` // JoinRequest; lists omit both
	Node         did.DID   `json:"node"`           // that asks, at an issuer; at the node that asks: the issuer
	Organization did.DID   `json:"organization"`
	SCID         string    `json:"scid"`
	Name         string    `json:"name"`
	Words        []string  `json:"words"`
	Joined       bool      `json:"joined,omitempty"` // this node is a member
	Expires      time.Time `json:"expires,omitzero"`
}

// JoinRequestList is GET /v1/org/requests: those at this issuer.
type JoinRequestList struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"` // JoinRequestList
	Items      []JoinRequest `json:"items"`
}

// Partner is another organization that this one trusts, or a list entry of it.
type Partner struct {
	APIVersion string    `json:"apiVersion,omitempty"`
	Kind       string    `json:"kind,omitempty"` // Partner; lists omit both
	Name       string    `json:"name"`           // the local name
	DID        did.DID   `json:"did"`
	SCID       string    `json:"scid"`
	State      string    `json:"state"`           // one of the Partner constants
	Roles      []string  `json:"roles,omitempty"` // those of its roles that count; empty: all
	Since      time.Time `json:"since"`
	Until      time.Time `json:"until,omitzero"` // zero: without limit
	Words      []string  `json:"words,omitempty"`
	Head       string    `json:"head"` // the versionId of the last log entry
	// Other is that of a second history of the log, which contradicts the first: the partner is suspended until the operator chooses one.
	Other     string `json:"other,omitempty"`
	Connected int    `json:"connected"` // connected nodes of the partner
}

// The states of a partner.
const (
	PartnerActive      = "partner"
	PartnerUnconfirmed = "unconfirmed" // the invitation named no organization, and the check words are not confirmed
	PartnerSuspended   = "suspended"   // its log has two different continuations
	PartnerExpired     = "expired"     // Until has passed
)

// PartnerList is GET /v1/trust/partners.
type PartnerList struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"` // PartnerList
	Items      []Partner `json:"items"`
}

// Standing is what this node knows about a node or an agent: GET /v1/trust/standing/{did}.
type Standing struct {
	APIVersion   string             `json:"apiVersion"`
	Kind         string             `json:"kind"` // Standing
	DID          did.DID            `json:"did"`
	Relation     string             `json:"relation"` // own, partner, untrusted
	Organization *OrganizationClaim `json:"organization,omitempty"`
	Roles        []string           `json:"roles,omitempty"`   // that count here
	Barred       string             `json:"barred,omitempty"`  // why it may do nothing; empty: it is not barred
	Pending      string             `json:"pending,omitempty"` // what is missing until its standing counts; empty: nothing
	Until        time.Time          `json:"until,omitzero"`
	Credential   json.RawMessage    `json:"credential,omitempty"`
}

// OrganizationClaim is the organization of a Standing, or of the owner of an agent.
type OrganizationClaim struct {
	// Name is the name by which the node knows the organization: of a partner its local name, of others the domain, or the vendor.
	Name string  `json:"name"`
	DID  did.DID `json:"did,omitempty"` // empty for a vendor
	// State is own or partner for verified members of these, in a Standing also former (partner); proven for a verified member of an organization whose domain serves its log;
	// claimed for anything else.
	State string `json:"state"`
}

// DomainCheckRequest is the body of POST /v1/trust/check.
type DomainCheckRequest struct {
	Domain string `json:"domain"` // a domain, with a port and a path if it has them, or a did:webvh
}

// DomainCheck is the result of POST /v1/trust/check: what the web server of a domain proves about an organization.
type DomainCheck struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // DomainCheck
	Domain     string `json:"domain"`
	Proven     bool   `json:"proven"`
	// DID, SCID and Head are those of the log that the domain serves; empty without a log.
	DID  did.DID `json:"did,omitempty"`
	SCID string  `json:"scid,omitempty"`
	Head string  `json:"head,omitempty"`
	// Organization is the organization of the log as it is shown.
	Organization *OrganizationClaim `json:"organization,omitempty"`
	Until        time.Time          `json:"until,omitzero"` // the end of the proof; zero for the own organization and partners
	Problems     []string           `json:"problems"`       // what was not proven, and why
	Agents       []CheckedAgent     `json:"agents"`         // known agents that claim the domain
}

// A CheckedAgent is an agent that claims an organization at a domain.
type CheckedAgent struct {
	Ref          string             `json:"ref"`
	Owner        did.DID            `json:"owner"`
	Organization *OrganizationClaim `json:"organization"`
}

// RolesRequest is the body of PUT /v1/org/members/{did}/roles.
type RolesRequest struct {
	Roles []string `json:"roles"`
}

// IssuerRequest is the body of POST /v1/org/issuers.
type IssuerRequest struct {
	Node did.DID `json:"node"` // a member of the organization
}

// OrganizationBootstrap is the body of PUT /v1/org/bootstrap.
type OrganizationBootstrap struct {
	Addresses []string `json:"addresses"` // up to 8 multiaddrs with /p2p; null: those of the node; []: none
}

// RootExport is the body of POST /v1/org/root/export. The response is the root key in PEM, encrypted with the passphrase unless that is empty.
type RootExport struct {
	Passphrase string `json:"passphrase,omitempty"`
}

// RootImport is the body of PUT /v1/org/root.
type RootImport struct {
	Key        string `json:"key"` // the response of POST /v1/org/root/export
	Passphrase string `json:"passphrase,omitempty"`
}

// RootRecovery is the body of POST /v1/org/root/recover.
type RootRecovery struct {
	Key string `json:"key"` // the content of the recovery file
	// RecoveryFile is as in [OrganizationInit].
	RecoveryFile string `json:"recovery_file"`
}

// OrganizationExport is the body of POST /v1/org/export.
type OrganizationExport struct {
	Dir string `json:"dir"` // an absolute path on the host of the node; the folder is created, and existing files are replaced
}

// A Duration is a [time.Duration] that is a string in JSON, for example "24h0m0s".
type Duration time.Duration

// MarshalText implements [encoding.TextMarshaler].
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("expected a duration such as \"24h\", got %q", clip(string(text)))
	}
	*d = Duration(parsed)
	return nil
}

// ForeignIssuer is an issuer of credentials that is no organization: POST /v1/trust/issuers adds it with name, did and roles.
type ForeignIssuer struct {
	APIVersion string  `json:"apiVersion,omitempty"`
	Kind       string  `json:"kind,omitempty"` // ForeignIssuer; lists omit both
	Name       string  `json:"name"`           // in access rules, as NAME/ROLE
	DID        did.DID `json:"did"`            // a did:key or did:web
	// Roles are those that its credentials may give: "adjuster" if the subject has it as role or in roles, "adjuster=TYPE" if the credential has
	// the type.
	Roles []string  `json:"roles"`
	Since time.Time `json:"since,omitzero"`
}

// ForeignIssuerList is GET /v1/trust/issuers.
type ForeignIssuerList struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"` // ForeignIssuerList
	Items      []ForeignIssuer `json:"items"`
}

// CredentialPresentation is the body of POST /v1/trust/credentials.
type CredentialPresentation struct {
	// Credential is one of the data model 1.1 whose subject is the node, as its issuer signed it.
	Credential json.RawMessage `json:"credential"`
	// To are the nodes to which the node shows it; empty: members of its organization and of partners.
	To []did.DID `json:"to,omitempty"`
}

// CredentialFetch is the body of POST /v1/trust/credentials/fetch.
type CredentialFetch struct {
	From did.DID   `json:"from"`         // a did:web with a VerifiableCredentialService
	To   []did.DID `json:"to,omitempty"` // as in CredentialPresentation
}

// ForeignCredential is a credential of a foreign issuer: one that the node holds, or one that a connected node has shown and that counts.
type ForeignCredential struct {
	APIVersion string    `json:"apiVersion,omitempty"`
	Kind       string    `json:"kind,omitempty"` // ForeignCredential; lists omit both
	Hash       string    `json:"hash"`           // SHA-256, as hex
	Issuer     did.DID   `json:"issuer"`
	IssuerName string    `json:"issuer_name,omitempty"` // here; empty: the issuer is not in the trust store
	Subject    did.DID   `json:"subject"`
	Types      []string  `json:"types"`
	Roles      []string  `json:"roles,omitempty"` // that it gives the subject here
	Until      time.Time `json:"until"`
	Held       bool      `json:"held,omitempty"` // by the node
	To         []did.DID `json:"to,omitempty"`   // of a held one: the nodes to which it is shown
}

// ForeignCredentialList is GET /v1/trust/credentials.
type ForeignCredentialList struct {
	APIVersion string              `json:"apiVersion"`
	Kind       string              `json:"kind"` // ForeignCredentialList
	Items      []ForeignCredential `json:"items"`
}

// Organization returns the organization of the node. The error is [interact.NotFound] if it has none.
func (c *Client) Organization(ctx context.Context) (*Organization, error) {
	return get[Organization](ctx, c, "/v1/org")
}

// InitOrganization makes an organization whose first member and issuer is the node. It requires the token or the socket, as do all methods
// for organizations and partners but Organization, Partners and Standing.
func (c *Client) InitOrganization(ctx context.Context, o OrganizationInit) (*Organization, error) {
	return sendJSON[Organization](ctx, c, http.MethodPost, "/v1/org", o)
}

// LeaveOrganization deletes the organization and its keys from the node.
func (c *Client) LeaveOrganization(ctx context.Context) error {
	return c.command(ctx, http.MethodDelete, "/v1/org", nil)
}

// Invite makes an invitation. The result has its text.
func (c *Client) Invite(ctx context.Context, r InvitationRequest) (*Invitation, error) {
	return sendJSON[Invitation](ctx, c, http.MethodPost, "/v1/org/invitations", r)
}

// Invitations returns the open invitations, without their texts.
func (c *Client) Invitations(ctx context.Context) (*InvitationList, error) {
	return get[InvitationList](ctx, c, "/v1/org/invitations")
}

// JoinOrganization makes the node a member of the organization that invites it.
func (c *Client) JoinOrganization(ctx context.Context, a Acceptance) (*Organization, error) {
	return sendJSON[Organization](ctx, c, http.MethodPost, "/v1/org/join", a)
}

// Offers returns the organizations that nodes of the local network let this node ask to join.
func (c *Client) Offers(ctx context.Context) (*OfferList, error) {
	return get[OfferList](ctx, c, "/v1/org/offers")
}

// RequestJoin asks a node of the local network to make this node a member, which joins once it is admitted, if the query has a SCID.
func (c *Client) RequestJoin(ctx context.Context, q JoinQuery) (*JoinRequest, error) {
	return sendJSON[JoinRequest](ctx, c, http.MethodPost, "/v1/org/requests", q)
}

// JoinRequests returns the open requests of nodes at this issuer. SetRoles admits one.
func (c *Client) JoinRequests(ctx context.Context) (*JoinRequestList, error) {
	return get[JoinRequestList](ctx, c, "/v1/org/requests")
}

// Revoke ends the membership of a node. Restore permits it again.
func (c *Client) Revoke(ctx context.Context, member did.DID) error {
	return c.command(ctx, http.MethodPost, memberPath(member, "revoke"), nil)
}

// Restore ends the exclusion of a revoked member.
func (c *Client) Restore(ctx context.Context, member did.DID) error {
	return c.command(ctx, http.MethodPost, memberPath(member, "restore"), nil)
}

// SetRoles makes a node a member with these roles, or replaces the roles of a member.
func (c *Client) SetRoles(ctx context.Context, member did.DID, roles []string) error {
	return c.command(ctx, http.MethodPut, memberPath(member, "roles"), RolesRequest{Roles: roles})
}

func memberPath(member did.DID, below string) string {
	return "/v1/org/members/" + url.PathEscape(string(member)) + "/" + below
}

// RenewCredential gets a new credential for the node from an issuer.
func (c *Client) RenewCredential(ctx context.Context) (*Organization, error) {
	return sendJSON[Organization](ctx, c, http.MethodPost, "/v1/org/renew", nil)
}

// AddIssuer makes a member an issuer. The node must have the root key, as for RemoveIssuer.
func (c *Client) AddIssuer(ctx context.Context, node did.DID) error {
	return c.command(ctx, http.MethodPost, "/v1/org/issuers", IssuerRequest{Node: node})
}

// RemoveIssuer removes an issuing key, for example "#i2": the credentials that it signed are no longer valid.
func (c *Client) RemoveIssuer(ctx context.Context, method string) error {
	return c.command(ctx, http.MethodDelete, "/v1/org/issuers/"+url.PathEscape(method), nil)
}

// SetBootstrap replaces the addresses of nodes in the document of the organization, through which others join its mesh: nil means those of the node,
// and an empty list none. The node must have the root key.
func (c *Client) SetBootstrap(ctx context.Context, addrs []string) (*Organization, error) {
	return sendJSON[Organization](ctx, c, http.MethodPut, "/v1/org/bootstrap", OrganizationBootstrap{Addresses: addrs})
}

// RotateRoot replaces the root key of the organization by a new one at the node.
func (c *Client) RotateRoot(ctx context.Context) error {
	return c.command(ctx, http.MethodPost, "/v1/org/root/rotate", nil)
}

// ExportRoot returns the root key in PEM, encrypted with the passphrase unless that is empty. The key stays at the node.
func (c *Client) ExportRoot(ctx context.Context, passphrase string) ([]byte, error) {
	body, err := json.Marshal(RootExport{Passphrase: passphrase})
	if err != nil {
		return nil, err
	}
	key, _, err := c.do(ctx, http.MethodPost, "/v1/org/root/export", interact.JSON, body)
	return key, err
}

// RemoveRoot deletes the root key from the node.
func (c *Client) RemoveRoot(ctx context.Context) error {
	return c.command(ctx, http.MethodDelete, "/v1/org/root", nil)
}

// ImportRoot stores an exported root key at the node.
func (c *Client) ImportRoot(ctx context.Context, r RootImport) error {
	return c.command(ctx, http.MethodPut, "/v1/org/root", r)
}

// RecoverOrganization replaces the root key by means of the key of the recovery file.
func (c *Client) RecoverOrganization(ctx context.Context, r RootRecovery) error {
	return c.command(ctx, http.MethodPost, "/v1/org/root/recover", r)
}

// DeactivateOrganization ends the organization, for all its members and partners.
func (c *Client) DeactivateOrganization(ctx context.Context) error {
	return c.command(ctx, http.MethodPost, "/v1/org/deactivate", nil)
}

// ExportOrganization writes the public files of the organization to a folder at the host of the node, for a web server.
func (c *Client) ExportOrganization(ctx context.Context, dir string) error {
	return c.command(ctx, http.MethodPost, "/v1/org/export", OrganizationExport{Dir: dir})
}

// ForeignCredentials returns the credentials that the node holds, and those that connected nodes have shown.
func (c *Client) ForeignCredentials(ctx context.Context) (*ForeignCredentialList, error) {
	return get[ForeignCredentialList](ctx, c, "/v1/trust/credentials")
}

// PresentCredential stores a credential whose subject is the node, which shows it to other nodes.
func (c *Client) PresentCredential(ctx context.Context, p CredentialPresentation) (*ForeignCredential, error) {
	return sendJSON[ForeignCredential](ctx, c, http.MethodPost, "/v1/trust/credentials", p)
}

// FetchCredentials has the node fetch the credentials of which it is the subject from the services of a did:web, and store them.
func (c *Client) FetchCredentials(ctx context.Context, q CredentialFetch) (*ForeignCredentialList, error) {
	return sendJSON[ForeignCredentialList](ctx, c, http.MethodPost, "/v1/trust/credentials/fetch", q)
}

// RemoveCredential removes a credential that the node holds, by its hash or 12 or more digits of it.
func (c *Client) RemoveCredential(ctx context.Context, hash string) error {
	return c.command(ctx, http.MethodDelete, "/v1/trust/credentials/"+url.PathEscape(hash), nil)
}

// ForeignIssuers returns the issuers whose credentials give roles at the node.
func (c *Client) ForeignIssuers(ctx context.Context) (*ForeignIssuerList, error) {
	return get[ForeignIssuerList](ctx, c, "/v1/trust/issuers")
}

// TrustIssuer adds a foreign issuer, or changes the roles that its credentials may give.
func (c *Client) TrustIssuer(ctx context.Context, i ForeignIssuer) (*ForeignIssuer, error) {
	return sendJSON[ForeignIssuer](ctx, c, http.MethodPost, "/v1/trust/issuers", i)
}

// RemoveForeignIssuer ends what the credentials of a foreign issuer give.
func (c *Client) RemoveForeignIssuer(ctx context.Context, name string) error {
	return c.command(ctx, http.MethodDelete, "/v1/trust/issuers/"+url.PathEscape(name), nil)
}

// Partners returns the partners of the organization.
func (c *Client) Partners(ctx context.Context) (*PartnerList, error) {
	return get[PartnerList](ctx, c, "/v1/trust/partners")
}

// AcceptInvitation makes the organization that invites a partner.
func (c *Client) AcceptInvitation(ctx context.Context, a Acceptance) (*Partner, error) {
	return sendJSON[Partner](ctx, c, http.MethodPost, "/v1/trust/partners", a)
}

// ConfirmPartner confirms that the check words of a partner are the same on both sides. head chooses one of two histories of its log: a
// versionId that only that one has. It is empty if there is one history.
func (c *Client) ConfirmPartner(ctx context.Context, name, head string) (*Partner, error) {
	return sendJSON[Partner](ctx, c, http.MethodPost, "/v1/trust/partners/"+url.PathEscape(name)+"/confirm", Confirmation{Head: head})
}

// RemovePartner ends a partnership.
func (c *Client) RemovePartner(ctx context.Context, name string) error {
	return c.command(ctx, http.MethodDelete, "/v1/trust/partners/"+url.PathEscape(name), nil)
}

// Distrust excludes a node or an organization, whatever the access rules permit, or ends that if on is false.
func (c *Client) Distrust(ctx context.Context, id did.DID, on bool) error {
	method := http.MethodPut
	if !on {
		method = http.MethodDelete
	}
	return c.command(ctx, method, "/v1/trust/distrusted/"+url.PathEscape(string(id)), nil)
}

// Standing returns what the node knows about another one.
func (c *Client) Standing(ctx context.Context, id did.DID) (*Standing, error) {
	return get[Standing](ctx, c, "/v1/trust/standing/"+url.PathEscape(string(id)))
}

// CheckDomain has the node fetch the log of the organization at a domain, and returns what that proves.
func (c *Client) CheckDomain(ctx context.Context, domain string) (*DomainCheck, error) {
	return sendJSON[DomainCheck](ctx, c, http.MethodPost, "/v1/trust/check", DomainCheckRequest{Domain: domain})
}

// sendJSON sends v as JSON, or no body for nil. The response is one JSON document of type T.
func sendJSON[T any](ctx context.Context, c *Client, method, path string, v any) (*T, error) {
	body, err := bodyOf(v)
	if err != nil {
		return nil, err
	}
	return request[T](ctx, c, method, path, interact.JSON, body)
}

// command sends v as JSON, or no body for nil. The response has no body.
func (c *Client) command(ctx context.Context, method, path string, v any) error {
	body, err := bodyOf(v)
	if err != nil {
		return err
	}
	_, _, err = c.do(ctx, method, path, interact.JSON, body)
	return err
}

func bodyOf(v any) ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	return json.Marshal(v)
}
