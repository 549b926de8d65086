package mqtt

import (
	"bufio"
	"bytes"
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
	pktConnect     = 1
	pktConnack     = 2
	pktPublish     = 3
	pktPuback      = 4
	pktPubrec      = 5
	pktPubrel      = 6
	pktPubcomp     = 7
	pktSubscribe   = 8
	pktSuback      = 9
	pktUnsubscribe = 10
	pktUnsuback    = 11
	pktPingreq     = 12
	pktPingresp    = 13
	pktDisconnect  = 14
)

// maxControl limits every packet that carries no payload, in bytes.
const maxControl = 64 << 10

// Errors of a guard. They reach who waits for the connection's end.
var (
	errProtocol = errors.New("what it sent is no MQTT")
	errTooLarge = errors.New("it sent a packet that is too large")
	errSilent   = errors.New("it closed the connection before it said a word")
)

// A guard is a connection whose packets are looked at before a library reads them: their types, their order and their lengths.
// The libraries allocate what a header promises, and some trust a peer more than a stranger deserves. Writes end in
// time, whatever deadline the library sets.
//
// Read has one caller at a time; the fields are its own. A guard is a [sync.Locker] because paho writes a packet of MQTT 5 in
// several pieces, and locks what can be locked around them: they leave together.
type guard struct {
	net.Conn

	packet sync.Mutex // guards batch and parts
	batch  bool
	parts  net.Buffers

	in    *bufio.Reader
	rule  rule
	head  []byte // what of the header, or of a packet that was cut, is not read yet
	left  int    // bytes of the body
	drop  int    // bytes that nobody reads: the rest of a packet that was cut
	first bool   // the first packet was seen
	five  bool   // it is MQTT 5, as far as is known
	err   error

	mu     sync.Mutex
	old    bool            // the CONNACK was that of MQTT 3.1.1 (see old)
	failed error           // why it ended
	cuts   map[string]int  // how many messages on a topic have lost their payload
	sent   map[uint16]bool // packet identifiers that are not acknowledged, if rule.exact
}

// A rule says what a peer may send.
type rule struct {
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

// Rules. AUTH is never allowed: lmosd has no method of enhanced authentication (MQTT 5 §4.12).
var (
	fromBroker    = rule{first: pktConnack, types: answers | bits(pktDisconnect)}
	fromOldBroker = rule{first: pktConnack, types: answers, exact: true, cuts: true}
	fromConsumer  = rule{first: pktConnect, types: acks | bits(pktPublish, pktSubscribe, pktUnsubscribe, pktPingreq, pktDisconnect)}
)

// acks are what both sides say of messages, answers all that a broker of MQTT 3.1.1 says.
var (
	acks    = bits(pktPuback, pktPubrec, pktPubrel, pktPubcomp)
	answers = acks | bits(pktPublish, pktSuback, pktUnsuback, pktPingresp)
)

func newGuard(c net.Conn, r rule, limit int) *guard {
	r.limit = limit
	return &guard{Conn: c, rule: r, in: bufio.NewReaderSize(c, 2*maxTopic), five: r.first == pktConnack && !r.exact}
}

// lengths are those of MQTT 3.1.1 (§3). A client that subscribes to one filter at a time gets one return code; paho has no place
// for a second.
var lengths = map[byte]int{pktConnack: 2, pktPuback: 2, pktPubrec: 2, pktPubrel: 2, pktPubcomp: 2, pktSuback: 3, pktUnsuback: 2,
	pktPingresp: 0}

// check says whether a packet with this first byte and remaining length may come now.
func (r rule) check(seen bool, first byte, length int) error {
	kind := first >> 4
	switch {
	case !seen && kind != r.first, seen && r.types&(1<<kind) == 0:
		return fmt.Errorf("%w: a packet of type %d", errProtocol, kind)
	case kind == pktPublish && first>>1&3 == 3:
		return fmt.Errorf("%w: a message of QoS 3", errProtocol)
	case kind == pktPublish && length > r.limit:
		return fmt.Errorf("%w: %d bytes", errTooLarge, length)
	case kind != pktPublish && length > maxControl:
		return fmt.Errorf("%w: %d bytes of type %d", errTooLarge, length, kind)
	case r.exact && kind != pktPublish && length != lengths[kind]:
		return fmt.Errorf("%w: a packet of type %d with %d bytes", errProtocol, kind, length)
	}
	return nil
}

// Read implements [net.Conn].
func (g *guard) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(g.head) == 0 && g.left == 0 {
		if g.err == nil {
			g.err = g.next()
		}
		if g.err != nil {
			return 0, g.fail(g.err)
		}
	}
	if len(g.head) > 0 {
		n := copy(p, g.head)
		g.head = g.head[n:]
		return n, nil
	}
	n, err := g.in.Read(p[:min(len(p), g.left)])
	if g.left -= n; err != nil {
		err = g.fail(err)
	}
	return n, err
}

