package storage

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	pebbleds "github.com/ipfs/go-ds-pebble"
)

func openPebble(path string, readOnly bool, d *disk, log *slog.Logger, hurt func(error)) (durable, fast ds.Batching, closeAll func() error, err error) {
	// The library's own is the same, and is not closed when the store does not open.
	checked, watch := vfs.WithDiskHealthChecks(d.base, 5*time.Second, nil, func(info vfs.DiskSlowInfo) {
		d.log.write(slog.LevelWarn, "the disk is slow", "info", info.String())
	})
	d.fail(true)
	defer d.fail(false)
	opts := &pebble.Options{
		MemTableSize: 4 << 20,
		// Pinned so that an older lmosd can open the store after a downgrade.
		FormatMajorVersion: pebble.FormatColumnarBlocks,
		Logger:             newPebbleLog(log),
		// The default ends the process, at every start again. The read or the compaction fails in any case.
		EventListener: &pebble.EventListener{DataCorruption: func(i pebble.DataCorruptionInfo) { hurt(i.Details) }},
		FS:            d.over(checked),
		ReadOnly:      readOnly,
	}
	opts.Levels[0].BlockSize = 32 << 10 // of all levels: a start reads all entries, with a call to the kernel for each block
	first, err := pebbleds.NewDatastore(path, pebbleds.WithPebbleOpts(opts), pebbleds.WithCacheSize(4<<20),
		pebbleds.WithPebbleWriteOptions(pebble.Sync))
	if err != nil {
		return nil, nil, nil, errors.Join(err, watch.Close())
	}
	// Only the first view is closed: both are one database.
	closeAll = func() error { return errors.Join(first.Close(), watch.Close()) }
	second, err := pebbleds.NewDatastore("", pebbleds.WithPebbleDB(first.DB), pebbleds.WithPebbleWriteOptions(pebble.NoSync))
	if err != nil {
		return nil, nil, nil, errors.Join(err, closeAll())
	}
	return pebbleStore{first}, pebbleStore{second}, closeAll, nil
}

// A pebbleStore reads entries in the goroutine of their reader. The library has a goroutine for each query, which costs more than the reads.
type pebbleStore struct{ *pebbleds.Datastore }

// Query implements [ds.Read].
func (p pebbleStore) Query(ctx context.Context, q query.Query) (query.Results, error) {
	if len(q.Filters) > 0 || len(q.Orders) > 0 || q.Offset != 0 || q.Limit != 0 {
		return p.Datastore.Query(ctx, q)
	}
	prefix := strings.TrimSuffix(ds.NewKey(q.Prefix).String(), "/") + "/"
	last := len(prefix) - 1
	it, err := p.DB.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: []byte(prefix), UpperBound: []byte(prefix[:last] + string(prefix[last]+1))})
	if err != nil {
		return nil, err
	}
	move, failed := it.First, false
	return query.ResultsFromIterator(q, query.Iterator{Close: sync.OnceValue(it.Close), Next: func() (query.Result, bool) {
		if failed { // an iterator keeps its error
			return query.Result{}, false
		}
		valid := move()
		move = it.Next
		var value []byte
		err := it.Error()
		if valid && err == nil {
			value, err = it.ValueAndErr()
		}
		if !valid || err != nil {
			failed = true
			return query.Result{Error: err}, err != nil
		}
		e := query.Entry{Key: string(it.Key()), Size: len(value)}
		if !q.KeysOnly {
			e.Value = bytes.Clone(value)
		}
		return query.Result{Entry: e}, true
	}}), nil
}
