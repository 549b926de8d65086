package messaging

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
)

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestDatagrams has the examples of RFC 7252, Appendix A, and their like.
func TestDatagrams(t *testing.T) {
	t.Parallel()
	get := &Packet{Kind: message.Confirmable, Mid: 0x7d34, Code: codes.GET}
	get.Add(message.URIPath, []byte("temperature"))
	answer := &Packet{Kind: message.Acknowledgement, Mid: 0x7d35, Code: codes.Content, Token: "\x20", Payload: []byte("22.3 C")}
	several := &Packet{Kind: message.NonConfirmable, Mid: 1, Code: codes.PUT, Token: "12345678", Payload: []byte("x")}
	several.AddUint(message.Size1, 0)
	several.AddUint(message.ContentFormat, 432)
	several.Add(message.URIPath, []byte("a"))
	several.Add(message.URIPath, []byte(""))
	several.AddUint(message.Observe, 1<<24-1)
	for want, p := range map[string]*Packet{
		"40 01 7d34 bb 74656d7065726174757265":                            get,
		"61 45 7d35 20 ff 32322e332043":                                   answer,
		"58 03 0001 3132333435363738 63ffffff 5161 00 1201b0 d0 23 ff 78": several,
	} {
		b, err := p.Datagram()
		if err != nil || !bytes.Equal(b, unhex(t, want)) {
			t.Errorf("got %x, %v, want %s", b, err, want)
		}
		back, err := ParseDatagram(b)
		if err != nil || back.Kind != p.Kind || back.Mid != p.Mid || back.Code != p.Code || back.Token != p.Token ||
			!bytes.Equal(back.Payload, p.Payload) || !slices.EqualFunc(back.Options, p.Options, sameOption) {
			t.Errorf("%s: read back %+v, %v", want, back, err)
		}
	}
}

func sameOption(a, b message.Option) bool { return a.ID == b.ID && bytes.Equal(a.Value, b.Value) }

func TestInvalidDatagrams(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":               "",
		"too short":             "40 01 7d",
		"version 0":             "00 01 7d34",
		"version 2":             "80 01 7d34",
		"a token too long":      "49 01 7d34 010203040506070809",
		"a token cut off":       "44 01 7d34 0102",
		"Empty with a token":    "41 00 7d34 01",
		"Empty with an option":  "40 00 7d34 b161",
		"an option cut off":     "40 01 7d34 bb 74",
		"a length cut off":      "40 01 7d34 bd",
		"a delta cut off":       "40 01 7d34 d1",
		"a reserved length":     "40 01 7d34 bf",
		"a reserved delta":      "40 01 7d34 f1",
		"a number beyond 65535": "40 01 7d34 e0 ffff e0 ffff",
		"too many options":      "40 01 7d34 " + strings.Repeat("b0", 1) + strings.Repeat("00", 100),
	} {
		if p, err := ParseDatagram(unhex(t, text)); err == nil {
			t.Errorf("%s: read %+v", name, p)
		}
	}
}

func TestFrames(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 11, 12, 13, 255, 256, 268, 269, 1000, 65804, 65805, 70000} {
		p := &Packet{Code: codes.POST, Token: "tok", Payload: bytes.Repeat([]byte("x"), size)}
		p.Add(message.URIPath, []byte("go"))
		b, err := p.frame()
		if err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(bytes.NewReader(append(b, b...)))
		for range 2 {
			back, err := readFrame(r, 1<<20)
			if err != nil || back.Code != p.Code || back.Token != p.Token || len(back.Payload) != size ||
				!slices.EqualFunc(back.Options, p.Options, sameOption) {
				t.Fatalf("%d bytes: %+v, %v", size, back, err)
			}
		}
		if size > 500 {
			if _, err := readFrame(bufio.NewReader(bytes.NewReader(b)), 500); err == nil {
				t.Errorf("%d bytes passed a limit of 500", size)
			}
		}
	}
	for name, text := range map[string]string{
		"nothing": "", "a length cut off": "d0", "a long length cut off": "f0 0000", "a huge length": "f0 ffffffff 01",
		"a token too long": "09 01 000102030405060708", "a code is missing": "01", "an option cut off": "20 01 bb 74",
	} {
		if p, err := readFrame(bufio.NewReader(bytes.NewReader(unhex(t, text))), 1<<20); err == nil {
			t.Errorf("%s: read %+v", name, p)
		}
	}
}

func TestFaultyOptions(t *testing.T) {
	t.Parallel()
	options := func(list ...message.Option) *Packet {
		p := &Packet{}
		for _, o := range list {
			p.Add(o.ID, o.Value)
		}
		return p
	}
	long := []byte(strings.Repeat("x", 256))
	tests := []struct {
		name string
		p    *Packet
		id   message.OptionID
	}{
		{"none", options(), 0},
		{"all is well", options(message.Option{ID: message.URIPath, Value: []byte("a")}, message.Option{ID: message.URIPath},
			message.Option{ID: message.Accept, Value: []byte{50}}), 0},
		{"an unknown elective one", options(message.Option{ID: 65000, Value: long}), 0},
		{"an elective one of a bad length", options(message.Option{ID: message.Observe, Value: long}), 0},
		{"an elective one twice", options(message.Option{ID: message.Observe}, message.Option{ID: message.Observe}), 0},
		{"an unknown critical one", options(message.Option{ID: 65001}), 65001},
		{"If-Match, which is not offered", options(message.Option{ID: message.IfMatch}), message.IfMatch},
		{"a segment too long", options(message.Option{ID: message.URIPath, Value: long}), message.URIPath},
		{"a host too short", options(message.Option{ID: message.URIHost}), message.URIHost},
		{"a block option too long", options(message.Option{ID: message.Block1, Value: []byte{1, 2, 3, 4}}), message.Block1},
		{"a critical one twice", options(message.Option{ID: message.Accept, Value: []byte{50}}, message.Option{ID: message.Accept,
			Value: []byte{60}}), message.Accept},
		{"a proxy", options(message.Option{ID: message.ProxyURI, Value: []byte("coap://h")}), message.ProxyURI},
	}
	for _, tt := range tests {
		if id, bad := tt.p.Faulty(); id != tt.id || bad != (tt.id != 0) {
			t.Errorf("%s: got %d, %v", tt.name, id, bad)
		}
	}
	if n, ok := options(message.Option{ID: message.Observe, Value: long[:4]}).Uint(message.Observe); ok {
		t.Errorf("an option of a bad length was read as %d", n)
	}
}

