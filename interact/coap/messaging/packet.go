package messaging

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	tcpcoder "github.com/plgd-dev/go-coap/v3/tcp/coder"
	udpcoder "github.com/plgd-dev/go-coap/v3/udp/coder"
)

// A Packet is one CoAP message. Over a stream it has no Kind and no Mid (RFC 8323 §3.2). Options are sorted: see [Packet.Add].
type Packet struct {
	Kind    message.Type
	Mid     uint16
	Code    codes.Code
	Token   string
	Options message.Options // sorted
	Payload []byte
}

// Methods and options without a name in the CoAP module.
const (
	Fetch  codes.Code = 5 // RFC 8132 §2
	Patch  codes.Code = 6 // RFC 8132 §3
	IPatch codes.Code = 7 // RFC 8132 §3

	HopLimit   message.OptionID = 16  // RFC 8768 §3
	requestTag message.OptionID = 292 // RFC 9175 §3.2
)

const (
	maxOptions  = 64      // of one message
	maxToken    = 8       // bytes (RFC 7252 §3)
	MaxDatagram = 1 << 16 // bytes of a datagram; UDP has no larger ones
)

var errPacket = errors.New("no CoAP message")

// ParseDatagram reads the message in b and retains b. It accepts options of any length and number, which
// [Packet.Faulty] checks. An error means that b is not a CoAP message.
func ParseDatagram(b []byte) (*Packet, error) {
	if len(b) < 4 || b[0]>>6 != 1 { // RFC 7252 §3: version 1
		return nil, errPacket
	}
	p := &Packet{Kind: message.Type(b[0] >> 4 & 3), Code: codes.Code(b[1]), Mid: binary.BigEndian.Uint16(b[2:])}
	token := int(b[0] & 15)
	if token > maxToken || len(b) < 4+token || p.Code == codes.Empty && len(b) > 4 { // §4.1: Empty is four bytes
		return nil, errPacket
	}
	p.Token = string(b[4 : 4+token])
	return p, p.parseOptions(b[4+token:])
}

// parseOptions reads options and payload.
func (p *Packet) parseOptions(b []byte) error {
	options := make(message.Options, 0, maxOptions)
	n, err := options.Unmarshal(b, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", errPacket, err)
	}
	p.Options, p.Payload = options, b[n:]
	return nil
}

// Datagram writes p for UDP and DTLS.
func (p *Packet) Datagram() ([]byte, error) {
	m := p.message()
	size, err := udpcoder.DefaultCoder.Size(m)
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	_, err = udpcoder.DefaultCoder.Encode(m, b)
	return b, err
}

// frame writes p for TCP and TLS.
func (p *Packet) frame() ([]byte, error) {
	m := p.message()
	size, err := tcpcoder.DefaultCoder.Size(m)
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	_, err = tcpcoder.DefaultCoder.Encode(m, b)
	return b, err
}

func (p *Packet) message() message.Message {
	return message.Message{Type: p.Kind, MessageID: int32(p.Mid), Code: p.Code, Token: message.Token(p.Token),
		Options: p.Options, Payload: p.Payload}
}

// readFrame reads one message of at most max bytes from a stream (RFC 8323 §3.2).
func readFrame(r *bufio.Reader, max int) (*Packet, error) {
	first, err := r.ReadByte()
	if err != nil {
		return nil, err
	}
	size, err := frameSize(r, first>>4)
	if err != nil {
		return nil, err
	}
	token := int(first & 15)
	if token > maxToken || size > max {
		return nil, errPacket
	}
	b := make([]byte, 1+token+size)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	p := &Packet{Code: codes.Code(b[0]), Token: string(b[1 : 1+token])}
	return p, p.parseOptions(b[1+token:])
}

