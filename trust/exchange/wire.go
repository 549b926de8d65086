package exchange

import (
	"crypto/sha256"
	"fmt"
	"io"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/rotation"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/internal/streamserver"
)

// Protocol returns the libp2p protocol id of a network's exchanges about organizations.
func Protocol(network string) protocol.ID { return protocol.ID("/lmos/" + network + "/trust/1") }

// Limits of the frames, in bytes.
const (
	MaxRequest  = 64 << 10
	MaxResponse = max(webvh.MaxLog, vc.MaxList) + 4<<10
	MaxSeeks    = 257 // organizations of one hello: the own one and its partners
	MaxKnown    = 400
	MaxAddrs    = 16
	MaxThings   = 1024     // restricted records of one host
	MaxLinks    = 64 << 10 // the response of links, in bytes
)

// An Op is an operation of the protocol. The numbers are never reused.
type Op uint8

const (
	OpSeek       Op = 1  // the first part of the hello: for which organizations the caller looks
	OpHello      Op = 2  // the second: the credential of the caller, and what it knows
	OpGet        Op = 3  // a log, a status list, the list of partners or a checkpoint
	OpHave       Op = 4  // the caller has something newer, which the receiver may get
	OpStatus     Op = 5  // whether the receiver knows the state of an organization
	OpRenew      Op = 6  // a new credential for a member
	OpRedeem     Op = 7  // an invitation
	OpEnroll     Op = 8  // an issuing key for the log
	OpKey        Op = 9  // the issuing key of a member that becomes an issuer
	OpThings     Op = 10 // restricted descriptions of the host
	OpKept       Op = 11 // the checkpoints of the caller's audit log that the receiver keeps
	OpCredential Op = 12 // the credential of the receiver, from a node that names its organization
	OpJoin       Op = 13 // the organization that a node of the local network may ask to join; with a SCID: the request
	OpReplace    Op = 14 // the replacement of the key of a member: a request of the old key, then one of the new key
	OpGroup      Op = 15 // a request about a group: the body is that of package group
	OpAgent      Op = 16 // the credential of an agent with a key of its own at the receiver, and its grant, by its DID
	OpDelegate   Op = 17 // a request about a delegation: the body is that of package delegation
	OpLinks      Op = 18 // the connections of the receiver, for a member of its organization: the body is that of package topology
	OpPresent    Op = 20 // a credential of a foreign issuer whose subject is the caller
)

// A Kind is the kind of a document.
type Kind uint8

const (
	KindLog      Kind = 1
	KindList     Kind = 2 // the status list of an issuing key
	KindPartners Kind = 3 // the partners of the organization, for its members
	KindThings   Kind = 4 // the restricted descriptions of the node
	// KindCheckpoint is the newest checkpoint of the node's audit log, for members of its organization.
	KindCheckpoint Kind = 5
	// KindRoles is no document: an issuer has changed the roles of the receiver, which renews its credential there.
	KindRoles Kind = 6
)

// A Known names a document and its version.
type Known struct {
	SCID string `cbor:"1,keyasint"`
	Kind Kind   `cbor:"2,keyasint"`
	// Method is the DID URL of the issuing key of a status list.
	Method string `cbor:"3,keyasint,omitempty"`
	// Version rises. That of a log is its length, and Head its newest versionId.
	Version uint64 `cbor:"4,keyasint"`
	Head    string `cbor:"5,keyasint,omitempty"`
}

// A Thing is a restricted record with its TD.
type Thing struct {
	Record []byte `cbor:"1,keyasint"`
	TD     []byte `cbor:"2,keyasint,omitempty"`
}

// A Request is a frame of the caller. Seek and hello follow each other on one stream; the others are alone.
type Request struct {
	Op         Op       `cbor:"1,keyasint"`
	Seeks      [][]byte `cbor:"2,keyasint,omitempty"`  // of seek; of credential: one
	Credential []byte   `cbor:"3,keyasint,omitempty"`  // of hello, renew, redeem, replace, present
	Known      []Known  `cbor:"4,keyasint,omitempty"`  // of hello, have; of get: one, without a version
	SCID       string   `cbor:"5,keyasint,omitempty"`  // of status, redeem, join
	Nonce      []byte   `cbor:"6,keyasint,omitempty"`  // of status: 16 bytes
	Secret     []byte   `cbor:"7,keyasint,omitempty"`  // of redeem
	Org        string   `cbor:"8,keyasint,omitempty"`  // of redeem: the organization of a partner
	Key        string   `cbor:"9,keyasint,omitempty"`  // of enroll: the multikey; of agent: its DID
	Addrs      []string `cbor:"10,keyasint,omitempty"` // of redeem: those of the node, with /p2p
	Statement  []byte   `cbor:"11,keyasint,omitempty"` // of replace: that of both keys
	Body       []byte   `cbor:"12,keyasint,omitempty"` // of group, delegate
}

// A Response is a frame of the receiver.
type Response struct {
	Code       uint16   `cbor:"1,keyasint,omitempty"` // of an error; 0: none
	Title      string   `cbor:"2,keyasint,omitempty"`
	Hint       string   `cbor:"3,keyasint,omitempty"`
	Seeks      [][]byte `cbor:"4,keyasint,omitempty"` // of seek: those that both look for
	Credential []byte   `cbor:"5,keyasint,omitempty"`
	Known      []Known  `cbor:"6,keyasint,omitempty"`
	Body       []byte   `cbor:"7,keyasint,omitempty"`  // of get, status: a document; of group, links; of agent: its grant
	Things     []Thing  `cbor:"9,keyasint,omitempty"`  // of things
	More       bool     `cbor:"10,keyasint,omitempty"` // of things: there are more
	Text       string   `cbor:"8,keyasint,omitempty"`  // of enroll: the method; of key: the multikey; of redeem: "issuer"; of join: the organization
}

// Seek hides an organization that one node names to another: only nodes that know the organization recognize it, and the answer is not the
// question.
func Seek(scid string, from, to did.DID) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "lmos-seek-v1:%s|%s|%s", scid, from, to))
	return sum[:16]
}

// writeFrame writes one frame.
func writeFrame(w io.Writer, v any) error {
	b, err := cbor.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(streamserver.AppendFrame(nil, b))
	return err
}

// readFrame reads one frame of at most limit bytes.
func readFrame(s network.Stream, limit int, v any) error {
	b, release, err := streamserver.ReadFrame(s, s.Scope(), limit)
	if err != nil {
		return err
	}
	defer release()
	return decodeFrame(b, v)
}

func decodeFrame(b []byte, v any) error {
	if err := cbor.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: %w", streamserver.ErrViolation, err)
	}
	switch v := v.(type) {
	case *Request:
		if len(v.Seeks) > MaxSeeks || len(v.Known) > MaxKnown || len(v.Credential) > vc.MaxCredential || len(v.Nonce) > 64 || len(v.Secret) > 64 || len(v.Addrs) > MaxAddrs ||
			len(v.Statement) > rotation.MaxSize {
			return streamserver.Violation("a trust request beyond its limits")
		}
	case *Response:
		if len(v.Seeks) > MaxSeeks || len(v.Known) > MaxKnown || len(v.Credential) > vc.MaxCredential || len(v.Things) > MaxThings {
			return streamserver.Violation("a trust response beyond its limits")
		}
	}
	return nil
}
