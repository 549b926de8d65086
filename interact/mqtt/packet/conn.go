package packet

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Types of control packets (MQTT 5 §2.1.2).
const (
	Connect     = 1
	Connack     = 2
	Publish     = 3
	Puback      = 4
	Pubrec      = 5
	Pubrel      = 6
	Pubcomp     = 7
	Subscribe   = 8
	Suback      = 9
	Unsubscribe = 10
	Unsuback    = 11
	Pingreq     = 12
	Pingresp    = 13
	Disconnect  = 14
)

// WriteTimeout limits one short write to the socket.
const WriteTimeout = 5 * time.Second

// maxCuts limits the topics of which cut messages are counted.
const maxCuts = 4096

// MaxControl limits every packet that carries no payload, in bytes.
const MaxControl = 64 << 10

// Causes of the end of a connection.
var (
	ErrProtocol = errors.New("protocol violation")
	ErrTooLarge = errors.New("it sent a packet that is too large")
	ErrSilent   = errors.New("it closed the connection before it said a word")
)

// A Conn checks the types, the order and the lengths of packets before a library reads them. The libraries allocate the length that a
// header announces. Writes have a time limit, whatever deadline the library sets.
//
// Read has one caller at a time, which owns the fields. A Conn is a [sync.Locker] because paho writes a packet of MQTT 5 in several
// pieces between Lock and Unlock: they are sent together.
type Conn struct {
	net.Conn

	packet sync.Mutex // guards batch and parts
	batch  bool
	parts  net.Buffers

	in    *bufio.Reader
	rule  Rule
	head  []byte // unread bytes of a header, or of a packet that was cut
	left  int    // bytes of the body
	drop  int    // bytes to skip: the rest of a packet that was cut
	first bool   // the first packet was seen
	five  bool   // it is MQTT 5, as far as is known
	err   error

	mu    sync.Mutex
	isV3  bool            // the CONNACK was that of MQTT 3.1.1
	cause error           // of the end
	cuts  map[string]int  // messages whose payload was dropped, by topic
	sent  map[uint16]bool // packet identifiers that are not acknowledged, if rule.exact
}

// A Rule is what a peer may send.
type Rule struct {
	limit int    // of a PUBLISH in bytes
	first byte   // type of the first packet, which never comes again
	types uint16 // the types that may follow, as bits
	exact bool   // acknowledgements have the lengths of MQTT 3.1.1, and are for what was sent
	cuts  bool   // a PUBLISH that is too large loses its payload; else the connection ends
}

func bits(types ...byte) (b uint16) {
	for _, t := range types {
		b |= 1 << t
	}
	return b
}

// Rules. AUTH is never allowed: lmosd supports no enhanced authentication (MQTT 5 §4.12).
var (
	FromBroker  = Rule{first: Connack, types: answers | bits(Disconnect)}
	FromBroker3 = Rule{first: Connack, types: answers, exact: true, cuts: true}
	FromClient  = Rule{first: Connect, types: acks | bits(Publish, Subscribe, Unsubscribe, Pingreq, Disconnect)}
)

// acks are sent by both sides, answers by a broker of MQTT 3.1.1.
var (
	acks    = bits(Puback, Pubrec, Pubrel, Pubcomp)
	answers = acks | bits(Publish, Suback, Unsuback, Pingresp)
)

// NewConn returns a checked connection; limit is that of a PUBLISH in bytes.
func NewConn(c net.Conn, r Rule, limit int) *Conn {
	r.limit = limit
	return &Conn{Conn: c, rule: r, in: bufio.NewReaderSize(c, 2*MaxTopic), five: r.first == Connack && !r.exact}
}

// lengths are those of MQTT 3.1.1 (§3). A client that subscribes to one filter at a time gets one return code; paho does not read a
// second one.
var lengths = map[byte]int{Connack: 2, Puback: 2, Pubrec: 2, Pubrel: 2, Pubcomp: 2, Suback: 3, Unsuback: 2,
	Pingresp: 0}

// check checks the first byte and the remaining length of a packet.
func (r Rule) check(seen bool, first byte, length int) error {
	kind := first >> 4
	switch {
	case !seen && kind != r.first, seen && r.types&(1<<kind) == 0:
		return fmt.Errorf("%w: a packet of type %d", ErrProtocol, kind)
	case kind == Publish && first>>1&3 == 3:
		return fmt.Errorf("%w: a message of QoS 3", ErrProtocol)
	case kind == Publish && length > r.limit:
		return fmt.Errorf("%w: %d bytes", ErrTooLarge, length)
	case kind != Publish && length > MaxControl:
		return fmt.Errorf("%w: %d bytes of type %d", ErrTooLarge, length, kind)
	case r.exact && kind != Publish && length != lengths[kind]:
		return fmt.Errorf("%w: a packet of type %d with %d bytes", ErrProtocol, kind, length)
	}
	return nil
}

