package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"strings"
	"sync"
	"testing"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/stream/frame"
	"github.com/lmosd/lmosd/td"
)

// raw returns the bytes of a frame.
func raw(k frame.Kind, id uint64, body string) []byte {
	if k == frame.Chunk {
		return frame.AppendChunk(nil, id, []byte(body))
	}
	b, err := frame.Append(nil, k, id, func(b []byte) ([]byte, error) { return append(b, body...), nil })
	if err != nil {
		panic(err)
	}
	return b
}

// rawRequest returns the bytes of a request frame.
func rawRequest(id uint64, m *interact.Message, f frame.Extra) []byte {
	b, err := frame.Append(nil, frame.Request, id, func(b []byte) ([]byte, error) { return frame.AppendRequest(b, m, f, 0) })
	if err != nil {
		panic(err)
	}
	return b
}

// TestBadCallers: whatever a peer sends costs its own stream, and nothing else.
func TestBadCallers(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		w := newWaiting()
		p := newPair(t, transport, interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if m.Name == "wait" {
				return w.Do(ctx, m)
			}
			return answering(ctx, m)
		}), Options{}, Options{})
		wait, echo := ask("wait", ""), ask("echo", "x")
		violation := network.StreamProtocolViolation
		for name, c := range map[string]struct {
			sent []byte
			code network.StreamErrorCode
		}{
			"garbage":                            {[]byte(strings.Repeat("GET / HTTP/1.1\r\n", 10)), violation},
			"zeros":                              {make([]byte, 100), violation},
			"a frame of 4 GiB":                   {[]byte{0xff, 0xff, 0xff, 0xff, 0x0f, 1, 1}, violation},
			"a frame of 100 MB":                  {[]byte{0x80, 0xc2, 0xd7, 0x2f, 1, 1}, violation},
			"a control frame of 65 kB":           {raw(frame.Chunk, 1, strings.Repeat("x", frame.MaxControl+1)), violation},
			"a length not shortest":              {[]byte{0x82, 0x00, 7, 1}, violation},
			"a number not shortest":              {[]byte{3, 7, 0x81, 0x00}, violation},
			"a number without end":               {append([]byte{20, 7}, bytes.Repeat([]byte{0xff}, 19)...), violation},
			"an unknown kind":                    {raw(9, 1, "x"), violation},
			"no request first":                   {raw(frame.Cancel, 1, ""), violation},
			"a map that is none":                 {raw(frame.Request, 1, "nonsense"), violation},
			"a reply":                            {append(rawRequest(1, wait, frame.Extra{}), raw(frame.Reply, 1, "x")...), violation},
			"a number twice":                     {append(rawRequest(1, wait, frame.Extra{}), rawRequest(1, wait, frame.Extra{})...), violation},
			"number 0 on a shared session":       {append(rawRequest(1, wait, frame.Extra{}), rawRequest(0, wait, frame.Extra{})...), violation},
			"a second request on an own session": {append(rawRequest(0, wait, frame.Extra{}), rawRequest(1, wait, frame.Extra{})...), violation},
			"a chunk on a shared session":        {append(rawRequest(1, wait, frame.Extra{}), raw(frame.Chunk, 1, "x")...), violation},
			"data in chunks on a shared session": {rawRequest(1, echo, frame.Extra{Size: 100}), violation},
			"a stream on a shared session":       {rawRequest(1, echo, frame.Extra{Stream: true}), violation},
			"more data than was announced":       {append(rawRequest(0, echo, frame.Extra{Size: 2}), raw(frame.Chunk, 0, "xxx")...), violation},
			"an empty chunk of data":             {append(rawRequest(0, echo, frame.Extra{Size: 2}), raw(frame.Chunk, 0, "")...), violation},
			"an end in the middle of the data":   {append(rawRequest(0, echo, frame.Extra{Size: 2}), raw(frame.End, 0, "")...), violation},
			"a chunk after the end": {append(append(rawRequest(0, wait, frame.Extra{Stream: true}), raw(frame.End, 0, "")...),
				raw(frame.Chunk, 0, "x")...), violation},
			"a cancel with a body":      {append(rawRequest(1, wait, frame.Extra{}), raw(frame.Cancel, 1, "x")...), violation},
			"credit that was not used":  {append(rawRequest(1, wait, frame.Extra{}), raw(frame.Credit, 1, "\x01")...), violation},
			"credit that is no number":  {append(rawRequest(1, wait, frame.Extra{}), raw(frame.Credit, 1, "\xff")...), violation},
			"chunks without credit":     {append(rawRequest(0, wait, frame.Extra{Stream: true}), flood(4<<20)...), violation},
			"half a frame, then gone":   {raw(frame.Request, 1, "xxxxxxxx")[:5], violation},
			"a request, then half more": {append(rawRequest(1, wait, frame.Extra{}), 50, 1, 2), violation},
		} {
			s, err := p.callerHost.NewStream(t.Context(), p.serverHost.ID(), Protocol("test"))
			if err != nil {
				t.Fatal(name, err)
			}
			_, _ = s.Write(c.sent) // it may be reset before the end
			if strings.Contains(name, "half") {
				_ = s.CloseWrite()
			}
			var reset *network.StreamError
			if _, err := io.Copy(io.Discard, s); !errors.As(err, &reset) || reset.ErrorCode != c.code || !reset.Remote {
				t.Errorf("%s: the stream ended with %v, want code %#x", name, err, c.code)
			}
			_ = s.Reset()
		}
		for len(w.began) > 0 {
			<-w.began
			<-w.ended // the end of the session reached the work
		}
		if _, err := interact.Call(t.Context(), p.thing, echo); err != nil {
			t.Errorf("an honest call after all that: %v", err)
		}
		until(t, "the streams are gone", func() bool { return p.server.Stats().Streams == 1 && p.server.Stats().ServingNow == 0 })
	})
}

