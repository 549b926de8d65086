package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/lmosd/lmosd/interact"
)

// Policy is GET /v1/policy: the access rules in force.
type Policy struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // Policy
	File       string `json:"file,omitempty"`
	Error      string `json:"error,omitempty"` // of the file as it is now; the rules in force are older
	Untrusted  string `json:"untrusted"`       // trust.untrusted
	Connect    string `json:"connect"`         // trust.connect
	Items      []Rule `json:"items"`
}

// Rule is an access rule in force. A policy in Cedar has only an id and a text.
type Rule struct {
	ID   string `json:"id"`   // "policy.yaml:12", "policy.cedar:3", or "expose NAME" for the callers of a publication
	Text string `json:"text"` // its source
	RuleRequest
}

// RuleRequest is the body of POST /v1/policy/rules. Allow or Deny are callers, To operations, On Things with affordances, When a condition
// in Cedar; docs/operations.md describes them.
type RuleRequest struct {
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
	To    []string `json:"to,omitempty"`
	On    []string `json:"on,omitempty"`
	When  string   `json:"when,omitempty"`
}

// PolicyChange is the response of POST and DELETE /v1/policy/rules. The change is in the file and in force.
type PolicyChange struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"` // PolicyChange
	File       string   `json:"file"`
	Added      []Rule   `json:"added,omitempty"`
	Removed    []Rule   `json:"removed,omitempty"`
	Warnings   []string `json:"warnings,omitempty"` // names in On that no Thing of this node has
}

// RightList is GET /v1/policy/rights: what callers may do.
type RightList struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"` // RightList
	Items      []Right `json:"items"`
}

// Right is the decision about an operation of a caller.
type Right struct {
	Who         string `json:"who"`
	Thing       string `json:"thing"` // the name of a Thing of this node, or node
	Affordance  string `json:"affordance,omitempty"`
	Op          string `json:"op"`
	Allow       bool   `json:"allow"`
	Rule        string `json:"rule,omitempty"` // the id of the rule that decides; absent: the relation of the caller decides
	Why         string `json:"why"`
	Conditional bool   `json:"conditional,omitempty"` // a rule with a condition concerns it: the input or the time may change the decision
}

// WhyRequest is the body of POST /v1/trust/why.
type WhyRequest struct {
	Who   string          `json:"who"`             // a caller as rules name it: a DID, local, token:NAME, oidc:PROVIDER:SUBJECT, an organization, NAME/ROLE, anyone
	Op    string          `json:"op"`              // an operation
	On    string          `json:"on,omitempty"`    // a Thing of this node, NAME/AFFORDANCE, or node
	Input json.RawMessage `json:"input,omitempty"` // for conditions
	With  *PolicyFile     `json:"with,omitempty"`  // in place of the file in force
}

// PolicyFile is a file of access rules that is not in force. The ending .cedar of its name means policies in Cedar.
type PolicyFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Explanation is the response of POST /v1/trust/why.
type Explanation struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // Explanation
	Right
	Text      string          `json:"text,omitempty"` // the source of the rule
	Relation  string          `json:"relation"`
	Code      string          `json:"code,omitempty"` // of the error that the caller gets: LMOS-1403, or LMOS-1404 if it may not find the Thing
	Principal []PrincipalPart `json:"principal"`
	With      string          `json:"with,omitempty"` // the file in place of the one in force
}

// PrincipalPart is one property of a caller, and where the node got it from.
type PrincipalPart struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"`
}

// Policy returns the access rules of the node. It requires the token or the socket, as all methods about access rules do.
func (c *Client) Policy(ctx context.Context) (*Policy, error) {
	return get[Policy](ctx, c, "/v1/policy")
}

// AddRule appends a rule to the access rules of the node. The error is [interact.PolicyInvalid] if the rules do not compile; nothing changes
// then.
func (c *Client) AddRule(ctx context.Context, r RuleRequest) (*PolicyChange, error) {
	return post[PolicyChange](ctx, c, "/v1/policy/rules", r)
}

// RemoveRules removes rules by their ids, or all rules of callers.
func (c *Client) RemoveRules(ctx context.Context, names ...string) (*PolicyChange, error) {
	return request[PolicyChange](ctx, c, http.MethodDelete, "/v1/policy/rules?"+url.Values{"rule": names}.Encode(), "", nil)
}

// Rights returns what a caller may do with each Thing of the node.
func (c *Client) Rights(ctx context.Context, who string) (*RightList, error) {
	return get[RightList](ctx, c, "/v1/policy/rights?"+url.Values{"who": {who}}.Encode())
}

// RightsOn returns what callers may do with a Thing of the node.
func (c *Client) RightsOn(ctx context.Context, thing string) (*RightList, error) {
	return get[RightList](ctx, c, "/v1/policy/rights?"+url.Values{"on": {thing}}.Encode())
}

// Why explains the decision about a request.
func (c *Client) Why(ctx context.Context, q WhyRequest) (*Explanation, error) {
	return post[Explanation](ctx, c, "/v1/trust/why", q)
}

// PublishOptions are the options of [Client.PublishWith].
type PublishOptions struct {
	// For are callers that may find and call the Thing, in addition to those of the access rules. Nil keeps the callers of a Thing that was
	// published before.
	For []string
	// CallerSecret makes a secret that the node sends to the agent with each request ([Publication.CallerSecret]). Without it, a secret that was
	// made before stays.
	CallerSecret bool
}

// PublishWith is [Client.Publish] with options.
func (c *Client) PublishWith(ctx context.Context, raw []byte, o PublishOptions) (*Publication, error) {
	q := url.Values{"for": o.For}
	if o.CallerSecret {
		q.Set("caller_secret", "true")
	}
	return request[Publication](ctx, c, http.MethodPost, "/v1/publish?"+q.Encode(), "application/td+json", raw)
}

// post sends a JSON document.
func post[T any](ctx context.Context, c *Client, path string, doc any) (*T, error) {
	body, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	return request[T](ctx, c, http.MethodPost, path, interact.JSON, body)
}
