package reconcile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/internal/streamserver"
	"github.com/lmosd/lmosd/td"
)

// The protocol /lmos/<network>/sync/1 is one session per stream. Both ends send rounds alternately; the initiator begins. A round is
// a frame, and then the records that it announces, a frame each; a frame is a uvarint length and a map in deterministic CBOR.
//
//	round  {root: fingerprint, split: [{at, of: 16 fingerprints}, …], list: [{at, of: items}, …], news: items, want: keys,
//	        give: n, more: true, time: ms}
//	record {record: h'…', td: h'…'}, or {} for a removed record
//
// A fingerprint has 20 bytes: a count of 4 and a hash of 16. An item has 40 bytes: the key of a Thing (32) and a seq (8). A byte string
// may contain several of them. A range is the common prefix of its keys, in nibbles, one nibble a byte.
//
// The first round has the fingerprint of the whole set, and the items of a small set. Each later round answers the previous one, and, if it
// has room, fingerprints of earlier rounds:
//
//   - a different fingerprint of a range: the 16 fingerprints of its parts (split), all its items if they are few (list), or, if
//     the peer has no items in it, the items to announce (news);
//   - list: the items that the peer lacks or has in an older version (news), and the keys of its newer items (want);
//   - news: the keys of some or all of these items (want);
//   - want: the requested records in this order (give), or the first of them and "more".
//
// The first answer has the clock of the responder, in milliseconds of Unix time, so that nodes detect wrong clocks. The protocol does not
// depend on it, and older versions omit it.
//
// A round without fingerprints, items and keys is the last one. "more" means that the sender left items for the next session.
const (
	maxRoundSize     = 256 << 10                       // bytes of a round
	maxRecordMessage = td.MaxRecord + td.MaxTD + 1<<10 // bytes of a record with its TD

	fingerprintSize, itemSize, keySize = 20, 40, 32
	parts                              = 16

	maxTime = 1 << 48 // milliseconds: the year 10889
)

// errWire is the error of malformed messages, errViolation that of messages that contradict earlier ones or exceed a limit. Both end the
// session and ban the peer; see peers.
const (
	errWire      = streamserver.Violation("malformed message of the sync protocol")
	errViolation = streamserver.Violation("violation of the sync protocol")
)

// A round is one message of an end, without its records.
type round struct {
	Root      []byte `cbor:"root,omitempty"`
	Split     []part `cbor:"split,omitempty"`
	List      []part `cbor:"list,omitempty"`
	Announced []byte `cbor:"news,omitempty"`
	Requested []byte `cbor:"want,omitempty"`
	Records   int    `cbor:"give,omitempty"`
	More      bool   `cbor:"more,omitempty"`
	Time      int64  `cbor:"time,omitempty"`
}

// A part is the content for one range.
type part struct {
	At []byte `cbor:"at"`
	Of []byte `cbor:"of"`
}

// A recordMessage is a requested record, or empty if the record was removed.
type recordMessage struct {
	Record []byte `cbor:"record,omitempty"`
	TD     []byte `cbor:"td,omitempty"`
}

// isLast reports whether r needs no answer.
func (r *round) isLast() bool {
	return len(r.Root)+len(r.Split)+len(r.List)+len(r.Announced)+len(r.Requested) == 0
}

// decodeRound reads a round and checks its form. b has at most maxRoundSize bytes.
func decodeRound(b []byte) (*round, error) {
	var r round
	if err := decode(b, &r); err != nil {
		return nil, err
	}
	switch {
	case len(r.Root) != 0 && len(r.Root) != fingerprintSize:
		return nil, fmt.Errorf("%w: a fingerprint of %d bytes", errWire, len(r.Root))
	case len(r.Announced)%itemSize != 0, len(r.Requested)%keySize != 0:
		return nil, fmt.Errorf("%w: %d bytes of announced items, %d of requested keys", errWire, len(r.Announced), len(r.Requested))
	case r.Records < 0 || r.Records > maxRequests:
		return nil, fmt.Errorf("%w: %d records", errWire, r.Records)
	case r.Time < 0 || r.Time > maxTime:
		return nil, fmt.Errorf("%w: the time %d", errWire, r.Time)
	}
	for _, p := range r.Split {
		if !isRange(p.At) || len(p.At) == keyDepth || len(p.Of) != parts*fingerprintSize {
			return nil, fmt.Errorf("%w: a split at %x of %d bytes", errWire, p.At, len(p.Of))
		}
	}
	for _, p := range r.List {
		if !isRange(p.At) || len(p.Of)%itemSize != 0 || !sorted(p) {
			return nil, fmt.Errorf("%w: a list at %x of %d bytes", errWire, p.At, len(p.Of))
		}
	}
	return &r, nil
}

func isRange(at []byte) bool {
	return len(at) <= keyDepth && !slices.ContainsFunc(at, func(x byte) bool { return x > 15 })
}

// sorted reports whether the items of a list ascend and belong to its range.
func sorted(p part) bool {
	for i, last := 0, []byte(nil); i < len(p.Of); i += itemSize {
		key := p.Of[i : i+keySize]
		if last != nil && bytes.Compare(last, key) >= 0 || !begins((*[32]byte)(key), p.At) {
			return false
		}
		last = key
	}
	return true
}

// decodeRecordMessage decodes a requested record. b has at most maxRecordMessage bytes.
func decodeRecordMessage(b []byte) (*recordMessage, error) {
	var g recordMessage
	if err := decode(b, &g); err != nil {
		return nil, err
	}
	if len(g.Record) > td.MaxRecord || len(g.TD) > td.MaxTD || len(g.Record) == 0 && len(g.TD) > 0 {
		return nil, fmt.Errorf("%w: a record of %d and a TD of %d bytes", errWire, len(g.Record), len(g.TD))
	}
	return &g, nil
}

// decode decodes deterministic CBOR only.
func decode(b []byte, v any) error {
	if err := cbor.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: %w", errWire, err)
	}
	if again, err := cbor.Marshal(v); err != nil || !bytes.Equal(again, b) {
		return fmt.Errorf("%w: not in canonical form", errWire)
	}
	return nil
}

func (f fingerprint) append(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, f.count), f.hash[:]...)
}

// fingerprintAt returns the i-th fingerprint in b.
func fingerprintAt(b []byte, i int) fingerprint {
	b = b[i*fingerprintSize:]
	return fingerprint{binary.BigEndian.Uint32(b), [16]byte(b[4:fingerprintSize])}
}

func (it item) append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(append(b, it.key[:]...), it.seq)
}

// itemAt returns the i-th item in b.
func itemAt(b []byte, i int) item {
	b = b[i*itemSize:]
	return item{[32]byte(b[:keySize]), binary.BigEndian.Uint64(b[keySize:itemSize])}
}

// encodeFrame returns v as a frame. A round is kept within maxRoundSize while it is built.
func encodeFrame(v any) ([]byte, error) {
	body, err := cbor.Marshal(v)
	if err != nil {
		return nil, err
	}
	return streamserver.AppendFrame(make([]byte, 0, len(body)+streamserver.MaxPrefix), body), nil
}
