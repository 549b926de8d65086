package ws

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// A kind says what a binary frame is. No dialect has binary frames: they are lmosd's own, for request streams.
type kind uint8

const (
	kindChunk  kind = 1 // bytes of the stream
	kindEnd    kind = 2 // nothing follows
	kindAbort  kind = 3 // nothing follows, because of what the words say
	kindCredit kind = 4 // from the reader: how many bytes more it takes, as 4 bytes
	kindStop   kind = 5 // from the reader: it wants no more, because of what the words say, or for no reason
)

const (
	packetHead = 5        // bytes: the kind, and the stream's number
	maxChunk   = 64 << 10 // bytes of the stream in a frame
	maxWords   = 1 << 10
	maxStreams = 64        // of a connection, in each direction
	window     = 256 << 10 // bytes that a reader lets come before it has taken them
	maxCredit  = 16 << 20  // bytes that a reader may let come
)

// A packet is a binary frame.
type packet struct {
	kind   kind
	stream uint32 // as the end that sends the chunks calls it; never 0
	credit uint32 // of kindCredit; never 0
	body   []byte // of the others
}

// readPacket reads a binary frame. The body points into b. With an error, the packet has what could be read.
//
//	byte 0     the kind
//	byte 1..4  the stream's number, the highest byte first
//	the rest   chunk: 1 to 65,536 bytes; credit: a number of 4 bytes, as above; abort, stop: text of at most 1,024 bytes
func readPacket(b []byte) (packet, error) {
	if len(b) < packetHead {
		return packet{}, fmt.Errorf("a binary frame of %d bytes", len(b))
	}
	p := packet{kind: kind(b[0]), stream: binary.BigEndian.Uint32(b[1:]), body: b[packetHead:]}
	n, ok := len(p.body), p.stream != 0
	switch p.kind {
	case kindChunk:
		ok = ok && n > 0 && n <= maxChunk
	case kindEnd:
		ok = ok && n == 0
	case kindAbort, kindStop:
		ok = ok && n <= maxWords && utf8.Valid(p.body)
	case kindCredit:
		if ok = ok && n == 4; ok {
			p.credit, p.body = binary.BigEndian.Uint32(p.body), nil
			ok = p.credit != 0
		}
	default:
		ok = false
	}
	if !ok {
		return p, fmt.Errorf("a binary frame of kind %d for the stream %d has %d bytes", p.kind, p.stream, n)
	}
	return p, nil
}

// encode writes p.
func (p packet) encode() []byte {
	b := append(make([]byte, 0, packetHead+max(4, len(p.body))), byte(p.kind))
	b = binary.BigEndian.AppendUint32(b, p.stream)
	if p.kind == kindCredit {
		return binary.BigEndian.AppendUint32(b, p.credit)
	}
	return append(b, p.body...)
}

// phrase is a reason as a packet may have it.
func phrase(reason string) []byte { return []byte(clip(reason, maxWords)) }
