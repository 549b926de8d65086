package pubsub

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	gossip "github.com/libp2p/go-libp2p-pubsub"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// accepted marks a message that is ignored only because it was adopted.
type accepted struct{}

// guarded makes a validator. A panic on untrusted bytes costs the message, not the node.
func (p *PubSub) guarded(validate func(from peer.ID, m *gossip.Message) gossip.ValidationResult) gossip.ValidatorEx {
	return func(_ context.Context, from peer.ID, m *gossip.Message) (verdict gossip.ValidationResult) {
		defer func() {
			if fault := recover(); fault != nil {
				p.log.Error("gossip validator panicked", "fault", fault, "peer", did.ShortPeer(from))
				verdict = gossip.ValidationIgnore
			}
		}()
		p.counts.verified.Add(1)
		return validate(from, m)
	}
}

// validator returns the validator of a shard. A message is an encoded record and nothing else.
func (p *PubSub) validator(shard byte) gossip.ValidatorEx {
	return p.guarded(func(from peer.ID, m *gossip.Message) gossip.ValidationResult {
		r, err := p.verify(shard, m.GetData())
		own := from == p.host.ID()
		if err != nil {
			verdict := verdictOf(err)
			if verdict == gossip.ValidationReject && !own {
				p.addOffense(from)
			}
			return verdict
		}
		verdict := p.compare(shard, r, from, own)
		if own || verdict != gossip.ValidationAccept {
			return verdict
		}
		p.limiter.widen(from)
		if p.adopt(shard, m.GetData(), from) {
			m.ValidatorData = accepted{}
			return gossip.ValidationIgnore
		}
		p.limiter.done(from, time.Now()) // the tracer releases the slots of other messages
		return verdict
	})
}

// errNotHere: the record is on a shard of none of its capabilities. errRefused: the
// forwarder is refused. errAudience: the record is not for all nodes, and gossip carries only public ones.
var (
	errNotHere  = errors.New("wrong shard")
	errRefused  = errors.New("peer is banned or graylisted")
	errAudience = errors.New("the record is not public")
)

// verify decodes a message of a shard and verifies its record: size, form, signature, inline TD, times, audience, shard. The signature
// does not cover the inline TD: without its check, a forwarder could replace it, and gossipsub would ignore the valid copy as seen.
func (p *PubSub) verify(shard byte, data []byte) (*td.Record, error) {
	r, err := p.opts.Verifier.Record(data, time.Now())
	if err != nil {
		return nil, err
	}
	if r.Audience != td.Public {
		return nil, errAudience
	}
	if !shardsOf(r).has(shard) {
		return nil, errNotHere
	}
	return r, nil
}

// verdictOf returns the verdict on an invalid record. Reject costs its forwarder score and the connection, so it is limited to
// errors that every honest node sees. Errors that depend on clock, version, membership or a resolver are ignored.
func verdictOf(err error) gossip.ValidationResult {
	never := []error{td.ErrTooLarge, td.ErrMalformed, td.ErrSignature, td.ErrOwner, td.ErrHash, errNotHere, errAudience}
	if slices.ContainsFunc(never, func(e error) bool { return errors.Is(err, e) }) {
		return gossip.ValidationReject
	}
	return gossip.ValidationIgnore
}

// compare compares a valid record with the records received before, and queues it for Deliver if it is new and from another node. An
// own record may be published again: gossipsub drops messages that it has seen.
func (p *PubSub) compare(shard byte, r *td.Record, from peer.ID, own bool) gossip.ValidationResult {
	switch how := p.replay.note(shard, r); {
	case how == older, how == repeated && !own:
		return gossip.ValidationIgnore
	case how == newest && !own:
		by := did.OfPeer(from) // the host accepts only Ed25519 keys
		p.enqueue(delivery{&td.Signed{Record: r.Raw, From: by}, r})
	}
	return gossip.ValidationAccept
}

// enqueue queues a record for Deliver, or drops it: gossipsub never waits for the rest of the node.
func (p *PubSub) enqueue(n delivery) {
	select {
	case p.queue <- n:
	default:
		p.counts.dropped.Add(1)
	}
}
