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

// A queue limits the ended spans that wait in the queue of the library. The library drops spans without a report.
type queue struct {
	sdk.SpanProcessor
	out *exporter
}

func newQueue(e *exporter) *queue {
	return &queue{out: e, SpanProcessor: sdk.NewBatchSpanProcessor(e, sdk.WithMaxQueueSize(maxQueue),
		sdk.WithMaxExportBatchSize(maxBatch), sdk.WithBatchTimeout(batchEvery), sdk.WithExportTimeout(exportTimeout))}
}

// OnEnd queues a span, or drops it if the queue is full.
func (q *queue) OnEnd(s sdk.ReadOnlySpan) {
	if q.out.waiting.Add(1) > maxQueue {
		q.out.waiting.Add(-1)
		q.out.lost.note("the queue is full", 1)
		return
	}
	q.SpanProcessor.OnEnd(s)
}

// close sends the queue until ctx ends, and waits for the goroutine of the library.
func (q *queue) close(ctx context.Context) error {
	q.out.client.endRetries()
	defer context.AfterFunc(ctx, q.out.abort)()
	err := q.Shutdown(ctx)
	if <-q.out.done; err == nil {
		err = ctx.Err() // ctx may have ended the last batch
	}
	return err
}

// An exporter sends batches. It logs losses itself and returns no errors, because the library would write them to standard error.
type exporter struct {
	client  *client
	waiting atomic.Int64 // spans that ended and were not sent
	lost    losses
	stop    context.Context // ends running requests
	abort   context.CancelFunc
	done    chan struct{} // closed after the last batch
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

// ExportSpans sends a batch. It never fails; lost spans are counted.
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

// Shutdown is called after the last batch.
func (e *exporter) Shutdown(context.Context) error {
	e.once.Do(func() {
		e.client.transport.CloseIdleConnections()
		e.client.endRetries()
		e.abort()
		close(e.done)
	})
	return nil
}

// losses logs lost spans, at most once a minute.
type losses struct {
	log *slog.Logger

	mu     sync.Mutex
	logged time.Time // owned by mu, as is spans: the number of lost spans since
	spans  int
}

// note counts n lost spans; 0 for a warning of the collector.
func (l *losses) note(reason string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spans += n
	if now := time.Now(); l.logged.IsZero() || now.Sub(l.logged) >= time.Minute {
		message := "spans lost"
		if l.spans == 0 {
			message = "collector warning"
		}
		l.log.Warn(message, "spans", l.spans, "reason", interact.Excerpt(reason, maxReason))
		l.logged, l.spans = now, 0
	}
}
