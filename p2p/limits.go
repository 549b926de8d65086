package p2p

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/protocol/autonatv2"
	circuit "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/holepunch"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/libp2p/go-libp2p/x/rate"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/interact/stream"
	"github.com/lmosd/lmosd/p2p/relay"
	"github.com/lmosd/lmosd/pubsub/reconcile"
	"github.com/lmosd/lmosd/pubsub/suspicion"
	"github.com/lmosd/lmosd/trust/exchange"
)

// Limits of the host's resources. The zero value of a field is its default.
type Limits struct {
	// PeersLow and PeersHigh limit connections: above PeersHigh, idle ones are closed until PeersLow remain. Defaults: 96 and 128.
	// Lower values save memory (about 110 kB each); below the size of the routing table lookups become slow.
	PeersLow, PeersHigh int
	// Streams limits the open interactions of one peer. Default: 200.
	Streams int
	// Memory limits the memory that the resource manager grants to protocols, in bytes. Default: 256 MiB.
	Memory int64
	// PerAddress limits the connections of one IPv4 address or IPv6 /56, and PerAddressRate the new ones per second. Defaults: 64
	// and 5. Loopback is exempt.
	PerAddress     int
	PerAddressRate float64
}

// WithDefaults returns l with defaults for zero fields.
func (l Limits) WithDefaults() Limits {
	l.PeersLow = cmp.Or(l.PeersLow, 96)
	l.PeersHigh = cmp.Or(l.PeersHigh, 128)
	l.Streams = cmp.Or(l.Streams, 200)
	l.Memory = cmp.Or(l.Memory, 256<<20)
	l.PerAddress = cmp.Or(l.PerAddress, 64)
	l.PerAddressRate = cmp.Or(l.PerAddressRate, 5)
	return l
}

// resourceManager sets all limits explicitly: the defaults of libp2p scale with the memory of the machine, and stop a busy node at
// 80 inbound connections and a peer at 76 streams.
func resourceManager(l Limits, name string) (network.ResourceManager, error) {
	limits, none := rcmgr.DefaultLimits, rcmgr.BaseLimitIncrease{}
	bundled(&limits)
	kad, records := dht.Protocols(name)
	for _, p := range []struct {
		proto               protocol.ID
		all, peer           int // inbound streams; twice as many outbound
		memory, memoryOfOne int64
	}{
		{kad, 512, 8, 32 << 20, 1 << 20},
		{records, 512, 16, 64 << 20, 8 << 20},
		{reconcile.Protocol(name), 64, 2, 32 << 20, 4 << 20},
		{suspicion.Protocol(name), 256, 4, 2 << 20, 64 << 10},
		{exchange.Protocol(name), 256, 8, 64 << 20, 16 << 20},
		{stream.Protocol(name), 8192, l.Streams, l.Memory, 64 << 20},
	} {
		limits.AddProtocolLimit(p.proto, base(p.all, p.memory), none)
		limits.AddProtocolPeerLimit(p.proto, base(p.peer, p.memoryOfOne), none)
	}
	limits.AddServiceLimit(stream.Service, base(8192, l.Memory), none)
	limits.AddServicePeerLimit(stream.Service, base(l.Streams, 64<<20), none)
	system := rcmgr.ResourceLimits{
		Conns: rcmgr.LimitVal(2 * l.PeersHigh), ConnsInbound: rcmgr.LimitVal(l.PeersHigh + l.PeersHigh/2),
		Streams: 16384, StreamsInbound: 8192, StreamsOutbound: 8192,
	}
	one := rcmgr.ResourceLimits{Streams: rcmgr.LimitVal(4 * l.Streams), StreamsInbound: rcmgr.LimitVal(2 * l.Streams),
		StreamsOutbound: rcmgr.LimitVal(3 * l.Streams), Memory: 96 << 20}
	concrete := rcmgr.PartialLimitConfig{System: system, PeerDefault: one}.Build(limits.Scale(l.Memory, files()))
	rm, err := rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(concrete), perAddress(l)...)
	return circuits{rm}, err
}

