package dht

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/internal/streamserver"
	"github.com/lmosd/lmosd/td"
)

// The protocol /lmos/<network>/records/1 is one request and its response per stream. Each message is a frame: a uvarint
// length, and a map in deterministic CBOR.
//
//	request   {op: "find", query: {…}}  or  {op: "body", hash: h'…'}  or  {op: "state", keys: h'…'}
//	response  {record: h'…', td: h'…'}…   {end: true, truncated: true}
//	      or  {td: h'…'}                  {end: true}
//	      or  {states: h'…'}              {end: true}
//	      or  {error: "text"}
//
// td is absent if it is inside the record, or exceeds the response. A node rejects a request with an unknown member, because a response
// that ignores it would be wrong.
const (
	maxRecordsRequest  = 16 << 10  // bytes of a request
	maxRecordsResponse = 160 << 10 // bytes of one frame of a response: a TD, a record, and some
	maxResults         = 256       // records of a response
	maxTerms           = 16        // capabilities of a query
	maxTerm            = 1 << 10   // bytes of any text of a query
	maxErrorText       = 256
	keySize            = 32 // bytes of td.Key
	// MaxStates limits the Things in one query for states.
	MaxStates = 64
)

// errWire means that a request or a response violates the protocol.
const errWire = streamserver.Violation("malformed message of the records protocol")

// errRemote means that the peer answered with an error.
var errRemote = errors.New("rejected by the peer")

const (
	opFind  = "find"
	opBody  = "body"
	opState = "state"
)

// A recordsRequest is a query to a node.
type recordsRequest struct {
	Op    string     `cbor:"op"`
	Hash  []byte     `cbor:"hash,omitempty"`
	Keys  []byte     `cbor:"keys,omitempty"` // of records, concatenated
	Query *wireQuery `cbor:"query,omitempty"`
}

// A wireQuery is a td.Query on the wire. Those of Or and Not have no Or, Not and Limit.
type wireQuery struct {
	Capability   []string    `cbor:"capability,omitempty"`
	Version      string      `cbor:"version,omitempty"`
	ID           string      `cbor:"id,omitempty"`
	Name         string      `cbor:"name,omitempty"`
	Owner        string      `cbor:"owner,omitempty"`
	Organization string      `cbor:"organization,omitempty"`
	Host         string      `cbor:"host,omitempty"`
	Protocol     string      `cbor:"protocol,omitempty"`
	Action       string      `cbor:"action,omitempty"`
	Property     string      `cbor:"property,omitempty"`
	Event        string      `cbor:"event,omitempty"`
	Type         string      `cbor:"type,omitempty"`
	Text         string      `cbor:"text,omitempty"`
	Or           []wireQuery `cbor:"or,omitempty"`
	Not          []wireQuery `cbor:"not,omitempty"`
	Limit        int         `cbor:"limit,omitempty"`
}

// A recordsResponse is one frame of a response.
type recordsResponse struct {
	Record    []byte `cbor:"record,omitempty"`
	TD        []byte `cbor:"td,omitempty"`
	States    []byte `cbor:"states,omitempty"` // an AgentState of each key
	End       bool   `cbor:"end,omitempty"`
	Truncated bool   `cbor:"truncated,omitempty"`
	Error     string `cbor:"error,omitempty"`
}

// newFindRequest returns the request for q, with a limit of this protocol.
func newFindRequest(q td.Query) *recordsRequest {
	w := toWire(&q)
	not := slices.DeleteFunc(slices.Clone(q.Not), func(n td.Query) bool { return n.Organization != "" && !n.Claimed }) // only verified members are excluded
	w.Or, w.Not, w.Limit = toWires(q.Or), toWires(not), min(q.Limit, maxResults)
	return &recordsRequest{Op: opFind, Query: &w}
}

// toWire returns the fields of q itself.
func toWire(q *td.Query) wireQuery {
	return wireQuery{
		Capability: q.Capability, Version: q.Version, ID: q.ID, Name: q.Name, Owner: string(q.Owner), Organization: q.ClaimToFind(),
		Host: string(q.Host), Protocol: q.Protocol, Action: q.Action, Property: q.Property, Event: q.Event, Type: q.Type, Text: q.Text,
	}
}

func toWires(qs []td.Query) (all []wireQuery) {
	for i := range qs[:min(len(qs), td.MaxBranches)] {
		all = append(all, toWire(&qs[i]))
	}
	return all
}

// encodeMessage returns the frame of a request or a response of at most limit bytes.
func encodeMessage(v any, limit int) ([]byte, error) {
	body, err := cbor.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(body) > limit {
		return nil, fmt.Errorf("%w: %d bytes, %d allowed", errWire, len(body), limit)
	}
	return streamserver.AppendFrame(make([]byte, 0, len(body)+streamserver.MaxPrefix), body), nil
}

