package frame

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// A Kind is the kind of a binary frame. Binary frames are an extension of lmosd for request streams.
type Kind uint8

// The kinds of binary frames.
const (
	KindChunk  Kind = 1 // bytes of the stream
	KindEnd    Kind = 2 // end of the stream
	KindAbort  Kind = 3 // end of the stream; the text is the reason
	KindCredit Kind = 4 // from the reader: how many more bytes it accepts, as 4 bytes
	KindStop   Kind = 5 // from the reader: it accepts no more; the text is the reason, or empty
)

// Sizes of binary frames, in bytes.
const (
	PacketHead = 5        // the kind, and the stream's number
	MaxChunk   = 64 << 10 // of the stream in a frame
	MaxReason  = 1 << 10  // of a reason
)

// A Packet is a binary frame.
type Packet struct {
	Kind   Kind
	Stream uint32 // the number that the sender of the chunks has chosen; never 0
	Credit uint32 // of KindCredit; never 0
	Body   []byte // of the others
}

// ReadPacket reads a binary frame. The body points into b. With an error, the packet has the readable fields.
//
//	byte 0     the kind
//	byte 1..4  the stream's number, the highest byte first
//	the rest   chunk: 1 to 65,536 bytes; credit: a number of 4 bytes, as above; abort, stop: text of at most 1,024 bytes
func ReadPacket(b []byte) (Packet, error) {
	if len(b) < PacketHead {
		return Packet{}, fmt.Errorf("a binary frame of %d bytes", len(b))
	}
	p := Packet{Kind: Kind(b[0]), Stream: binary.BigEndian.Uint32(b[1:]), Body: b[PacketHead:]}
	n, ok := len(p.Body), p.Stream != 0
	switch p.Kind {
	case KindChunk:
		ok = ok && n > 0 && n <= MaxChunk
	case KindEnd:
		ok = ok && n == 0
	case KindAbort, KindStop:
		ok = ok && n <= MaxReason && utf8.Valid(p.Body)
	case KindCredit:
		if ok = ok && n == 4; ok {
			p.Credit, p.Body = binary.BigEndian.Uint32(p.Body), nil
			ok = p.Credit != 0
		}
	default:
		ok = false
	}
	if !ok {
		return p, fmt.Errorf("a binary frame of kind %d for the stream %d has %d bytes", p.Kind, p.Stream, n)
	}
	return p, nil
}

// Encode returns p as it is sent.
func (p Packet) Encode() []byte {
	b := append(make([]byte, 0, PacketHead+max(4, len(p.Body))), byte(p.Kind))
	b = binary.BigEndian.AppendUint32(b, p.Stream)
	if p.Kind == KindCredit {
		return binary.BigEndian.AppendUint32(b, p.Credit)
	}
	return append(b, p.Body...)
}

// Reason returns a reason as a packet may have it: on one line, and clipped.
func Reason(text string) []byte { return []byte(Clip(text, MaxReason)) }