// next reads and checks the header of the next packet (MQTT 5 §2.1).
func (g *guard) next() error {
	if g.drop > 0 {
		n, err := g.in.Discard(g.drop)
		if g.drop -= n; err != nil {
			return err
		}
	}
	first, err := g.in.ReadByte()
	if !g.first && (err == io.EOF || errors.Is(err, syscall.ECONNRESET)) {
		return errSilent
	}
	if err != nil {
		return err
	}
	length, field, err := readLength(g.in)
	if err != nil {
		return err
	}
	switch err := g.rule.check(g.first, first, length); {
	case errors.Is(err, errTooLarge) && g.rule.cuts && first>>4 == pktPublish:
		return g.cut(first, length)
	case err != nil:
		return err
	}
	if err := g.modest(first, length); err != nil {
		return err
	}
	if !g.first && first>>4 == pktConnack && length == 2 {
		g.mu.Lock()
		g.old = true
		g.mu.Unlock()
	}
	g.first = true
	g.head, g.left = append([]byte{first}, field...), length
	if g.rule.exact && bits(pktPuback, pktPubrec, pktPubcomp, pktSuback, pktUnsuback)&(1<<(first>>4)) != 0 {
		return g.acknowledged(first >> 4)
	}
	return nil
}

// modest looks at the properties of a message of MQTT 5, which may have as many bytes as every other packet (§3.3.2.3): of five
// bytes a library makes an object of 32 and two texts. Of the CONNECT it learns the version (§3.1.2.2).
func (g *guard) modest(first byte, length int) error {
	kind, at := first>>4, 2
	if kind != pktConnect && !(kind == pktPublish && g.five) {
		return nil
	}
	b, err := g.in.Peek(min(7, length))
	if kind == pktConnect {
		g.five = len(b) == 7 && b[6] == 5
	}
	if kind == pktConnect || err != nil || len(b) < at {
		return err
	}
	if at += int(b[0])<<8 + int(b[1]); at > 2+maxTopic {
		return fmt.Errorf("%w: a topic of %d bytes", errProtocol, at-2)
	}
	if first>>1&3 > 0 {
		at += 2 // the packet identifier
	}
	if b, err = g.in.Peek(min(at+4, length)); err != nil || len(b) <= at {
		return err // it ends before its properties: the library says so
	}
	if size, _, _ := readLength(bytes.NewReader(b[at:])); size > maxControl {
		return fmt.Errorf("%w: properties of %d bytes", errTooLarge, size)
	}
	return nil
}

// acknowledged lets an acknowledgement pass if it is for a packet that was sent. For another one paho 1.5 may complete a token
// twice at the same time, which ends the process.
func (g *guard) acknowledged(kind byte) error {
	body := make([]byte, g.left)
	if _, err := io.ReadFull(g.in, body); err != nil {
		return err
	}
	g.head, g.left = append(g.head, body...), 0
	id := uint16(body[0])<<8 | uint16(body[1])
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.sent[id] {
		return fmt.Errorf("%w: an acknowledgement of nothing", errProtocol)
	}
	if kind != pktPubrec { // PUBCOMP follows
		delete(g.sent, id)
	}
	return nil
}

// sending remembers the identifier of a packet of MQTT 3.1.1 that wants an acknowledgement.
func (g *guard) sending(p []byte) {
	r := bytes.NewReader(p)
	first, _ := r.ReadByte()
	_, field, err := readLength(r)
	if err != nil {
		return
	}
	body := p[1+len(field):]
	switch kind := first >> 4; {
	case kind == pktPublish && first>>1&3 > 0 && len(body) >= 2:
		body = body[min(2+int(body[0])<<8+int(body[1]), len(body)):]
	case kind != pktSubscribe && kind != pktUnsubscribe:
		return
	}
	if len(body) < 2 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sent == nil {
		g.sent = map[uint16]bool{}
	}
	g.sent[uint16(body[0])<<8|uint16(body[1])] = true
}

