package sdk

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/internal/testprogram"
)

// A peer is the node's end of a WebSocket, frame by frame (RFC 6455 §5.2). It sends valid frames that lmosd does not send.
type peer struct {
	t *testing.T
	c net.Conn
	r *bufio.Reader
}

const (
	more  = 0
	text  = 1
	blob  = 2
	bye   = 8
	ping  = 9
	pong  = 10
	final = 0x80
)

// newPeers accepts connections of an agent.
func newPeers(t *testing.T) (api string, peers <-chan *peer) {
	t.Helper()
	come := make(chan *peer, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, err := base64.StdEncoding.DecodeString(r.Header.Get("Sec-WebSocket-Key"))
		if err != nil || len(key) != 16 || r.URL.Path != "/ws" {
			t.Errorf("the upgrade is of %s with the key %x, %v", r.URL, key, err)
		}
		for name, want := range map[string]string{"Upgrade": "websocket", "Connection": "Upgrade", "Authorization": "Bearer t",
			"Sec-WebSocket-Version": "13", "Sec-WebSocket-Protocol": "lmosprotocol"} {
			if got := r.Header.Get(name); got != want {
				t.Errorf("the upgrade has %s %q, want %q", name, got, want)
			}
		}
		sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
			"Sec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(timeout))
		come <- &peer{t, c, rw.Reader}
	}))
	t.Cleanup(server.Close)
	return server.URL, come
}

// send writes one frame.
func (p *peer) send(head byte, data string) {
	b := []byte{head}
	switch n := len(data); {
	case n < 126:
		b = append(b, byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
	}
	if _, err := p.c.Write(append(b, data...)); err != nil {
		p.t.Error(err)
	}
}

// next reads one frame, which must be complete and masked.
func (p *peer) next() (op byte, data []byte, err error) {
	var head [14]byte
	if _, err := io.ReadFull(p.r, head[:2]); err != nil {
		return 0, nil, err
	}
	if head[0]&0xF0 != final || head[1]&0x80 == 0 {
		return 0, nil, fmt.Errorf("a frame begins with %x", head[:2])
	}
	size := uint64(head[1] & 0x7F)
	switch size {
	case 126:
		_, err = io.ReadFull(p.r, head[2:4])
		size = uint64(binary.BigEndian.Uint16(head[2:]))
	case 127:
		_, err = io.ReadFull(p.r, head[2:10])
		size = binary.BigEndian.Uint64(head[2:])
	}
	var mask [4]byte
	if err == nil {
		_, err = io.ReadFull(p.r, mask[:])
	}
	if err != nil {
		return 0, nil, err
	}
	data = make([]byte, size)
	if _, err = io.ReadFull(p.r, data); err != nil {
		return 0, nil, err
	}
	for i := range data {
		data[i] ^= mask[i%4]
	}
	return head[0] & 15, data, nil
}

// expect reads a frame of one kind. It skips the pings of the agent, because the test may be slow.
func (p *peer) expect(want byte, contain string) []byte {
	p.t.Helper()
	op, data, err := p.next()
	for op == ping && want != ping {
		p.send(final|pong, string(data))
		op, data, err = p.next()
	}
	if err != nil || op != want || !bytes.Contains(data, []byte(contain)) {
		p.t.Fatalf("got a frame %d %.300s, %v; want %d with %s", op, data, err, want, contain)
	}
	return data
}

// gone waits until the agent has closed the connection.
func (p *peer) gone() {
	p.t.Helper()
	for {
		if _, _, err := p.next(); err != nil {
			if e, ok := err.(net.Error); ok && e.Timeout() {
				p.t.Fatal("the agent does not close the connection")
			}
			p.c.Close()
			return
		}
	}
}

const registered = `{"messageType":"thingRegistered","messageId":"n","correlationId":"register","thingId":"urn:x:lamp"}`

// TestFrames covers frames of all kinds, fragmented and interleaved, and a node that is silent, sends too much, or closes.
func TestFrames(t *testing.T) {
	t.Parallel()
	for language, file := range map[string]string{"python3": "testdata/agent.py", "node": "testdata/agent.mjs"} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			path := testprogram.Path(t, language)
			api, peers := newPeers(t)
			l, ready := launch(t, []string{"LMOSD_NODE=" + api, "LMOSD_TOKEN=t", "LAMP_PING=0.2"}, path, file, "lamp")
			p := take(t, peers)
			var register struct{ Data struct{ Title string } }
			if raw := p.expect(text, `"registerThing"`); json.Unmarshal(raw, &register) != nil || register.Data.Title != "lamp" {
				t.Fatalf("got %s", raw)
			}
			p.inParts()
			if id, err := ready(); id != "urn:x:lamp" {
				t.Fatalf("the id is %q, %v", id, err)
			}
			p.sizes()
			p.streams()
			p.busy()
			p.expect(ping, "") // the node is silent
			p.send(final|pong, "")
			p.expect(ping, "")
			p.gone() // no answer

			p = take(t, peers)
			p.expect(text, `"registerThing"`)
			p.send(final|text, registered)
			p.send(final|bye, "\x03\xe9the node is shutting down")
			p.expect(bye, "\x03\xe9")
			p.gone()

			p = take(t, peers)
			p.expect(text, `"registerThing"`)
			p.c.Write([]byte{final | text, 127, 0, 0, 0, 1, 0, 0, 0, 0}) // a length of 4 GiB
			p.gone()

			p = take(t, peers)
			p.expect(text, `"registerThing"`)
			p.send(final|text, registered)
			// The response shows that the agent has handled the frames before.
			p.send(final|text, `{"messageType":"cancelAction","messageId":"1","correlationId":"0","action":"hang"}`)
			p.expect(text, `"cancelled"`)
			left := make(chan error, 1)
			go func() { left <- l.leave() }()
			p.expect(text, `"unregisterThing"`)
			p.expect(bye, "\x03\xe8")
			p.send(final|bye, "\x03\xe8")
			p.gone()
			if err := take(t, left); err != nil {
				t.Error(err)
			}
		})
	}
}

