package dht

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/p2p/noderecord"
)

// namespaceNode is the namespace of the records of nodes: "/lmos-node/" and the bytes of the PeerID.
const namespaceNode = "lmos-node"

func nodeKey(id peer.ID) string { return "/" + namespaceNode + "/" + string(id) }

// errUnknown means that no value is a valid record.
var errUnknown = errors.New("no valid record of a node")

// A nodeValidator is the admission check of the records of nodes.
type nodeValidator struct{ network string }

// Validate returns an error if value is not the record of the node of key, valid now.
func (v nodeValidator) Validate(key string, value []byte) error {
	r, err := noderecord.Parse(value, v.network, time.Now())
	if err != nil {
		return err
	}
	if key != nodeKey(r.Peer) {
		return errKey
	}
	return nil
}

// Select returns the index of the newest record; the lowest of equal ones. It fails only if none is valid.
func (v nodeValidator) Select(_ string, values [][]byte) (int, error) {
	newest, index := time.Time{}, -1
	for i, raw := range values {
		if r, err := noderecord.Parse(raw, v.network, time.Now()); err == nil && r.Issued.After(newest) {
			newest, index = r.Issued, i
		}
	}
	if index < 0 {
		return -1, errUnknown
	}
	return index, nil
}

// PublishNode stores the record of a node on this node and on the nodes closest to its PeerID, and returns the number of other nodes that stored
// it. The errors are those of [DHT.Publish].
func (d *DHT) PublishNode(ctx context.Context, r *noderecord.Record) (replicas int, err error) {
	receipt, err := d.store(ctx, nodeKey(r.Peer), r.Raw)
	if err != nil {
		err = fmt.Errorf("publish the addresses of %s: %w", r.Node.Short(), err)
	}
	return receipt.Replicas, err
}

// FindPeer returns the addresses of a node, within ctx: those that it has signed, which Options.Nodes gets too, and those that the nodes near to it
// know. The error is that of the second if there are none.
func (d *DHT) FindPeer(ctx context.Context, id peer.ID) (peer.AddrInfo, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var signed []byte
	var work sync.WaitGroup
	work.Go(func() { signed, _ = d.search(ctx, nodeKey(id), settle) })
	found, err := d.kad.FindPeer(ctx, id)
	work.Wait()
	r, invalid := noderecord.Parse(signed, d.o.Network, time.Now())
	if invalid != nil {
		return found, err
	}
	d.o.Nodes.Keep(r)
	found.ID, found.Addrs = id, slices.Concat(d.o.filterAddrs(r.Addrs), found.Addrs)
	return found, nil
}
