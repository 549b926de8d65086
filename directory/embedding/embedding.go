// Package embedding computes and caches embedding vectors of Things and queries.
//
// An endpoint converts a text to a vector; similar texts have vectors of similar direction. The vector of a query is requested at once, with
// a short time limit ([Embeddings.Query]). Things are queued, and [Embeddings.Run] requests their vectors in batches.
package embedding

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td"
)

// An Embedder converts texts to vectors of equal length; the angle between two is the semantic similarity of the texts. It must return soon
// after ctx ends. If it has a method Model() string, that names the model; vectors of unnamed models are not stored.
type Embedder interface {
	Embed(ctx context.Context, texts []string) ([][]float32, error)
}

// QueryTimeout limits the request for a query; after a failure the endpoint is not used for RetryAfter.
const (
	QueryTimeout = time.Second
	RetryAfter   = 5 * time.Second
)

// Limits of requests.
const (
	maxText    = 4 << 10 // bytes of a Thing or a query
	batchSize  = 32      // things in one request
	timeout    = 30 * time.Second
	maxWait    = time.Minute // between failures
	maxQueries = 256         // cached queries
)

// Embeddings computes the vectors of queries and of queued Things. Its methods are safe for concurrent use; Run is called once at a time.
type Embeddings struct {
	embedder Embedder
	model    string // of embedder; "" if unnamed
	log      *slog.Logger
	wake     chan struct{} // signals a queued Thing
	// Only Run uses these fields. After a failure some texts are requested one by one, so that one text that the endpoint rejects
	// does not block the others.
	single    int  // number of texts still to be requested one by one
	isWorking bool // the last request succeeded

	mu          sync.Mutex // owns the following fields
	queued      map[[32]byte]bool
	vectors     map[string]*Vector // of queries
	order       []string           // of vectors, oldest first
	pausedUntil time.Time
	pauseReason string // of pausedUntil
}

// New returns Embeddings that uses e. If e is nil, no Thing has a vector.
func New(e Embedder, log *slog.Logger) *Embeddings {
	r := &Embeddings{embedder: e, log: log, wake: make(chan struct{}, 1), queued: map[[32]byte]bool{}, vectors: map[string]*Vector{}}
	if named, ok := e.(interface{ Model() string }); ok {
		r.model = named.Model()
	}
	return r
}

// Query returns the vector of a query, or the reason if there is none. The reason is empty without an endpoint, or for a text without
// content words.
func (r *Embeddings) Query(ctx context.Context, text string) (v *Vector, reason string) {
	if r.embedder == nil || len(textmatch.Content(text)) == 0 {
		return nil, ""
	}
	text = cut(strings.TrimSpace(text))
	r.mu.Lock()
	v, reason = r.vectors[text], r.pauseReason
	paused := time.Now().Before(r.pausedUntil)
	r.mu.Unlock()
	switch {
	case v != nil:
		return v, ""
	case paused:
		return nil, reason
	}
	limited, cancel := context.WithTimeout(ctx, QueryTimeout)
	defer cancel()
	all, err := r.embed(limited, []string{text})
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && ctx.Err() != nil {
		return nil, "the query ended before the embedding endpoint answered" // not a failure of the endpoint
	}
	if err != nil {
		r.pausedUntil, r.pauseReason = time.Now().Add(RetryAfter), "the embedding endpoint failed: "+err.Error()
		return nil, r.pauseReason
	}
	if r.vectors[text] == nil {
		if r.order = append(r.order, text); len(r.order) > maxQueries {
			delete(r.vectors, r.order[0])
			r.order = r.order[1:]
		}
		r.vectors[text] = all[0]
	}
	return all[0], ""
}

// embed calls the endpoint and validates the result.
func (r *Embeddings) embed(ctx context.Context, texts []string) ([]*Vector, error) {
	raw, err := r.embedder.Embed(ctx, texts)
	if err != nil {
		return nil, err
	}
	if len(raw) != len(texts) {
		return nil, fmt.Errorf("the endpoint returned %d vectors for %d texts", len(raw), len(texts))
	}
	all := make([]*Vector, len(raw))
	for i, v := range raw {
		if all[i], err = newVector(v); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Enqueue queues Things for a vector, by key. They leave the queue when they are processed, or by [Embeddings.Dequeue]. The caller limits
// the length of the queue.
func (r *Embeddings) Enqueue(keys ...[32]byte) {
	if r.embedder == nil {
		return
	}
	r.mu.Lock()
	for _, key := range keys {
		r.queued[key] = true
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Dequeue removes a Thing from the queue.
func (r *Embeddings) Dequeue(key [32]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.queued, key)
}

// Len returns the length of the queue.
func (r *Embeddings) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queued)
}

// A Thing is a queued Thing that is processed.
type Thing struct {
	Describe func() *td.Description
	Store    func(v *Vector) // stores its vector
}

// Run computes the vectors of queued Things until ctx ends. find returns the Thing of a key, and false if it needs no vector any more.
func (r *Embeddings) Run(ctx context.Context, find func(key [32]byte) (Thing, bool)) {
	if r.embedder == nil {
		return
	}
	pauses := backoff.Backoff{First: time.Second, Max: maxWait}
	for {
		some, err := r.embedBatch(ctx, find)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			wait := pauses.Next()
			r.log.Warn("embedding of things failed, lexical match used", "err", err, "queued", r.Len(), "retry_in", wait)
			if backoff.Sleep(ctx, wait) != nil {
				return
			}
			continue
		}
		pauses.Reset()
		if some {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
	}
}

// embedBatch computes the vectors of a batch, and reports whether there was one.
func (r *Embeddings) embedBatch(ctx context.Context, find func(key [32]byte) (Thing, bool)) (some bool, err error) {
	most := batchSize
	if r.single > 0 {
		most = 1
	}
	batch := r.next(most)
	var things []Thing
	var keys [][32]byte
	var texts []string
	for _, key := range batch {
		if one, ok := find(key); ok {
			things, keys, texts = append(things, one), append(keys, key), append(texts, textOf(one.Describe()))
		}
	}
	if len(things) == 0 {
		return len(batch) > 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	all, err := r.embed(ctx, texts)
	worked := r.isWorking
	if r.isWorking = err == nil; err != nil && most == 1 && worked && ctx.Err() == nil {
		r.log.Warn("embedding missing, lexical match used", "thing", things[0].Describe().ID, "err", err)
		return true, nil
	}
	if err != nil {
		r.single = batchSize
		r.Enqueue(keys...)
		return true, err
	}
	r.single = max(r.single-1, 0)
	for i, one := range things {
		one.Store(all[i])
	}
	return true, nil
}

// next removes a batch from the queue.
func (r *Embeddings) next(most int) (batch [][32]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.queued {
		if len(batch) == most {
			break
		}
		delete(r.queued, key)
		batch = append(batch, key)
	}
	return batch
}

// textOf returns the text of a Thing.
func textOf(desc *td.Description) string {
	var b strings.Builder
	for text := range desc.Texts() {
		if b.Len() > maxText {
			break
		}
		b.WriteString(text.Text)
		b.WriteByte('\n')
	}
	return cut(b.String())
}

func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxText)], "") }
