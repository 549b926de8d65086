package dht

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
	recpb "github.com/libp2p/go-libp2p-record/pb"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-msgio"

	"github.com/lmosd/lmosd/internal/streamserver"
)

// readAll reads frames through a frameLimiter as the library does, and returns the sizes of the complete ones.
func readAll(in io.Reader) (sizes []int, st *script, err error) {
	st = &script{r: in}
	g := newFrameLimiter(st, func(error) {})
	defer g.stop()
	r := msgio.NewVarintReaderSize(g, network.MessageSizeMax)
	for {
		b, err := r.ReadMsg()
		if err != nil {
			return sizes, st, err
		}
		sizes = append(sizes, len(b))
		r.ReleaseMsg(b)
	}
}

func TestFrameLimiterPassesFrames(t *testing.T) {
	t.Parallel()
	var in []byte
	want := []int{0, 1, 127, 128, 16384, maxInbound}
	for _, n := range want {
		in = streamserver.AppendFrame(in, make([]byte, n))
	}
	for name, r := range map[string]io.Reader{
		"at once":                    bytes.NewReader(in),
		"byte by byte":               iotest.OneByteReader(bytes.NewReader(in)),
		"in halves":                  iotest.HalfReader(bytes.NewReader(in)),
		"with data and EOF together": iotest.DataErrReader(bytes.NewReader(in)),
	} {
		got, st, err := readAll(r)
		if len(got) != len(want) || err != io.EOF {
			t.Errorf("%s: got frames of %v and %v, want %v and EOF", name, got, err, want)
		}
		if st.code.Load() != 0 {
			t.Errorf("%s: the stream was reset", name)
		}
	}
}

func TestFrameLimiterRejects(t *testing.T) {
	t.Parallel()
	good := streamserver.AppendFrame(nil, []byte("abc"))
	tests := map[string][]byte{
		"one byte too many":   streamserver.AppendFrame(nil, make([]byte, maxInbound+1)),
		"4 MiB":               binary.AppendUvarint(nil, 4<<20),
		"4 GiB":               binary.AppendUvarint(nil, 1<<32),
		"a length that lasts": bytes.Repeat([]byte{0x80}, 100),
		"a padded length":     {0x83, 0x80, 0x00, 'a', 'b', 'c'},
	}
	for name, in := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sizes, st, err := readAll(bytes.NewReader(append(bytes.Clone(good), in...)))
			if len(sizes) != 1 || !errors.Is(err, streamserver.ErrFrame) {
				t.Errorf("got %d frames and %v, want the good one and a refusal", len(sizes), err)
			}
			if got := network.StreamErrorCode(st.code.Load()); got != network.StreamProtocolViolation {
				t.Errorf("reset with %#x, want %#x", got, network.StreamProtocolViolation)
			}
		})
	}
}

// FuzzFrameLimiter compares the output of the limiter with a plain reading of the bytes.
func FuzzFrameLimiter(f *testing.F) {
	f.Add(streamserver.AppendFrame(streamserver.AppendFrame(nil, []byte("abc")), nil), 1)
	f.Add(binary.AppendUvarint(nil, 1<<32), 3)
	f.Add([]byte{0x80, 0x80, 0x04}, 2)
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		st := &script{r: bytes.NewReader(in)}
		g := newFrameLimiter(st, func(error) {})
		defer g.stop()
		buf := make([]byte, 1+(step&0x3ff))
		var passed []byte
		for {
			n, err := g.Read(buf)
			passed = append(passed, buf[:n]...)
			if err != nil {
				break
			}
		}
		want, bad := allowed(in)
		if !bytes.Equal(passed, in[:want]) {
			t.Fatalf("%d bytes passed, want %d", len(passed), want)
		}
		if reset := st.code.Load() != 0; reset != bad {
			t.Fatalf("reset is %v, want %v", reset, bad)
		}
	})
}

