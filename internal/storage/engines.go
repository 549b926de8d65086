package storage

import (
	"errors"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	ds "github.com/ipfs/go-datastore"
	leveldb "github.com/ipfs/go-ds-leveldb"
	pebbleds "github.com/ipfs/go-ds-pebble"
)

func openLevelDB(path string, readOnly bool) (ds.Batching, func() error, error) {
	l, err := leveldb.NewDatastore(path, &leveldb.Options{ReadOnly: readOnly})
	if err != nil {
		return nil, nil, err
	}
	return l, l.Close, nil
}

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
	return first, second, closeAll, nil
}
