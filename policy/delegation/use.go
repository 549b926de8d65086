package delegation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/ucan"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/stream/frame"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
)

// Verify implements [policy.Delegations].
func (d *Delegations) Verify(m *interact.Message, op access.Op, thing string) (*policy.Delegation, error) {
	tokens, err := ucan.Unpack(m.With.Tokens)
	if err != nil {
		return nil, nil
	}
	i := d.first(tokens, thing)
	if i == nil {
		return nil, nil // the answer must not differ from that without a delegation
	}
	if links := i.links(); len(tokens) != links {
		return nil, invalid(&ucan.Error{Reason: ucan.InvalidClaim, Detail: fmt.Sprintf("%d tokens, expected %d", len(tokens), links)})
	}
	command, err := ucan.Action{Op: string(op), Thing: thing, Name: m.Name}.Command()
	if err != nil {
		return nil, invalid(err)
	}
	c, err := d.verifier.VerifyCall(tokens, ucan.Call{By: m.From.Node, Command: command, Args: func() (map[string]any, error) { return arguments(m) }}, d.o.Now())
	if err != nil {
		return nil, invalid(err)
	}
	if now := d.o.Now(); !now.Before(c.Expires) { // the clock of this host decides on the end: what runs would end at once
		return nil, invalid(&ucan.Error{Reason: ucan.Expired, By: now.Sub(c.Expires), Detail: "it ended at " + c.Expires.UTC().Format(time.RFC3339)})
	}
	return &policy.Delegation{Lent: did.Lent{By: i.By.Node, ByName: i.By.Name, Command: string(command), Link: i.Link.String(), Expires: c.Expires}, Delegator: i.was}, nil
}

// links returns the number of links of a chain: a delegate lends no further.
func (i *issued) links() int {
	if i.By.Node == "" {
		return 1
	}
	return 2
}

// first returns the delegation of this host among tokens, for a Thing; nil: there is none.
func (d *Delegations) first(tokens [][]byte, thing string) *issued {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, raw := range tokens {
		if i := d.issued[ucan.CIDOf(raw)]; i != nil && i.Thing == thing {
			return i
		}
	}
	return nil
}

// arguments returns the input of a call, on which the conditions of a delegation must hold.
func arguments(m *interact.Message) (map[string]any, error) {
	if m.Chunks != nil {
		return nil, &ucan.Error{Reason: ucan.MatchError, Detail: "a stream cannot be checked"}
	}
	if m.ContentType != "" && m.ContentType != interact.JSON && len(m.Data) > 0 {
		return nil, &ucan.Error{Reason: ucan.MatchError, Detail: "only an input in JSON can be checked"}
	}
	return ucan.Args(m.Data)
}

// invalid returns the error of a token, with the name of the error of UCAN.
func invalid(err error) error {
	e := (*ucan.Error)(nil)
	if !errors.As(err, &e) {
		return interact.Errorf(interact.DelegationInvalid, "ask the delegator for a new one", "%v", err)
	}
	if e.Reason == ucan.TooEarly {
		return interact.Errorf(interact.ClockSkew, "compare the clocks", "%v, %s before its time", e, e.By)
	}
	return interact.Errorf(interact.DelegationInvalid, "ask the delegator for a new one", "%v", e)
}

// An op of a request to a host. The numbers are never reused.
const (
	opIssue  = 1
	opRevoke = 2
)

// A request to a host. Its carrier has authenticated the node.
type request struct {
	Op        uint8     `cbor:"1,keyasint"`
	As        statement `cbor:"2,keyasint"` // of issue: the delegator
	Thing     string    `cbor:"3,keyasint,omitempty"`
	Operation string    `cbor:"4,keyasint,omitempty"`
	Name      string    `cbor:"5,keyasint,omitempty"`
	Expires   int64     `cbor:"6,keyasint,omitempty"` // Unix seconds
	Link      []byte    `cbor:"7,keyasint,omitempty"` // of revoke: the hash in the CID
}

// A statement is [frame.As].
type statement struct {
	Consumer bool   `cbor:"1,keyasint,omitempty"`
	Name     string `cbor:"2,keyasint,omitempty"`
	Roles    string `cbor:"3,keyasint,omitempty"`
	Relation uint8  `cbor:"4,keyasint,omitempty"`
}

func statementOf(a frame.As) statement {
	return statement{a.IsConsumer, a.Name, a.Roles, uint8(a.Relation)}
}

// A response of a host. An error is that of the carrier.
type response struct {
	Token []byte `cbor:"1,keyasint,omitempty"` // of issue: the first link
}

func (d *Delegations) ask(ctx context.Context, host did.DID, q *request) (*response, error) {
	body, err := cbor.Marshal(q)
	if err != nil {
		return nil, err
	}
	if err := d.o.Connect(ctx, host); err != nil {
		return nil, err
	}
	raw, err := d.o.Ask(ctx, host, body)
	if err != nil {
		return nil, err
	}
	r := &response{}
	return r, cbor.Unmarshal(raw, r)
}

// Serve answers a request of a node.
func (d *Delegations) Serve(_ context.Context, from *did.Principal, body []byte) ([]byte, error) {
	q := &request{}
	if err := cbor.Unmarshal(body, q); err != nil {
		return nil, interact.Errorf(interact.Invalid, "", "the request is malformed")
	}
	switch q.Op {
	case opIssue:
		as := frame.As{IsConsumer: q.As.Consumer, Name: q.As.Name, Roles: q.As.Roles, Relation: min(did.Relation(q.As.Relation), did.Own)}
		if as.IsConsumer && as.Name != "" && !did.ValidPrincipalName(as.Name) {
			return nil, interact.Errorf(interact.Invalid, "", "the name of the consumer is malformed")
		}
		who := as.Of(from)
		link, err := d.issue(who, from.Node, ucan.Policy{}, terms{q.Thing, access.Op(q.Operation), q.Name, time.Unix(q.Expires, 0).UTC()})
		if err != nil {
			return nil, err
		}
		d.o.Record("delegation issued to " + who.ID() + ": " + q.Operation + " of " + q.Name + " of " + q.Thing + ", " + link.CID().String())
		return cbor.Marshal(response{Token: link.Bytes()})
	case opRevoke:
		if len(q.Link) != len(ucan.CID{}) {
			return nil, interact.Errorf(interact.Invalid, "", "the link is malformed")
		}
		link := ucan.CID(q.Link)
		d.mu.Lock()
		i := d.issued[link]
		d.mu.Unlock()
		if i == nil || i.By.Node == from.Node { // the answer is the same for a link of another node
			if err := d.end(link); err != nil {
				return nil, err
			}
		}
		return cbor.Marshal(response{})
	}
	return nil, interact.Errorf(interact.Invalid, "update lmosd there", "unknown operation %d", q.Op)
}
