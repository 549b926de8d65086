package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// MaxHostingGrant limits the encoding of a [HostingGrant], in bytes: a TD of [td.MaxTD], with insignificant space.
const MaxHostingGrant = 512 << 10

// HostingGrant is what the owner of a Thing gives to the nodes that may host it: the file of `lmosd hosting sign`, and the body of POST /v1/hosting. It has
// no secret.
type HostingGrant struct {
	Grant []byte `json:"grant"` // encoded as [td.Grant] is, base64
	// TD is the signed TD without insignificant space. The grant has the hash of these bytes.
	TD json.RawMessage `json:"td"`
}

// SignHostingGrant signs a grant of a completed Thing, and its TD, unless that has a valid proof of the same owner. The errors are those of [td.SignGrant].
func SignHostingGrant(t *td.Thing, s did.Signer, l td.GrantLease) (*HostingGrant, *td.Grant, error) {
	_, raw, err := td.SignGrant(t, s, l) // with a proof
	if err != nil {
		return nil, nil, err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil, nil, err
	}
	if t, err = td.Parse(compact.Bytes()); err != nil {
		return nil, nil, err
	}
	g, raw, err := td.SignGrant(t, s, l) // of the bytes in the file
	if err != nil {
		return nil, nil, err
	}
	return &HostingGrant{Grant: g.Raw, TD: raw}, g, nil
}

// IsHostingGrant reports whether a JSON object is meant to be a [HostingGrant], and not a TD.
func IsHostingGrant(raw []byte) bool {
	var g struct {
		Grant json.RawMessage `json:"grant"`
		Title json.RawMessage `json:"title"`
	}
	return json.Unmarshal(raw, &g) == nil && g.Grant != nil && g.Title == nil
}

// ParseHostingGrant decodes a grant, whose TD may have insignificant space, and verifies the signature of the grant. It verifies neither its times nor the
// TD. The error is an [*interact.Error] of code Invalid.
func ParseHostingGrant(raw []byte) (*HostingGrant, *td.Grant, error) {
	const hint = "use the file that the owner signed, unchanged"
	g := new(HostingGrant)
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(g); err != nil || d.More() || len(g.Grant) == 0 || len(g.TD) == 0 {
		return nil, nil, interact.Errorf(interact.Invalid, hint, `expected a JSON object with the members "grant" and "td"`)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, g.TD); err != nil {
		return nil, nil, interact.Errorf(interact.Invalid, hint, "td: %v", err)
	}
	g.TD = compact.Bytes()
	grant, err := td.ParseGrant(g.Grant)
	if err != nil {
		return nil, nil, interact.Errorf(interact.Invalid, hint, "%v", err)
	}
	return g, grant, nil
}

// Encode returns g as JSON on one line. Other encoders may change the bytes of the TD: encoding/json escapes some characters in it.
func (g *HostingGrant) Encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(g)
	return b.Bytes(), err
}

// Hosted is a Thing of another owner that the node hosts: an element of [HostedList].
type Hosted struct {
	Thing   string    `json:"thing"` // the id
	Ref     string    `json:"ref"`   // exact: id and owner
	Name    string    `json:"name"`
	Owner   did.DID   `json:"owner"`
	Number  uint64    `json:"number"` // of the grant
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"` // the end of the grant
	Nodes   []did.DID `json:"nodes"`   // that the grant names
	Hosts   []did.DID `json:"hosts"`   // that are known to host the Thing now
	// State is one of the constants below.
	State string `json:"state"`
	// WaitingFor is the number of a newer grant of another TD, which the operator must bring to this node; absent: there is none.
	WaitingFor uint64 `json:"waiting_for,omitempty"`
}

// The states of a Thing of another owner.
const (
	HostedNow        = "hosted"
	HostedWaiting    = "waiting"     // offered; a newer grant of another TD waits for the operator
	HostedDraining   = "draining"    // the node stops
	HostedGrantEnded = "grant-ended" // not offered until there is a newer grant
)

// HostedList is GET /v1/hosting, ordered by id.
type HostedList struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"` // HostedList
	Items      []Hosted `json:"items"`
}

// Grant is the grant in force of a Thing that its owner has granted to nodes.
type Grant struct {
	Number  uint64    `json:"number"`
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
	Nodes   []did.DID `json:"nodes"` // that it names; those that host the Thing are its hosts
}

// HostingWithdrawal is the body of POST /v1/hosting/withdrawal.
type HostingWithdrawal struct {
	Record []byte `json:"record"` // the tombstone that the owner has signed, base64
}

// Host has the node host a Thing of another owner, or replaces the grant of one that it hosts. The callers are those of [PublishOptions]; roles are
// those that the owner has when it calls others through the node.
func (c *Client) Host(ctx context.Context, g *HostingGrant, callers []string, roles ...string) (*Publication, error) {
	body, err := g.Encode()
	if err != nil {
		return nil, err
	}
	q := url.Values{"for": callers, "role": roles}
	return request[Publication](ctx, c, http.MethodPost, "/v1/hosting?"+q.Encode(), interact.JSON, body)
}

// Hosted returns the Things of other owners that the node hosts.
func (c *Client) Hosted(ctx context.Context) (*HostedList, error) {
	return get[HostedList](ctx, c, "/v1/hosting")
}

// EndHosting ends the hosting of a Thing of another owner at the node. Other hosts continue.
func (c *Client) EndHosting(ctx context.Context, ref string) (*Publication, error) {
	return request[Publication](ctx, c, http.MethodDelete, "/v1/hosting/"+url.PathEscape(ref), "", nil)
}

// WithdrawGranted announces the withdrawal of a Thing that its owner has granted to nodes: the tombstone, as the owner has signed it.
func (c *Client) WithdrawGranted(ctx context.Context, record []byte) (*Publication, error) {
	return post[Publication](ctx, c, "/v1/hosting/withdrawal", HostingWithdrawal{record})
}