// Read implements [net.Conn].
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(c.head) == 0 && c.left == 0 {
		if c.err == nil {
			c.err = c.next()
		}
		if c.err != nil {
			return 0, c.fail(c.err)
		}
	}
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	n, err := c.in.Read(p[:min(len(p), c.left)])
	if c.left -= n; err != nil {
		err = c.fail(err)
	}
	return n, err
}

// next reads and checks the header of the next packet (MQTT 5 §2.1).
func (c *Conn) next() error {
	if c.drop > 0 {
		n, err := c.in.Discard(c.drop)
		if c.drop -= n; err != nil {
			return err
		}
	}
	first, err := c.in.ReadByte()
	if !c.first && (err == io.EOF || errors.Is(err, syscall.ECONNRESET)) {
		return ErrSilent
	}
	if err != nil {
		return err
	}
	length, field, err := ReadLength(c.in)
	if err != nil {
		return err
	}
	switch err := c.rule.check(c.first, first, length); {
	case errors.Is(err, ErrTooLarge) && c.rule.cuts && first>>4 == Publish:
		return c.cut(first, length)
	case err != nil:
		return err
	}
	if err := c.limitProperties(first, length); err != nil {
		return err
	}
	if !c.first && first>>4 == Connack && length == 2 {
		c.mu.Lock()
		c.isV3 = true
		c.mu.Unlock()
	}
	c.first = true
	c.head, c.left = append([]byte{first}, field...), length
	if c.rule.exact && bits(Puback, Pubrec, Pubcomp, Suback, Unsuback)&(1<<(first>>4)) != 0 {
		return c.acknowledged(first >> 4)
	}
	return nil
}

// limitProperties checks the size of the properties of a message of MQTT 5 (§3.3.2.3): for 5 bytes a library allocates 32 and two
// strings. It reads the version from a CONNECT (§3.1.2.2).
func (c *Conn) limitProperties(first byte, length int) error {
	kind, at := first>>4, 2
	if kind != Connect && !(kind == Publish && c.five) {
		return nil
	}
	b, err := c.in.Peek(min(7, length))
	if kind == Connect {
		c.five = len(b) == 7 && b[6] == 5
	}
	if kind == Connect || err != nil || len(b) < at {
		return err
	}
	if at += int(b[0])<<8 + int(b[1]); at > 2+MaxTopic {
		return fmt.Errorf("%w: a topic of %d bytes", ErrProtocol, at-2)
	}
	if first>>1&3 > 0 {
		at += 2 // the packet identifier
	}
	if b, err = c.in.Peek(min(at+4, length)); err != nil || len(b) <= at {
		return err // the packet ends before its properties: the library reports it
	}
	if size, _, _ := ReadLength(bytes.NewReader(b[at:])); size > MaxControl {
		return fmt.Errorf("%w: properties of %d bytes", ErrTooLarge, size)
	}
	return nil
}

// acknowledged accepts an acknowledgement of a packet that was sent. On another one paho 1.5 can complete a token twice at the same
// time, which ends the process.
func (c *Conn) acknowledged(kind byte) error {
	body := make([]byte, c.left)
	if _, err := io.ReadFull(c.in, body); err != nil {
		return err
	}
	c.head, c.left = append(c.head, body...), 0
	id := uint16(body[0])<<8 | uint16(body[1])
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.sent[id] {
		return fmt.Errorf("%w: an acknowledgement of nothing", ErrProtocol)
	}
	if kind != Pubrec { // PUBCOMP follows
		delete(c.sent, id)
	}
	return nil
}

// sending records the identifier of a packet of MQTT 3.1.1 that requires an acknowledgement.
func (c *Conn) sending(p []byte) {
	r := bytes.NewReader(p)
	first, _ := r.ReadByte()
	_, field, err := ReadLength(r)
	if err != nil {
		return
	}
	body := p[1+len(field):]
	switch kind := first >> 4; {
	case kind == Publish && first>>1&3 > 0 && len(body) >= 2:
		body = body[min(2+int(body[0])<<8+int(body[1]), len(body)):]
	case kind != Subscribe && kind != Unsubscribe:
		return
	}
	if len(body) < 2 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent == nil {
		c.sent = map[uint16]bool{}
	}
	c.sent[uint16(body[0])<<8|uint16(body[1])] = true
}