// flood returns chunks of n bytes in all.
func flood(n int) (b []byte) {
	for range n / frame.MaxChunk {
		b = append(b, raw(frame.Chunk, 0, strings.Repeat("x", frame.MaxChunk))...)
	}
	return b
}

// TestHarmlessFrames: what comes too late, or for a call that is over, is passed over.
func TestHarmlessFrames(t *testing.T) {
	t.Parallel()
	p := newPair(t, "tcp", answering, Options{}, Options{})
	s, err := p.callerHost.NewStream(t.Context(), p.serverHost.ID(), Protocol("test"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Reset() }()
	var sent []byte
	for i := range uint64(3) {
		sent = append(sent, rawRequest(i+1, ask("echo", "x"), frame.Extra{})...)
		sent = append(sent, raw(frame.Cancel, 99, "")...)
		sent = append(sent, raw(frame.Credit, 77, "\x01")...)
	}
	if _, err := s.Write(sent); err != nil {
		t.Fatal(err)
	}
	last := raw(frame.Last, 1, "")
	if _, err := io.ReadFull(s, make([]byte, 3*len(last))); err != nil {
		t.Errorf("the answers: %v", err)
	}
}

// TestBadHosts: a host that answers with nonsense gives an error, at once.
func TestBadHosts(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		m := ask("a", "x")
		reply := func(f frame.Extra) string {
			b, err := frame.AppendReply(nil, done(m, "x"), m, f)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		for name, c := range map[string]struct {
			sent []byte
			want interact.Code
		}{
			"garbage":                   {[]byte(strings.Repeat("HTTP/1.1 400 Bad Request\r\n", 10)), interact.Internal},
			"a request":                 {raw(frame.Request, 1, "x"), interact.Internal},
			"a frame of 4 GiB":          {[]byte{0xff, 0xff, 0xff, 0xff, 0x0f}, interact.Internal},
			"a map that is none":        {raw(frame.Last, 1, "x"), interact.Internal},
			"an error that is none":     {raw(frame.Error, 1, "x"), interact.Internal},
			"a chunk without a reply":   {raw(frame.Chunk, 1, "x"), interact.Internal},
			"data after the last":       {raw(frame.Last, 1, reply(frame.Extra{Size: 10})), interact.Internal},
			"a huge answer":             {raw(frame.Reply, 1, reply(frame.Extra{Size: 1 << 40})), interact.TooLarge},
			"more data than announced":  {append(raw(frame.Reply, 1, reply(frame.Extra{Size: 1})), raw(frame.Chunk, 1, "xx")...), interact.Internal},
			"half an answer, then gone": {raw(frame.Last, 1, reply(frame.Extra{}))[:5], interact.Unreachable},
			"an answer after the last":  {append(raw(frame.End, 1, ""), raw(frame.End, 1, "")...), 0},
		} {
			server := newHost(t, transport)
			server.SetStreamHandler(Protocol("test"), func(s network.Stream) {
				_, _ = s.Read(make([]byte, 1000))
				_, _ = s.Write(c.sent)
				_ = s.CloseWrite()
				_, _ = io.Copy(io.Discard, s)
				_ = s.Reset()
			})
			caller := newBinding(t, newHost(t, transport), Options{})
			var err error
			for _, e := range caller.at([]td.Host{at(t, server)}).Do(t.Context(), m) {
				err = e
			}
			if e := interact.AsError(err); err == nil && c.want != 0 || err != nil && e.Code != c.want {
				t.Errorf("%s: got %v, want %v", name, err, c.want)
			}
		}
	})
}

