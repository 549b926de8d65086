// Package noderecord signs, verifies and stores the records of nodes: each states the addresses of the node that signed it.
//
// The records of Things name their hosts by DID, and where a host is, its own record states: when its addresses change, one record changes. The files:
// book.go stores the records of others, announcer.go announces that of this node.
package noderecord

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/cbor"
)

// Bounds of records.
const (
	MaxSize  = 2 << 10 // bytes
	MaxAddrs = 8
	MaxAddr  = 256            // bytes of an address in its text form
	Life     = 24 * time.Hour // from the signature
	// MinInterval is the least time between two records of one node: others ignore one that follows the last sooner.
	MinInterval = 5 * time.Second

	version = 1
	skew    = 5 * time.Minute // between clocks
)

// Errors of [Parse].
var (
	// ErrMalformed means that no node signs such a record.
	ErrMalformed = errors.New("malformed record of a node")
	// ErrTime means that the record has expired, or that its time is in the future.
	ErrTime = errors.New("a record of a node that is not valid now")
	// ErrVersion means that a later version of the program made the record.
	ErrVersion = errors.New("unknown version of the record of a node")
)

// A wireRecord is the encoding of a [Record]: a deterministic CBOR map (RFC 8949 §4.2.1) of at most [MaxSize] bytes.
//
//	0  version    uint, 1
//	1  network    text: a record of one network is not valid in another
//	2  node       text, the did:key of the node
//	3  issued     uint, Unix time in milliseconds
//	4  addresses  array of text, multiaddrs without the id of the node at the end; absent if it has none
//	5  signature  64 bytes, Ed25519
//
// The signature covers "lmos-node-v1:" and the encoding of the map without the signature.
type wireRecord struct {
	Version   uint64   `cbor:"0,keyasint"`
	Network   string   `cbor:"1,keyasint"`
	Node      string   `cbor:"2,keyasint"`
	Issued    uint64   `cbor:"3,keyasint"`
	Addrs     []string `cbor:"4,keyasint,omitempty"`
	Signature []byte   `cbor:"5,keyasint,omitempty"`
}

// A Record states the addresses of a node.
type Record struct {
	Node   did.DID
	Peer   peer.ID // of Node
	Addrs  []ma.Multiaddr
	Issued time.Time // in milliseconds, without a reading of the monotonic clock
	Raw    []byte    // encoded; it must not be changed
}

// Sign returns a record of the node with a key. The addresses must be those that [Parse] accepts.
func Sign(key did.Signer, network string, addrs []ma.Multiaddr, now time.Time) (*Record, error) {
	w := &wireRecord{Version: version, Network: network, Node: string(key.DID()), Issued: uint64(now.UnixMilli())}
	for _, a := range addrs {
		w.Addrs = append(w.Addrs, a.String())
	}
	signed, err := cbor.Marshal(w)
	if err != nil {
		return nil, err
	}
	if w.Signature, err = key.Sign(did.PurposeNode, signed); err != nil {
		return nil, err
	}
	raw, err := cbor.Marshal(w)
	if err != nil {
		return nil, err
	}
	return Parse(raw, network, now)
}

