package suspicion

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/internal/streamserver"
)

// The protocol /lmos/<network>/gone/1 is one message per stream, without an answer. The message fills the stream, in deterministic
// CBOR:
//
//	{gone: keys}
//
// Keys are the Ed25519 keys of 1 to 64 hosts that the speaker could not reach, 32 bytes each, ascending, none twice. The DIDs and
// PeerIDs of nodes are these keys.
const (
	keySize    = 32
	maxHosts   = 64
	maxMessage = maxHosts*keySize + 16 // bytes
)

// errWire says that the far end does not keep to the protocol.
const errWire = streamserver.Violation("malformed message of the gone protocol")

type message struct {
	Gone []byte `cbor:"gone"`
}

// encode returns the message that names hosts, which are sorted by it.
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

// decode reads a message. b has at most maxMessage bytes.
func decode(b []byte) ([]did.DID, error) {
	var m message
	if err := cbor.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("%w: %w", errWire, err)
	}
	if again, err := cbor.Marshal(m); err != nil || !bytes.Equal(again, b) {
		return nil, fmt.Errorf("%w: not in canonical form", errWire)
	}
	n := len(m.Gone) / keySize
	if len(m.Gone)%keySize != 0 || n == 0 || n > maxHosts {
		return nil, fmt.Errorf("%w: %d bytes of keys", errWire, len(m.Gone))
	}
	hosts := make([]did.DID, 0, n)
	var last []byte
	for key := range slices.Chunk(m.Gone, keySize) {
		if bytes.Compare(last, key) >= 0 {
			return nil, fmt.Errorf("%w: keys that do not ascend", errWire)
		}
		host, err := did.FromKey(key)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errWire, err)
		}
		hosts, last = append(hosts, host), key
	}
	return hosts, nil
}
