package relay

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/testhost"
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

// A relay that is silent twice is disconnected and not used for a while; an answer between the two counts.
func TestSilentRelay(t *testing.T) {
	t.Parallel()
	self, other := testhost.Listen(t, didtest.NewKey(), "/ip4/127.0.0.1/tcp/0"), testhost.Listen(t, didtest.NewKey(), "/ip4/127.0.0.1/tcp/0")
	r, err := New(Options{Host: self, Rank: func(did.DID) int { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := self.Connect(t.Context(), peer.AddrInfo{ID: other.ID(), Addrs: other.Addrs()}); err != nil {
		t.Fatal(err)
	}
	r.places = []*Place{{id: other.ID(), Relay: nodeOf(other.ID()), Addr: ma.StringCast("/ip4/192.0.2.7/tcp/1/p2p-circuit")}}
	for _, err := range []error{errSilent, nil, errSilent} {
		r.received(pinged{other.ID(), time.Millisecond, err})
		if len(r.Addrs()) != 1 || self.Network().Connectedness(other.ID()) != network.Connected {
			t.Fatal("the relay was given up early")
		}
	}
	r.received(pinged{other.ID(), 0, errSilent})
	places, failures := r.State()
	if len(places) != 0 || len(failures) != 1 || failures[0].Relay != nodeOf(other.ID()) || r.may(other.ID(), time.Now()) {
		t.Errorf("the places are %+v, the failures %+v", places, failures)
	}
	if self.Network().Connectedness(other.ID()) == network.Connected {
		t.Error("the connection to the silent relay is open")
	}
}

var errSilent = errors.New("silent")
