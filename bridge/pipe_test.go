package bridge

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
)

// Bytes written in pieces of any size are read in pieces of any size, and at most maxChunk bytes are buffered.
func TestPipe(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	sent := make([]byte, 1<<20)
	for i := range sent {
		sent[i] = byte(r.Uint32())
	}
	sizes := func() func() int {
		r := rand.New(rand.NewPCG(r.Uint64(), 0))
		return func() int { return 1 + r.IntN(1<<r.IntN(18)) }
	}
	write, read := sizes(), sizes()
	p, broken := newPipe(), errors.New("broken")
	go func() {
		for rest := sent; len(rest) > 0; {
			n, err := p.Write(rest[:min(len(rest), write())])
			if err != nil {
				t.Error(err)
				break
			}
			rest = rest[n:]
		}
		p.finish(broken)
	}()
	var got []byte
	for {
		b := make([]byte, read())
		n, err := p.Read(b)
		if got = append(got, b[:n]...); err != nil {
			if err != broken || n > 0 {
				t.Errorf("the end is %d bytes and %v", n, err)
			}
			break
		}
		if p.mu.Lock(); len(p.buffer)-p.read > maxChunk {
			t.Errorf("%d bytes are kept", len(p.buffer)-p.read)
		}
		p.mu.Unlock()
	}
	if !bytes.Equal(got, sent) {
		t.Errorf("got %d bytes, or other bytes, want %d", len(got), len(sent))
	}
	if _, err := p.Write([]byte("x")); err != io.ErrClosedPipe {
		t.Errorf("after the end: %v", err)
	}
	if cap(p.buffer) > maxIdle {
		t.Errorf("an empty pipe holds %d bytes", cap(p.buffer))
	}
}

// Closing one end unblocks the other.
func TestPipeClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, full := newPipe(), make(chan error, 1)
		go func() {
			n, err := p.Write(make([]byte, maxChunk+1))
			if n != maxChunk {
				t.Errorf("%d bytes were written", n)
			}
			full <- err
		}()
		synctest.Wait()
		p.Close()
		if err := <-full; err != io.ErrClosedPipe {
			t.Errorf("the writer: %v", err)
		}
		if n, err := p.Read(make([]byte, 1)); n != 0 || err != io.ErrClosedPipe {
			t.Errorf("a reader after Close: %d, %v", n, err)
		}
		p, ended := newPipe(), make(chan error, 1)
		go func() {
			_, err := p.Read(make([]byte, 1))
			ended <- err
		}()
		synctest.Wait()
		p.finish(nil)
		p.finish(errors.New("twice"))
		if err := <-ended; err != io.EOF {
			t.Errorf("the reader: %v", err)
		}
	})
}
