package dht

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/streamserver"
)

// dialogue is a sender and a host that answers it with a handler, 10 ms apart.
type dialogue struct {
	*sender
	far    peer.ID
	opened atomic.Int32 // streams at the far host, in all
	open   atomic.Int32 // and now
	most   atomic.Int32 // and at most
	faults atomic.Int32
}

func newDialogue(t *testing.T, handler network.StreamHandler) (d *dialogue, end func()) {
	s := newSimulated(t)
	_, near := s.host()
	_, far := s.host()
	d = &dialogue{far: far.ID()}
	far.SetStreamHandler("/kad", func(st network.Stream) {
		d.opened.Add(1)
		n := d.open.Add(1)
		defer d.open.Add(-1)
		for m := d.most.Load(); n > m && !d.most.CompareAndSwap(m, n); m = d.most.Load() {
		}
		handler(st)
	})
	if _, err := s.net.ConnectPeers(near.ID(), far.ID()); err != nil {
		t.Fatal(err)
	}
	d.sender = newSender(near, []protocolID{"/kad"}, bucketSize, &counters{}, func(peer.ID, error) { d.faults.Add(1) })
	return d, func() {
		d.close()
		_ = near.Close()
		_ = far.Close()
		s.close()
	}
}

// pong answers a message with itself after a delay.
func pong(t *testing.T, after time.Duration) network.StreamHandler {
	return replies(func(m *pb.Message) []byte {
		_ = backoff.Sleep(t.Context(), after)
		return streamserver.AppendFrame(nil, marshal(t, m))
	})
}

func TestSenderReusesStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, end := newDialogue(t, pong(t, 0))
		defer end()
		for range 50 {
			if _, err := d.SendRequest(t.Context(), d.far, message(pb.Message_PING, "", nil)); err != nil {
				t.Fatal(err)
			}
		}
		if n := d.opened.Load(); n != 1 {
			t.Errorf("%d streams for 50 requests, want 1", n)
		}
		if d.host.Peerstore().LatencyEWMA(d.far) == 0 {
			t.Error("no latency was recorded")
		}
		_ = backoff.Sleep(t.Context(), idleTimeout+time.Second)
		if n := d.open.Load(); n != 0 || len(d.peers) != 0 {
			t.Errorf("%d streams and %d peers are left after the last call", n, len(d.peers))
		}
		if c := d.stats.calls(pb.Message_PING); c.sent.Load() != 50 || c.failed.Load() != 0 {
			t.Errorf("%d sent and %d failed", c.sent.Load(), c.failed.Load())
		}
	})
}

func TestSenderBoundsStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, end := newDialogue(t, pong(t, 100*time.Millisecond))
		defer end()
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				if _, err := d.SendRequest(t.Context(), d.far, message(pb.Message_PING, "", nil)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := d.most.Load(); n > maxConcurrentCalls {
			t.Errorf("%d streams at once, want %d at most", n, maxConcurrentCalls)
		}
		if n := d.opened.Load(); n > maxConcurrentCalls {
			t.Errorf("%d streams in all, want fewer: streams are reused", n)
		}
	})
}

func TestSenderRetriesStaleStreamOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// The far end answers once per stream, and then closes it.
		d, end := newDialogue(t, func(s network.Stream) {
			frame, _, err := streamserver.ReadFrame(s, s.Scope(), maxRequest)
			if err == nil {
				_, _ = s.Write(streamserver.AppendFrame(nil, frame))
			}
			_ = s.Close()
		})
		defer end()
		for range 5 {
			if _, err := d.SendRequest(t.Context(), d.far, message(pb.Message_PING, "", nil)); err != nil {
				t.Error(err)
			}
			_ = backoff.Sleep(t.Context(), time.Second)
		}
	})
}

func TestSenderTimesOut(t *testing.T) {
	t.Parallel()
	silent := func(s network.Stream) { _, _ = io.Copy(io.Discard, s) }
	synctest.Test(t, func(t *testing.T) {
		d, end := newDialogue(t, silent)
		defer end()
		start := time.Now()
		_, err := d.SendRequest(t.Context(), d.far, message(pb.Message_PING, "", nil))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != callTime {
			t.Errorf("got %v after %v, want a timeout after %v", err, time.Since(start), callTime)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		_, err = d.SendRequest(ctx, d.far, message(pb.Message_PING, "", nil))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("got %v after %v, want a timeout after a second", err, time.Since(start))
		}
		synctest.Wait()
		if n := d.open.Load(); n != 0 {
			t.Errorf("%d streams stay open", n)
		}
		if c := d.stats.calls(pb.Message_PING); c.failed.Load() != 2 || c.malformed.Load() != 0 {
			t.Errorf("%d failed and %d malformed, want 2 and 0", c.failed.Load(), c.malformed.Load())
		}
	})
}

func TestSenderWaitsForSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, end := newDialogue(t, pong(t, 2*time.Second))
		defer end()
		for range maxConcurrentCalls {
			go func() { _, _ = d.SendRequest(t.Context(), d.far, message(pb.Message_PING, "", nil)) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := d.SendRequest(ctx, d.far, message(pb.Message_PING, "", nil)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a timeout", err)
		}
		if _, err := d.SendRequest(t.Context(), d.far, message(pb.Message_PING, "", nil)); err != nil {
			t.Errorf("after the others: %v", err)
		}
	})
}

func TestSenderReportsFaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, end := newDialogue(t, replies(func(*pb.Message) []byte { return []byte{0xff, 0xff, 0xff, 0xff} }))
		defer end()
		if _, err := d.SendRequest(t.Context(), d.far, message(pb.Message_PING, "", nil)); !errors.Is(err, errMalformed) {
			t.Errorf("got %v, want a malformed reply", err)
		}
		if n := d.faults.Load(); n != 1 {
			t.Errorf("%d faults reported, want 1", n)
		}
		synctest.Wait()
		if n := d.open.Load(); n != 0 {
			t.Errorf("%d streams stay open", n)
		}
	})
}

// TestMessagesWithoutReply checks that the end of the stream is the acknowledgement.
func TestMessagesWithoutReply(t *testing.T) {
	t.Parallel()
	var got atomic.Int32
	take := func(s network.Stream) error {
		for {
			frame, _, err := streamserver.ReadFrame(s, s.Scope(), maxRequest)
			if err != nil {
				return err
			}
			var m pb.Message
			if err := proto.Unmarshal(frame, &m); err != nil {
				return err
			}
			got.Add(1)
		}
	}
	tests := []struct {
		name    string
		handler network.StreamHandler
		ok      bool
		err     error
	}{
		{"taken", func(s network.Stream) {
			if take(s) == io.EOF {
				_ = s.Close()
			}
		}, true, nil},
		{"refused", func(s network.Stream) { _ = s.Reset() }, false, nil},
		{"refused after all", func(s network.Stream) { _ = take(s); _ = s.Reset() }, false, nil},
		{"answered", func(s network.Stream) { _ = take(s); _, _ = s.Write([]byte{0}); _ = s.Close() }, false, errMalformed},
		{"never read", func(s network.Stream) { <-time.After(time.Minute); _ = s.Reset() }, false, context.DeadlineExceeded},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, end := newDialogue(t, tt.handler)
				defer end()
				got.Store(0)
				var ms []*pb.Message
				for range 10 {
					ms = append(ms, message(pb.Message_ADD_PROVIDER, "key", nil))
				}
				err := d.sendAll(t.Context(), d.far, ms)
				if (err == nil) != tt.ok || tt.err != nil && !errors.Is(err, tt.err) {
					t.Errorf("got %v", err)
				}
				if tt.ok && got.Load() != 10 {
					t.Errorf("%d messages received, want 10", got.Load())
				}
				if err := d.SendMessage(t.Context(), d.far, ms[0]); (err == nil) != tt.ok {
					t.Errorf("one message: got %v", err)
				}
				_ = backoff.Sleep(t.Context(), 2*time.Minute)
				if n := d.open.Load(); n != 0 {
					t.Errorf("%d streams stay open", n)
				}
			})
		})
	}
}

func TestSenderRemovesDisconnectedPeers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, end := newDialogue(t, pong(t, 0))
		defer end()
		if _, err := d.SendRequest(t.Context(), d.far, message(pb.Message_PING, "", nil)); err != nil {
			t.Fatal(err)
		}
		d.OnDisconnect(t.Context(), d.far)
		d.OnDisconnect(t.Context(), d.far)
		synctest.Wait()
		if len(d.peers) != 0 || d.open.Load() != 0 {
			t.Errorf("%d lines and %d streams are left", len(d.peers), d.open.Load())
		}
		d.close()
		if _, err := d.SendRequest(t.Context(), d.far, message(pb.Message_PING, "", nil)); !errors.Is(err, errClosed) {
			t.Errorf("after close: got %v", err)
		}
	})
}

func TestSenderRefusesLargeRequests(t *testing.T) {
	t.Parallel()
	s := newSender(nil, nil, bucketSize, &counters{}, func(peer.ID, error) {})
	if _, err := s.SendRequest(t.Context(), "x", message(pb.Message_PING, string(make([]byte, maxRequest)), nil)); err == nil {
		t.Error("a request that every peer refuses was sent")
	}
}
