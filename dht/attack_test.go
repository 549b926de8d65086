package dht

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
	recpb "github.com/libp2p/go-libp2p-record/pb"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"google.golang.org/protobuf/proto"

	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/liveheap"
	"github.com/lmosd/lmosd/internal/streamserver"
	"github.com/lmosd/lmosd/td"
)

// evil is a host that speaks the DHT protocol of the tests in its own way.
func evil(t *testing.T, i int, handler network.StreamHandler) host.Host {
	t.Helper()
	h := loopback(t, i)
	kad, _ := Protocols("test")
	h.SetStreamHandler(kad, handler)
	return h
}

// replies returns a handler that answers each request with the result of reply.
func replies(reply func(*pb.Message) []byte) network.StreamHandler {
	return func(s network.Stream) {
		defer func() { _ = s.Reset() }()
		for {
			frame, release, err := streamserver.ReadFrame(s, s.Scope(), maxRequest)
			if err != nil {
				return
			}
			var m pb.Message
			err = proto.Unmarshal(frame, &m)
			release()
			if err != nil {
				return
			}
			if _, err := s.Write(reply(&m)); err != nil {
				return
			}
		}
	}
}

// honestUntil answers FIND_NODE, so that a peer gets into the routing table, and everything else with reply.
func honestUntil(t *testing.T, reply func(*pb.Message) []byte) network.StreamHandler {
	return replies(func(m *pb.Message) []byte {
		if m.GetType() == pb.Message_FIND_NODE {
			return streamserver.AppendFrame(nil, marshal(t, message(pb.Message_FIND_NODE, "", nil)))
		}
		return reply(m)
	})
}

// TestEvilServers publishes to, and gets from, servers with all kinds of invalid replies; nothing crashes, each is
// counted, and the peer leaves the routing table.
func TestEvilServers(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*pb.Message) []byte{
		"put without a record": func(m *pb.Message) []byte {
			return streamserver.AppendFrame(nil, marshal(t, message(m.GetType(), string(m.GetKey()), nil)))
		},
		"empty":   func(*pb.Message) []byte { return []byte{0} },
		"garbage": func(*pb.Message) []byte { return streamserver.AppendFrame(nil, bytes.Repeat([]byte{0xfe}, 300)) },
		"4 GiB":   func(*pb.Message) []byte { return binary.AppendUvarint(nil, 1<<32) },
		"another type": func(*pb.Message) []byte {
			return streamserver.AppendFrame(nil, marshal(t, message(pb.Message_PING, "", nil)))
		},
		"another key": func(m *pb.Message) []byte {
			return streamserver.AppendFrame(nil, marshal(t, message(m.GetType(), "k", nil)))
		},
		"endless prefix": func(*pb.Message) []byte { return bytes.Repeat([]byte{0x80}, 1<<16) },
		"another value": func(m *pb.Message) []byte {
			rec := &recpb.Record{Key: m.GetKey(), Value: []byte("another")}
			return streamserver.AppendFrame(nil, marshal(t, message(m.GetType(), string(m.GetKey()), rec)))
		},
	}
	for name, reply := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, 0, loopback(t, 0), nil)
			h := evil(t, 1, honestUntil(t, reply))
			if err := h.Connect(t.Context(), n.info()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := n.Wait(ctx, 1); err != nil {
				t.Fatalf("the peer was not taken: %v", err)
			}
			s := n.thing(t, "Weather", 1, "x")
			if r, err := n.Publish(ctx, s); !errors.Is(err, ErrNoReplicas) || r.Replicas != 0 {
				t.Errorf("Publish: got %+v, %v; want no replicas", r, err)
			}
			for n.Size() != 0 {
				if backoff.Sleep(ctx, waitPause) != nil {
					t.Fatal("the peer is still in the routing table")
				}
			}
			if c := n.Stats().Calls["PUT_VALUE"]; c.Malformed == 0 || c.Sent < c.Malformed {
				t.Errorf("counted %+v, want malformed replies", c)
			}
			if tag := n.host.ConnManager().GetTagInfo(h.ID()); tag != nil && tag.Tags[faultTag] >= 0 {
				t.Errorf("its score is %d", tag.Tags[faultTag])
			}
		})
	}
}