func TestBlocks(t *testing.T) {
	t.Parallel()
	for v, want := range map[uint32]Block{0: {}, 6: {SZX: 6}, 8: {More: true}, 0x1e: {Num: 1, More: true, SZX: 6},
		0xffffff: {1<<20 - 1, true, 7}} {
		p := &Packet{}
		p.AddUint(message.Block2, v)
		if b, ok := p.Block(message.Block2); !ok || b != want || b.Value() != v {
			t.Errorf("%x: %+v, %v, %x", v, b, ok, b.Value())
		}
	}
	data := []byte(strings.Repeat("0123456789abcdef", 3) + "tail")
	tests := []struct {
		b    Block
		part string
		more bool
		ok   bool
	}{
		{Block{}, "0123456789abcdef", true, true},
		{Block{Num: 2}, "0123456789abcdef", true, true},
		{Block{Num: 3}, "tail", false, true},
		{Block{Num: 4}, "", false, false},
		{Block{Num: 1<<20 - 1, SZX: 6}, "", false, false},
		{Block{Num: 1, SZX: 1}, "0123456789abcdeftail", false, true},
		{Block{SZX: 6}, string(data), false, true},
	}
	for _, tt := range tests {
		part, is, ok := tt.b.Cut(data)
		if string(part) != tt.part || ok != tt.ok || ok && is.More != tt.more {
			t.Errorf("%+v: %q, %+v, %v", tt.b, part, is, ok)
		}
	}
	if part, is, ok := (Block{}).Cut(nil); len(part) != 0 || is.More || !ok {
		t.Errorf("the first block of nothing: %q, %+v, %v", part, is, ok)
	}
	for n, want := range map[int]bool{0: false, 1023: false, 1024: true, 2048: true} {
		if got := (Block{SZX: BERT}).Full(n); got != want {
			t.Errorf("BERT of %d bytes: %v", n, got)
		}
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	for _, f := range formats {
		if n, ok := FormatOf(f.media); !ok || n != f.number || Media(f.number) != f.media {
			t.Errorf("%s is %d and %d is %s", f.media, n, f.number, Media(f.number))
		}
	}
	for media, want := range map[string]int{"": 50, "Application/JSON; charset=utf-8": 50, "text/plain;charset=UTF-8": 0,
		"text/plain; charset=latin1": -1,
		"text/plain;charset":         -1, "application/vnd.x": -1, "application/td+json": 432} {
		if n, ok := FormatOf(media); ok != (want >= 0) || ok && int(n) != want {
			t.Errorf("%q: %d, %v", media, n, ok)
		}
	}
}

func FuzzDatagram(f *testing.F) {
	f.Add([]byte("\x40\x01\x7d\x34\xbb\x74\x65\x6d\x70\x65\x72\x61\x74\x75\x72\x65"))
	f.Add([]byte("\x61\x45\x7d\x35\x20\xff22.3 C"))
	f.Add([]byte("\x40\x02\x00\x01\xd1\x0e\x0e\xff"))
	f.Add([]byte("\x50\x01\x00\x01\xe0\xff\xff\xe0\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseDatagram(slices.Clone(b))
		if err != nil {
			return
		}
		inspect(p)
		out, err := p.Datagram()
		if err != nil {
			t.Fatalf("%x was read and cannot be written: %v", b, err)
		}
		again, err := ParseDatagram(out)
		if err != nil || again.Mid != p.Mid || again.Token != p.Token || !bytes.Equal(again.Payload, p.Payload) ||
			!slices.EqualFunc(again.Options, p.Options, sameOption) {
			t.Fatalf("%x became %x: %v", b, out, err)
		}
	})
}

// inspect calls all methods of a packet.
func inspect(p *Packet) {
	p.Faulty()
	p.Texts(message.URIPath)
	for _, id := range []message.OptionID{message.Block1, message.Block2} {
		if b, ok := p.Block(id); ok {
			b.Cut(p.Payload)
		}
	}
	p.Uint(message.Observe)
}

func FuzzFrame(f *testing.F) {
	f.Add([]byte("\x00\xe1"), 100)
	f.Add([]byte("\xd3\x05\x01tok\xb2go\xffxxxxxxxxxxxx"), 100)
	f.Add([]byte("\xf0\xff\xff\xff\xff\x01"), 1<<20)
	f.Fuzz(func(t *testing.T, b []byte, max int) {
		max = min(max, 1<<20)
		r := bufio.NewReader(bytes.NewReader(b))
		for {
			p, err := readFrame(r, max)
			if err != nil {
				return
			}
			if inspect(p); len(p.Payload) > max {
				t.Fatalf("%d bytes passed a limit of %d", len(p.Payload), max)
			}
			if _, err := p.frame(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
