package messaging

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
)

var (
	noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	here = netip.MustParseAddrPort("10.0.0.1:1000")
)

func host(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

func TestHostsAreNetworksOfIPv6(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{"10.1.2.3": "10.1.2.3", "::ffff:10.1.2.3": "10.1.2.3",
		"2001:db8:1:2:3::4": "2001:db8:1:2::", "fe80::1%eth0": "fe80::"} {
		if got := HostOf(netip.MustParseAddr(addr)); got.String() != want {
			t.Errorf("%s: %s", addr, got)
		}
	}
}

func TestReplays(t *testing.T) {
	t.Parallel()
	var s Replays
	r, _, again := s.Begin(here, 7, noon)
	if again {
		t.Fatal("the first is a copy")
	}
	if _, reply, again := s.Begin(here, 7, noon); !again || reply != nil {
		t.Errorf("while it is worked on: %v %q", again, reply)
	}
	s.Keep(r, []byte("answer"))
	if _, reply, again := s.Begin(here, 7, noon.Add(lifetime-1)); !again || string(reply) != "answer" {
		t.Errorf("afterwards: %v %q", again, reply)
	}
	if _, _, again := s.Begin(netip.AddrPortFrom(here.Addr(), 2), 7, noon); again {
		t.Error("another port is the same")
	}
	if _, _, again := s.Begin(here, 7, noon.Add(lifetime)); again {
		t.Error("a mid means the same for ever")
	}
	s.Forget(r) // of which there is a newer one
	if _, _, again := s.Begin(here, 7, noon.Add(lifetime)); !again {
		t.Error("what was forgotten is another")
	}
}

func TestReplaysAreBounded(t *testing.T) {
	t.Parallel()
	var s Replays
	for mid := range 3 * maxReplays {
		r, _, _ := s.Begin(netip.AddrPortFrom(here.Addr(), uint16(mid>>16)), uint16(mid), noon)
		s.Keep(r, make([]byte, 1100))
	}
	if len(s.byKey) > maxReplays || s.order.Len() != len(s.byKey) || s.bytes > replayBytes {
		t.Errorf("%d requests, %d in order, %d bytes", len(s.byKey), s.order.Len(), s.bytes)
	}
	var last *Replay
	for e := s.order.Front(); e != nil; e = e.Next() {
		last = e.Value.(*Replay)
	}
	s.Keep(last, make([]byte, 2*replayBytes))
	if len(s.byKey) != 0 || s.bytes != 0 {
		t.Errorf("one answer too large leaves %d requests, %d bytes", len(s.byKey), s.bytes)
	}
	s.Keep(last, []byte("x"))
	if s.bytes != 0 {
		t.Error("what is forgotten counts")
	}
}

// blocksOf cuts data into blocks.
func blocksOf(data []byte, szx uint8) (all []Block, parts [][]byte) {
	for b := (Block{SZX: szx}); ; b.Num++ {
		part, is, ok := b.Cut(data)
		if !ok {
			return all, parts
		}
		all, parts = append(all, is), append(parts, part)
	}
}

func TestBlockStoreGathersBlocks(t *testing.T) {
	t.Parallel()
	var s BlockStore
	data := bytes.Repeat([]byte("0123456789"), 500)
	all, parts := blocksOf(data, 4)
	for i, b := range all {
		for range 2 { // each comes twice
			body, done, err := s.Gather("k", host(1), b, parts[i], 1<<20, noon)
			last := i == len(all)-1
			if err != nil && !last || done != (err == nil && last) || done && !bytes.Equal(body, data) {
				t.Fatalf("block %d: %d bytes, %v, %v", i, len(body), done, err)
			}
		}
	}
	if len(s.items) != 0 || s.bytes != 0 {
		t.Errorf("%d bodies, %d bytes are left", len(s.items), s.bytes)
	}
	if body, done, err := s.Gather("k", host(1), Block{SZX: 6}, []byte("x"), 1, noon); !done || string(body) != "x" || err != nil {
		t.Errorf("a body of one block: %q, %v, %v", body, done, err)
	}
}

func TestBlockStoreRejectsBlocks(t *testing.T) {
	t.Parallel()
	full := make([]byte, 1024)
	begin := func(s *BlockStore) { _, _, _ = s.Gather("k", host(1), Block{More: true, SZX: 6}, full, 1<<20, noon) }
	tests := []struct {
		name string
		b    Block
		part []byte
		code codes.Code
		at   time.Duration
	}{
		{"a reserved size", Block{More: true, SZX: 7}, full, codes.BadRequest, 0},
		{"a block too short", Block{Num: 1, More: true, SZX: 6}, full[:100], codes.BadRequest, 0},
		{"a block too long", Block{Num: 1, SZX: 0}, full, codes.BadRequest, 0},
		{"a gap", Block{Num: 2, More: true, SZX: 6}, full, codes.RequestEntityIncomplete, 0},
		{"too late", Block{Num: 1, More: true, SZX: 6}, full, codes.RequestEntityIncomplete, 2 * time.Minute},
		{"an end that was passed", Block{Num: 0, SZX: 5}, full[:512], 0, 0},
		{"too large", Block{Num: 1023, More: false, SZX: 6}, full, codes.RequestEntityIncomplete, 0},
		{"beyond the limit", Block{Num: 1024, More: false, SZX: 6}, full, codes.RequestEntityTooLarge, 0},
		{"far beyond the limit", Block{Num: 1<<20 - 1, More: true, SZX: 6}, full, codes.RequestEntityTooLarge, 0},
	}
	for _, tt := range tests {
		var s BlockStore
		begin(&s)
		_, _, err := s.Gather("k", host(1), tt.b, tt.part, 1<<20, noon.Add(tt.at))
		var r *Reject
		if errors.As(err, &r) != (tt.code != 0) || r != nil && r.Code != tt.code {
			t.Errorf("%s: got %v", tt.name, err)
		}
	}
	var s BlockStore
	if _, _, err := s.Gather("other", host(1), Block{Num: 1, SZX: 6}, full, 1<<20, noon); !errors.Is(err, ErrGap) {
		t.Errorf("without a beginning: %v", err)
	}
}

func TestBlockStoreIsBounded(t *testing.T) {
	t.Parallel()
	full := make([]byte, 1024)
	for _, evict := range []bool{false, true} {
		s := BlockStore{Evict: evict}
		refused := 0
		for n := range 3 * maxItems {
			_, _, err := s.Gather(fmt.Sprint(n), host(n%3), Block{More: true, SZX: 6}, full, 1<<20,
				noon.Add(time.Duration(n)*time.Millisecond))
			if err != nil {
				refused++
			}
		}
		own := 0
		for _, i := range s.items {
			if i.host == host(0) {
				own++
			}
		}
		if len(s.items) > maxItems || own > maxItems/2 || evict != (refused == 0) {
			t.Errorf("evict %v: %d bodies, %d of one host, %d refused", evict, len(s.items), own, refused)
		}
		if s.sweepLocked(noon.Add(time.Hour)); len(s.items) != 0 || s.bytes != 0 {
			t.Errorf("%d bodies, %d bytes for ever", len(s.items), s.bytes)
		}
	}
	s := BlockStore{Evict: true}
	for n := range 40 {
		answer := &Packet{Payload: make([]byte, 1<<20)}
		if err := s.Keep(fmt.Sprint(n), host(1), answer, noon.Add(time.Duration(n))); err != nil {
			t.Fatal(err)
		}
	}
	if s.bytes > maxStored/2 {
		t.Errorf("one host has %d bytes", s.bytes)
	}
	if s.Get("39", noon) == nil || s.Get("0", noon) != nil || s.Get("39", noon.Add(time.Hour)) != nil {
		t.Error("the newest are kept, for a while")
	}
	if err := s.Keep("x", host(1), &Packet{Payload: make([]byte, maxStored)}, noon); err == nil {
		t.Error("a body larger than the shelf was taken")
	}
}

func TestTransferKeys(t *testing.T) {
	t.Parallel()
	make := func(change func(p *Packet)) *Packet {
		p := &Packet{Code: codes.GET, Token: "a"}
		p.Add(message.URIPath, []byte("a"))
		p.Add(message.URIPath, []byte("b"))
		if change != nil {
			change(p)
		}
		return p
	}
	same := TransferKey(here, make(nil))
	for name, change := range map[string]func(p *Packet){
		"token": func(p *Packet) { p.Token = "b" }, "observe": func(p *Packet) { p.AddUint(message.Observe, 0) },
		"block": func(p *Packet) { p.AddUint(message.Block2, 16) },
	} {
		if TransferKey(here, make(change)) != same {
			t.Errorf("%s makes another transfer", name)
		}
	}
	for name, change := range map[string]func(p *Packet){
		"method": func(p *Packet) { p.Code = codes.PUT }, "query": func(p *Packet) { p.Add(message.URIQuery, []byte("q")) },
		"accept": func(p *Packet) { p.AddUint(message.Accept, 60) }, "tag": func(p *Packet) { p.Add(requestTag, []byte("1")) },
		"path": func(p *Packet) { p.Add(message.URIPath, []byte("c")) },
	} {
		if TransferKey(here, make(change)) == same {
			t.Errorf("another %s is the same transfer", name)
		}
	}
}

func TestSockets(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::]:0"} {
		s, err := Listen(addr)
		if err != nil {
			t.Logf("%s: %v", addr, err) // a machine without IPv6
			continue
		}
		c, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", s.Addr().Port()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		n, from, err := s.Read(buf)
		if err != nil || string(buf[:n]) != "ping" || from.Group {
			t.Fatalf("%s: %q, %+v, %v", addr, buf[:max(n, 0)], from, err)
		}
		if err := s.Write([]byte("pong"), from); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(buf); err != nil || string(buf[:n]) != "pong" {
			t.Fatalf("%s: %q, %v", addr, buf[:n], err)
		}
		s.Stop()
		if _, _, err := s.Read(buf); !IsStopped(err) {
			t.Errorf("%s: stopped, and reads %v", addr, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, _, err := s.Read(buf); !IsStopped(err) {
			t.Errorf("%s: closed, and reads %v", addr, err)
		}
		_ = c.Close()
	}
	if _, err := Listen("127.0.0.1:x"); err == nil {
		t.Error("a port that is none")
	}
}
