package api

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/lmosd/lmosd/did"
)

// The states of a [Group] at a node.
const (
	GroupActive    = "active"    // the node is a member
	GroupInvited   = "invited"   // an admin offers the membership
	GroupLeft      = "left"      // the node left
	GroupRemoved   = "removed"   // an admin removed the node
	GroupDissolved = "dissolved" // an admin ended the group
)

// A Group is a group as one node knows it.
type Group struct {
	APIVersion string `json:"apiVersion,omitempty"` // of a response on one group, as Kind
	Kind       string `json:"kind,omitempty"`       // "Group"

	ID     string            `json:"id"`    // the hash of the first entry of its log
	Name   string            `json:"name"`  // of this node for the group, which access rules use
	Title  string            `json:"title"` // the name that its first admin gave it
	State  string            `json:"state"`
	Role   string            `json:"role,omitempty"` // of this node
	Labels map[string]string `json:"labels,omitempty"`
	// Threshold is how many admins must agree to a change of the admins, and to the end of the group.
	Threshold int           `json:"threshold,omitempty"`
	Join      []GroupRule   `json:"join,omitempty"`
	Members   []GroupMember `json:"members,omitempty"` // only of one group
	Former    []GroupFormer `json:"former,omitempty"`  // only of one group
	Count     int           `json:"count"`             // of members
	Entries   int           `json:"entries"`           // of the log, on the branch that counts
	Head      string        `json:"head,omitempty"`    // the newest entry
	Changed   time.Time     `json:"changed,omitzero"`  // its time
	Pending   []GroupChange `json:"pending,omitempty"` // changes that need more admins
	Splits    []GroupSplit  `json:"splits,omitempty"`  // of the log
	Inviter   did.DID       `json:"inviter,omitempty"` // of an offer
}

// A GroupMember is a member of a group.
type GroupMember struct {
	DID   did.DID   `json:"did"`
	Node  did.DID   `json:"node"` // through which it is reached
	Org   did.DID   `json:"organization,omitempty"`
	Role  string    `json:"role"`
	Until time.Time `json:"until,omitzero"` // the end of the credential by which it joined
	Since int       `json:"since"`          // the number of the entry
	// Problem is why the member has no rights at this node; empty: it has.
	Problem string `json:"problem,omitempty"`
}

// A GroupFormer left a group, or was removed.
type GroupFormer struct {
	DID     did.DID `json:"did"`
	Node    did.DID `json:"node"`
	Until   int     `json:"until"` // the number of the entry
	Removed bool    `json:"removed"`
}

// A GroupSplit is entries of the log that follow the same one. Those by one signer prove that it signed two histories.
type GroupSplit struct {
	After   string   `json:"after"`
	Entries []string `json:"entries"`
	Signer  did.DID  `json:"signer,omitempty"` // of all
}

// A GroupRule lets those join whose credential of an issuer states a role.
type GroupRule struct {
	Issuer string `json:"issuer"`         // a DID, or the name of an organization at this node
	Role   string `json:"role,omitempty"` // in the credential; empty: any
	As     string `json:"as,omitempty"`   // the role in the group; empty: member
}

// A GroupCreate is the body of POST /v1/groups.
type GroupCreate struct {
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels,omitempty"`
	Threshold int               `json:"threshold,omitempty"` // 1 to 8; 0: 1
	Join      []GroupRule       `json:"join,omitempty"`
}

// A GroupInvite is the body of POST /v1/groups/{group}/invite.
type GroupInvite struct {
	Role string  `json:"role,omitempty"` // empty: member
	Uses int     `json:"uses,omitempty"` // 0: 1
	Life string  `json:"life,omitempty"` // "24h"; at most 30 days
	For  did.DID `json:"for,omitempty"`  // the only node that may use it
	// Offer sends the invitation to the node For, whose operator finds it in the list of groups.
	Offer bool `json:"offer,omitempty"`
}

// A GroupInvitation is an invitation to a group.
type GroupInvitation struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // "GroupInvitation"

	Invitation string    `json:"invitation,omitempty"` // empty: it was sent to the node
	Expires    time.Time `json:"expires"`
}

// A GroupJoin is the body of POST /v1/groups/join. One of Invitation, Offer and Group is set.
type GroupJoin struct {
	Invitation string `json:"invitation,omitempty"`
	Offer      string `json:"offer,omitempty"` // the name or the id of a group in the state invited
	// Group is the id of a group that lets members of an organization join, and At a node of an admin: a multiaddr with /p2p, or the DID of a
	// connected node.
	Group string `json:"group,omitempty"`
	At    string `json:"at,omitempty"`
	Name  string `json:"name,omitempty"` // of this node for the group; empty: its title
	// Statement is that of an agent with a key of its own, which joins by an invitation and is reached through the node (chain.SignJoin). Empty: the node joins.
	Statement json.RawMessage `json:"statement,omitempty"`
}

