package pubsub

import (
	"fmt"
	"regexp"

	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/lmosd/lmosd/td"
)

// shards is a set of shards, one bit each.
type shards uint16

const everywhere shards = 1<<Shards - 1

func (s shards) has(shard byte) bool { return s&(1<<shard) != 0 }

// shardsOf returns the shards on which r may be published: those of its capabilities, or that of the id of a Thing without any. A
// tombstone has no capabilities, so it may be published on all shards.
func shardsOf(r *td.Record) shards {
	if len(r.Capabilities) == 0 {
		if r.Kind != td.KindTD {
			return everywhere
		}
		return 1 << td.Shard(r.Thing)
	}
	var s shards
	for _, c := range r.Capabilities {
		s |= 1 << td.Shard(c)
	}
	return s
}

// shardsFor returns the shards on which this node announces r: those of belongs, or for a tombstone the shards on which the Thing was
// seen. If none was seen, for example after a restart, all.
func (p *PubSub) shardsFor(r *td.Record, key [32]byte) shards {
	where := shardsOf(r)
	if where != everywhere {
		return where
	}
	if seen := p.replay.seenOn(key); seen != 0 {
		return seen
	}
	return everywhere
}

// topicName returns the topic of a shard.
func topicName(network string, shard byte) string {
	return fmt.Sprintf("/lmos/%s/adv/%02x", network, shard)
}

// shardsByTopic returns the shards of a network by topic.
func shardsByTopic(network string) map[string]byte {
	by := make(map[string]byte, Shards)
	for i := range Shards {
		by[topicName(network, byte(i))] = byte(i)
	}
	return by
}

// protocolID returns the gossipsub protocol of a network. Networks with the same protocol would merge.
func protocolID(network string) protocol.ID {
	return protocol.ID("/lmos/" + network + "/meshsub/1.3.0")
}

// topicsOf matches every topic that a node of the network may subscribe to, now or in a later version: records, nodes,
// organizations, revocations and groups.
func topicsOf(network string) *regexp.Regexp {
	return regexp.MustCompile(`^/lmos/` + regexp.QuoteMeta(network) +
		`/(adv/0[0-9a-f]|nodes|org/[0-9a-z-]{2,32}|revocations/1|group/[0-9A-Za-z]{1,64})$`)
}
