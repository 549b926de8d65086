package dht

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
	recpb "github.com/libp2p/go-libp2p-record/pb"
	"google.golang.org/protobuf/proto"

	"github.com/lmosd/lmosd/internal/liveheap"
	"github.com/lmosd/lmosd/internal/streamserver"
	"github.com/lmosd/lmosd/td"
)

func marshal(t testing.TB, m *pb.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func message(typ pb.Message_MessageType, key string, rec *recpb.Record) *pb.Message {
	m := pb.NewMessage(typ, []byte(key), 0)
	m.Record = rec
	return m
}

func TestRoundTripRejectsInvalidReplies(t *testing.T) {
	t.Parallel()
	put := message(pb.Message_PUT_VALUE, "key", &recpb.Record{Key: []byte("key"), Value: []byte("value")})
	get := message(pb.Message_GET_VALUE, "key", nil)
	find := message(pb.Message_FIND_NODE, "key", nil)
	frame := func(m *pb.Message) []byte { return streamserver.AppendFrame(nil, marshal(t, m)) }
	with := func(m *pb.Message, key, value string) []byte {
		return frame(message(m.GetType(), "key", &recpb.Record{Key: []byte(key), Value: []byte(value)}))
	}
	tests := []struct {
		name  string
		req   *pb.Message
		reply []byte
	}{
		{"oversized", find, binary.AppendUvarint(nil, maxReply+1)},
		{"announces 4 GiB", find, binary.AppendUvarint(nil, 1<<32)},
		{"prefix without end", find, bytes.Repeat([]byte{0x80}, 20)},
		{"garbage", find, streamserver.AppendFrame(nil, []byte("\xff\xff\xff garbage"))},
		{"empty for a put", put, []byte{0}},
		{"empty for a get", get, []byte{0}},
		{"empty for a find", find, []byte{0}},
		{"mistyped", get, frame(message(pb.Message_FIND_NODE, "key", nil))},
		{"unknown type", get, frame(message(77, "key", nil))},
		{"mis-keyed", get, frame(message(pb.Message_GET_VALUE, "other", nil))},
		{"put without record", put, frame(message(pb.Message_PUT_VALUE, "key", nil))},
		{"put with empty record", put, frame(message(pb.Message_PUT_VALUE, "key", &recpb.Record{}))},
		{"put with another key", put, with(put, "k", "value")},
		{"put with another value", put, with(put, "key", "v")},
		{"get with another key", get, with(get, "k", "v")},
		{"get with a key-less record", get, with(get, "", "v")},
		{"get with a huge record", get, with(get, "key", strings.Repeat("v", td.MaxRecord+1))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			st := &script{r: bytes.NewReader(tt.reply)}
			resp, err := roundTrip(st, tt.req, []byte{0}, bucketSize)
			if !errors.Is(err, errMalformed) || resp != nil {
				t.Errorf("got %v and error %v, want errMalformed", resp, err)
			}
			if st.scope.held != 0 || st.scope.peak > maxReply {
				t.Errorf("%d bytes held, %d at the peak", st.scope.held, st.scope.peak)
			}
		})
	}
}

func TestRoundTripReportsMissingReply(t *testing.T) {
	t.Parallel()
	find := message(pb.Message_FIND_NODE, "key", nil)
	whole := streamserver.AppendFrame(nil, marshal(t, message(pb.Message_FIND_NODE, "", nil)))
	for n := range whole {
		_, err := roundTrip(&script{r: bytes.NewReader(whole[:n])}, find, []byte{0}, bucketSize)
		if err == nil || errors.Is(err, errMalformed) {
			t.Errorf("%d of %d bytes: got %v, want a plain failure", n, len(whole), err)
		}
	}
	if _, err := roundTrip(&script{r: bytes.NewReader(whole)}, find, []byte{0}, bucketSize); err != nil {
		t.Errorf("the whole reply: %v", err)
	}
}

func TestReplyIsTrimmed(t *testing.T) {
	t.Parallel()
	addr := testAddr(t, "/ip4/10.0.0.1/tcp/4001").Bytes()
	var peers []*pb.Message_Peer
	for i := range 300 {
		id := []byte(testPeer(t, i))
		peers = append(peers,
			&pb.Message_Peer{Id: id, Addrs: slicesRepeat(addr, 40)},
			&pb.Message_Peer{Id: id}, // twice
			&pb.Message_Peer{Id: []byte("not a peer"), Addrs: [][]byte{addr}},
			&pb.Message_Peer{})
	}
	peers[0].Addrs = [][]byte{make([]byte, maxAddrBytes+1), addr}
	req := message(pb.Message_GET_PROVIDERS, "key", nil)
	reply := message(pb.Message_GET_PROVIDERS, "key", &recpb.Record{Key: []byte("key")})
	reply.CloserPeers, reply.ProviderPeers = peers, peers
	resp, err := decodeReply(req, marshal(t, reply), bucketSize)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(resp.CloserPeers); n != 2*bucketSize {
		t.Errorf("%d closer peers, want %d", n, 2*bucketSize)
	}
	if n := len(resp.ProviderPeers); n != maxProviders {
		t.Errorf("%d providers, want %d", n, maxProviders)
	}
	if resp.Record != nil {
		t.Error("a reply with providers has a record")
	}
	if n := len(resp.CloserPeers[0].Addrs); n != 1 {
		t.Errorf("%d addresses of the first, want the one that is not too long", n)
	}
	if n := len(resp.CloserPeers[1].Addrs); n != maxPeerAddrs {
		t.Errorf("%d addresses, want %d", n, maxPeerAddrs)
	}
}

