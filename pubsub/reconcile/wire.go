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

// The protocol /lmos/<network>/sync/1 is one session per stream. Both ends send turns alternately; the initiator begins. A turn is
// a frame, and then the records that it announces, a frame each; a frame is a uvarint length and a map in deterministic CBOR.
//
//	turn   {root: claim, split: [{at, of: 16 claims}, …], list: [{at, of: items}, …], news: items, want: keys,
//	        give: n, more: true, time: ms}
//	given  {record: h'…', td: h'…'}, or {} for a removed record
//
// A claim is 20 bytes, a count of four and a fingerprint of 16; an item is 40, the key of a thing and a seq of eight; a key is
// 32. Of each there may be many in one byte string. A range is written as the nibbles, a byte each, with which its keys begin.
//
// The first turn has the claim of the whole set, and lists a small set. After that each turn answers the one before, or
// claims of earlier ones for which there was no room:
//
//   - a claim of a range that differs, by the 16 claims of its parts, by a list of all items in it if there are few, or, if the
//     other has none in it, by news;
//   - a list, by what the other lacks or has older, as news, and by what it has newer, as wants;
//   - news, by wants: not all need be wanted, and nothing comes that was not;
//   - wants, by as many records in that order, or fewer, and more.
//
// The first answer has the clock of the responder, in milliseconds of Unix time, so that nodes detect wrong clocks. The protocol does not
// depend on it, and older versions omit it.
//
// A turn without claims, items and wants is the last one. "more" means that the sender left items to the next session.
const (
	maxTurn  = 256 << 10                       // bytes of a turn
	maxGiven = td.MaxRecord + td.MaxTD + 1<<10 // bytes of a record with its TD

	claimSize, itemSize, keySize = 20, 40, 32
	parts                        = 16

	maxTime = 1 << 48 // milliseconds: the year 10889
)

// errWire means malformed messages, errViolation contradictory ones. Both end the session and ban the peer; see peers.
const (
	errWire      = streamserver.Violation("malformed message of the sync protocol")
	errViolation = streamserver.Violation("the far end contradicts itself")
)

// A turn is one message of an end.
type turn struct {
	Root  []byte `cbor:"root,omitempty"`
	Split []part `cbor:"split,omitempty"`
	List  []part `cbor:"list,omitempty"`
	News  []byte `cbor:"news,omitempty"`
	Want  []byte `cbor:"want,omitempty"`
	Give  int    `cbor:"give,omitempty"`
	More  bool   `cbor:"more,omitempty"`
	Time  int64  `cbor:"time,omitempty"`
}

// A part is the content for one range.
type part struct {
	At []byte `cbor:"at"`
	Of []byte `cbor:"of"`
}

// A given is a record, or nothing.
type given struct {
	Record []byte `cbor:"record,omitempty"`
	TD     []byte `cbor:"td,omitempty"`
}

// last reports whether t needs no answer.
func (t *turn) last() bool {
	return len(t.Root)+len(t.Split)+len(t.List)+len(t.News)+len(t.Want) == 0
}

// decodeTurn reads a turn and checks its form. b has at most maxTurn bytes.
func decodeTurn(b []byte) (*turn, error) {
	var t turn
	if err := decode(b, &t); err != nil {
		return nil, err
	}
	switch {
	case len(t.Root) != 0 && len(t.Root) != claimSize:
		return nil, fmt.Errorf("%w: a claim of %d bytes", errWire, len(t.Root))
	case len(t.News)%itemSize != 0, len(t.Want)%keySize != 0:
		return nil, fmt.Errorf("%w: %d bytes of news, %d of wants", errWire, len(t.News), len(t.Want))
	case t.Give < 0 || t.Give > maxWants:
		return nil, fmt.Errorf("%w: %d records", errWire, t.Give)
	case t.Time < 0 || t.Time > maxTime:
		return nil, fmt.Errorf("%w: the time %d", errWire, t.Time)
	}
	for _, p := range t.Split {
		if !isRange(p.At) || len(p.At) == keyDepth || len(p.Of) != parts*claimSize {
			return nil, fmt.Errorf("%w: a split at %x of %d bytes", errWire, p.At, len(p.Of))
		}
	}
	for _, p := range t.List {
		if !isRange(p.At) || len(p.Of)%itemSize != 0 || !sorted(p) {
			return nil, fmt.Errorf("%w: a list at %x of %d bytes", errWire, p.At, len(p.Of))
		}
	}
	return &t, nil
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

// decodeGiven decodes a requested record. b has at most maxGiven bytes.
func decodeGiven(b []byte) (*given, error) {
	var g given
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

func (c claim) append(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, c.count), c.print[:]...)
}

// claimAt returns the i-th claim in b.
func claimAt(b []byte, i int) claim {
	b = b[i*claimSize:]
	return claim{binary.BigEndian.Uint32(b), [16]byte(b[4:claimSize])}
}

func (it item) append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(append(b, it.key[:]...), it.seq)
}

// itemAt returns the i-th item in b.
func itemAt(b []byte, i int) item {
	b = b[i*itemSize:]
	return item{[32]byte(b[:keySize]), binary.BigEndian.Uint64(b[keySize:itemSize])}
}

// encodeFrame returns v as a frame. A turn is kept within maxTurn while it is built.
func encodeFrame(v any) ([]byte, error) {
	body, err := cbor.Marshal(v)
	if err != nil {
		return nil, err
	}
	return streamserver.AppendFrame(make([]byte, 0, len(body)+streamserver.MaxPrefix), body), nil
}