// The changes of a group.
const (
	GroupSetRole  = "role"
	GroupRemove   = "remove"
	GroupLeave    = "leave"
	GroupDissolve = "dissolve"
)

// A GroupChange is the body of POST /v1/groups/{group}/change.
type GroupChange struct {
	Kind   string  `json:"kind"`
	Member did.DID `json:"member,omitempty"`
	Role   string  `json:"role,omitempty"`
	// Statement is that of an agent which leaves (chain.SignLeave). Empty: the node leaves.
	Statement json.RawMessage `json:"statement,omitempty"`
	// Approved is how many admins have agreed to a pending change, and Needed how many must; of responses only.
	Approved int `json:"approved,omitempty"`
	Needed   int `json:"needed,omitempty"`
}

// MaxGroupEvent limits the data of an event, in bytes.
const MaxGroupEvent = 32 << 10

// A GroupEvent is a message of a member to the others.
type GroupEvent struct {
	ID     string          `json:"id"`
	Group  string          `json:"group"`
	Member did.DID         `json:"member"`           // who sent it
	Node   did.DID         `json:"node"`             // whose key the connection has proved
	Sender string          `json:"sender,omitempty"` // the name of a consumer, as its node states it
	Time   time.Time       `json:"time"`             // as its node states it
	Type   string          `json:"type,omitempty"`
	Data   json.RawMessage `json:"data"`
}

// A GroupDelivery is the result of sending an event.
type GroupDelivery struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // "GroupDelivery"

	ID        string             `json:"id"`
	Delivered int                `json:"delivered"` // to nodes of members
	Failed    map[did.DID]string `json:"failed,omitempty"`
}

// A GroupList is the groups of a node.
type GroupList struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"` // "GroupList"
	Items      []Group `json:"items"`
}

// Groups lists the groups of a node.
func (c *Client) Groups(ctx context.Context) (*GroupList, error) {
	return get[GroupList](ctx, c, "/v1/groups")
}

// Group returns one group by its name or id.
func (c *Client) Group(ctx context.Context, ref string) (*Group, error) {
	return get[Group](ctx, c, groupPath(ref, ""))
}

// GroupLog returns the log of a group: an entry per line. It proves itself.
func (c *Client) GroupLog(ctx context.Context, ref string) ([]byte, error) {
	raw, _, err := c.do(ctx, http.MethodGet, groupPath(ref, "/log"), "", nil)
	return raw, err
}

func groupPath(ref, below string) string { return "/v1/groups/" + url.PathEscape(ref) + below }

// CreateGroup creates a group, whose first admin is the node.
func (c *Client) CreateGroup(ctx context.Context, q GroupCreate) (*Group, error) {
	return post[Group](ctx, c, "/v1/groups", q)
}

// JoinGroup makes the node a member.
func (c *Client) JoinGroup(ctx context.Context, q GroupJoin) (*Group, error) {
	return post[Group](ctx, c, "/v1/groups/join", q)
}

// InviteToGroup issues an invitation.
func (c *Client) InviteToGroup(ctx context.Context, ref string, q GroupInvite) (*GroupInvitation, error) {
	return post[GroupInvitation](ctx, c, groupPath(ref, "/invite"), q)
}

// ChangeGroup changes a group, or proposes or approves the change.
func (c *Client) ChangeGroup(ctx context.Context, ref string, q GroupChange) (*Group, error) {
	return post[Group](ctx, c, groupPath(ref, "/change"), q)
}

// SendToGroup sends an event with JSON data to the other members.
func (c *Client) SendToGroup(ctx context.Context, ref, typ string, data json.RawMessage) (*GroupDelivery, error) {
	return post[GroupDelivery](ctx, c, groupPath(ref, "/events"), GroupEvent{Type: typ, Data: data})
}

// WatchGroup yields the events of a group from now on. It ends with the error of code NotMember or GroupDissolved when the membership of the
// node ends.
func (c *Client) WatchGroup(ctx context.Context, ref string) iter.Seq2[GroupEvent, error] {
	return func(yield func(GroupEvent, error) bool) {
		for e, err := range c.watch(ctx, groupPath(ref, "/events"), "") {
			var event GroupEvent
			if err == nil {
				if err = json.Unmarshal(e.Data, &event); err != nil {
					err = c.notANode(err)
				}
			}
			if !yield(event, err) || err != nil {
				return
			}
		}
	}
}
