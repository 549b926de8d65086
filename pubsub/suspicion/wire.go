package suspicion

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/internal/streamserver"
)

// The protocol /lmos/<network>/suspicion/1 has one message per stream and no response. The message fills the stream, in deterministic
// CBOR:
//
//	{suspects: keys}
//
// keys are the Ed25519 keys of 1 to 64 hosts that the sender could not reach, 32 bytes each, in ascending order without duplicates. The
// DIDs and PeerIDs of nodes contain these keys.
const (
	keySize    = 32
	maxHosts   = 64
	maxMessage = maxHosts*keySize + 16 // bytes
)

// errMalformed is the error of messages that violate the protocol.
const errMalformed = streamserver.Violation("malformed message of the suspicion protocol")

type message struct {
	Suspects []byte `cbor:"suspects"`
}

// encode returns the message of hosts.
func encode(hosts []did.DID) ([]byte, error) {
	keys := make([][]byte, len(hosts))
	for i, h := range hosts {
		key, err := h.Key()
		if err != nil {
			return nil, err
		}
		keys[i] = key
	}
	slices.SortFunc(keys, bytes.Compare)
	return cbor.Marshal(message{slices.Concat(keys...)})
}

// decode returns the hosts of a message of at most maxMessage bytes.
func decode(b []byte) ([]did.DID, error) {
	var m message
	if err := cbor.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if again, err := cbor.Marshal(m); err != nil || !bytes.Equal(again, b) {
		return nil, fmt.Errorf("%w: not in canonical form", errMalformed)
	}
	n := len(m.Suspects) / keySize
	if len(m.Suspects)%keySize != 0 || n == 0 || n > maxHosts {
		return nil, fmt.Errorf("%w: %d bytes of keys", errMalformed, len(m.Suspects))
	}
	hosts := make([]did.DID, 0, n)
	var last []byte
	for key := range slices.Chunk(m.Suspects, keySize) {
		if bytes.Compare(last, key) >= 0 {
			return nil, fmt.Errorf("%w: keys are not in ascending order", errMalformed)
		}
		host, err := did.FromKey(key)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errMalformed, err)
		}
		hosts, last = append(hosts, host), key
	}
	return hosts, nil
}
