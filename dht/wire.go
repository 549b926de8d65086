package dht

import (
	"errors"
	"fmt"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/td"
)

// The protocol /lmos/<network>/records/1 is one question and its answer per stream. Each message is a frame: a uvarint
// length, and a map in deterministic CBOR.
//
//	question  {op: "find", query: {…}}  or  {op: "body", hash: h'…'}
//	answer    {record: h'…', td: h'…'}…   {end: true, truncated: true}
//	      or  {td: h'…'}                  {end: true}
//	      or  {error: "text"}
//
// td is absent if it is inside the record, or was too much for the answer.
const (
	maxQuestion  = 16 << 10  // bytes of a question
	maxAnswer    = 160 << 10 // bytes of one frame of an answer: a TD, a record, and some
	maxResults   = 256       // records of an answer
	maxTerms     = 16        // capabilities of a query
	maxTerm      = 1 << 10   // bytes of any text of a query
	maxErrorText = 256
)

// errWire says that a question or an answer does not keep to the protocol.
var errWire = errors.New("malformed message of the records protocol")

// errRemote says that the far end answered with an error.
var errRemote = errors.New("the far end refused")

const (
	opFind = "find"
	opBody = "body"
)

// A question is what is asked of a node.
type question struct {
	Op    string     `cbor:"op"`
	Hash  []byte     `cbor:"hash,omitempty"`
	Query *wireQuery `cbor:"query,omitempty"`
}

// A wireQuery is a td.Query on the wire.
type wireQuery struct {
	Capability []string `cbor:"capability,omitempty"`
	ID         string   `cbor:"id,omitempty"`
	Owner      string   `cbor:"owner,omitempty"`
	Action     string   `cbor:"action,omitempty"`
	Type       string   `cbor:"type,omitempty"`
	Text       string   `cbor:"text,omitempty"`
	Limit      int      `cbor:"limit,omitempty"`
}

// An answer is one frame of what a node says.
type answer struct {
	Record    []byte `cbor:"record,omitempty"`
	TD        []byte `cbor:"td,omitempty"`
	End       bool   `cbor:"end,omitempty"`
	Truncated bool   `cbor:"truncated,omitempty"`
	Error     string `cbor:"error,omitempty"`
}

// findQuestion returns the question for q. Its limit is one of this protocol.
func findQuestion(q td.Query) *question {
	return &question{Op: opFind, Query: &wireQuery{
		Capability: q.Capability, ID: q.ID, Owner: string(q.Owner), Action: q.Action, Type: q.Type, Text: q.Text,
		Limit: min(q.Limit, maxResults),
	}}
}

// encodeMessage returns the frame of a question or an answer of at most limit bytes.
func encodeMessage(v any, limit int) ([]byte, error) {
	body, err := cbor.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(body) > limit {
		return nil, fmt.Errorf("%w: %d bytes, %d allowed", errWire, len(body), limit)
	}
	return appendFrame(make([]byte, 0, len(body)+maxPrefix), body), nil
}

// decodeQuestion reads a question and checks its bounds. b has at most maxQuestion bytes.
func decodeQuestion(b []byte) (*question, error) {
	var q question
	if err := cbor.Unmarshal(b, &q); err != nil {
		return nil, fmt.Errorf("%w: %w", errWire, err)
	}
	switch {
	case q.Op == opBody && len(q.Hash) == 32 && q.Query == nil:
		return &q, nil
	case q.Op == opFind && q.Query != nil && len(q.Hash) == 0:
		return &q, q.Query.check()
	}
	return nil, fmt.Errorf("%w: no such question", errWire)
}

func (q *wireQuery) check() error {
	if len(q.Capability) > maxTerms || q.Limit < 0 || q.Limit > maxResults {
		return fmt.Errorf("%w: the query passes a limit", errWire)
	}
	for _, s := range append([]string{q.ID, q.Owner, q.Action, q.Type, q.Text}, q.Capability...) {
		if len(s) > maxTerm {
			return fmt.Errorf("%w: the query has a text of %d bytes", errWire, len(s))
		}
	}
	return nil
}

// query returns the query that q asks. No limit means all that an answer may have.
func (q *wireQuery) query() (td.Query, error) {
	out := td.Query{
		Capability: q.Capability, ID: q.ID, Action: q.Action, Type: q.Type, Text: q.Text, Limit: q.Limit,
	}
	if out.Limit == 0 {
		out.Limit = maxResults
	}
	if q.Owner != "" {
		owner, err := did.Parse(q.Owner)
		if err != nil {
			return out, fmt.Errorf("%w: owner: %w", errWire, err)
		}
		out.Owner = owner
	}
	return out, nil
}

// decodeAnswer reads one frame of an answer and checks its form. The error wraps errRemote if the far end reports one.
func decodeAnswer(b []byte) (*answer, error) {
	var a answer
	if err := cbor.Unmarshal(b, &a); err != nil {
		return nil, fmt.Errorf("%w: %w", errWire, err)
	}
	data := len(a.Record) > 0 || len(a.TD) > 0
	switch {
	case len(a.Error) > maxErrorText:
		return nil, fmt.Errorf("%w: an error text of %d bytes", errWire, len(a.Error))
	case a.Error != "":
		return nil, fmt.Errorf("%w: %q", errRemote, a.Error)
	case data == a.End, a.Truncated && !a.End:
		return nil, fmt.Errorf("%w: an answer is data or the end", errWire)
	case len(a.Record) > td.MaxRecord, len(a.TD) > td.MaxTD:
		return nil, fmt.Errorf("%w: a record of %d or a TD of %d bytes", errWire, len(a.Record), len(a.TD))
	}
	return &a, nil
}
