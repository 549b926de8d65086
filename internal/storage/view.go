package storage

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
)

// A view is a Store as a datastore. Its writes are refused while the disk is full: caches leave MinFree to durable data.
type view struct {
	s       *Store
	durable bool
}

func (v *view) inner() ds.Batching {
	if v.durable {
		return v.s.durable
	}
	return v.s.fast
}

// Get implements [ds.Batching], as do those below.
func (v *view) Get(ctx context.Context, key ds.Key) ([]byte, error) {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	b, err := v.inner().Get(ctx, key)
	v.s.hurt(err)
	return b, err
}

func (v *view) Has(ctx context.Context, key ds.Key) (bool, error) {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	return v.inner().Has(ctx, key)
}

func (v *view) GetSize(ctx context.Context, key ds.Key) (int, error) {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	return v.inner().GetSize(ctx, key)
}

// Query holds the database open until the results are closed.
func (v *view) Query(ctx context.Context, q query.Query) (query.Results, error) {
	v.s.mu.RLock()
	res, err := v.inner().Query(ctx, q)
	if err != nil {
		v.s.mu.RUnlock()
		return nil, err
	}
	return &held{Results: res, release: sync.OnceFunc(v.s.mu.RUnlock)}, nil
}

type held struct {
	query.Results
	release func()
}

func (h *held) Close() error {
	defer h.release()
	return h.Results.Close()
}

func (h *held) Rest() ([]query.Entry, error) {
	defer h.release()
	return h.Results.Rest()
}

func (v *view) Put(ctx context.Context, key ds.Key, value []byte) error {
	return v.change(ctx, key, func(inner ds.Batching) error { return inner.Put(ctx, key, value) })
}

func (v *view) Delete(ctx context.Context, key ds.Key) error {
	return v.change(ctx, key, func(inner ds.Batching) error { return inner.Delete(ctx, key) })
}

// refused returns an error if a write does not fit.
func (v *view) refused() error {
	switch {
	case !v.durable:
		return v.s.Room()
	case v.s.closed():
		return v.s.full(0)
	}
	return nil
}

// change writes, if the disk has room. If a refused durable write succeeds later, the previous value is restored, so that a refused write
// has no effect.
func (v *view) change(ctx context.Context, key ds.Key, write func(ds.Batching) error) error {
	if err := v.refused(); err != nil {
		return err
	}
	if !v.durable {
		return v.attempt(write, stays)
	}
	var before *pebble.Snapshot // a read before each write would cost a tenth of a publication
	return v.attempt(func(inner ds.Batching) error {
		if p, ok := inner.(pebbleStore); ok {
			before = p.DB.NewSnapshot()
		}
		return write(inner)
	}, func(inner ds.Batching, late bool) {
		if before == nil { // the engine is closed
			return
		}
		if late {
			restore(context.WithoutCancel(ctx), inner, key, before)
		}
		_ = before.Close()
	})
}

// restore writes the value that a key had before. An unreadable value cannot be restored.
func restore(ctx context.Context, inner ds.Batching, key ds.Key, before *pebble.Snapshot) {
	value, closer, err := before.Get(key.Bytes())
	switch { // the write waits, because the engine gives up before it fails
	case err == nil:
		_ = inner.Put(ctx, key, value)
		_ = closer.Close()
	case errors.Is(err, pebble.ErrNotFound):
		_ = inner.Delete(ctx, key)
	}
}

// attempt writes without waiting for room: a write that waits is given up. On a disk, end is called once after each write, before the engine may
// close; late is true if the write succeeded after it was given up.
func (v *view) attempt(write func(ds.Batching) error, end func(inner ds.Batching, late bool)) error {
	v.s.mu.RLock()
	inner := v.inner()
	if v.s.disk == nil {
		defer v.s.mu.RUnlock()
		return write(inner)
	}
	done := make(chan error, 1)
	go func() { done <- write(inner) }()
	select {
	case err := <-done:
		end(inner, false)
		v.s.mu.RUnlock()
		v.s.hurt(err)
		return err
	case <-v.s.disk.stuckNow():
	}
	go func() {
		defer v.s.mu.RUnlock()
		end(inner, <-done == nil)
	}()
	return v.s.full(0)
}

// stays undoes nothing: a cache may keep refused writes.
func stays(ds.Batching, bool) {}

func (v *view) Sync(ctx context.Context, prefix ds.Key) error {
	if v.s.closed() {
		return nil // nothing was written
	}
	return v.attempt(func(inner ds.Batching) error { return inner.Sync(ctx, prefix) }, stays)
}

// Close does nothing: the Store is closed.
func (v *view) Close() error { return nil }

// Batch collects changes. Commit writes them if the disk has room then.
func (v *view) Batch(context.Context) (ds.Batch, error) { return &batch{v: v}, nil }

type batch struct {
	v   *view
	ops []func(context.Context, ds.Batch) error
}

func (b *batch) Put(_ context.Context, key ds.Key, value []byte) error {
	b.ops = append(b.ops, func(ctx context.Context, to ds.Batch) error { return to.Put(ctx, key, value) })
	return nil
}

func (b *batch) Delete(_ context.Context, key ds.Key) error {
	b.ops = append(b.ops, func(ctx context.Context, to ds.Batch) error { return to.Delete(ctx, key) })
	return nil
}

// Commit writes the changes of a batch. Some of a refused batch may be written later: batches are used by caches only.
func (b *batch) Commit(ctx context.Context) error {
	if err := b.v.refused(); err != nil {
		return err
	}
	ops := b.ops
	return b.v.attempt(func(inner ds.Batching) error {
		to, err := inner.Batch(ctx)
		if err != nil {
			return err
		}
		for _, op := range ops {
			if err := op(ctx, to); err != nil {
				return err
			}
		}
		return to.Commit(ctx)
	}, stays)
}

// Entries yields the results of a query, up to the first error. The loop runs in the goroutine that reads: a channel costs more than a read.
func Entries(ctx context.Context, d ds.Read, q query.Query) iter.Seq2[query.Entry, error] {
	return func(yield func(query.Entry, error) bool) {
		res, err := d.Query(ctx, q)
		if err != nil {
			yield(query.Entry{}, err)
			return
		}
		defer res.Close()
		for r, more := res.NextSync(); more; r, more = res.NextSync() {
			if r.Error == nil {
				r.Error = ctx.Err()
			}
			if !yield(r.Entry, r.Error) || r.Error != nil {
				return
			}
		}
	}
}
