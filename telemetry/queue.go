package telemetry

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdk "go.opentelemetry.io/otel/sdk/trace"
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
	sdk.SpanExporter
	transport *http.Transport
	waiting   atomic.Int64
	lost      losses
	stop      context.Context // ends what is being sent
	abort     context.CancelFunc
	done      chan struct{} // closed when the last batch was sent
	once      sync.Once
}

func newExporter(ctx context.Context, endpoint string, o Options) (*exporter, error) {
	transport := newTransport()
	inner, err := otlptracehttp.New(ctx, clientOptions(endpoint, o, transport)...)
	if err != nil {
		return nil, err
	}
	e := &exporter{SpanExporter: inner, transport: transport, lost: losses{log: o.Log.With("collector", endpoint)},
		done: make(chan struct{})}
	e.stop, e.abort = context.WithCancel(context.Background())
	return e, nil
}

// ExportSpans sends a batch. It never fails: what is lost is noted.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(e.stop, cancel)()
	defer cancel()
	defer e.waiting.Add(-int64(len(spans)))
	if err := e.SpanExporter.ExportSpans(ctx, spans); err != nil {
		e.lost.note(err.Error(), len(spans))
	}
	return nil
}

// Shutdown is called when the last batch was sent.
func (e *exporter) Shutdown(ctx context.Context) error {
	defer e.once.Do(func() {
		e.transport.CloseIdleConnections()
		e.abort()
		close(e.done)
	})
	return e.SpanExporter.Shutdown(ctx)
}

// losses tells the log of spans that were lost, at most once a minute.
type losses struct {
	log *slog.Logger

	mu    sync.Mutex
	said  time.Time // owned by mu, as is spans: how many were lost and not told of
	spans int
}

// note counts n spans that were lost, and why.
func (l *losses) note(why string, n int) {
	const maxWhy = 300 // a collector may answer with a whole page
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spans += n
	if now := time.Now(); l.said.IsZero() || now.Sub(l.said) >= time.Minute {
		l.log.Warn("spans lost", "spans", l.spans, "why", clip(why, maxWhy))
		l.said, l.spans = now, 0
	}
}

// clip cuts s to at most n bytes, between characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
