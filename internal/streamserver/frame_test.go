package streamserver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
)

// accounts is a memory that counts and may be full.
type accounts struct {
	network.NullScope
	held, peak int
	full       bool
}

func (a *accounts) ReserveMemory(n int, _ uint8) error {
	if a.full {
		return network.ErrResourceLimitExceeded
	}
	a.held += n
	a.peak = max(a.peak, a.held)
	return nil
}

func (a *accounts) ReleaseMemory(n int) { a.held -= n }

func TestReadFrame(t *testing.T) {
	t.Parallel()
	const limit = 1000
	tests := []struct {
		name string
		in   []byte
		want []byte
		err  error
	}{
		{"whole", []byte{3, 'a', 'b', 'c'}, []byte("abc"), nil},
		{"empty", []byte{0}, []byte{}, nil},
		{"at the limit", AppendFrame(nil, make([]byte, limit)), make([]byte, limit), nil},
		{"above the limit", AppendFrame(nil, make([]byte, limit+1)), nil, ErrFrame},
		{"announces 4 GiB", binary.AppendUvarint(nil, 1<<32), nil, ErrFrame},
		{"announces 2 MiB in three bytes", []byte{0xff, 0xff, 0x7f}, nil, ErrFrame},
		{"longest uvarint", bytes.Repeat([]byte{0xff}, 10), nil, ErrFrame},
		{"not minimal", []byte{0x83, 0x00, 'a', 'b', 'c'}, nil, ErrFrame},
		{"not minimal zero", []byte{0x80, 0x00}, nil, ErrFrame},
		{"nothing", nil, nil, io.EOF},
		{"half a prefix", []byte{0x83}, nil, io.ErrUnexpectedEOF},
		{"half a body", []byte{3, 'a'}, nil, io.ErrUnexpectedEOF},
		{"no body", []byte{3}, nil, io.ErrUnexpectedEOF},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var m accounts
			got, release, err := ReadFrame(bytes.NewReader(tt.in), &m, limit)
			if !errors.Is(err, tt.err) {
				t.Fatalf("got error %v, want %v", err, tt.err)
			}
			if !bytes.Equal(got, tt.want) {
				t.Errorf("got %d bytes, want %d", len(got), len(tt.want))
			}
			if m.peak > limit {
				t.Errorf("%d bytes were reserved, %d are allowed", m.peak, limit)
			}
			if release != nil {
				release()
			}
			if m.held != 0 {
				t.Errorf("%d bytes stay reserved", m.held)
			}
		})
	}
}

func TestReadFrameReservesMemoryFirst(t *testing.T) {
	t.Parallel()
	r := bytes.NewReader(AppendFrame(nil, []byte("abc")))
	_, _, err := ReadFrame(r, &accounts{full: true}, 10)
	if !errors.Is(err, network.ErrResourceLimitExceeded) {
		t.Errorf("got %v, want that memory is refused", err)
	}
	if r.Len() != 3 {
		t.Errorf("%d bytes of the body are left, want all 3", r.Len())
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{3, 'a', 'b', 'c'})
	f.Add(binary.AppendUvarint(nil, 1<<32))
	f.Add([]byte{0x80, 0x80, 0x04})
	f.Fuzz(func(t *testing.T, in []byte) {
		var m accounts
		r := bytes.NewReader(in)
		for {
			b, release, err := ReadFrame(r, &m, 300)
			if err != nil {
				break
			}
			if again := AppendFrame(nil, b); !bytes.HasSuffix(in[:len(in)-r.Len()], again) {
				t.Fatal("a frame was read that is not written the same way")
			}
			release()
		}
		if m.held != 0 || m.peak > 300 {
			t.Fatalf("%d bytes held, %d at the peak", m.held, m.peak)
		}
	})
}
