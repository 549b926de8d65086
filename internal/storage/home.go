package storage

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/namespace"

	"github.com/lmosd/lmosd/internal/atomicfile"
)

// homeKey is the key of the home network, whose entries have no prefix: the first network that the folder was used in, or the first
// after an update for a folder of an older version.
var homeKey = ds.NewKey("/network")

// homeCopy is a file in own/ with the same name, because a damaged log may lose only this entry. No name of a network has a dot.
const homeCopy = "network.txt"

// Network returns the views of the part of the database that belongs to a network, and the name of the home network. That part has all
// stored data of a mesh: peers, descriptions, the DHT, publications with their sequence numbers, tasks. Networks are separate: data of one
// is invalid in another, and publications are announced in one only. The key and the secrets belong to the folder. Valid checks a stored
// name.
//
// Sequence numbers come from the clock, so no two records of a Thing that is published in both networks have one number.
func (s *Store) Network(network string, valid func([]byte) bool) (durable, fast ds.Batching, home string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	durable, fast = s.Durable(), s.Fast()
	stored, err := durable.Get(ctx, homeKey)
	switch {
	case errors.Is(err, ds.ErrNotFound):
		if stored = s.homeCopied(valid); stored == nil {
			stored = []byte(network)
		}
		if err = durable.Put(ctx, homeKey, stored); err == nil {
			err = durable.Sync(ctx, homeKey)
		}
		if Full(err) {
			err = nil // A later start stores it; a full disk does not keep the node from reading.
		}
	case err == nil && !valid(stored):
		err = errors.New("the stored name of the network is invalid")
	}
	if err == nil {
		err = s.copyHome(stored, valid)
	}
	if err != nil {
		return nil, nil, "", err
	}
	if string(stored) != network {
		prefix := ds.NewKey("/networks").ChildString(network)
		durable, fast = namespace.Wrap(durable, prefix), namespace.Wrap(fast, prefix)
	}
	return durable, fast, string(stored), nil
}

func (s *Store) homePath() string { return filepath.Join(filepath.Dir(s.Path()), "own", homeCopy) }

// homeCopied returns the home network by its copy, or nil.
func (s *Store) homeCopied(valid func([]byte) bool) []byte {
	if s.Path() == "" {
		return nil
	}
	if b, err := os.ReadFile(s.homePath()); err == nil && valid(b) {
		return b
	}
	return nil
}

// copyHome writes the copy of the name of the home network. A later start writes it if the disk is full.
func (s *Store) copyHome(home []byte, valid func([]byte) bool) error {
	if s.Path() == "" || string(s.homeCopied(valid)) == string(home) {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(s.homePath()), 0o700)
	if err == nil {
		err = atomicfile.Write(s.homePath(), home, 0o600)
	}
	if Full(err) {
		return nil
	}
	return err
}