// allowed returns how much of in is frames and a good beginning of one, and whether a bad prefix follows. The last byte of a
// bad prefix, which makes it bad, does not pass.
func allowed(in []byte) (n int, bad bool) {
	for n < len(in) {
		size, k := binary.Uvarint(in[n:])
		switch {
		case k == 0 && len(in)-n < streamserver.MaxPrefix: // cut
			return len(in), false
		case k <= 0 || k > streamserver.MaxPrefix:
			return n + streamserver.MaxPrefix - 1, true
		case size > maxInbound || k > 1 && in[n+k-1] == 0:
			return n + k - 1, true
		}
		n = min(len(in), n+k+int(size))
	}
	return n, false
}

func TestFrameLimiterDeadlines(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		sent []byte
		want time.Duration
	}{
		{"nothing at all", nil, idleTime},
		{"half a prefix", []byte{0x83}, frameTime},
		{"half a frame", []byte{3, 'a'}, frameTime},
		{"a frame and no more", []byte{1, 'a'}, idleTime},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, w := io.Pipe()
				st := &script{r: r, onEnd: func() { _ = w.CloseWithError(network.ErrReset) }}
				g := newFrameLimiter(st, func(error) {})
				defer g.stop()
				go func() { _, _ = w.Write(tt.sent) }()
				start := time.Now()
				_, err := io.Copy(io.Discard, g)
				if !errors.Is(err, network.ErrReset) {
					t.Errorf("got %v, want a reset", err)
				}
				if took := time.Since(start); took != tt.want {
					t.Errorf("reset after %v, want %v", took, tt.want)
				}
			})
		})
	}
}

// handlerHost is a host that only keeps handlers.
type handlerHost struct {
	host.Host
	handlers map[protocol.ID]network.StreamHandler
}

func (h *handlerHost) SetStreamHandler(p protocol.ID, f network.StreamHandler) { h.handlers[p] = f }
func (h *handlerHost) RemoveStreamHandler(p protocol.ID)                       { delete(h.handlers, p) }

// guarded returns a guard with handler behind it, and how a stream comes in.
func guarded(t *testing.T, handler network.StreamHandler) (*guard, network.StreamHandler) {
	t.Helper()
	h := &handlerHost{handlers: map[protocol.ID]network.StreamHandler{}}
	g := newGuard(h, everyone, &counters{}, slog.New(slog.DiscardHandler))
	g.SetStreamHandler("/test", handler)
	return g, h.handlers["/test"]
}

func everyone(peer.ID) bool { return true }

func inbound(t *testing.T, from int, addr string) *script {
	return &script{r: strings.NewReader(""), from: testPeer(t, from), addr: testAddr(t, addr)}
}

func TestGuardSurvivesPanics(t *testing.T) {
	t.Parallel()
	g, serve := guarded(t, func(network.Stream) { panic("a bug") })
	st := inbound(t, 1, "/ip4/10.0.0.1/tcp/1")
	serve(st)
	if g.stats.panics.Load() != 1 || st.code.Load() == 0 {
		t.Errorf("%d panics counted, reset with %d; want one and a reset", g.stats.panics.Load(), st.code.Load())
	}
	g.close()
}

func TestGuardBoundsStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, serve := guarded(t, func(s network.Stream) { _, _ = io.Copy(io.Discard, s) })
		open := func(from int) *script {
			r, w := io.Pipe()
			st := inbound(t, from, "/ip4/127.0.0.1/tcp/1")
			st.r, st.onEnd = r, func() { _ = w.CloseWithError(network.ErrReset) }
			go serve(st)
			synctest.Wait()
			return st
		}
		for n := range maxPeerStreams {
			if st := open(0); st.code.Load() != 0 {
				t.Fatalf("stream %d of one peer was refused", n+1)
			}
		}
		if st := open(0); network.StreamErrorCode(st.code.Load()) != network.StreamRateLimited {
			t.Error("one peer has more streams than it may")
		}
		for n := maxPeerStreams; n < maxStreams; n++ {
			if st := open(n); st.code.Load() != 0 {
				t.Fatalf("stream %d was refused", n+1)
			}
		}
		if st := open(9999); network.StreamErrorCode(st.code.Load()) != network.StreamRateLimited {
			t.Error("there are more streams than may be")
		}
		g.close() // waits for all handlers
		if st := open(9998); network.StreamErrorCode(st.code.Load()) != network.StreamShutdown {
			t.Error("a stream was served after close")
		}
		if got := g.stats.refusedStreams.Load(); got != 3 {
			t.Errorf("%d refused streams counted, want 3", got)
		}
	})
}

