package telemetry

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/lmosd/lmosd/interact"
)

// A queue holds ended spans until they are sent. It stands before the library's own, which would drop without a word.
type queue struct {
	sdk.SpanProcessor
	out     *exporter
	waiting *atomic.Int64
}

func newQueue(e *exporter) *queue {
	return &queue{out: e, waiting: &e.waiting, SpanProcessor: sdk.NewBatchSpanProcessor(e, sdk.WithMaxQueueSize(maxQueue),
		sdk.WithMaxExportBatchSize(maxBatch), sdk.WithBatchTimeout(batchEvery), sdk.WithExportTimeout(exportTimeout))}
}

// OnEnd takes a span, or drops it where too many wait.
func (q *queue) OnEnd(s sdk.ReadOnlySpan) {
	if q.waiting.Add(1) > maxQueue {
		q.waiting.Add(-1)
		q.out.lost.note("the queue is full", 1)
		return
	}
	q.SpanProcessor.OnEnd(s)
}

// close sends what waits until ctx ends, and waits for the end of the library's goroutine.
func (q *queue) close(ctx context.Context) error {
	q.out.client.leave()
	defer context.AfterFunc(ctx, q.out.abort)()
	err := q.Shutdown(ctx)
	if <-q.out.done; err == nil {
		err = ctx.Err() // it may have ended the last batch
	}
	return err
}

// An exporter sends batches. It tells the log itself what was lost, and the library that all is well: the library would write to
// the standard error.
type exporter struct {
	client  *client
	waiting atomic.Int64
	lost    losses
	stop    context.Context // ends what is being sent
	abort   context.CancelFunc
	done    chan struct{} // closed when the last batch was sent
	once    sync.Once
}

var _ sdk.SpanExporter = (*exporter)(nil)

func newExporter(endpoint string, o Options) (*exporter, error) {
	o.Log = o.Log.With("collector", endpoint)
	c, err := newClient(endpoint, o, os.Getenv)
	if err != nil {
		return nil, err
	}
	e := &exporter{client: c, lost: losses{log: o.Log}, done: make(chan struct{})}
	e.stop, e.abort = context.WithCancel(context.Background())
	return e, nil
}

// ExportSpans sends a batch. It never fails: what is lost is noted.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(e.stop, cancel)()
	defer cancel()
	defer e.waiting.Add(-int64(len(spans)))
	body, err := encode(spans)
	if err != nil {
		e.lost.note(err.Error(), len(spans))
		return nil
	}
	p, err := e.client.send(ctx, body)
	switch {
	case err != nil:
		e.lost.note(err.Error(), len(spans))
	case p.rejected > 0:
		e.lost.note("rejected: "+cmp.Or(p.message, "no reason given"), int(min(p.rejected, int64(len(spans)))))
	case p.message != "":
		e.lost.note(p.message, 0)
	}
	return nil
}

// Shutdown is called when the last batch was sent.
func (e *exporter) Shutdown(context.Context) error {
	e.once.Do(func() {
		e.client.transport.CloseIdleConnections()
		e.client.leave()
		e.abort()
		close(e.done)
	})
	return nil
}

// losses tells the log of spans that were lost, at most once a minute.
type losses struct {
	log *slog.Logger

	mu     sync.Mutex
	logged time.Time // owned by mu, as is spans: how many were lost and not told of
	spans  int
}

// note counts n spans that were lost, and why. A warning of the collector loses none.
func (l *losses) note(why string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spans += n
	if now := time.Now(); l.logged.IsZero() || now.Sub(l.logged) >= time.Minute {
		what := "spans lost"
		if l.spans == 0 {
			what = "the collector warns"
		}
		l.log.Warn(what, "spans", l.spans, "why", interact.Clip(interact.Readable(why), maxWhy))
		l.logged, l.spans = now, 0
	}
}
