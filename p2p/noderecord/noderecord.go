// Package noderecord signs and verifies the records of nodes: each states the addresses of the node that signed it.
//
// A record is a signed peer record of libp2p (https://github.com/libp2p/specs/blob/master/RFC/0003-routing-records.md), the one that the identify
// protocol has, with bounds: [MaxSize] bytes, [MaxAddrs] addresses, and a life of [Life]. Its sequence number is the time of the signature, in
// nanoseconds since 1970. The records of Things name their hosts by DID; where a host is, its own record states.
package noderecord

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/core/record"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
)

// Bounds of records.
const (
	MaxSize  = 2 << 10 // bytes
	MaxAddrs = 8
	Life     = 24 * time.Hour // from the signature
	// MinInterval is the least time between two records of one node: others ignore one that follows the last sooner.
	MinInterval = 5 * time.Second

	skew = 5 * time.Minute // between clocks
)

// Errors of [Parse].
var (
	// ErrMalformed means that no node signs such a record.
	ErrMalformed = errors.New("malformed record of a node")
	// ErrTime means that the record has expired, or that its time is in the future.
	ErrTime = errors.New("a record of a node that is not valid now")
)

// A Record states the addresses of a node.
type Record struct {
	Node   did.DID
	Peer   peer.ID // of Node
	Addrs  []ma.Multiaddr
	Issued time.Time
	Raw    []byte // the signed envelope, which must not be changed

	envelope *record.Envelope
}

// Sign returns a record of the node with a key. Addresses above [MaxAddrs] are an error.
func Sign(key crypto.PrivKey, addrs []ma.Multiaddr, now time.Time) (*Record, error) {
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return nil, err
	}
	envelope, err := record.Seal(&peer.PeerRecord{PeerID: id, Addrs: addrs, Seq: uint64(now.UnixNano())}, key)
	if err != nil {
		return nil, err
	}
	raw, err := envelope.Marshal()
	if err != nil {
		return nil, err
	}
	return Parse(raw, now)
}

// Parse verifies a record at a time. It keeps raw. The error wraps [ErrMalformed] or [ErrTime].
func Parse(raw []byte, now time.Time) (*Record, error) {
	if len(raw) > MaxSize {
		return nil, fmt.Errorf("%w: %d bytes, %d are allowed", ErrMalformed, len(raw), MaxSize)
	}
	envelope, content, err := record.ConsumeEnvelope(raw, peer.PeerRecordEnvelopeDomain)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	p, ok := content.(*peer.PeerRecord)
	if !ok || !p.PeerID.MatchesPublicKey(envelope.PublicKey) {
		return nil, fmt.Errorf("%w: signed by another node", ErrMalformed)
	}
	node, err := did.FromPeer([]byte(p.PeerID))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if len(p.Addrs) > MaxAddrs {
		return nil, fmt.Errorf("%w: %d addresses, %d are allowed", ErrMalformed, len(p.Addrs), MaxAddrs)
	}
	if p.Seq > math.MaxInt64 {
		return nil, fmt.Errorf("%w: its time is in the far future", ErrTime)
	}
	r := &Record{Node: node, Peer: p.PeerID, Addrs: p.Addrs, Issued: time.Unix(0, int64(p.Seq)), Raw: raw, envelope: envelope}
	if r.Issued.After(now.Add(skew)) || now.After(r.Issued.Add(Life+skew)) {
		return nil, fmt.Errorf("%w: signed at %s, the local time is %s", ErrTime, r.Issued.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return r, nil
}

// Store stores the addresses in an address book, until the record ends. They replace those of the last record of the node. It reports false if the
// book has a newer record.
func (r *Record) Store(book peerstore.Peerstore, now time.Time) (bool, error) {
	certified, ok := peerstore.GetCertifiedAddrBook(book)
	if !ok {
		return false, errors.New("the address book takes no signed records")
	}
	return certified.ConsumePeerRecord(r.envelope, r.Issued.Add(Life+skew).Sub(now))
}

// Keep returns a function that stores the addresses of wanted nodes in an address book.
func Keep(book peerstore.Peerstore, wants func(did.DID) bool) func(*Record) {
	return func(r *Record) {
		if wants(r.Node) {
			_, _ = r.Store(book, time.Now()) // false: the book has a newer record, or no room
		}
	}
}

// Has reports whether an address book has addresses that a node has signed.
func Has(book peerstore.Peerstore, id peer.ID) bool {
	certified, ok := peerstore.GetCertifiedAddrBook(book)
	return ok && certified.GetPeerRecord(id) != nil
}
