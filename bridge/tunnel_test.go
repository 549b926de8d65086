package bridge

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// host serves a tunnel.
func host(serve func(context.Context, io.ReadWriteCloser) error) interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return Accept(ctx, m, serve)
	})
}

func dial(ctx context.Context, t interact.Thing) io.ReadWriteCloser {
	return Dial(ctx, t, &interact.Message{Thing: "urn:x", Name: "tunnel", ID: "1"})
}

func echo(_ context.Context, s io.ReadWriteCloser) error {
	_, err := io.Copy(s, s)
	return err
}

// Bytes written at one end are read at the other.
func TestTunnelCarriesBytes(t *testing.T) {
	t.Parallel()
	sent := make([]byte, 3<<20+7)
	_, _ = rand.Read(sent)
	d := dial(t.Context(), host(echo))
	defer d.Close()
	go func() {
		for rest := sent; len(rest) > 0; {
			n := min(len(rest), 100_001)
			if _, err := d.Write(rest[:n]); err != nil {
				t.Error(err)
			}
			rest = rest[n:]
		}
	}()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(d, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("got other bytes than were written, %v", err)
	}
}

// Each end gets an error or io.EOF when the other closes.
func TestTunnelClose(t *testing.T) {
	t.Parallel()
	broken := interact.Errorf(interact.AgentFailed, "", "it exited with 3")
	for name, c := range map[string]struct {
		serve func(context.Context, io.ReadWriteCloser) error
		want  error
	}{
		"the host, well":     {func(_ context.Context, s io.ReadWriteCloser) error { _, err := s.Write([]byte("bye\n")); return err }, io.EOF},
		"the host, broken":   {func(context.Context, io.ReadWriteCloser) error { return broken }, broken},
		"the host closes it": {func(_ context.Context, s io.ReadWriteCloser) error { s.Close(); _, err := s.Write(nil); return err }, io.EOF},
	} {
		d := dial(t.Context(), host(c.serve))
		if _, err := io.ReadAll(d); err != nil && !errors.Is(err, c.want) || err == nil && c.want != io.EOF {
			t.Errorf("%s: got %v", name, err)
		}
		if _, err := d.Write([]byte("x")); err == nil {
			t.Errorf("%s: a write succeeded after the end", name)
		}
		d.Close()
		if _, err := d.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: a read succeeded after the end", name)
		}
	}
}

// Close lets the host read the request stream to its end, and waits for the host.
func TestCloseEndsTheRequestStream(t *testing.T) {
	t.Parallel()
	read := ""
	d := dial(t.Context(), host(func(ctx context.Context, s io.ReadWriteCloser) error {
		all, err := io.ReadAll(s)
		if read = string(all); err != nil || ctx.Err() != nil {
			t.Errorf("got %v, %v", err, ctx.Err())
		}
		_, err = s.Write(make([]byte, 1<<20)) // without a reader
		return err
	}))
	if _, err := d.Write([]byte("last words")); err != nil {
		t.Error(err)
	}
	d.Close()
	d.Close()
	if read != "last words" {
		t.Errorf("got %q", read)
	}
}

// Close cancels a host that does not end by itself; a host that was not invoked is not invoked by Close.
func TestCloseCancels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		unresponsive := host(func(ctx context.Context, s io.ReadWriteCloser) error {
			<-ctx.Done()
			if _, err := s.Write([]byte("x")); err == nil {
				t.Error("a write after Close succeeded")
			}
			return ctx.Err()
		})
		d := dial(t.Context(), unresponsive)
		begun := time.Now()
		if _, err := d.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		d.Close()
		if took := time.Since(begun); took != closeTimeout {
			t.Errorf("Close took %v", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		d = dial(ctx, unresponsive)
		time.AfterFunc(time.Minute, cancel)
		if _, err := d.Read(make([]byte, 1)); err == nil {
			t.Error("a read after the end succeeded")
		}
		d.Close()
		d = dial(t.Context(), interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
			t.Error("Close invoked the action")
			return func(func(*interact.Message, error) bool) {}
		}))
		begun = time.Now()
		d.Close()
		if took := time.Since(begun); took != 0 {
			t.Errorf("Close of a tunnel that was not invoked took %v", took)
		}
		if _, err := d.Read(make([]byte, 1)); err == nil {
			t.Error("a read after the end succeeded")
		}
	})
}

// A consumer that does not read blocks the writer, and the buffered bytes are bounded.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		written := 0
		d := dial(t.Context(), host(func(_ context.Context, s io.ReadWriteCloser) error {
			for range 100 {
				n, err := s.Write(make([]byte, maxChunk))
				if err != nil {
					return err
				}
				written += n
			}
			return nil
		}))
		in := bufio.NewReader(d)
		if _, err := in.ReadByte(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if written > 4*maxChunk {
			t.Errorf("%d bytes are buffered", written)
		}
		if n, err := io.Copy(io.Discard, in); err != nil || n != 100*maxChunk-1 {
			t.Errorf("got %d, %v", n, err)
		}
		d.Close()
	})
}

// Accept ends when its consumer leaves the loop, and rejects a message without a request stream.
func TestAcceptEndsWithItsConsumer(t *testing.T) {
	t.Parallel()
	for _, err := range Accept(t.Context(), &interact.Message{Name: "tunnel"}, echo) {
		if interact.AsError(err).Code != interact.Invalid {
			t.Errorf("got %v", err)
		}
	}
	ended := make(chan error, 1)
	m := &interact.Message{Name: "tunnel", Chunks: func(yield func([]byte, error) bool) { yield([]byte("x"), nil) }}
	for r, err := range Accept(t.Context(), m, func(ctx context.Context, s io.ReadWriteCloser) error {
		_, _ = io.Copy(s, s)
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}) {
		if err != nil || string(r.Data) != "x" || r.Status != interact.StatusRunning {
			t.Errorf("got %+v, %v", r, err)
		}
		break
	}
	if err := <-ended; err == nil {
		t.Error("serve continues after its consumer has left the loop")
	}
}
