package api

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/lmosd/lmosd/did"
)

// A DelegationRequest is the body of POST /v1/delegations.
type DelegationRequest struct {
	Agent string   `json:"agent"`           // a reference of the Thing
	Name  string   `json:"name"`            // of the affordance
	Op    string   `json:"op,omitempty"`    // invoke, read, write or subscribe; empty: invoke
	To    did.DID  `json:"to"`              // a did:key: the node that may use it
	Life  string   `json:"life"`            // "10m"; at most 30 days
	Where []string `json:"where,omitempty"` // conditions on the input, "amount<=100"
}

// A Delegation lets another caller use a right of a consumer of this node at a host.
type Delegation struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"` // "Delegation"

	ID      string    `json:"id"` // the CID of its last link
	By      string    `json:"by,omitempty"`
	To      did.DID   `json:"to"`
	Host    did.DID   `json:"host"` // the only one at which it is valid
	Agent   string    `json:"agent"`
	Thing   string    `json:"thing"`
	Op      string    `json:"op"`
	Name    string    `json:"name"`
	Where   []string  `json:"where,omitempty"`
	Expires time.Time `json:"expires"`
	Token   string    `json:"token,omitempty"` // only when it is created
	// Revoking is set if it is revoked and its host has not received that yet.
	Revoking bool `json:"revoking,omitempty"`
}

// A DelegationList is the delegations of a node that have not ended.
type DelegationList struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"` // "DelegationList"
	Items      []Delegation `json:"items"`
}

// Delegate lets another caller use a right of this one.
func (c *Client) Delegate(ctx context.Context, q DelegationRequest) (*Delegation, error) {
	return post[Delegation](ctx, c, "/v1/delegations", q)
}

// Delegations lists the delegations that consumers of the node gave away.
func (c *Client) Delegations(ctx context.Context) (*DelegationList, error) {
	return get[DelegationList](ctx, c, "/v1/delegations")
}

// IssuedDelegations lists the delegations that are valid at the node: those that it issued to delegators of other nodes and of its own.
func (c *Client) IssuedDelegations(ctx context.Context) (*DelegationList, error) {
	return get[DelegationList](ctx, c, "/v1/delegations?issued=true")
}

// RevokeDelegation ends a delegation, by its id.
func (c *Client) RevokeDelegation(ctx context.Context, id string) (*Delegation, error) {
	return request[Delegation](ctx, c, http.MethodDelete, "/v1/delegations/"+url.PathEscape(id), "", nil)
}