// decodeRecordsRequest decodes a request and checks its limits. b has at most maxRecordsRequest bytes.
func decodeRecordsRequest(b []byte) (*recordsRequest, error) {
	var q recordsRequest
	if err := cbor.Unmarshal(b, &q); err != nil {
		return nil, fmt.Errorf("%w: %w", errWire, err)
	}
	switch {
	case q.Op == opBody && len(q.Hash) == 32 && q.Query == nil && len(q.Keys) == 0:
		return &q, nil
	case q.Op == opState && len(q.Keys)%keySize == 0 && len(q.Keys) > 0 && len(q.Keys) <= MaxStates*keySize && q.Query == nil && len(q.Hash) == 0:
		return &q, nil
	case q.Op == opFind && q.Query != nil && len(q.Hash) == 0 && len(q.Keys) == 0:
		return &q, q.Query.check()
	}
	return nil, fmt.Errorf("%w: no such question", errWire)
}

func (q *wireQuery) check() error {
	if len(q.Or) > td.MaxBranches || len(q.Not) > td.MaxBranches || q.Limit < 0 || q.Limit > maxResults {
		return fmt.Errorf("%w: the query passes a limit", errWire)
	}
	for _, part := range slices.Concat(q.Or, q.Not) {
		if len(part.Or)+len(part.Not)+part.Limit != 0 {
			return fmt.Errorf("%w: the query has parts of parts", errWire)
		}
		if err := part.checkFields(); err != nil {
			return err
		}
	}
	return q.checkFields()
}

// checkFields checks the fields of q itself.
func (q *wireQuery) checkFields() error {
	if len(q.Capability) > maxTerms {
		return fmt.Errorf("%w: the query has %d capabilities", errWire, len(q.Capability))
	}
	for _, s := range append([]string{q.Version, q.ID, q.Name, q.Owner, q.Organization, q.Host, q.Protocol, q.Action, q.Property, q.Event,
		q.Type, q.Text}, q.Capability...) {
		if len(s) > maxTerm {
			return fmt.Errorf("%w: the query has a text of %d bytes", errWire, len(s))
		}
	}
	return nil
}

// query returns the query of q. No limit means the maximum of a response.
func (q *wireQuery) query() (td.Query, error) {
	out, err := q.fields()
	if err != nil {
		return out, err
	}
	out.Limit = q.Limit
	out.Limit = cmp.Or(out.Limit, maxResults)
	if out.Or, err = fromWires(q.Or); err != nil {
		return out, err
	}
	out.Not, err = fromWires(q.Not)
	return out, err
}

// fields returns the fields of q itself.
func (q *wireQuery) fields() (td.Query, error) {
	owner, err := parseDID(q.Owner)
	if err != nil {
		return td.Query{}, err
	}
	host, err := parseDID(q.Host)
	return td.Query{
		Capability: q.Capability, Version: q.Version, ID: q.ID, Name: q.Name, Owner: owner, Organization: q.Organization, Claimed: q.Organization != "",
		Host: host, Protocol: q.Protocol, Action: q.Action, Property: q.Property, Event: q.Event, Type: q.Type, Text: q.Text,
	}, err
}

func fromWires(ws []wireQuery) (all []td.Query, err error) {
	for i := range ws {
		q, err := ws[i].fields()
		if err != nil {
			return nil, err
		}
		all = append(all, q)
	}
	return all, nil
}

// parseDID parses the DID of an owner or a host, if present.
func parseDID(text string) (did.DID, error) {
	if text == "" {
		return "", nil
	}
	id, err := did.Parse(text)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errWire, err)
	}
	return id, nil
}

// decodeRecordsResponse decodes one frame of a response and checks its form. The error wraps errRemote if the peer reports one.
func decodeRecordsResponse(b []byte) (*recordsResponse, error) {
	var a recordsResponse
	if err := cbor.Unmarshal(b, &a); err != nil {
		return nil, fmt.Errorf("%w: %w", errWire, err)
	}
	data := len(a.Record) > 0 || len(a.TD) > 0 || len(a.States) > 0
	switch {
	case len(a.Error) > maxErrorText:
		return nil, fmt.Errorf("%w: an error text of %d bytes", errWire, len(a.Error))
	case a.Error != "":
		return nil, fmt.Errorf("%w: %q", errRemote, a.Error)
	case data == a.End, a.Truncated && !a.End:
		return nil, fmt.Errorf("%w: an answer is data or the end", errWire)
	case len(a.Record) > td.MaxRecord, len(a.TD) > td.MaxTD:
		return nil, fmt.Errorf("%w: a record of %d or a TD of %d bytes", errWire, len(a.Record), len(a.TD))
	case len(a.States) > MaxStates, len(a.States) > 0 && len(a.Record)+len(a.TD) > 0:
		return nil, fmt.Errorf("%w: %d states", errWire, len(a.States))
	}
	return &a, nil
}