func TestGuardBoundsSubnets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // in which no time passes
		g, serve := guarded(t, func(network.Stream) {})
		defer g.close()
		refused := func(addr string, n int) (refused int) {
			for i := range n {
				st := inbound(t, i, addr)
				serve(st)
				if st.code.Load() == int64(network.StreamRateLimited) {
					refused++
				}
			}
			return refused
		}
		if n := refused("/ip4/10.0.0.1/tcp/1", 300); n != 100 {
			t.Errorf("of 300 streams of one address %d were refused, want 100", n)
		}
		if n := refused("/ip4/10.0.0.2/tcp/1", 100); n != 0 {
			t.Errorf("%d streams of another address were refused", n)
		}
		if n := refused("/ip6/2001:db8::1/tcp/1", 150) + refused("/ip6/2001:db8::2/tcp/1", 150); n != 100 {
			t.Errorf("of 300 streams of one IPv6 subnet %d were refused, want 100", n)
		}
		if n := refused("/ip4/127.0.0.1/tcp/1", 500); n != 0 {
			t.Errorf("%d streams over loopback were refused", n)
		}
	})
}

func TestGuardBoundsRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // in which no time passes
		g, _ := guarded(t, nil)
		defer g.close()
		st := inbound(t, 1, "/ip4/10.0.0.1/tcp/1")
		put := func() *pb.Message {
			return message(pb.Message_PUT_VALUE, "key", &recpb.Record{Key: []byte("key")})
		}
		for n := range requestBurst {
			m := put()
			if g.onRequest(t.Context(), st, m); m.Record == nil {
				t.Fatalf("request %d of the burst was refused", n)
			}
		}
		m := put()
		g.onRequest(t.Context(), st, m)
		if m.Record != nil || len(m.Key) != 0 || st.code.Load() != 0 {
			t.Error("a put beyond the rate was not emptied, or its stream was reset")
		}
		m = message(pb.Message_FIND_NODE, "key", nil)
		g.onRequest(t.Context(), st, m)
		if got := network.StreamErrorCode(st.code.Load()); got != network.StreamRateLimited || len(m.Key) != 0 {
			t.Errorf("a request beyond the rate: reset with %#x, want %#x", got, network.StreamRateLimited)
		}
		if got := g.stats.limitedRequests.Load(); got != 2 {
			t.Errorf("%d limited requests counted, want 2", got)
		}
	})
}

// Peers without the right to store may query.
func TestGuardRejectsWrites(t *testing.T) {
	t.Parallel()
	g, _ := guarded(t, nil)
	defer g.close()
	g.stores = func(p peer.ID) bool { return p == testPeer(t, 1) }
	for _, typ := range []pb.Message_MessageType{pb.Message_PUT_VALUE, pb.Message_ADD_PROVIDER, pb.Message_GET_VALUE, pb.Message_GET_PROVIDERS, pb.Message_FIND_NODE} {
		for from, want := range map[int]bool{1: true, 2: typ != pb.Message_PUT_VALUE && typ != pb.Message_ADD_PROVIDER} {
			m := message(typ, "key", &recpb.Record{Key: []byte("key")})
			g.onRequest(t.Context(), inbound(t, from, "/ip4/10.0.0.1/tcp/1"), m)
			if passed := len(m.Key) > 0 && m.Record != nil; passed != want {
				t.Errorf("%s of peer %d passed: %t", typ, from, passed)
			}
		}
	}
	if got := g.stats.refusedWrites.Load(); got != 2 {
		t.Errorf("%d refused writes counted, want 2", got)
	}
}
