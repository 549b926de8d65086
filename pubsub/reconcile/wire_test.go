package reconcile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/internal/streamserver"
	"github.com/lmosd/lmosd/td"
)

func testID(i int) peer.ID { return peer.ID(fmt.Sprint("peer ", i)) }

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := cbor.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDecodeRound(t *testing.T) {
	t.Parallel()
	in := func(at ...byte) item {
		it := filler(1)
		for i, x := range at {
			it.key[i/2] = it.key[i/2]&(0xf0>>(4*(1-i%2))) | x<<(4*(1-i%2))
		}
		return it
	}
	low, high := in(3, 1), in(3, 2)
	for _, c := range []struct {
		name string
		t    any
		ok   bool
	}{
		{"the last", &round{}, true},
		{"all members", &round{Root: make([]byte, fingerprintSize), Split: []part{{At: nil, Of: make([]byte, parts*fingerprintSize)}},
			List: []part{{At: []byte{3}, Of: pack(low, high)}}, Announced: pack(low), Requested: keysOf(low), Records: 3, More: true}, true},
		{"a list of nothing", &round{List: []part{{At: []byte{15, 0}}}}, true},
		{"a short fingerprint", &round{Root: make([]byte, fingerprintSize-1)}, false},
		{"three parts", &round{Split: []part{{Of: make([]byte, 3*fingerprintSize)}}}, false},
		{"a range below a key", &round{Split: []part{{At: make([]byte, keyDepth), Of: make([]byte, parts*fingerprintSize)}}}, false},
		{"not a nibble", &round{List: []part{{At: []byte{16}}}}, false},
		{"half an item", &round{List: []part{{Of: make([]byte, itemSize/2)}}}, false},
		{"items that do not ascend", &round{List: []part{{Of: pack(high, low)}}}, false},
		{"an item twice", &round{List: []part{{Of: pack(low, low)}}}, false},
		{"an item of another range", &round{List: []part{{At: []byte{4}, Of: pack(low)}}}, false},
		{"half an announced item", &round{Announced: make([]byte, itemSize+1)}, false},
		{"half a key", &round{Requested: make([]byte, keySize-1)}, false},
		{"a negative number of records", &round{Records: -1}, false},
		{"too many records", &round{Records: maxRequests + 1}, false},
		{"a time", &round{Time: maxTime}, true},
		{"a negative time", &round{Time: -1}, false},
		{"a time over the limit", &round{Time: maxTime + 1}, false},
		{"another member", map[string]any{"more": true, "less": 1}, false},
		{"not canonical", map[string]any{"more": false}, false},
		{"a list", []int{1}, false},
	} {
		if _, err := decodeRound(marshal(t, c.t)); (err == nil) != c.ok || err != nil && !errors.Is(err, errWire) {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
}

func TestDecodeRecordMessage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		g    any
		ok   bool
	}{
		{"nothing", &recordMessage{}, true},
		{"the largest", &recordMessage{Record: make([]byte, td.MaxRecord), TD: make([]byte, td.MaxTD)}, true},
		{"a TD alone", &recordMessage{TD: []byte("{}")}, false},
		{"a large record", &recordMessage{Record: make([]byte, td.MaxRecord+1)}, false},
		{"a large TD", &recordMessage{Record: []byte("r"), TD: make([]byte, td.MaxTD+1)}, false},
		{"a text", "x", false},
	} {
		if _, err := decodeRecordMessage(marshal(t, c.g)); (err == nil) != c.ok {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
	frame := frames(t, &recordMessage{Record: make([]byte, td.MaxRecord), TD: make([]byte, td.MaxTD)})
	if _, _, err := streamserver.ReadFrame(bytes.NewReader(frame), &memory{}, maxRecordMessage); err != nil {
		t.Errorf("the largest does not fit: %v", err)
	}
}

// noMemory rejects all reservations.
type noMemory struct{ memory }

func (*noMemory) ReserveMemory(int, uint8) error { return network.ErrResourceLimitExceeded }

func TestFramesNeedMemory(t *testing.T) {
	t.Parallel()
	in := bytes.NewReader(frames(t, &round{Records: 1}))
	if _, _, err := streamserver.ReadFrame(in, &noMemory{}, maxRoundSize); !errors.Is(err, network.ErrResourceLimitExceeded) || in.Len() == 0 {
		t.Errorf("got %v, %d bytes unread", err, in.Len())
	}
	if code := streamserver.CodeOf(network.ErrResourceLimitExceeded); code != network.StreamResourceLimitExceeded {
		t.Errorf("got code %#x", code)
	}
}

func FuzzRound(f *testing.F) {
	f.Add(marshal(f, &round{}))
	f.Add(marshal(f, &round{Time: 1_800_000_000_000}))
	f.Add(marshal(f, &round{Split: []part{{At: []byte{1}, Of: make([]byte, parts*fingerprintSize)}}, Announced: pack(filler(1)), Records: 1}))
	f.Add(marshal(f, &round{List: []part{{Of: pack(filler(1))}}, Requested: keysOf(filler(1)), More: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := decodeRound(b)
		if err != nil {
			return
		}
		if again := marshal(t, in); !bytes.Equal(again, b) {
			t.Errorf("%x was decoded, and encodes as %x", b, again)
		}
	})
}

func FuzzRecordMessage(f *testing.F) {
	f.Add(marshal(f, &recordMessage{}))
	f.Add(marshal(f, &recordMessage{Record: []byte("r"), TD: []byte("t")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := decodeRecordMessage(b)
		if err == nil && (len(g.Record) > td.MaxRecord || len(g.TD) > td.MaxTD || !bytes.Equal(marshal(t, g), b)) {
			t.Errorf("accepted %x", b)
		}
	})
}

// FuzzSession sends arbitrary bytes to either end of a session: it ends, within its limits, and accepts nothing.
func FuzzSession(f *testing.F) {
	n := newNode()
	n.fill(0, 100)
	root := n.set.view().fingerprint(nil).append(nil)
	differs := n.fingerprints()
	differs[7]++
	f.Add(frames(f, &round{Root: root}), false)
	f.Add(frames(f, &round{Root: append([]byte{0, 0, 0, 9}, root[4:]...)}, &round{Split: []part{{At: []byte{3}, Of: differs}}}), false)
	f.Add(frames(f, &round{Split: []part{{Of: differs}}}, &round{}), true)
	f.Add(frames(f, &round{Announced: pack(filler(1000))}, &round{Records: 1}, &recordMessage{}), true)
	f.Fuzz(func(t *testing.T, b []byte, initiator bool) {
		s := n.session()
		s.connect(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(b), io.Discard})
		end := s.respond
		if initiator {
			end = s.initiate
		}
		_ = end()
		if m := s.mem.(*memory); m.held != 0 || m.peak > maxRoundSize || s.report.BytesOut > maxRounds*maxRoundSize || n.ingested != 0 {
			t.Errorf("%d bytes held, %d at the peak, %d sent, %d accepted", m.held, m.peak, s.report.BytesOut, n.ingested)
		}
	})
}
