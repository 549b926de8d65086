package dht

import (
	"bytes"
	"errors"
	"fmt"

	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/lmosd/lmosd/td"
)

// Limits of a reply. A full FIND_NODE or GET_VALUE reply is twenty peers and a record.
const (
	maxReply     = 256 << 10 // S1: of a frame, in bytes
	maxRequest   = maxInbound
	maxProviders = 128 // S7: providers in a list
	maxPeerAddrs = 16  // S7: addresses of a peer in a list
	maxAddrBytes = 512 // S7: of such an address
)

// errMalformed means that a reply does not match the request. The library trusts the structure of replies, and panics on some, so
// they are rejected before.
var errMalformed = errors.New("malformed reply")

// decodeReply decodes a frame as the reply to req and checks it: S3 to S8. k is the bucket size. A panic of the decoder is
// an error.
func decodeReply(req *pb.Message, frame []byte, k int) (resp *pb.Message, err error) {
	defer func() {
		if r := recover(); r != nil {
			resp, err = nil, fmt.Errorf("%w: decoder panicked: %v", errMalformed, r)
		}
	}()
	resp = new(pb.Message)
	if err := proto.Unmarshal(frame, resp); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if err := checkReply(req, resp); err != nil {
		return nil, fmt.Errorf("%w to %s: %w", errMalformed, req.GetType(), err)
	}
	trimReply(req, resp, k)
	return resp, nil
}

// checkReply returns an error if resp is not a reply to req.
func checkReply(req, resp *pb.Message) error {
	rec := resp.GetRecord()
	switch {
	case resp.GetType() != req.GetType(): // S3
		return fmt.Errorf("its type is %s", resp.GetType())
	case len(resp.GetKey()) > 0 && !bytes.Equal(resp.GetKey(), req.GetKey()): // S6; FIND_NODE replies carry no key
		return errors.New("it has another key")
	case req.GetType() == pb.Message_PUT_VALUE: // S4
		return checkEcho(req, resp)
	case req.GetType() != pb.Message_GET_VALUE || rec == nil:
		return nil
	case !bytes.Equal(rec.GetKey(), req.GetKey()): // S5
		return errors.New("its record has another key")
	case len(rec.GetValue()) > td.MaxRecord:
		return fmt.Errorf("its record has %d bytes", len(rec.GetValue()))
	}
	return nil
}

// checkEcho is S4: a peer acknowledges a PUT_VALUE with the stored record.
func checkEcho(req, resp *pb.Message) error {
	sent, got := req.GetRecord(), resp.GetRecord()
	switch {
	case got == nil:
		return errors.New("it has no record")
	case !bytes.Equal(got.GetKey(), req.GetKey()):
		return errors.New("its record has another key")
	case !bytes.Equal(got.GetValue(), sent.GetValue()):
		return errors.New("its record has another value")
	}
	return nil
}

// trimReply cuts oversized lists, and removes members that do not belong in a reply to req.
func trimReply(req, resp *pb.Message, k int) {
	t := req.GetType()
	if t != pb.Message_PUT_VALUE && t != pb.Message_GET_VALUE {
		resp.Record = nil
	}
	if t == pb.Message_PUT_VALUE || t == pb.Message_PING {
		resp.CloserPeers = nil
	}
	if t != pb.Message_GET_PROVIDERS {
		resp.ProviderPeers = nil
	}
	resp.CloserPeers = trimPeers(resp.CloserPeers, 2*k)
	resp.ProviderPeers = trimPeers(resp.ProviderPeers, maxProviders)
}

// trimPeers is S7: at most limit peers, each once, with a usable ID and a bounded number of addresses.
func trimPeers(peers []*pb.Message_Peer, limit int) []*pb.Message_Peer {
	var kept []*pb.Message_Peer
	seen := make(map[string]bool, min(len(peers), limit))
	for _, p := range peers {
		id := string(p.GetId())
		if len(kept) == limit {
			break
		}
		if seen[id] || !isEd25519(peer.ID(id)) {
			continue
		}
		seen[id] = true
		p.Addrs = trimAddrs(p.Addrs)
		kept = append(kept, p)
	}
	return kept
}

func trimAddrs(addrs [][]byte) [][]byte {
	kept := addrs[:0]
	for _, a := range addrs {
		if len(kept) == maxPeerAddrs {
			break
		}
		if len(a) <= maxAddrBytes {
			kept = append(kept, a)
		}
	}
	return kept
}

// ed25519Head is the prefix of the PeerID of an Ed25519 key: an identity multihash of 36 bytes, and the protobuf of a public key of
// type 1 with 32 bytes (libp2p specs, peer-ids).
const ed25519Head = "\x00\x24\x08\x01\x12\x20"

// isEd25519 reports whether p has the form of an Ed25519 key, the only type of nodes. The connection gater checks the key itself.
func isEd25519(p peer.ID) bool {
	return len(p) == len(ed25519Head)+32 && string(p[:len(ed25519Head)]) == ed25519Head
}