// frameSize is the length of options and payload: the nibble, or the extended length.
func frameSize(r *bufio.Reader, nibble byte) (int, error) {
	var b [4]byte
	extra, base := 0, int(nibble)
	switch nibble {
	case 13:
		extra, base = 1, 13
	case 14:
		extra, base = 2, 269
	case 15:
		extra, base = 4, 65805
	}
	if _, err := io.ReadFull(r, b[4-extra:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(b[:])
	if n > math.MaxInt32-65805 {
		return 0, errPacket
	}
	return base + int(n), nil
}

// IsRequest reports whether the code is a method (RFC 7252 §12.1.1).
func (p *Packet) IsRequest() bool { return p.Code > 0 && p.Code < 32 }

// isResponse reports whether it is a response code (RFC 7252 §12.1.2).
func (p *Packet) isResponse() bool { return p.Code >= 64 && p.Code < 192 }

// Good reports whether the code is of class 2, success.
func (p *Packet) Good() bool { return p.Code>>5 == 2 }

// Add inserts an option after those of its number.
func (p *Packet) Add(id message.OptionID, value []byte) {
	p.Options = p.Options.Add(message.Option{ID: id, Value: value})
}

// AddUint adds an option of format uint: no leading zeros (RFC 7252 §3.2).
func (p *Packet) AddUint(id message.OptionID, n uint32) {
	var b [4]byte
	size, _ := message.EncodeUint32(b[:], n) // fits always
	p.Add(id, b[:size])
}

// Option returns the first option of a number.
func (p *Packet) Option(id message.OptionID) ([]byte, bool) {
	for _, o := range p.Options {
		if o.ID == id {
			return o.Value, true
		}
	}
	return nil, false
}

// Uint returns the first option of a number as a uint. An option of invalid length is absent (RFC 7252 §5.4.3).
func (p *Packet) Uint(id message.OptionID) (uint32, bool) {
	v, ok := p.Option(id)
	if !ok || len(v) > 4 || len(v) > known[id].max {
		return 0, false
	}
	n := uint32(0)
	for _, b := range v {
		n = n<<8 | uint32(b)
	}
	return n, true
}

// Texts returns all options of a number.
func (p *Packet) Texts(id message.OptionID) []string {
	var all []string
	for _, o := range p.Options {
		if o.ID == id {
			all = append(all, string(o.Value))
		}
	}
	return all
}

// A definition has the limits of an option.
type definition struct {
	min, max int // bytes of its value
	repeat   bool
}

// known are the options that this package understands, in requests or in responses (RFC 7252 §5.10, RFC 7641 §2, RFC 7959 §2.1,
// RFC 8768 §3, RFC 9175 §3.2). If-Match and If-None-Match are not: they are critical, so a request with one is rejected.
var known = map[message.OptionID]definition{
	message.URIHost:       {min: 1, max: 255},
	message.ETag:          {min: 1, max: 8, repeat: true},
	message.Observe:       {max: 3},
	message.URIPort:       {max: 2},
	message.LocationPath:  {max: 255, repeat: true},
	message.URIPath:       {max: 255, repeat: true},
	message.ContentFormat: {max: 2},
	message.MaxAge:        {max: 4},
	message.URIQuery:      {max: 255, repeat: true},
	HopLimit:              {min: 1, max: 1},
	message.Accept:        {max: 2},
	message.LocationQuery: {max: 255, repeat: true},
	message.Block2:        {max: 3},
	message.Block1:        {max: 3},
	message.Size2:         {max: 4},
	message.Size1:         {max: 4},
	requestTag:            {max: 8, repeat: true},
}

// Faulty returns the number of the first critical option of p that is unknown, has an invalid length, or is repeated
// although it must not be: the receiver must reject the message (RFC 7252 §5.4.1, §5.4.3, §5.4.5). Critical numbers are odd.
func (p *Packet) Faulty() (message.OptionID, bool) {
	for i, o := range p.Options {
		d, ok := known[o.ID]
		again := i > 0 && p.Options[i-1].ID == o.ID && !d.repeat
		if o.ID%2 == 1 && (!ok || again || len(o.Value) < d.min || len(o.Value) > d.max) {
			return o.ID, true
		}
	}
	return 0, false
}

// Dotted returns a code in its usual notation: "4.04".
func Dotted(c codes.Code) string { return fmt.Sprintf("%d.%02d", c>>5, c&31) }

// A Block is the value of a Block1 or Block2 option (RFC 7959 §2.2).
type Block struct {
	Num  uint32 // at most 2^20-1
	More bool   // others follow
	SZX  uint8  // the size is 2^(SZX+4); 7 is [BERT]
}

// Sizes and numbers of blocks.
const (
	SZX1024  = 6       // the largest blocks over UDP (RFC 7959 §2.2)
	BERT     = 7       // any number of blocks of 1024 bytes at once, over streams only (RFC 8323 §6)
	MaxBlock = 1 << 20 // no block has this number
)

// Block returns a block option; ok is false if there is none.
func (p *Packet) Block(id message.OptionID) (b Block, ok bool) {
	v, ok := p.Uint(id)
	return Block{Num: v >> 4, More: v&8 != 0, SZX: uint8(v & 7)}, ok
}

// Size is the size in bytes of a block that is not the last.
func (b Block) Size() int { return 16 << min(b.SZX, SZX1024) }

// Offset is the offset of the block in the body, in bytes.
func (b Block) Offset() int { return int(b.Num) * b.Size() }

// Value is the value of the option.
func (b Block) Value() uint32 {
	v := b.Num<<4 | uint32(b.SZX)
	if b.More {
		v |= 8
	}
	return v
}

// Full reports whether a payload of n bytes may be a block that is not the last.
func (b Block) Full(n int) bool { return n == b.Size() || b.SZX == BERT && n > 0 && n%b.Size() == 0 }

// Cut returns the part of data that b selects, and the block that describes that part. ok is false if data ends before it; the first
// part of no data is empty.
func (b Block) Cut(data []byte) (part []byte, is Block, ok bool) {
	at := b.Offset()
	if at >= len(data) && b.Num > 0 {
		return nil, b, false
	}
	end := min(at+b.Size(), len(data))
	b.More = end < len(data)
	return data[at:end], b, true
}

// A Reject is a protocol error with its response code.
type Reject struct {
	Code codes.Code
	Text string
}

// Rejected returns an error with a response code; text is for its diagnostic payload.
func Rejected(code codes.Code, text string) *Reject { return &Reject{code, text} }

// Error implements error.
func (r *Reject) Error() string { return r.Text }
