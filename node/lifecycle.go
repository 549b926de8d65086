package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/internal/heartbeat"
	"github.com/lmosd/lmosd/internal/storage"
)

// A lifecycle runs the parts of a node, and closes them in the reverse order of their opening.
type lifecycle struct {
	log     *slog.Logger
	loops   heartbeat.Loops
	ctx     context.Context // ends with close; background work gets it
	end     context.CancelFunc
	runs    []func(ctx context.Context) error
	closers []func() error

	// starting is held while background work starts and while ctx ends, so that none starts after that.
	starting sync.Mutex
	work     sync.WaitGroup // the background work
}

func newLifecycle(log *slog.Logger) *lifecycle {
	l := &lifecycle{log: log}
	l.ctx, l.end = context.WithCancel(context.Background())
	return l
}

// onRun adds a function that works until its context ends.
func (l *lifecycle) onRun(f func(ctx context.Context) error) { l.runs = append(l.runs, f) }

// onClose adds a function that releases what was opened last.
func (l *lifecycle) onClose(f func() error) { l.closers = append(l.closers, f) }

// background runs f with a context that ends when the node closes. It reports false, and runs nothing, once the node closes.
func (l *lifecycle) background(f func(ctx context.Context)) bool {
	l.starting.Lock()
	defer l.starting.Unlock()
	if l.ctx.Err() != nil {
		return false
	}
	l.work.Go(func() { f(l.ctx) })
	return true
}

// run runs all parts until serve returns, which the parts outlive. The contexts of serve end with ctx, and with the failure of a part.
func (l *lifecycle) run(ctx context.Context, serve func(ctx, parts context.Context) error) error {
	base, stop := context.WithCancel(l.loops.Context(context.WithoutCancel(ctx)))
	defer stop()
	g, parts := errgroup.WithContext(base)
	for _, run := range l.runs {
		g.Go(func() error { return l.ended(parts, run(parts)) })
	}
	g.Go(func() error {
		defer stop() // Only now: draining calls need the parts.
		return serve(ctx, parts)
	})
	return g.Wait()
}

// close ends the background work and closes all parts.
func (l *lifecycle) close() error {
	l.starting.Lock()
	l.end()
	l.starting.Unlock()
	l.work.Wait()
	var errs []error
	for i := len(l.closers) - 1; i >= 0; i-- {
		errs = append(errs, l.ended(l.ctx, l.closers[i]()))
	}
	l.closers = nil
	return errors.Join(errs...)
}

// ended returns the failure of a part that ran until ctx ended. A full disk is none: only caches are written at the end, and acknowledged
// changes are durable.
func (l *lifecycle) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && storage.Full(err) {
		l.log.Warn("caches not stored: the disk is full", "err", err)
		return nil
	}
	return ignoreEnd(err)
}

func ignoreEnd(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