// limitedHost returns a host whose peers may use little memory.
func limitedHost(t *testing.T, transport string) libp2p.Option {
	t.Helper()
	limits := rcmgr.PartialLimitConfig{ProtocolPeerDefault: rcmgr.ResourceLimits{Memory: 1 << 20}}
	rm, err := rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(limits.Build(rcmgr.DefaultLimits.Scale(256<<20, 1024))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rm.Close() })
	return libp2p.ResourceManager(rm)
}

func TestMemoryIsReserved(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		for name, c := range map[string]struct {
			caller, server bool // is short of memory
			local          interact.Thing
			data           string
		}{
			"of the host, for a request":   {false, true, answering, strings.Repeat("x", 4<<20)},
			"of the caller, for an answer": {true, false, big(4 << 20), ""},
		} {
			host := func(short bool) []libp2p.Option {
				if short {
					return []libp2p.Option{limitedHost(t, transport)}
				}
				return nil
			}
			server, client := newHost(t, transport, host(c.server)...), newHost(t, transport, host(c.caller)...)
			newBinding(t, server, Options{}).Serve(c.local)
			thing := newBinding(t, client, Options{}).at([]td.Host{at(t, server)})
			if _, err := interact.Call(t.Context(), thing, ask("a", c.data)); code(err) != interact.Overloaded {
				t.Errorf("%s: got %v, want Overloaded", name, err)
			}
			if _, err := interact.Call(t.Context(), thing, ask("a", "x")); c.server && err != nil {
				t.Errorf("%s: a small call: %v", name, err)
			}
		}
	})
}

func big(n int) interact.Thing {
	return interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		return done(m, strings.Repeat("x", n)), nil
	})
}

// A script is a stream that brings fixed bytes and keeps what is written.
type script struct {
	network.Stream
	io.Reader
	conn  scriptConn
	scope *tally
	mu    sync.Mutex
	wrote bytes.Buffer
	code  network.StreamErrorCode // of the reset
	ended string
}

type scriptConn struct {
	network.Conn
	id peer.ID
}

func (c scriptConn) RemotePeer() peer.ID                  { return c.id }
func (c scriptConn) Stat() network.ConnStats              { return network.ConnStats{} }
func (c scriptConn) RemoteMultiaddr() multiaddr.Multiaddr { return nil }

// A tally is a scope that counts memory.
type tally struct {
	network.NullScope
	refusal        error // of the service
	mu             sync.Mutex
	reserved, peak int
}

func (s *tally) SetService(string) error { return s.refusal }

func (s *tally) ReserveMemory(n int, _ uint8) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved += n
	s.peak = max(s.peak, s.reserved)
	return nil
}

func (s *tally) ReleaseMemory(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved -= n
}

func (s *script) Read(p []byte) (int, error) { return s.Reader.Read(p) }
func (s *script) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrote.Write(p)
}
func (s *script) Conn() network.Conn         { return s.conn }
func (s *script) Scope() network.StreamScope { return s.scope }
func (s *script) Close() error               { s.ended = "closed"; return nil }
func (s *script) CloseWrite() error          { return nil }
func (s *script) ResetWithError(c network.StreamErrorCode) error {
	s.code, s.ended = c, "reset"
	return nil
}

