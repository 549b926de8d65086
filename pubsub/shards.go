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

// belongs returns the shards on which r may travel. Records of one thing must find those who look for any of its
// capabilities; a thing without any goes by its id. A tombstone names no capabilities, so it may travel anywhere.
func belongs(r *td.Record) shards {
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

// speaks returns the shards on which this node announces r: where it belongs, or for a tombstone where the thing was
// heard of. After a restart nothing was heard, and everybody is told.
func (p *PubSub) speaks(r *td.Record, key [32]byte) shards {
	where := belongs(r)
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

// shardsOf returns the shards of a network by topic.
func shardsOf(network string) map[string]byte {
	by := make(map[string]byte, Shards)
	for i := range Shards {
		by[topicName(network, byte(i))] = byte(i)
	}
	return by
}

// protocolID returns gossipsub's protocol of a network. Networks must not share one, or they become one mesh.
func protocolID(network string) protocol.ID {
	return protocol.ID("/lmos/" + network + "/meshsub/1.3.0")
}

// topicsOf matches every topic that a node of the network may subscribe to, now or in a later version: adverts,
// organizations, revocations and groups.
func topicsOf(network string) *regexp.Regexp {
	return regexp.MustCompile(`^/lmos/` + regexp.QuoteMeta(network) +
		`/(adv/0[0-9a-f]|org/[0-9a-z-]{2,32}|revocations/1|group/[0-9A-Za-z]{1,64})$`)
}
