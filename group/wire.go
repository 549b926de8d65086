package group

import (
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/cbor"
)

// An op is what a request asks. The numbers are never reused.
type op uint8

const (
	opSync  op = 1 // entries that the sender has, for those that it lacks
	opEvent op = 2
	opJoin  op = 3 // with a statement: a member; without one: with which role the sender may join
	opLeave op = 4
	opOffer op = 5
)

// Limits of requests and responses.
const (
	maxPush    = 40 << 10 // bytes of the entries in a request, of which the first one is always sent
	maxPage    = 256 << 10
	maxLocator = 128
	maxPushed  = 64
	maxRounds  = 128 // of one exchange
)

// A request about a group. The carrier has authenticated its sender.
type request struct {
	Op        op       `cbor:"1,keyasint"`
	Group     string   `cbor:"2,keyasint"`
	Locator   []string `cbor:"3,keyasint,omitempty"` // of sync: chain.Chain.Locator
	Entries   [][]byte `cbor:"4,keyasint,omitempty"` // of sync
	Secret    []byte   `cbor:"5,keyasint,omitempty"` // of join: that of an invitation
	Statement []byte   `cbor:"6,keyasint,omitempty"` // of join, leave: chain.Statement
	Text      string   `cbor:"7,keyasint,omitempty"` // of offer: the invitation
	Head      string   `cbor:"8,keyasint,omitempty"` // of event: the newest entry that the sender knows
	Event     *event   `cbor:"9,keyasint,omitempty"`
}

// An event is a message of a member.
type event struct {
	ID     string `cbor:"1,keyasint"`
	Member string `cbor:"2,keyasint"`
	Sender string `cbor:"3,keyasint,omitempty"`
	Time   int64  `cbor:"4,keyasint"` // Unix milliseconds
	Type   string `cbor:"5,keyasint,omitempty"`
	Data   []byte `cbor:"6,keyasint"` // JSON
}

// A response to a request. An error is that of the carrier.
type response struct {
	Locator []string `cbor:"1,keyasint,omitempty"` // of sync: of the receiver, for members
	Entries [][]byte `cbor:"2,keyasint,omitempty"` // of sync: that the sender may lack
	More    bool     `cbor:"3,keyasint,omitempty"` // there are more
	Role    string   `cbor:"4,keyasint,omitempty"` // of join
	Title   string   `cbor:"5,keyasint,omitempty"` // of join: the name of the group
	Head    string   `cbor:"6,keyasint,omitempty"` // of join: its newest entry
}

// readRequest decodes a request within the limits.
func readRequest(b []byte) (*request, error) {
	q := &request{}
	if err := cbor.Unmarshal(b, q); err != nil {
		return nil, refused
	}
	if !did.IsHash(q.Group) || len(q.Locator) > maxLocator || len(q.Entries) > maxPushed || len(q.Secret) > 64 || q.Op == opEvent && q.Event == nil {
		return nil, refused
	}
	return q, nil
}

func readResponse(b []byte) (*response, error) {
	r := &response{}
	err := cbor.Unmarshal(b, r)
	return r, err
}
