package pubsub

import (
	"crypto/sha256"
	"net"
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	gossip "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
)

// Limits that must be the same on every node of a network: a larger message resets the stream it came on.
const (
	maxMessage = 64 << 10 // bytes of one gossip message
	maxControl = 32 << 10 // bytes of one control message
)

// seenFor is how long a message is known as seen. A record that comes later again is stopped by the replay state.
const seenFor = 10 * time.Minute

// verifiers is how many messages are verified at once. Some of them wait for gossipsub's loop.
const verifiers = 8

// scoredFor is how long it is known who brought a message, so that all lose score if it proves bad: about 1 kB each. It is
// verified within the second.
const scoredFor = time.Minute

// settings returns the options of gossipsub.
func (p *PubSub) settings() []gossip.Option {
	anyTopic := gossip.NewRegexpSubscriptionFilter(topicsOf(p.opts.Network))
	return []gossip.Option{
		gossip.WithGossipSubProtocols([]protocol.ID{protocolID(p.opts.Network)},
			func(gossip.GossipSubFeature, protocol.ID) bool { return true }),
		gossip.WithGossipSubParams(meshOf(p.opts.Degree)),
		// A record is signed by its owner: a second signature, by the sender, would cost 110 bytes and prove nothing.
		gossip.WithMessageSignaturePolicy(gossip.StrictNoSign),
		gossip.WithNoAuthor(),
		gossip.WithMessageIdFn(messageID),
		gossip.WithMaxMessageSize(maxMessage),
		gossip.WithMaxControlMessageSize(maxControl),
		gossip.WithAppSpecificRpcInspector(p.inspect),
		gossip.WithSeenMessagesTTL(seenFor),
		gossip.WithValidateQueueSize(places), // the pace sees to it that it is never full
		gossip.WithValidateWorkers(verifiers),
		gossip.WithPeerOutboundQueueSize(128),
		// A mesh needs a heartbeat to form; flooding reaches the direct peers before that.
		gossip.WithFloodPublish(true),
		gossip.WithPeerExchange(false),
		// A list of topics over the limit is ignored whole, so the limit stands well above what an honest node has.
		gossip.WithSubscriptionFilter(gossip.WrapLimitSubscriptionFilter(anyTopic, 128)),
		gossip.WithPeerScore(p.scoring(), thresholds()),
		gossip.WithPeerScoreInspect(func(s map[peer.ID]float64) { p.scores.Store(&s) }, time.Second),
		gossip.WithPeerGater(gossip.DefaultPeerGaterParams()),
		gossip.WithRawTracer(&tracer{p}),
		gossip.WithLogger(p.log),
	}
}

// meshOf returns the parameters of meshes with degree d. What gossip costs is copies: each node sends a message to about as many as
// its mesh has, and flooding adds one. The library lets a mesh grow to 2d, where it stays: hence two above d. To who is not in the
// mesh, ids are named for two heartbeats, d-1 peers each: the library's quarter of all peers for three costs more than
// the records themselves where a hundred are connected.
func meshOf(d int) gossip.GossipSubParams {
	m := gossip.DefaultGossipSubParams()
	m.D, m.Dlo, m.Dhi = d, d-1, d+2
	m.Dout = d/2 - 1 // it must be below Dlo and below d/2
	m.Dscore = 2 * d / 3
	m.Dlazy, m.GossipFactor, m.HistoryGossip = d-1, 0, 2
	m.MaxIHaveLength = 1000 // 5000 ids of 20 bytes pass maxControl
	return m
}

// messageID names a message: the first 20 bytes of SHA-256 of topic, a zero byte and data. The topic is part of it
// because the cache of seen messages has no topics: a record on two shards would be dropped on the second.
func messageID(m *pb.Message) string {
	h := sha256.New()
	h.Write([]byte(m.GetTopic()))
	h.Write([]byte{0})
	h.Write(m.GetData())
	return string(h.Sum(nil)[:20])
}

// scoring says what peers gain and lose score by.
func (p *PubSub) scoring() *gossip.PeerScoreParams {
	topics := make(map[string]*gossip.TopicScoreParams, Shards)
	for i := range Shards {
		topics[topicName(p.opts.Network, byte(i))] = topicScoring()
	}
	return &gossip.PeerScoreParams{
		Topics:                      topics,
		TopicScoreCap:               50,
		AppSpecificScore:            func(peer.ID) float64 { return 0 },
		AppSpecificWeight:           1,
		IPColocationFactorWeight:    -5,
		IPColocationFactorThreshold: 16,
		IPColocationFactorWhitelist: ipNets(p.opts.SharedNets),
		BehaviourPenaltyWeight:      -10,
		BehaviourPenaltyThreshold:   6,
		BehaviourPenaltyDecay:       gossip.ScoreParameterDecay(10 * time.Minute),
		DecayInterval:               time.Second,
		DecayToZero:                 0.01,
		RetainScore:                 30 * time.Minute,
		SeenMsgTTL:                  scoredFor,
	}
}

// topicScoring rewards time in the mesh and first deliveries, and punishes invalid messages by the square of their
// number: two take a peer below the gossip threshold. Too few deliveries are no offence, because shards are quiet.
func topicScoring() *gossip.TopicScoreParams {
	return &gossip.TopicScoreParams{
		TopicWeight:                     1,
		TimeInMeshWeight:                0.01,
		TimeInMeshQuantum:               time.Second,
		TimeInMeshCap:                   300,
		FirstMessageDeliveriesWeight:    0.5,
		FirstMessageDeliveriesDecay:     gossip.ScoreParameterDecay(10 * time.Minute),
		FirstMessageDeliveriesCap:       20,
		MeshMessageDeliveriesDecay:      0.5,
		MeshMessageDeliveriesActivation: time.Second,
		MeshFailurePenaltyDecay:         0.5,
		InvalidMessageDeliveriesWeight:  -50,
		InvalidMessageDeliveriesDecay:   gossip.ScoreParameterDecay(30 * time.Minute),
	}
}

func thresholds() *gossip.PeerScoreThresholds {
	return &gossip.PeerScoreThresholds{
		GossipThreshold:             -40,
		PublishThreshold:            -80,
		GraylistThreshold:           -160,
		AcceptPXThreshold:           20,
		OpportunisticGraftThreshold: 2,
	}
}

// ipNets returns prefixes in the form that gossipsub takes.
func ipNets(prefixes []netip.Prefix) []*net.IPNet {
	var nets []*net.IPNet
	for _, p := range prefixes {
		p = p.Masked()
		nets = append(nets, &net.IPNet{
			IP:   p.Addr().AsSlice(),
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
		})
	}
	return nets
}
