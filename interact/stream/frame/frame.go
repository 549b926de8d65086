// Package frame encodes and decodes the frames of interactions between nodes: requests, replies and errors as deterministic CBOR.
//
// Protocol /lmos/<network>/interact/1. Each end of a stream writes frames:
//
//	frame   = length kind number body
//	length  = uvarint, bytes of kind, number and body; shortest form
//	kind    = one byte
//	number  = uvarint of the interaction, shortest form; 0 on a stream of a single interaction
//
//	kind  name     from    body                                     ends the interaction
//	1     request  caller  message map
//	2     reply    server  message map
//	3     last     server  message map                              yes
//	4     end      server  empty                                    yes
//	               caller  empty: the request stream is complete    no
//	5     error    server  error map                                yes
//	6     chunk    both    bytes
//	7     cancel   caller  empty                                    yes
//	8     credit   both    uvarint, bytes that were taken
//
// A body is at most 64 KiB; that of a chunk on a stream of a single interaction is at most 1 MiB. The first frame of the caller
// decides the use of the stream: number 0 makes it the stream of that interaction. The numbers on a shared stream rise. Maps are
// deterministic CBOR (RFC 8949 §4.2.1) with small integer keys; empty members are left out:
//
//	message  1 type · 2 thing · 3 id · 4 correlation · 5 name · 6 status · 7 content type · 8 traceparent · 9 tracestate ·
//	         10 time left in milliseconds · 11 time of the reading in Unix nanoseconds · 12 hops, this one included ·
//	         13 size of the data, which follows in chunks · 14 true: a request stream follows · 15 data ·
//	         16 id of the action · 17 id of the last event received · 18 key · 19 true: detached ·
//	         20 of a request, true: report times; of a reply, the time in the host in microseconds · 21 of a request, as;
//	         of a reply, the part of that time in the agent · 22 start of the action in Unix nanoseconds · 23 accepted media type
//	as       1 name, of 1 to 64 bytes of a-z, 0-9, dot, underscore and hyphen · 2 DID of an agent with a key of its own · 3 roles that the consumer may use, at most 32;
//	         "*" means all of the node; absent means none · 4 the closest relation that it may have: 1 untrusted, 2 partner ·
//	         others are ignored
//	error    1 code · 2 title · 3 hint · 4 detail · 5 issues, each [pointer, reason] · 7 steps, each [kind, argument…] ·
//	         6 milliseconds to wait before a retry · 8 true: the request may have run
//
// Only a request has 10, 14, 17 to 19 and 23, only a reply has 22; 20 and 21 are in replies to a request that has 20.
// If a reply lacks 2, 4, 5, 8, 9 or 16, the reader sets what [interact.Message.Reply] would have copied from the request. The caller is
// the key that the connection proved; with as, the calling node names the one of its consumers for which it calls.
//
// Each end of an interaction may send replies and chunks as long as it has credit: the initial credit (package stream), and the
// amounts of the credit frames. The cost of a frame is its body and 64 bytes; the last frame may exceed the credit.
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lmosd/lmosd/interact"
)

// Limits of frames, in bytes.
const (
	MaxControl = 64 << 10                  // body of a frame
	MaxChunk   = 1 << 20                   // body of a chunk on a stream of a single interaction
	MaxHead    = 1 + binary.MaxVarintLen64 // kind and number
	ChunkHead  = 4 + MaxHead               // length, kind and number of a chunk
)

// ErrProtocol is wrapped by the errors for frames that violate the protocol.
var ErrProtocol = errors.New("the peer violated the protocol")

// Errorf returns an error that wraps [ErrProtocol].
func Errorf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// A Kind is the kind of a frame.
type Kind byte

const (
	Request Kind = 1 + iota
	Reply
	Last
	End
	Error
	Chunk
	Cancel
	Credit
)

// Ends reports whether a frame of the server ends its interaction.
func (k Kind) Ends() bool { return k == Last || k == End || k == Error }

// A Frame is a frame that was read. If Owned is false, Body is valid until the next read only.
type Frame struct {
	Kind  Kind
	ID    uint64 // number of the interaction
	Body  []byte
	Owned bool
}

// Cost returns the credit of the sender and the memory of the reader that the frame uses, in bytes.
func (f Frame) Cost() int {
	if f.Kind == Reply || f.Kind == Last || f.Kind == Chunk {
		return len(f.Body) + 64
	}
	return len(f.Body)
}

// Append appends a frame whose body is what the function body appends. After an error it returns dst unchanged.
func Append(dst []byte, k Kind, id uint64, body func([]byte) ([]byte, error)) ([]byte, error) {
	const room = 4 // for the length, which is not known yet; 4 bytes hold 2^28
	start := len(dst)
	b := append(dst, 0, 0, 0, 0, byte(k))
	b = binary.AppendUvarint(b, id)
	head := len(b)
	b, err := body(b)
	if err != nil {
		return dst, err
	}
	if len(b)-head > MaxControl {
		return dst, interact.Errorf(interact.TooLarge, "shorten its members", "the message has %d bytes beside its data, "+
			"at most %d are allowed", len(b)-head, MaxControl)
	}
	var length [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(length[:], uint64(len(b)-start-room))
	copy(b[start:], length[:n])
	return append(b[:start+n], b[start+room:]...), nil
}

// AppendChunk appends a chunk. Its length is known, so that no bytes are moved.
func AppendChunk(dst []byte, id uint64, data []byte) []byte {
	var head [MaxHead]byte
	head[0] = byte(Chunk)
	n := 1 + binary.PutUvarint(head[1:], id)
	dst = binary.AppendUvarint(dst, uint64(n+len(data)))
	return append(append(dst, head[:n]...), data...)
}

// Parse parses kind and number of a frame of size bytes. b begins with them; the rest of b becomes the body.
func Parse(b []byte, size int) (Frame, error) {
	f := Frame{Kind: Kind(b[0])}
	n := 1
	for n < len(b) && n < MaxHead && b[n] >= 0x80 {
		n++
	}
	id, err := Uvarint(b[1:min(n+1, len(b))])
	if err != nil {
		return f, err
	}
	f.ID, f.Body = id, b[n+1:]
	body := size - n - 1
	switch {
	case f.Kind < Request || f.Kind > Credit:
		return f, Errorf("a frame of unknown kind %d", f.Kind)
	case (f.Kind == End || f.Kind == Cancel) && body != 0:
		return f, Errorf("a frame of kind %d with a body", f.Kind)
	case body > MaxControl && (f.Kind != Chunk || body > MaxChunk):
		return f, Errorf("a frame of kind %d with %d bytes", f.Kind, body)
	}
	return f, nil
}

// Uvarint decodes the number that b consists of, in its shortest form.
func Uvarint(b []byte) (uint64, error) {
	v, n := binary.Uvarint(b)
	if n <= 0 || n != len(b) || n > 1 && b[n-1] == 0 {
		return 0, Errorf("a malformed number")
	}
	return v, nil
}