func slicesRepeat(b []byte, n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = b
	}
	return out
}

func TestReplyKeepsFieldsOfItsType(t *testing.T) {
	t.Parallel()
	peers := []*pb.Message_Peer{{Id: []byte(testPeer(t, 1))}}
	rec := &recpb.Record{Key: []byte("key"), Value: []byte("value")}
	for typ, want := range map[pb.Message_MessageType][3]bool{ // record, closer, providers
		pb.Message_PUT_VALUE:     {true, false, false},
		pb.Message_GET_VALUE:     {true, true, false},
		pb.Message_GET_PROVIDERS: {false, true, true},
		pb.Message_FIND_NODE:     {false, true, false},
		pb.Message_PING:          {false, false, false},
	} {
		m := message(typ, "key", rec)
		m.CloserPeers, m.ProviderPeers = peers, peers
		resp, err := decodeReply(m, marshal(t, m), bucketSize)
		if err != nil {
			t.Errorf("%s: %v", typ, err)
			continue
		}
		got := [3]bool{resp.Record != nil, len(resp.CloserPeers) > 0, len(resp.ProviderPeers) > 0}
		if got != want {
			t.Errorf("%s: record, closer and providers are kept: %v, want %v", typ, got, want)
		}
	}
}

// TestRepliesBoundTheHeap feeds many announcements of large replies; the heap stays where it is.
func TestRepliesBoundTheHeap(t *testing.T) {
	find := message(pb.Message_FIND_NODE, "key", nil)
	before := liveheap.Bytes()
	for range 2000 {
		for _, n := range []uint64{1 << 32, 4 << 20, maxReply + 1} {
			_, err := roundTrip(&script{r: bytes.NewReader(binary.AppendUvarint(nil, n))}, find, []byte{0}, bucketSize)
			if !errors.Is(err, errMalformed) {
				t.Fatalf("%d bytes announced: got %v", n, err)
			}
		}
	}
	if grown := liveheap.Bytes() - before; grown > 8<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

// wrongSender is a message sender that returns a fixed reply if decodeReply accepts it.
type wrongSender struct{ reply []byte }

func (s wrongSender) SendRequest(_ context.Context, _ peerID, m *pb.Message) (*pb.Message, error) {
	return roundTrip(&script{r: bytes.NewReader(s.reply)}, m, []byte{0}, bucketSize)
}

func (s wrongSender) SendMessage(context.Context, peerID, *pb.Message) error { return nil }

// FuzzReply decodes arbitrary bytes as a reply to every kind of request, and passes accepted replies to the library.
func FuzzReply(f *testing.F) {
	echo := message(pb.Message_PUT_VALUE, "key", &recpb.Record{Key: []byte("key"), Value: []byte("value")})
	closer := message(pb.Message_FIND_NODE, "", nil)
	closer.CloserPeers = []*pb.Message_Peer{{Id: []byte(testPeer(f, 1)), Addrs: [][]byte{{4, 10, 0, 0, 1, 6, 0, 80}}}, {}}
	found := message(pb.Message_GET_VALUE, "key", &recpb.Record{Key: []byte("key"), Value: []byte("value")})
	for _, m := range []*pb.Message{echo, closer, found, {}} {
		f.Add(streamserver.AppendFrame(nil, marshal(f, m)))
	}
	f.Add(binary.AppendUvarint(nil, 1<<32))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, reply []byte) {
		pm, err := pb.NewProtocolMessenger(wrongSender{reply})
		if err != nil {
			t.Fatal(err)
		}
		ctx, p := t.Context(), testPeer(t, 2)
		if err := pm.PutValue(ctx, p, echo.Record); err == nil && !bytes.Contains(reply, []byte("value")) {
			t.Error("a put is acknowledged without the value")
		}
		if rec, closer, err := pm.GetValue(ctx, p, "key"); err == nil {
			if rec != nil && (string(rec.GetKey()) != "key" || len(rec.GetValue()) > td.MaxRecord) || len(closer) > 2*bucketSize {
				t.Error("a record or peers were let through that must not")
			}
		}
		if closer, err := pm.GetClosestPeers(ctx, p, "key"); err == nil {
			for _, ai := range closer {
				if !isEd25519(ai.ID) || len(ai.Addrs) > maxPeerAddrs {
					t.Errorf("peer %q was accepted", ai.ID)
				}
			}
		}
		if provs, _, err := pm.GetProviders(ctx, p, []byte("key")); err == nil && len(provs) > maxProviders {
			t.Errorf("%d providers were accepted", len(provs))
		}
		_ = pm.Ping(ctx, p)
	})
}
