package td

import (
	"bytes"
	"cmp"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// drawRecords returns records of one Thing, some of them equal, and some garbage.
func drawRecords(t *rapid.T, tb testing.TB) [][]byte {
	k := signer(tb, 1)
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) []byte {
		if rapid.IntRange(0, 9).Draw(t, "garbage") == 0 {
			return rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		}
		return forge(tb, k, func(w *wireRecord) {
			w.Seq = uint64(rapid.IntRange(1, 3).Draw(t, "seq"))
			w.Expires += uint64(rapid.IntRange(0, 2).Draw(t, "later"))
			w.Title = rapid.SampledFrom([]string{"A", "B"}).Draw(t, "title")
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				makeTombstone(w)
			case 1:
				makeTombstone(w)
				w.Seq = finalSeq
			case 2, 3:
				w.Inline = []byte("inside") // Select does not decompress it
			}
		})
	}), 1, 6).Draw(t, "records")
}

func TestSelectIsATotalOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		records := drawRecords(rt, t)
		best, err := Select(records)
		if err != nil {
			for _, raw := range records {
				if _, _, err := decodeRecord(raw); err == nil {
					rt.Fatal("a valid record was skipped")
				}
			}
			return
		}
		winner, _, err := decodeRecord(records[best])
		if err != nil {
			rt.Fatal("garbage was selected")
		}
		for i, raw := range records {
			r, _, err := decodeRecord(raw)
			if err != nil {
				continue
			}
			switch c := winner.Compare(r); {
			case c < 0, c == 0 && i < best:
				rt.Fatalf("%d was selected, %d is better or first", best, i)
			case c != -r.Compare(winner):
				rt.Fatalf("Compare is not antisymmetric")
			}
		}
		// In any order, Select returns the same record.
		shuffled := rapid.Permutation(records).Draw(rt, "shuffled")
		other, err := Select(shuffled)
		if err != nil || !bytes.Equal(shuffled[other], records[best]) {
			again, _, _ := decodeRecord(shuffled[other])
			if again == nil || again.Compare(winner) != 0 {
				rt.Fatalf("another order gives another record (%v)", err)
			}
		}
		if i, err := Select([][]byte{records[best], records[best]}); err != nil || i != 0 {
			rt.Fatalf("of equal records %d was selected (%v)", i, err)
		}
	})
}

func TestSelect(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	with := func(changes ...func(w *wireRecord)) []byte {
		return forge(t, k, func(w *wireRecord) {
			for _, c := range changes {
				c(w)
			}
		})
	}
	seq := func(n uint64) func(w *wireRecord) { return func(w *wireRecord) { w.Seq = n } }
	later := func(w *wireRecord) { w.Expires++ }
	inline := func(w *wireRecord) { w.Inline = compressTD([]byte("td")) }
	tests := []struct {
		name    string
		records [][]byte
		want    int
	}{
		{"one", [][]byte{with()}, 0},
		{"the first of equals", [][]byte{with(), with(), with()}, 0},
		{"the higher seq", [][]byte{with(seq(1)), with(seq(3)), with(seq(2), later)}, 1},
		{"the later expiry", [][]byte{with(), with(later)}, 1},
		{"the one with its TD", [][]byte{with(), with(inline)}, 1},
		{"not the one with its TD, but the higher", [][]byte{with(inline), with(seq(6))}, 1},
		{"a tombstone with a lower seq", [][]byte{with(makeTombstone, seq(4)), with()}, 1},
		{"a final tombstone", [][]byte{with(seq(finalSeq - 1)), with(makeTombstone, seq(finalSeq))}, 1},
		{"garbage is skipped", [][]byte{nil, []byte("x"), with()}, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got, err := Select(tt.records); got != tt.want || err != nil {
				t.Errorf("got %d %v, want %d", got, err, tt.want)
			}
		})
	}
	for _, records := range [][][]byte{nil, {[]byte("x")}} {
		if _, err := Select(records); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: got %v", records, err)
		}
	}
	a, b := with(func(w *wireRecord) { w.Title = "A" }), with(func(w *wireRecord) { w.Title = "B" })
	ra, _, _ := decodeRecord(a)
	rb, _, _ := decodeRecord(b)
	want := cmp.Compare(bytes.Compare(ra.digest[:], rb.digest[:]), 0)
	if got := ra.Compare(rb); got != want {
		t.Errorf("the larger hash: got %d, want %d", got, want)
	}
}
