// Package meaning knows what things and questions mean, as an endpoint says it.
//
// The endpoint turns a text into a vector; texts of like meaning have vectors of like direction. A question is asked for when it
// is there ([Reader.Ask]) and nobody waits long for it. Things wait in a line, and [Reader.Run] asks for some of them at a time.
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

// An Embedder turns texts into vectors of one length, whose angle says how alike the texts are in meaning. It must end soon after
// ctx does. If it has a method Model() string, that names the model; vectors of one without a name are not worth keeping.
type Embedder interface {
	Embed(ctx context.Context, texts []string) ([][]float32, error)
}

// AskTimeout bounds how long the endpoint is waited for that is asked for a question; after a failure it is not asked for AskAgain.
const (
	AskTimeout = time.Second
	AskAgain   = 5 * time.Second
)

// Bounds of what is asked.
const (
	maxText      = 4 << 10 // bytes of a thing or a question
	atOnce       = 32      // things in one request
	timeout      = 30 * time.Second
	maxWait      = time.Minute // between failures
	maxQuestions = 256         // that are remembered
)

// A Reader knows what questions mean, and which things wait for their vectors. Its methods are safe for concurrent use; Run runs
// once at a time.
type Reader struct {
	embedder Embedder
	model    string // that embedder asks; "" if it does not say
	log      *slog.Logger
	wake     chan struct{} // something waits
	// Only Run uses these. After a failure a few are asked one by one: one text that the endpoint refuses must not keep the others
	// from theirs.
	single int  // so many are still asked one by one
	works  bool // the last request went well

	mu      sync.Mutex // owns the rest
	waiting map[[32]byte]bool
	asked   map[string]*Vector
	eldest  []string // of asked
	silent  time.Time
	why     string // the endpoint is not asked until silent
}

// New returns what asks e. Nil asks nobody: then nothing has a vector.
func New(e Embedder, log *slog.Logger) *Reader {
	r := &Reader{embedder: e, log: log, wake: make(chan struct{}, 1), waiting: map[[32]byte]bool{}, asked: map[string]*Vector{}}
	if named, ok := e.(interface{ Model() string }); ok {
		r.model = named.Model()
	}
	return r
}

// Ask returns the vector of a question, or why there is none. Without an endpoint, or a word, that says nothing.
func (r *Reader) Ask(ctx context.Context, question string) (v *Vector, why string) {
	if r.embedder == nil || len(textmatch.Content(question)) == 0 {
		return nil, ""
	}
	question = cut(strings.TrimSpace(question))
	r.mu.Lock()
	v, why = r.asked[question], r.why
	silent := time.Now().Before(r.silent)
	r.mu.Unlock()
	switch {
	case v != nil:
		return v, ""
	case silent:
		return nil, why
	}
	limited, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	all, err := r.embed(limited, []string{question})
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && ctx.Err() != nil {
		return nil, "nobody waited for the embedding endpoint" // which says nothing of it
	}
	if err != nil {
		r.silent, r.why = time.Now().Add(AskAgain), "the embedding endpoint failed: "+err.Error()
		return nil, r.why
	}
	if r.asked[question] == nil {
		if r.eldest = append(r.eldest, question); len(r.eldest) > maxQuestions {
			delete(r.asked, r.eldest[0])
			r.eldest = r.eldest[1:]
		}
		r.asked[question] = all[0]
	}
	return all[0], ""
}

// embed asks the endpoint and checks what it says.
func (r *Reader) embed(ctx context.Context, texts []string) ([]*Vector, error) {
	raw, err := r.embedder.Embed(ctx, texts)
	if err != nil {
		return nil, err
	}
	if len(raw) != len(texts) {
		return nil, fmt.Errorf("%d vectors for %d texts", len(raw), len(texts))
	}
	all := make([]*Vector, len(raw))
	for i, v := range raw {
		if all[i], err = newVector(v); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Wait puts things into the line for a vector, by key. They leave it when it is their turn, or by [Reader.Leave]; so as many can wait as
// the caller knows.
func (r *Reader) Wait(keys ...[32]byte) {
	if r.embedder == nil {
		return
	}
	r.mu.Lock()
	for _, key := range keys {
		r.waiting[key] = true
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Leave takes a thing out of the line.
func (r *Reader) Leave(key [32]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, key)
}

// Waiting returns how many things are in the line.
func (r *Reader) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting)
}

// A Thing is one whose turn it is.
type Thing struct {
	Describe func() *td.Description
	Keep     func(v *Vector) // takes its vector
}

// Run asks for the vectors of what waits, until ctx ends. It gets the things by their keys with find, which returns false for those
// that need no vector any more.
func (r *Reader) Run(ctx context.Context, find func(key [32]byte) (Thing, bool)) {
	if r.embedder == nil {
		return
	}
	pauses := backoff.Backoff{First: time.Second, Max: maxWait}
	for {
		some, err := r.readSome(ctx, find)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			wait := pauses.Next()
			r.log.Warn("vectors of things could not be computed; words are compared", "err", err, "wait", r.Waiting(), "again", wait)
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

// readSome asks for the vectors of a few of those that wait, and reports whether there were any.
func (r *Reader) readSome(ctx context.Context, find func(key [32]byte) (Thing, bool)) (some bool, err error) {
	most := atOnce
	if r.single > 0 {
		most = 1
	}
	line := r.next(most)
	var things []Thing
	var keys [][32]byte
	var texts []string
	for _, key := range line {
		if one, ok := find(key); ok {
			things, keys, texts = append(things, one), append(keys, key), append(texts, about(one.Describe()))
		}
	}
	if len(things) == 0 {
		return len(line) > 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	all, err := r.embed(ctx, texts)
	worked := r.works
	if r.works = err == nil; err != nil && most == 1 && worked && ctx.Err() == nil {
		r.log.Warn("no vector for a thing: its words are compared", "thing", things[0].Describe().ID, "err", err)
		return true, nil
	}
	if err != nil {
		r.single = atOnce
		r.Wait(keys...)
		return true, err
	}
	r.single = max(r.single-1, 0)
	for i, one := range things {
		one.Keep(all[i])
	}
	return true, nil
}

// next takes some out of the line.
func (r *Reader) next(most int) (line [][32]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.waiting {
		if len(line) == most {
			break
		}
		delete(r.waiting, key)
		line = append(line, key)
	}
	return line
}

// about returns what a thing says of itself.
func about(desc *td.Description) string {
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