// Parse verifies a record of a network at a time. It keeps raw. The error wraps [ErrMalformed], [ErrVersion] or [ErrTime].
func Parse(raw []byte, network string, now time.Time) (*Record, error) {
	r, w, err := decode(raw, network)
	if err == nil {
		err = r.check(w, now)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// check checks the time and the signature.
func (r *Record) check(w *wireRecord, now time.Time) error {
	if r.Issued.After(now.Add(skew)) || r.expired(now) {
		return fmt.Errorf("%w: signed at %s, the local time is %s", ErrTime, r.Issued.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return r.verify(w)
}

// expired reports whether the record has ended.
func (r *Record) expired(now time.Time) bool { return now.After(r.Issued.Add(Life + skew)) }

// decode decodes a record and checks its form, but not its signature.
func decode(raw []byte, network string) (*Record, *wireRecord, error) {
	if len(raw) > MaxSize {
		return nil, nil, malformed("%d bytes, %d are allowed", len(raw), MaxSize)
	}
	var head struct {
		Version uint64 `cbor:"0,keyasint"`
	}
	if err := cbor.Peek(raw, &head); err != nil {
		return nil, nil, malformed("%w", err)
	}
	if head.Version > version {
		return nil, nil, fmt.Errorf("%w: %d", ErrVersion, head.Version)
	}
	w := new(wireRecord)
	if err := cbor.Unmarshal(raw, w); err != nil {
		return nil, nil, malformed("%w", err)
	}
	if again, err := cbor.Marshal(w); err != nil || !bytes.Equal(again, raw) { // else whoever forwards it could change its bytes
		return nil, nil, malformed("not in canonical form")
	}
	switch {
	case w.Version != version:
		return nil, nil, malformed("version %d", w.Version)
	case w.Network != network:
		return nil, nil, malformed("a record of another network")
	case w.Issued == 0 || w.Issued > math.MaxInt64/uint64(time.Millisecond):
		return nil, nil, malformed("signed at %d", w.Issued)
	case len(w.Addrs) > MaxAddrs:
		return nil, nil, malformed("%d addresses, %d are allowed", len(w.Addrs), MaxAddrs)
	}
	r := &Record{Node: did.DID(w.Node), Issued: time.UnixMilli(int64(w.Issued)), Raw: raw}
	id, err := r.Node.Peer()
	if err != nil {
		return nil, nil, malformed("%w", err)
	}
	r.Peer = peer.ID(id)
	for _, text := range w.Addrs {
		a, err := address(text)
		if err != nil {
			return nil, nil, err
		}
		r.Addrs = append(r.Addrs, a)
	}
	return r, w, nil
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrMalformed, fmt.Errorf(format, args...))
}

// address parses an address of a record: it begins with an IP address or a name that resolves to some, and passes one relay at most. Other names
// (dnsaddr) could multiply the dials.
func address(text string) (ma.Multiaddr, error) {
	if len(text) > MaxAddr {
		return nil, malformed("an address of %d bytes, %d are allowed", len(text), MaxAddr)
	}
	a, err := ma.NewMultiaddr(text)
	if err != nil || a.String() != text {
		return nil, malformed("an invalid address")
	}
	circuits, nodes := 0, 0
	for i, c := range a {
		switch code := c.Protocol().Code; {
		case i == 0 && code != ma.P_IP4 && code != ma.P_IP6 && code != ma.P_DNS && code != ma.P_DNS4 && code != ma.P_DNS6, code == ma.P_DNSADDR:
			return nil, malformed("an address with %s", c.Protocol().Name)
		case code == ma.P_P2P:
			nodes++
		case code == ma.P_CIRCUIT:
			circuits++
		}
	}
	if last := a[len(a)-1].Protocol().Code; circuits > 1 || nodes != circuits || circuits == 1 && last != ma.P_CIRCUIT {
		return nil, malformed("an address with %d nodes through %d relays, or one that goes on after them", nodes, circuits)
	}
	return a, nil
}

// IsValid reports whether a record may have an address.
func IsValid(a ma.Multiaddr) bool {
	_, err := address(a.String())
	return err == nil
}

// verify checks the signature.
func (r *Record) verify(w *wireRecord) error {
	unsigned := *w
	unsigned.Signature = nil
	signed, err := cbor.Marshal(unsigned)
	if err != nil {
		return malformed("%w", err)
	}
	key, err := r.Node.Key()
	if err != nil {
		return malformed("%w", err)
	}
	if !ed25519.Verify(key, append([]byte(did.PurposeNode), signed...), w.Signature) {
		return malformed("the signature is not that of the node")
	}
	return nil
}