// TestRefusedPutHasNoReply sends an outdated record to an unmodified server.
func TestRefusedPutHasNoReply(t *testing.T) {
	t.Parallel()
	n := start(t, 0, loopback(t, 0), nil)
	h := evil(t, 1, honestUntil(t, func(*pb.Message) []byte { return nil }))
	kad, _ := Protocols("test")
	h.SetStreamHandler(kad, func(s network.Stream) {
		frame, _, err := streamserver.ReadFrame(s, s.Scope(), maxRequest)
		var m pb.Message
		if err != nil || proto.Unmarshal(frame, &m) != nil || m.GetType() != pb.Message_FIND_NODE {
			_ = s.Reset()
			return
		}
		_, _ = s.Write(streamserver.AppendFrame(nil, marshal(t, message(pb.Message_FIND_NODE, "", nil))))
		_ = s.Close()
	})
	if err := h.Connect(t.Context(), n.info()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := n.Wait(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Publish(ctx, n.thing(t, "Weather", 1, "x")); !errors.Is(err, ErrNoReplicas) {
		t.Errorf("got %v, want no replicas", err)
	}
	if c := n.Stats().Calls["PUT_VALUE"]; c.Malformed != 0 || c.Failed == 0 {
		t.Errorf("counted %+v, want plain failures", c)
	}
}

// TestServerUnderAttack repeatedly announces many keys, sends garbage, half a frame and nothing. The node continues to serve, and
// neither its heap nor its goroutines grow.
func TestServerUnderAttack(t *testing.T) {
	nodes := loopbackMesh(t, 3)
	target := nodes[0]
	attacker := loopback(t, 9)
	if err := attacker.Connect(t.Context(), target.info()); err != nil {
		t.Fatal(err)
	}
	put := message(pb.Message_PUT_VALUE, "/lmos-td/x", &recpb.Record{Key: []byte("/lmos-td/x"), Value: make([]byte, 9<<10)})
	loud := [][]byte{
		binary.AppendUvarint(nil, 1<<32),
		binary.AppendUvarint(nil, 4<<20),
		binary.AppendUvarint(nil, maxInbound+1),
		bytes.Repeat([]byte{0x80}, 100),
		streamserver.AppendFrame(nil, bytes.Repeat([]byte{0xff}, 10<<10)),
		streamserver.AppendFrame(nil, marshal(t, put)),
		streamserver.AppendFrame(nil, nil),
	}
	goroutines, before := runtime.NumGoroutine(), liveheap.Bytes()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 50 {
				for _, p := range loud {
					attack(t, attacker, target, p, true)
				}
			}
		})
	}
	wg.Wait()
	for range 20 { // half frames and silent streams stay open, and use up the slots of the attacker
		attack(t, attacker, target, []byte{0xff, 0xff, 0x03, 1, 2, 3}, false)
	}
	late, soon := context.WithTimeout(t.Context(), 10*time.Second)
	defer soon()
	for target.Stats().RefusedStreams == 0 && backoff.Sleep(late, 10*time.Millisecond) == nil { // the last streams may be handled later
	}
	if grown := liveheap.Bytes() - before; grown > 8<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	if s := target.Stats(); s.RefusedFrames < 300 || s.RefusedStreams == 0 || s.Refused < 500 || s.Panics != 0 {
		t.Errorf("stats %+v", s)
	}
	nodes[1].offer(t, nodes[1].thing(t, "Still", 1, "urn:still"))
	eventuallyFinds(t, nodes[2], td.Query{Capability: []string{"still"}})
	_ = attacker.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	for runtime.NumGoroutine() > goroutines+20 {
		if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			t.Fatalf("%d goroutines before, %d after", goroutines, runtime.NumGoroutine())
		}
	}
}

// attack sends p on a stream of each protocol, and waits for the far end to have enough, or leaves the stream open.
func attack(t *testing.T, from host.Host, to *node, p []byte, wait bool) {
	kad, records := Protocols("test")
	for _, id := range []protocolID{kad, records} {
		s, err := from.NewStream(t.Context(), to.host.ID(), id)
		if err != nil {
			continue // refused: that is as good
		}
		_, _ = s.Write(p)
		if wait {
			_, _ = io.Copy(io.Discard, s)
			_ = s.Reset()
		}
	}
}
