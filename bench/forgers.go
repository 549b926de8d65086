package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	"google.golang.org/protobuf/proto"

	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/pubsub"
	"github.com/lmosd/lmosd/td"
)

const (
	forgers     = 12
	forgedInOne = 40               // messages per RPC
	announced   = 20               // per round
	unheardFor  = 60 * time.Second // timeout of a record
)

// forgersTable shows the delay of honest records through a node, and the memory of the node, with and without forgers around it.
func forgersTable(ctx context.Context, p plan) error {
	p.table("forgers | delay p50 | worst | not received within 1 minute | heap of the node")
	for _, n := range []int{0, forgers} {
		var f forgery
		for range p.rounds {
			if err := f.round(ctx, n); err != nil {
				return err
			}
		}
		slices.Sort(f.took)
		p.row("%d | %v | %v | %d | %.0f MiB", n, f.took[len(f.took)/2].Round(time.Millisecond), f.took[len(f.took)-1].Round(time.Millisecond),
			f.unheard, float64(f.heap)/(1<<20))
		p.atMost(fmt.Sprintf("the worst delay with %d forgers", n), f.took[len(f.took)-1].Seconds(), 1, " s")
	}
	return nil
}

// A forgery is one measurement.
type forgery struct {
	took    []time.Duration
	unheard int
	heap    uint64 // the observed maximum
}

// round starts a node with forgers, and two honest peers connected only to it; one announces, the other receives.
func (f *forgery) round(ctx context.Context, n int) error {
	l, err := newLink(ctx, "tcp")
	if err != nil {
		return err
	}
	defer l.stop()
	news := make(chan string, 1024)
	speaker, err := newNeighbour(ctx, l.addr, nil)
	if err != nil {
		return err
	}
	defer speaker.stop()
	listener, err := newNeighbour(ctx, l.addr, news)
	if err != nil {
		return err
	}
	defer listener.stop()
	if n > 0 {
		_, stop, err := child(ctx, "forgers="+l.addr)
		if err != nil {
			return err
		}
		defer stop()
	}
	time.Sleep(3 * time.Second) // the meshes form, and the forgers start
	for i := range announced {
		if err := f.announce(ctx, speaker, news, i); err != nil {
			return err
		}
		s, err := l.stats(ctx)
		if err != nil {
			return fmt.Errorf("read the memory of the node: %w", err)
		}
		f.heap = max(f.heap, s.Heap)
		progress("%2d forgers  news after %v  %d MiB", n, f.took[len(f.took)-1].Round(time.Millisecond), s.Heap>>20)
	}
	return nil
}

// announce announces a Thing and waits until it is received.
func (f *forgery) announce(ctx context.Context, speaker *neighbour, news <-chan string, i int) error {
	id := fmt.Sprintf("urn:bench:%d:%d", i, time.Now().UnixNano())
	signed, err := signedThing(speaker.key, id)
	if err != nil {
		return err
	}
	start := time.Now()
	if _, err := speaker.gossip.Announce(ctx, signed); err != nil {
		return err
	}
	limit := time.After(unheardFor)
	for {
		select {
		case received := <-news:
			if received != id {
				continue
			}
			f.took = append(f.took, time.Since(start))
			return nil
		case <-limit:
			f.took = append(f.took, unheardFor)
			f.unheard++
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func signedThing(key *keystore.Key, id string) (*td.Signed, error) {
	thing, err := td.Complete(fmt.Appendf(nil, `{"@context":["https://www.w3.org/2022/wot/td/v1.1"],"id":%q,"title":"News","security":["n"],
"securityDefinitions":{"n":{"scheme":"nosec"}},"actions":{"a":{"forms":[{"href":"http://127.0.0.1:1"}]}}}`, id), key.DID())
	if err != nil {
		return nil, err
	}
	return td.Sign(thing, key, td.Lease{Seq: 1, Now: time.Now(), Lifetime: time.Hour})
}

// A neighbour is an honest peer: a host with gossip.
type neighbour struct {
	key    *keystore.Key
	gossip *pubsub.PubSub
	stop   func()
}

func newNeighbour(ctx context.Context, at string, news chan<- string) (*neighbour, error) {
	key, h, err := newPeer()
	if err != nil {
		return nil, err
	}
	g, err := pubsub.New(h, pubsub.Options{Network: "bench", Deliver: func(_ *td.Signed, r *td.Record) {
		select {
		case news <- r.Thing:
		default:
		}
	}})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Run(ctx) }()
	n := &neighbour{key, g, func() { cancel(); <-done; _ = g.Close(); _ = h.Close() }}
	if err := connect(ctx, h, at); err != nil {
		n.stop()
		return nil, err
	}
	return n, nil
}

func newPeer() (*keystore.Key, *p2p.Host, error) {
	key, err := keystore.New()
	if err != nil {
		return nil, nil, err
	}
	h, err := p2p.New(p2p.Options{Key: key, Network: "bench", Loopback: true})
	if err != nil {
		return nil, nil, err
	}
	return key, h, h.Start()
}

func connect(ctx context.Context, h *p2p.Host, at string) error {
	a, err := ma.NewMultiaddr(at)
	if err != nil {
		return err
	}
	info, err := peer.AddrInfoFromP2pAddr(a)
	if err != nil {
		return err
	}
	return h.Connect(ctx, *info)
}

// serveForgers floods a node with records with invalid signatures. A disconnected forger reconnects with a new key.
func serveForgers(ctx context.Context, at string) error {
	fmt.Println("ready")
	var all sync.WaitGroup
	for range forgers {
		all.Go(func() {
			for ctx.Err() == nil {
				_ = forgeAt(ctx, at)
			}
		})
	}
	all.Wait()
	return nil
}

// forgeAt is the lifetime of one key.
func forgeAt(ctx context.Context, at string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	key, h, err := newPeer()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := connect(ctx, h, at); err != nil {
		time.Sleep(100 * time.Millisecond)
		return err
	}
	stream, err := h.NewStream(ctx, h.Network().Peers()[0], "/lmos/bench/meshsub/1.3.0")
	if err != nil {
		return err
	}
	defer stream.Reset()
	good, err := signedThing(key, "urn:bench:forged")
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		rpc := &pb.RPC{}
		for range forgedInOne {
			forged := slices.Clone(good.Record)
			for j := range 8 {
				forged[len(forged)-1-j] ^= byte(rand.IntN(256))
			}
			topic := fmt.Sprintf("/lmos/bench/adv/%02x", rand.IntN(pubsub.Shards))
			rpc.Publish = append(rpc.Publish, &pb.Message{Data: forged, Topic: &topic})
		}
		b, err := proto.Marshal(rpc)
		if err != nil {
			return err
		}
		if _, err := stream.Write(append(binary.AppendUvarint(nil, uint64(len(b))), b...)); err != nil {
			return err
		}
	}
	return nil
}