// circuits exempts relayed connections from the limits per address: they have the address of the relay, and all peers behind it would share what
// one peer may have. The streams of a relay, one for each circuit, limit them.
type circuits struct{ network.ResourceManager }

var exempt = ma.StringCast("/ip4/127.0.0.1/tcp/1")

// OpenConnection implements [network.ResourceManager].
func (c circuits) OpenConnection(dir network.Direction, usefd bool, a ma.Multiaddr) (network.ConnManagementScope, error) {
	if a != nil && relay.IsCircuit(a) {
		a, usefd = exempt, false
	}
	return c.ResourceManager.OpenConnection(dir, usefd, a)
}

// bundled sets the limits of the services of libp2p: small messages, few concurrent streams per peer.
func bundled(limits *rcmgr.ScalingLimitConfig) {
	none := rcmgr.BaseLimitIncrease{}
	for _, s := range []struct {
		service   string
		protocols []protocol.ID
		all, peer int
	}{
		{identify.ServiceName, []protocol.ID{identify.ID, identify.IDPush}, 128, 16},
		{ping.ServiceName, []protocol.ID{ping.ID}, 128, 4},
		{holepunch.ServiceName, []protocol.ID{holepunch.Protocol}, 64, 2},
		{autonatv2.ServiceName, []protocol.ID{autonatv2.DialProtocol, autonatv2.DialBackProtocol}, 64, 2},
		{"libp2p.relay/v2", []protocol.ID{circuit.ProtoIDv2Hop, circuit.ProtoIDv2Stop}, 256, 64},
	} {
		limits.AddServiceLimit(s.service, base(s.all, 8<<20), none)
		limits.AddServicePeerLimit(s.service, base(s.peer, 1<<20), none)
		for _, p := range s.protocols {
			limits.AddProtocolLimit(p, base(s.all, 8<<20), none)
			limits.AddProtocolPeerLimit(p, base(s.peer, 1<<20), none)
		}
	}
}

func base(inbound int, memory int64) rcmgr.BaseLimit {
	return rcmgr.BaseLimit{StreamsInbound: inbound, StreamsOutbound: 2 * inbound, Streams: 3 * inbound, Memory: memory}
}

// perAddress limits the connections of an address and their rate. It replaces the defaults of libp2p, so loopback is exempted
// again, and private ranges, whose hosts belong to the operator, have no rate limit.
func perAddress(l Limits) []rcmgr.Option {
	loop4, loop6 := netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")
	pace := rate.Limit{RPS: l.PerAddressRate, Burst: l.PerAddress}
	return []rcmgr.Option{
		rcmgr.WithLimitPerSubnet(
			[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 32, ConnCount: l.PerAddress}},
			[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 56, ConnCount: l.PerAddress}}),
		rcmgr.WithNetworkPrefixLimit(
			[]rcmgr.NetworkPrefixLimit{{Network: loop4, ConnCount: 1 << 20}},
			[]rcmgr.NetworkPrefixLimit{{Network: loop6, ConnCount: 1 << 20}}),
		rcmgr.WithConnRateLimiters(&rate.Limiter{
			NetworkPrefixLimits: []rate.PrefixLimit{{Prefix: loop4}, {Prefix: loop6},
				{Prefix: netip.MustParsePrefix("10.0.0.0/8")}, {Prefix: netip.MustParsePrefix("172.16.0.0/12")},
				{Prefix: netip.MustParsePrefix("192.168.0.0/16")}, {Prefix: netip.MustParsePrefix("fc00::/7")}},
			SubnetRateLimiter: rate.SubnetLimiter{
				IPv4SubnetLimits: []rate.SubnetLimit{{PrefixLength: 32, Limit: pace}},
				IPv6SubnetLimits: []rate.SubnetLimit{{PrefixLength: 56, Limit: pace}},
				GracePeriod:      time.Minute,
			},
		}),
	}
}

// maxFiles bounds the open files that the limits assume.
const maxFiles = 8192
