package pubsub

import (
	"crypto/sha256"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	gossip "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
)

// Limits that must be the same on every node of a network: a larger message resets its stream.
const (
	maxMessage = 64 << 10 // bytes of one gossip message
	maxControl = 32 << 10 // bytes of one control message
)

// seenFor is how long gossipsub treats a message as seen. The replay state stops a record that is received again later.
const seenFor = 10 * time.Minute

// verifiers is the number of concurrent verifications. Some of them wait for gossipsub's loop.
const verifiers = 8

// scoredFor is how long the senders of a message are kept, so that all lose score if it is invalid: about 1 kB each. Verification
// takes less than a second.
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
		gossip.WithValidateQueueSize(slots), // never full: pace limits the messages that wait
		gossip.WithValidateWorkers(verifiers),
		gossip.WithPeerOutboundQueueSize(128),
		// A mesh forms with the next heartbeat; flooding reaches the direct peers before that.
		gossip.WithFloodPublish(true),
		gossip.WithPeerExchange(false),
		// A list of topics over the limit is ignored completely, so the limit is far above the topics of an honest node.
		gossip.WithSubscriptionFilter(gossip.WrapLimitSubscriptionFilter(anyTopic, 128)),
		gossip.WithPeerScore(p.scoring(), thresholds()),
		gossip.WithPeerScoreInspect(func(s map[peer.ID]float64) { p.scores.Store(&s) }, time.Second),
		gossip.WithPeerGater(gossip.DefaultPeerGaterParams()),
		gossip.WithRawTracer(&tracer{p}),
		gossip.WithLogger(p.log),
	}
}

// meshOf returns the parameters of meshes of degree d. The cost of gossip is copies: a node sends a message to about as many peers
// as its mesh has, and flooding adds one copy. By default a mesh grows to 2d and stays there; Dhi is therefore d+2. Message ids are
// announced to d-1 peers outside the mesh for two heartbeats: the default, a quarter of all peers for three heartbeats, costs more
// than the records with 100 peers.
func meshOf(d int) gossip.GossipSubParams {
	m := gossip.DefaultGossipSubParams()
	m.D, m.Dlo, m.Dhi = d, d-1, d+2
	m.Dout = d/2 - 1 // it must be below Dlo and below d/2
	m.Dscore = 2 * d / 3
	m.Dlazy, m.GossipFactor, m.HistoryGossip = d-1, 0, 2
	m.MaxIHaveLength = 1000 // 5000 ids of 20 bytes pass maxControl
	return m
}

// messageID returns the first 20 bytes of SHA-256 of topic, a zero byte and data. The topic is included because the cache of seen
// messages has no topics: a record on two shards would be dropped on the second.
func messageID(m *pb.Message) string {
	h := sha256.New()
	h.Write([]byte(m.GetTopic()))
	h.Write([]byte{0})
	h.Write(m.GetData())
	return string(h.Sum(nil)[:20])
}

// scoring returns the score parameters of peers.
func (p *PubSub) scoring() *gossip.PeerScoreParams {
	topics := make(map[string]*gossip.TopicScoreParams, Shards+1)
	for i := range Shards {
		topics[topicName(p.opts.Network, byte(i))] = topicScoring()
	}
	topics[nodesTopic(p.opts.Network)] = topicScoring()
	return &gossip.PeerScoreParams{
		Topics:                      topics,
		TopicScoreCap:               50,
		AppSpecificScore:            func(peer.ID) float64 { return 0 },
		AppSpecificWeight:           1,
		IPColocationFactorWeight:    -5,
		IPColocationFactorThreshold: 16,
		BehaviourPenaltyWeight:      -10,
		BehaviourPenaltyThreshold:   6,
		BehaviourPenaltyDecay:       gossip.ScoreParameterDecay(10 * time.Minute),
		DecayInterval:               time.Second,
		DecayToZero:                 0.01,
		RetainScore:                 30 * time.Minute,
		SeenMsgTTL:                  scoredFor,
	}
}

// topicScoring rewards time in the mesh and first deliveries, and penalizes the square of the number of invalid messages: two take
// a peer below the gossip threshold. Few deliveries are not penalized, because shards are quiet.
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
