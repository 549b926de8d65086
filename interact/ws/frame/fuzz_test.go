package frame

import (
	"encoding/binary"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// FuzzFrame reads arbitrary bytes. A frame that can be read can be written in its dialect, without a change of its meaning. It
// is stable after the first time.
func FuzzFrame(f *testing.F) {
	_, all := goldens(f)
	for _, e := range all {
		f.Add([]byte(e.frame))
	}
	f.Add([]byte(`{"messageType":"writeProperty","thingId":"x","messageId":"1","property":"on"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		first, err := Decode(b)
		if err != nil {
			if e := interact.AsError(err); e.Code == interact.Internal || e.Hint == "" && e.Next == nil {
				t.Fatalf("%q: %v", b, err)
			}
			return
		}
		if interact.IsCBOR(first.ContentType) {
			return // it is written as JSON, if it is CBOR at all
		}
		second := again(t, first)
		third := again(t, second)
		if meaning(second) != meaning(third) {
			t.Fatalf("%q:\n%s\n%s", b, meaning(second), meaning(third))
		}
		lacksData := first.hasData() && len(first.Data) == 0 // it is written with null
		if first.IsRequest() && !lacksData && meaning(first) != meaning(second) {
			t.Fatalf("%q:\n%s\n%s", b, meaning(first), meaning(second))
		}
	})
}

// again writes f and reads it.
func again(t *testing.T, f *Frame) *Frame {
	f.Dialect = f.marks
	b, err := f.Encode()
	if err != nil {
		t.Fatalf("%s cannot be written: %v", meaning(f), err)
	}
	g, err := Decode(b)
	if err != nil {
		t.Fatalf("%s is written as %s: %v", meaning(f), b, err)
	}
	return g
}

// FuzzProblem reads the error of anybody: it has a code, a hint and no control characters.
func FuzzProblem(f *testing.F) {
	f.Add([]byte(`{"type":"https://eclipse.dev/lmos/protocol/v1/errors#not-found","status":"404","detail":"x","code":"LMOS-1405"}`))
	f.Add([]byte(`"text"`))
	f.Add([]byte(`{"status":503,"validationErrors":[{"field":"/a","description":"b"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e := ReadProblem(b)
		if e.Code == 0 || e.Hint == "" && e.Next == nil || len(e.Title) > MaxText+8 || interact.Readable(e.Title) != e.Title {
			t.Fatalf("%q: %+v", b, e)
		}
	})
}

func FuzzPacket(f *testing.F) {
	for _, p := range []Packet{{KindChunk, 1, 0, []byte("x")}, {KindEnd, 2, 0, nil}, {KindAbort, 3, 0, []byte("why")},
		{KindCredit, 4, 5, nil}, {KindStop, 1 << 31, 0, nil}} {
		f.Add(p.Encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ReadPacket(b)
		if err != nil {
			return
		}
		if p.Stream == 0 || len(p.Body) > MaxChunk || (p.Kind == KindCredit) != (p.Credit != 0) || string(p.Encode()) != string(b) ||
			binary.BigEndian.Uint32(b[1:]) != p.Stream {
			t.Errorf("%x is read as %+v", b, p)
		}
	})
}