// scriptID is the id of an Ed25519 key.
var scriptID = must(peer.Decode("12D3KooWGMYMmN1RGUYjWaSV6P3XtnBjwnosnJGNMnttfVCRnd6g"))

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestAServiceWithoutRoom(t *testing.T) {
	t.Parallel()
	b := New(nil, Options{})
	s := &script{conn: scriptConn{id: scriptID}, scope: &tally{refusal: errors.New("too many streams")}}
	if b.accept(s); s.code != network.StreamResourceLimitExceeded {
		t.Errorf("the stream was reset with %#x, want %#x", s.code, network.StreamResourceLimitExceeded)
	}
}

// FuzzCaller gives a host whatever a caller may send.
func FuzzCaller(f *testing.F) {
	f.Add(rawRequest(1, ask("echo", "x"), frame.Extra{}))
	f.Add(append(rawRequest(1, ask("echo", "x"), frame.Extra{}), raw(frame.Cancel, 1, "")...))
	f.Add(append(rawRequest(0, ask("echo", ""), frame.Extra{Size: 3}), raw(frame.Chunk, 0, "xxx")...))
	f.Add(append(rawRequest(0, ask("echo", ""), frame.Extra{Stream: true}), raw(frame.End, 0, "")...))
	f.Add(append(rawRequest(1, ask("echo", strings.Repeat("x", 20_000)), frame.Extra{}), raw(frame.Credit, 1, "\x05")...))
	f.Fuzz(func(t *testing.T, sent []byte) {
		b := New(nil, Options{MaxMessage: 1 << 20})
		b.local = interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if m.Chunks != nil {
				for range m.Chunks {
				}
			}
			return answering(ctx, m)
		})
		s := &script{Reader: bytes.NewReader(sent), conn: scriptConn{id: scriptID}, scope: &tally{}}
		b.accept(s)
		b.retire()
		if n := b.serving.sum(); n != 0 || len(b.sessions) != 0 || len(b.inbounds) != 0 {
			t.Errorf("%d calls, %d sessions, %d peers are left", n, len(b.sessions), len(b.inbounds))
		}
		if limit := 20*len(sent) + 3*frame.MaxChunk; s.scope.peak > limit {
			t.Errorf("%d bytes reserved for %d bytes of input", s.scope.peak, len(sent))
		}
	})
}

// FuzzHost gives a caller whatever a host may send.
func FuzzHost(f *testing.F) {
	m := ask("a", "x")
	for _, follow := range []frame.Extra{{}, {Size: 3}} {
		b, err := frame.AppendReply(nil, done(m, "x"), m, follow)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw(frame.Last, 1, string(b)))
		f.Add(append(raw(frame.Reply, 1, string(b)), append(raw(frame.Chunk, 1, "xxx"), raw(frame.End, 1, "")...)...))
	}
	f.Add(raw(frame.Error, 1, string(frame.AppendError(nil, interact.Errorf(interact.NotFound, "h", "t")))))
	f.Fuzz(func(t *testing.T, sent []byte) {
		b := New(nil, Options{})
		r := &remote{b: b, id: scriptID, sessions: map[*session]struct{}{}, closed: true}
		slots := make(chan struct{}, 1)
		s := &script{Reader: bytes.NewReader(sent), conn: scriptConn{id: scriptID}, scope: &tally{}}
		l, err := b.newSession(s, "", r, false)
		if err != nil {
			t.Fatal(err)
		}
		c := &call{request: request{m: m}, slots: slots}
		c.ready = make(chan struct{}, 1)
		slots <- struct{}{}
		if err := r.add(l, c); err != nil {
			t.Fatal(err)
		}
		b.work.Go(func() { l.serve(l.answer) })
		if err := c.start(t.Context()); err == nil {
			_ = c.replies(t.Context(), func(*interact.Message, error) bool { return true })
		}
		c.finish()
		b.work.Wait()
		if len(b.sessions) != 0 || len(slots) != 0 {
			t.Errorf("%d sessions, %d calls are left", len(b.sessions), len(slots))
		}
	})
}
