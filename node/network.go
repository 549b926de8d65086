package node

import (
	"context"
	"errors"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/namespace"

	"github.com/lmosd/lmosd/internal/storage"
)

// homeKey names the network whose entries have no prefix: the first that the folder was used in, or the one that a folder of an
// older version is used in first.
var homeKey = ds.NewKey("/network")

// of returns the part of the database that belongs to a network. All that a node keeps of a mesh is in it: peers, descriptions,
// the DHT, what it published with its sequence numbers, tasks. Nodes of two networks never meet, so what is known of one is wrong
// in the other, and what was published in one is not to be announced in another. The key and the secrets are the folder's. home
// is the network whose part has no prefix.
//
// Sequence numbers come from the clock, so a thing that is published in both networks has no two records of one number.
func (s *stores) of(network string) (part *stores, home string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	noted, err := s.durable.Get(ctx, homeKey)
	switch {
	case errors.Is(err, ds.ErrNotFound):
		noted, err = []byte(network), s.durable.Put(ctx, homeKey, []byte(network))
		if err == nil {
			err = s.durable.Sync(ctx, homeKey)
		}
		if storage.Full(err) {
			err = nil // A full disk keeps nobody from reading; it is noted at a later start.
		}
	case err == nil && !networkName.Match(noted):
		err = errors.New("the network that is noted there is none")
	}
	if err != nil {
		return nil, "", s.failed(err)
	}
	if string(noted) == network {
		return s, network, nil
	}
	apart := *s
	prefix := ds.NewKey("/networks").ChildString(network)
	apart.durable, apart.fast = namespace.Wrap(s.durable, prefix), namespace.Wrap(s.fast, prefix)
	return &apart, string(noted), nil
}
