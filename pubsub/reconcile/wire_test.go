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

func TestDecodeTurn(t *testing.T) {
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
		{"the last", &turn{}, true},
		{"all of it", &turn{Root: make([]byte, claimSize), Split: []part{{At: nil, Of: make([]byte, parts*claimSize)}},
			List: []part{{At: []byte{3}, Of: pack(low, high)}}, News: pack(low), Want: keysOf(low), Give: 3, More: true}, true},
		{"a list of nothing", &turn{List: []part{{At: []byte{15, 0}}}}, true},
		{"a short claim", &turn{Root: make([]byte, claimSize-1)}, false},
		{"three parts", &turn{Split: []part{{Of: make([]byte, 3*claimSize)}}}, false},
		{"a range below a key", &turn{Split: []part{{At: make([]byte, keyDepth), Of: make([]byte, parts*claimSize)}}}, false},
		{"no nibble", &turn{List: []part{{At: []byte{16}}}}, false},
		{"half an item", &turn{List: []part{{Of: make([]byte, itemSize/2)}}}, false},
		{"items that do not ascend", &turn{List: []part{{Of: pack(high, low)}}}, false},
		{"an item twice", &turn{List: []part{{Of: pack(low, low)}}}, false},
		{"an item of another range", &turn{List: []part{{At: []byte{4}, Of: pack(low)}}}, false},
		{"half of the news", &turn{News: make([]byte, itemSize+1)}, false},
		{"half a want", &turn{Want: make([]byte, keySize-1)}, false},
		{"fewer than none", &turn{Give: -1}, false},
		{"more than may be", &turn{Give: maxWants + 1}, false},
		{"its clock", &turn{Time: maxTime}, true},
		{"a time before all", &turn{Time: -1}, false},
		{"a time after all", &turn{Time: maxTime + 1}, false},
		{"another member", map[string]any{"more": true, "less": 1}, false},
		{"not canonical", map[string]any{"more": false}, false},
		{"a list", []int{1}, false},
	} {
		if _, err := decodeTurn(marshal(t, c.t)); (err == nil) != c.ok || err != nil && !errors.Is(err, errWire) {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
}

func TestDecodeGiven(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		g    any
		ok   bool
	}{
		{"nothing", &given{}, true},
		{"the largest", &given{Record: make([]byte, td.MaxRecord), TD: make([]byte, td.MaxTD)}, true},
		{"a TD alone", &given{TD: []byte("{}")}, false},
		{"a large record", &given{Record: make([]byte, td.MaxRecord+1)}, false},
		{"a large TD", &given{Record: []byte("r"), TD: make([]byte, td.MaxTD+1)}, false},
		{"a text", "x", false},
	} {
		if _, err := decodeGiven(marshal(t, c.g)); (err == nil) != c.ok {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
	frame := frames(t, &given{Record: make([]byte, td.MaxRecord), TD: make([]byte, td.MaxTD)})
	if _, _, err := streamserver.ReadFrame(bytes.NewReader(frame), &accounts{}, maxGiven); err != nil {
		t.Errorf("the largest does not fit: %v", err)
	}
}

// broke is a scope without memory.
type broke struct{ accounts }

func (*broke) ReserveMemory(int, uint8) error { return network.ErrResourceLimitExceeded }

func TestFramesNeedMemory(t *testing.T) {
	t.Parallel()
	in := bytes.NewReader(frames(t, &turn{Give: 1}))
	if _, _, err := streamserver.ReadFrame(in, &broke{}, maxTurn); !errors.Is(err, network.ErrResourceLimitExceeded) || in.Len() == 0 {
		t.Errorf("got %v, %d bytes unread", err, in.Len())
	}
	if code := streamserver.CodeOf(network.ErrResourceLimitExceeded); code != network.StreamResourceLimitExceeded {
		t.Errorf("got code %#x", code)
	}
}

func FuzzTurn(f *testing.F) {
	f.Add(marshal(f, &turn{}))
	f.Add(marshal(f, &turn{Time: 1_800_000_000_000}))
	f.Add(marshal(f, &turn{Split: []part{{At: []byte{1}, Of: make([]byte, parts*claimSize)}}, News: pack(filler(1)), Give: 1}))
	f.Add(marshal(f, &turn{List: []part{{Of: pack(filler(1))}}, Want: keysOf(filler(1)), More: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := decodeTurn(b)
		if err != nil {
			return
		}
		if again := marshal(t, in); !bytes.Equal(again, b) {
			t.Errorf("%x was read, %x is the same", b, again)
		}
	})
}

func FuzzGiven(f *testing.F) {
	f.Add(marshal(f, &given{}))
	f.Add(marshal(f, &given{Record: []byte("r"), TD: []byte("t")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := decodeGiven(b)
		if err == nil && (len(g.Record) > td.MaxRecord || len(g.TD) > td.MaxTD || !bytes.Equal(marshal(t, g), b)) {
			t.Errorf("took %x", b)
		}
	})
}

// FuzzSession sends arbitrary bytes to either end of a session: it ends, within its limits, and accepts nothing.
func FuzzSession(f *testing.F) {
	n := newNode()
	n.fill(0, 100)
	root := n.set.view().claim(nil).append(nil)
	differs := n.claims()
	differs[7]++
	f.Add(frames(f, &turn{Root: root}), false)
	f.Add(frames(f, &turn{Root: append([]byte{0, 0, 0, 9}, root[4:]...)}, &turn{Split: []part{{At: []byte{3}, Of: differs}}}), false)
	f.Add(frames(f, &turn{Split: []part{{Of: differs}}}, &turn{}), true)
	f.Add(frames(f, &turn{News: pack(filler(1000))}, &turn{Give: 1}, &given{}), true)
	f.Fuzz(func(t *testing.T, b []byte, lead bool) {
		s := n.session()
		s.connect(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(b), io.Discard})
		end := s.follow
		if lead {
			end = s.lead
		}
		_ = end()
		if m := s.mem.(*accounts); m.held != 0 || m.peak > maxTurn || s.report.BytesOut > maxTurns*maxTurn || n.came != 0 {
			t.Errorf("%d bytes held, %d at the peak, %d said, %d taken", m.held, m.peak, s.report.BytesOut, n.came)
		}
	})
}