// ReadLength reads a variable byte integer of at most four bytes (MQTT 5 §1.5.5).
func ReadLength(r io.ByteReader) (length int, field []byte, err error) {
	for shift := 0; shift < 28; shift += 7 {
		b, err := r.ReadByte()
		if err != nil {
			return 0, nil, err
		}
		field = append(field, b)
		length |= int(b&0x7f) << shift
		if b < 0x80 {
			return length, field, nil
		}
	}
	return 0, nil, fmt.Errorf("%w: a length of five bytes", ErrProtocol)
}

// AppendLength appends a length as a variable byte integer.
func AppendLength(b []byte, length int) []byte {
	for ; length >= 0x80; length >>= 7 {
		b = append(b, byte(length)|0x80)
	}
	return append(b, byte(length))
}

// cut drops the payload of a message that is too large, so that the message is acknowledged and the shared connection stays open.
// MQTT 3.1.1 has no limit that a client can announce.
func (c *Conn) cut(first byte, length int) error {
	var size [2]byte
	if _, err := io.ReadFull(c.in, size[:]); err != nil {
		return err
	}
	n := int(size[0])<<8 | int(size[1])
	if n > MaxTopic || n+4 > length {
		return fmt.Errorf("%w: a topic of %d bytes", ErrProtocol, n)
	}
	if first>>1&3 > 0 {
		n += 2 // the packet identifier
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(c.in, body); err != nil {
		return err
	}
	topic := string(body[:int(size[0])<<8|int(size[1])])
	c.mu.Lock()
	if c.cuts == nil {
		c.cuts = map[string]int{}
	}
	if len(c.cuts) < maxCuts || c.cuts[topic] > 0 {
		c.cuts[topic]++
	}
	c.mu.Unlock()
	c.head = append(AppendLength([]byte{first}, 2+n), append(size[:], body...)...)
	c.drop = length - 2 - n
	return nil
}

// WasCut reports whether the payload of an empty message on topic was dropped.
func (c *Conn) WasCut(topic string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cuts[topic] == 0 {
		return false
	}
	if c.cuts[topic]--; c.cuts[topic] == 0 {
		delete(c.cuts, topic)
	}
	return true
}

// IsV3 reports whether the CONNACK of the broker has the length of MQTT 3.1.1: that of MQTT 5 is longer (§3.2).
func (c *Conn) IsV3() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isV3
}

// fail records the cause of the end, and returns the first one: errors after it are consequences.
func (c *Conn) fail(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cause = cmp.Or(c.cause, err)
	return c.cause
}

// Cause returns the cause of the end; nil if the connection is open.
func (c *Conn) Cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Lock begins a packet.
func (c *Conn) Lock() {
	c.packet.Lock()
	c.batch = true
}

// Unlock sends the packet. If that fails the connection ends.
func (c *Conn) Unlock() {
	defer c.packet.Unlock()
	parts, size := c.parts, 0
	c.batch, c.parts = false, nil
	for _, p := range parts {
		size += len(p)
	}
	if size <= oneWrite {
		parts = net.Buffers{slices.Concat(parts...)}
	}
	c.limitWrite(size)
	if _, err := parts.WriteTo(c.Conn); err != nil {
		_ = c.fail(err)
		c.Conn.Close()
	}
}

// oneWrite is the size up to which the pieces of a packet are joined, in bytes: each piece would be a TLS record of its own.
const oneWrite = 16 << 10

// Write implements [net.Conn]. For MQTT 3.1.1 it hides errors and closes the connection: paho handles the end safely only when it
// reads.
func (c *Conn) Write(p []byte) (int, error) {
	switch {
	case c.batch:
		c.parts = append(c.parts, p)
		return len(p), nil
	case c.rule.exact:
		c.sending(p)
	}
	c.limitWrite(len(p))
	n, err := c.Conn.Write(p)
	if err != nil && c.rule.exact {
		_ = c.fail(err)
		c.Conn.Close()
		return len(p), nil
	}
	return n, err
}

// limitWrite gives a peer [WriteTimeout] to receive size bytes, and 1 s more for each 64 KiB.
func (c *Conn) limitWrite(size int) {
	// The write reports a closed connection.
	_ = c.Conn.SetWriteDeadline(time.Now().Add(WriteTimeout + time.Duration(size>>16)*time.Second))
}

// SetDeadline sets the deadline of reads only.
func (c *Conn) SetDeadline(t time.Time) error { return c.Conn.SetReadDeadline(t) }

// SetWriteDeadline does nothing.
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }
