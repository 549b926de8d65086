package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/namespace"

	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/internal/storage"
)

// homeKey names the network whose entries have no prefix: the first that the folder was used in, or the one that a folder of an
// older version is used in first.
var homeKey = ds.NewKey("/network")

// homeCopy is the file in own/ that has the same: a damaged log may lose the note, and nothing else. No network has a name with a dot.
const homeCopy = "network.txt"

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
		if noted = s.homeCopied(); noted == nil {
			noted = []byte(network)
		}
		if err = s.durable.Put(ctx, homeKey, noted); err == nil {
			err = s.durable.Sync(ctx, homeKey)
		}
		if storage.Full(err) {
			err = nil // A full disk keeps nobody from reading; it is noted at a later start.
		}
	case err == nil && !networkName.Match(noted):
		err = errors.New("the network that is noted there is none")
	}
	if err == nil {
		err = s.copyHome(noted)
	}
	if err != nil {
		return nil, "", s.Failed(err)
	}
	if string(noted) == network {
		return s, network, nil
	}
	apart := *s
	prefix := ds.NewKey("/networks").ChildString(network)
	apart.durable, apart.fast = namespace.Wrap(s.durable, prefix), namespace.Wrap(s.fast, prefix)
	return &apart, string(noted), nil
}

func (s *stores) homePath() string { return filepath.Join(filepath.Dir(s.Path()), "own", homeCopy) }

// homeCopied returns the network that is home as its copy has it, or nil.
func (s *stores) homeCopied() []byte {
	if s.Path() == "" {
		return nil
	}
	if b, err := os.ReadFile(s.homePath()); err == nil && networkName.Match(b) {
		return b
	}
	return nil
}

// copyHome keeps the copy of which network is home. On a full disk it is made at a later start.
func (s *stores) copyHome(home []byte) error {
	if s.Path() == "" || string(s.homeCopied()) == string(home) {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(s.homePath()), 0o700)
	if err == nil {
		err = atomicfile.Write(s.homePath(), home, 0o600)
	}
	if storage.Full(err) {
		return nil
	}
	return err
}