// readLength reads a variable byte integer of at most four bytes (MQTT 5 §1.5.5).
func readLength(r io.ByteReader) (length int, field []byte, err error) {
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
	return 0, nil, fmt.Errorf("%w: a length of five bytes", errProtocol)
}

func appendLength(b []byte, length int) []byte {
	for ; length >= 0x80; length >>= 7 {
		b = append(b, byte(length)|0x80)
	}
	return append(b, byte(length))
}

// cut passes on a message that is too large without its payload, so that it is acknowledged and others who share the connection
// do not suffer. An MQTT 3.1.1 broker cannot be told a limit.
func (g *guard) cut(first byte, length int) error {
	var size [2]byte
	if _, err := io.ReadFull(g.in, size[:]); err != nil {
		return err
	}
	n := int(size[0])<<8 | int(size[1])
	if n > maxTopic || n+4 > length {
		return fmt.Errorf("%w: a topic of %d bytes", errProtocol, n)
	}
	if first>>1&3 > 0 {
		n += 2 // the packet identifier
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(g.in, body); err != nil {
		return err
	}
	topic := string(body[:int(size[0])<<8|int(size[1])])
	g.mu.Lock()
	if g.cuts == nil {
		g.cuts = map[string]int{}
	}
	if len(g.cuts) < maxFilters || g.cuts[topic] > 0 {
		g.cuts[topic]++
	}
	g.mu.Unlock()
	g.head = append(appendLength([]byte{first}, 2+n), append(size[:], body...)...)
	g.drop = length - 2 - n
	return nil
}

// wasCut reports whether an empty message on topic has lost its payload here.
func (g *guard) wasCut(topic string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cuts[topic] == 0 {
		return false
	}
	if g.cuts[topic]--; g.cuts[topic] == 0 {
		delete(g.cuts, topic)
	}
	return true
}

// isOld reports whether the broker answered a CONNECT as MQTT 3.1.1 does: a CONNACK of MQTT 5 is longer (§3.2).
func (g *guard) isOld() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.old
}

// fail remembers why the connection ended, and returns the first that was told. That a connection is closed after a write failed
// is no news, and paho takes it for its own doing.
func (g *guard) fail(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed == nil {
		g.failed = err
	}
	return g.failed
}

// cause is why the connection ended; nil if it did not.
func (g *guard) cause() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed
}

// Lock begins a packet.
func (g *guard) Lock() {
	g.packet.Lock()
	g.batch = true
}

// Unlock sends the packet. If that fails the connection ends.
func (g *guard) Unlock() {
	defer g.packet.Unlock()
	parts, size := g.parts, 0
	g.batch, g.parts = false, nil
	for _, p := range parts {
		size += len(p)
	}
	if size <= oneWrite {
		parts = net.Buffers{slices.Concat(parts...)}
	}
	g.patience(size)
	if _, err := parts.WriteTo(g.Conn); err != nil {
		_ = g.fail(err)
		g.Conn.Close()
	}
}

// oneWrite is the size of packets that are copied to be written at once, in bytes: as many TLS records would be sent as pieces.
const oneWrite = 16 << 10

// Write implements [net.Conn]. Who speaks to a broker is never told that it failed: the connection ends then, and paho hears of
// it in the one place where it is safe.
func (g *guard) Write(p []byte) (int, error) {
	switch {
	case g.batch:
		g.parts = append(g.parts, p)
		return len(p), nil
	case g.rule.exact:
		g.sending(p)
	}
	g.patience(len(p))
	n, err := g.Conn.Write(p)
	if err != nil && g.rule.exact {
		_ = g.fail(err)
		g.Conn.Close()
		return len(p), nil
	}
	return n, err
}

// patience gives a peer [writeTimeout] to take size bytes, and a second more for each 64 KiB.
func (g *guard) patience(size int) {
	// A closed connection says so when it is written to.
	_ = g.Conn.SetWriteDeadline(time.Now().Add(writeTimeout + time.Duration(size>>16)*time.Second))
}

// SetDeadline sets the deadline of reads only.
func (g *guard) SetDeadline(t time.Time) error { return g.Conn.SetReadDeadline(t) }

// SetWriteDeadline does nothing.
func (g *guard) SetWriteDeadline(time.Time) error { return nil }
