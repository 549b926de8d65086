package trust

import (
	"crypto/sha256"
	"fmt"
	"io"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/internal/streamserver"
)

// Protocol returns the libp2p protocol id of a network's exchanges about organizations.
func Protocol(network string) protocol.ID { return protocol.ID("/lmos/" + network + "/trust/1") }

// Limits of the frames, in bytes.
const (
	maxRequest  = 64 << 10
	maxResponse = max(webvh.MaxLog, vc.MaxList) + 4<<10
	maxSeeks    = maxPartners + 1 // organizations of one hello
	maxKnown    = 400
)

// An op is an operation of the protocol. The numbers are never reused.
type op uint8

const (
	opSeek   op = 1  // the first part of the hello: for which organizations the caller looks
	opHello  op = 2  // the second: the credential of the caller, and what it knows
	opGet    op = 3  // a log, a status list or the list of partners
	opHave   op = 4  // the caller has something newer, which the receiver may get
	opStatus op = 5  // whether the receiver knows the state of an organization
	opRenew  op = 6  // a new credential for a member
	opRedeem op = 7  // an invitation
	opEnroll op = 8  // an issuing key for the log
	opThings op = 10 // restricted descriptions of the host
	opKey    op = 9  // the issuing key of a member that becomes an issuer
	opJoin   op = 11 // the organization that a node of the local network may ask to join; with a SCID: the request
)

// A kind is the kind of a document.
type kind uint8

const (
	kindLog      kind = 1
	kindList     kind = 2 // the status list of an issuing key
	kindPartners kind = 3 // the partners of the organization, for its members
	kindThings   kind = 4 // the restricted descriptions of the node
)

// A known names a document and its version.
type known struct {
	SCID string `cbor:"1,keyasint"`
	Kind kind   `cbor:"2,keyasint"`
	// Method is the DID URL of the issuing key of a status list.
	Method string `cbor:"3,keyasint,omitempty"`
	// Version rises. That of a log is its length, and Head its newest versionId.
	Version uint64 `cbor:"4,keyasint"`
	Head    string `cbor:"5,keyasint,omitempty"`
}

// A request is a frame of the caller. Seek and hello follow each other on one stream; the others are alone.
type request struct {
	Op         op       `cbor:"1,keyasint"`
	Seeks      [][]byte `cbor:"2,keyasint,omitempty"`  // of seek
	Credential []byte   `cbor:"3,keyasint,omitempty"`  // of hello, renew, redeem
	Known      []known  `cbor:"4,keyasint,omitempty"`  // of hello, have; of get: one, without a version
	SCID       string   `cbor:"5,keyasint,omitempty"`  // of status, redeem, join
	Nonce      []byte   `cbor:"6,keyasint,omitempty"`  // of status: 16 bytes
	Secret     []byte   `cbor:"7,keyasint,omitempty"`  // of redeem
	Org        string   `cbor:"8,keyasint,omitempty"`  // of redeem: the organization of a partner
	Key        string   `cbor:"9,keyasint,omitempty"`  // of enroll: the multikey
	Addrs      []string `cbor:"10,keyasint,omitempty"` // of redeem: those of the node, with /p2p
}

// A response is a frame of the receiver.
type response struct {
	Code       uint16   `cbor:"1,keyasint,omitempty"` // of an error; 0: none
	Title      string   `cbor:"2,keyasint,omitempty"`
	Hint       string   `cbor:"3,keyasint,omitempty"`
	Seeks      [][]byte `cbor:"4,keyasint,omitempty"` // of seek: those that both look for
	Credential []byte   `cbor:"5,keyasint,omitempty"`
	Known      []known  `cbor:"6,keyasint,omitempty"`
	Body       []byte   `cbor:"7,keyasint,omitempty"`  // of get, status: a document
	Things     []thing  `cbor:"9,keyasint,omitempty"`  // of things
	More       bool     `cbor:"10,keyasint,omitempty"` // of things: there are more
	Text       string   `cbor:"8,keyasint,omitempty"`  // of enroll: the method; of key: the multikey; of redeem: "issuer"; of join: the organization
}

// seek hides an organization that one node names to another: only nodes that know the organization recognize it, and the answer is not the
// question.
func seek(scid string, from, to did.DID) []byte {
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
	case *request:
		if len(v.Seeks) > maxSeeks || len(v.Known) > maxKnown || len(v.Credential) > vc.MaxCredential || len(v.Nonce) > 64 || len(v.Secret) > 64 || len(v.Addrs) > maxAddrs {
			return streamserver.Violation("a trust request beyond its limits")
		}
	case *response:
		if len(v.Seeks) > maxSeeks || len(v.Known) > maxKnown || len(v.Credential) > vc.MaxCredential || len(v.Things) > maxThings {
			return streamserver.Violation("a trust response beyond its limits")
		}
	}
	return nil
}