// inParts sends valid messages: fragmented with a ping in between, empty, and binary without a stream.
func (p *peer) inParts() {
	p.t.Helper()
	p.send(final|blob, "\x00\xff")
	p.send(text, registered[:20])
	p.send(final|ping, "are you there?")
	p.send(more, registered[20:40])
	p.send(more, "")
	p.send(final|more, registered[40:])
	if data := p.expect(pong, ""); string(data) != "are you there?" {
		p.t.Errorf("the pong has %q", data)
	}
	p.send(blob, "a")
	p.send(final|more, "b")
	p.send(final|pong, "nobody asked")
	p.send(final|text, `{"messageType":"somethingNew","messageId":"1"}`)
	p.expect(text, `"LMOS-1406"`)
}

// sizes sends and receives messages at the limits of the three length encodings.
func (p *peer) sizes() {
	p.t.Helper()
	shell := len(`{"messageType":"invokeAction","messageId":"1","action":"echo","input":""}`)
	for _, n := range []int{shell, 125, 126, 127, 200, 1<<16 - 1, 1 << 16, 1<<16 + 1} {
		word := strings.Repeat("é", (n-shell)/2) + strings.Repeat("x", (n-shell)%2)
		p.send(final|text, `{"messageType":"invokeAction","messageId":"1","action":"echo","input":"`+word+`"}`)
		var got struct{ Output string }
		if raw := p.expect(text, `"completed"`); json.Unmarshal(raw, &got) != nil || got.Output != word {
			p.t.Errorf("a message of %d bytes came back as %.100s", n, raw)
		}
	}
}

// busy exceeds the limit of the agent, which refuses the last request and accepts requests again later.
func (p *peer) busy() {
	p.t.Helper()
	const limit = 256
	for i := range limit {
		p.send(final|text, fmt.Sprintf(`{"messageType":"invokeAction","messageId":"h%d","action":"hang"}`, i))
	}
	const echo = `{"messageType":"invokeAction","messageId":"e","action":"echo","input":"x"}`
	p.send(final|text, echo)
	p.expect(text, `"LMOS-1529"`)
	for i := range limit {
		p.send(final|text, fmt.Sprintf(`{"messageType":"cancelAction","messageId":"c%d","correlationId":"h%d","action":"hang"}`, i, i))
		p.expect(text, `"cancelled"`)
	}
	until(p.t, "the agent has time again", func() error {
		p.send(final|text, echo)
		if raw := p.expect(text, ""); !bytes.Contains(raw, []byte(`"completed"`)) {
			return fmt.Errorf("it says %s", raw)
		}
		return nil
	})
}
