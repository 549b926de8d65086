package testnet

import (
	"context"
	"errors"
	"fmt"
	"time"

	dhtpb "github.com/libp2p/go-libp2p-kad-dht/pb"
	record "github.com/libp2p/go-libp2p-record"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-msgio/pbio"

	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/pubsub"
	"github.com/lmosd/lmosd/td"
)

// An Adversary is a host that sends what the packages of this project do not send, to test that nodes reject it.
type Adversary struct {
	Key  *keystore.Key
	host host.Host
	net  string
}

// ErrRefused means that a node did not accept a message.
var ErrRefused = errors.New("refused")

// NewAdversary returns a host with a new key and the DHT protocol of a network. The caller closes it.
func NewAdversary(network string) (*Adversary, error) {
	key, err := keystore.New()
	if err != nil {
		return nil, err
	}
	h, err := p2p.New(p2p.Options{Key: key, Network: network, Loopback: true})
	if err != nil {
		return nil, err
	}
	if err := h.Start(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return &Adversary{Key: key, host: h, net: network}, nil
}

// Close closes the host.
func (s *Adversary) Close() error { return s.host.Close() }

// Store asks the node at addr to store value under the key of a Thing. The error wraps [ErrRefused] if it rejects that.
func (s *Adversary) Store(ctx context.Context, addr string, key [32]byte, value []byte) error {
	put := dhtpb.NewMessage(dhtpb.Message_PUT_VALUE, []byte(dht.RecordKey(key)), 0)
	put.Record = record.MakePutRecord(dht.RecordKey(key), value)
	_, err := s.exchange(ctx, addr, put)
	return err
}

// Value asks the node at addr for the value under the key of a Thing in the DHT; nil: it has none. The error wraps [ErrRefused] if it does not
// answer.
func (s *Adversary) Value(ctx context.Context, addr string, key [32]byte) ([]byte, error) {
	reply, err := s.exchange(ctx, addr, dhtpb.NewMessage(dhtpb.Message_GET_VALUE, []byte(dht.RecordKey(key)), 0))
	return reply.GetRecord().GetValue(), err
}

// exchange sends a message of the DHT protocol and returns the reply.
func (s *Adversary) exchange(ctx context.Context, addr string, m *dhtpb.Message) (*dhtpb.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	to, err := peer.AddrInfoFromString(addr)
	if err != nil {
		return nil, err
	}
	if err := s.host.Connect(ctx, *to); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	kad, _ := dht.Protocols(s.net)
	stream, err := s.host.NewStream(ctx, to.ID, kad)
	if err != nil {
		return nil, fmt.Errorf("%w: open a stream to %s: %w", ErrRefused, addr, err)
	}
	defer stream.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := stream.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	if err := pbio.NewDelimitedWriter(stream).WriteMsg(m); err != nil {
		return nil, fmt.Errorf("send to %s: %w", addr, err)
	}
	reply := &dhtpb.Message{}
	if err := pbio.NewDelimitedReader(stream, 64<<10).ReadMsg(reply); err != nil {
		return nil, fmt.Errorf("%w: the node ended the stream (%w)", ErrRefused, err)
	}
	return reply, nil
}

// Listen joins the gossip of the network through the node at addr, and sends the ids of the Things whose records arrive, until ctx ends.
func (s *Adversary) Listen(ctx context.Context, addr string) (<-chan string, error) {
	ids := make(chan string, 64)
	g, err := pubsub.New(s.host, pubsub.Options{Network: s.net, Deliver: func(_ *td.Signed, r *td.Record) {
		select {
		case ids <- r.Thing:
		case <-ctx.Done():
		}
	}})
	if err != nil {
		return nil, err
	}
	to, err := peer.AddrInfoFromString(addr)
	if err == nil {
		err = s.host.Connect(ctx, *to)
	}
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	go func() {
		_ = g.Run(ctx) // returns nil at the end of ctx
		_ = g.Close()
	}()
	return ids, nil
}

// Forger returns a signer that claims the DID owner but signs with the key of s.
func (s *Adversary) Forger(owner did.DID) did.Signer { return forger{s.Key, owner} }

type forger struct {
	*keystore.Key
	claims did.DID
}

// DID returns the claimed DID.
func (l forger) DID() did.DID { return l.claims }
