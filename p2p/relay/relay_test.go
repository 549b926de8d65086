package relay

import (
	"bytes"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func hop(t testing.TB, m *pb.HopMessage) []byte {
	t.Helper()
	var raw bytes.Buffer
	if err := util.NewDelimitedWriter(&raw).WriteMsg(m); err != nil {
		t.Fatal(err)
	}
	return raw.Bytes()
}

// A message that is read comes back with bytes that have the same meaning, and what follows it stays.
func FuzzHop(f *testing.F) {
	to := peer.AddrInfo{ID: peer.ID(didtest.Key(1).Peer())}
	f.Add(hop(f, &pb.HopMessage{Type: pb.HopMessage_RESERVE.Enum()}))
	f.Add(append(hop(f, &pb.HopMessage{Type: pb.HopMessage_CONNECT.Enum(), Peer: util.PeerInfoToPeerV2(to)}), "and more"...))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, text []byte) {
		in := bytes.NewReader(text)
		m, raw, err := readHop(in)
		if err != nil {
			return
		}
		again, same, err := readHop(bytes.NewReader(raw))
		if err != nil || !bytes.Equal(raw, same) || again.GetType() != m.GetType() || !bytes.Equal(again.GetPeer().GetId(), m.GetPeer().GetId()) {
			t.Fatalf("%v is read as %v, %v", m, again, err)
		}
	})
}
