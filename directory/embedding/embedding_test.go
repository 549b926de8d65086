package embedding

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// An endpoint is an embedder whose vectors depend on the length of a text. It rejects requests with a text that contains poison.
type endpoint struct {
	mu    sync.Mutex
	calls [][]string
	fails error
	slow  time.Duration
}

func (e *endpoint) Embed(ctx context.Context, texts []string) (all [][]float32, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, texts)
	if backoff.Sleep(ctx, e.slow) != nil {
		return nil, ctx.Err()
	}
	for _, text := range texts {
		if strings.Contains(text, "poison") {
			return nil, errors.New("too much for me")
		}
		all = append(all, []float32{1, float32(len(text))})
	}
	return all, e.fails
}

// setResults sets the next results.
func (e *endpoint) setResults(fail error, slow time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fails, e.slow = fail, slow
}

// A model is an endpoint with a model name.
type namedEndpoint struct{ endpoint }

func (*namedEndpoint) Model() string { return "one" }

type fixedVectors [][]float32

func (w fixedVectors) Embed(context.Context, []string) ([][]float32, error) { return w, nil }

func reader(e Embedder) *Embeddings { return New(e, slog.New(slog.DiscardHandler)) }

func titled(title string) *td.Description {
	return &td.Description{Thing: &td.Thing{ID: title, Title: title}}
}

// Invalid vectors are rejected.
func TestInvalidVectors(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]fixedVectors{"0 vectors for 1": nil, "2 vectors for 1": {{1}, {1}}, "got 0": {nil},
		"no direction": {{0, 0}}, "has no direction": {{float32(math.NaN())}}, "the vector has no direction": {{float32(math.Inf(1))}},
		"got 4097": {make([]float32, maxDims+1)}} {
		if v, why := reader(answer).Query(t.Context(), "weather"); v != nil || !strings.Contains(why, name) {
			t.Errorf("%s: got %v, %q", name, v, why)
		}
	}
	a, _ := newVector([]float32{3, 4})
	b, _ := newVector([]float32{-3, -4})
	c, _ := newVector([]float32{1})
	if got := a.Cosine(a); got < 0.999 || a.Cosine(b) != 0 || a.Cosine(c) != 0 {
		t.Errorf("got %v, %v, %v", got, a.Cosine(b), a.Cosine(c))
	}
}

// Queries are cached. A canceled query is not a failure of the endpoint. After a failure there is a pause.
func TestQuery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		r := reader(e)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for _, step := range []struct {
			name     string
			ctx      context.Context
			question string
			fails    error
			slow     time.Duration
			why      string
			calls    int
			takes    time.Duration
		}{
			{"no words", t.Context(), " – ", nil, 0, "none", 0, 0},
			{"canceled", over, "rain", context.Canceled, 0, "the query ended", 1, 0},
			{"first query", t.Context(), "rain", nil, 0, "", 1, 0},
			{"cached", t.Context(), " rain ", errors.New("no"), 0, "", 0, 0},
			{"failure", t.Context(), "snow", errors.New("out of service"), 0, "out of service", 1, 0},
			{"pause after the failure", t.Context(), "sun", nil, 0, "out of service", 0, RetryAfter},
			{"timeout", t.Context(), "snow", nil, time.Minute, "deadline", 1, QueryTimeout + RetryAfter},
			{"after the pause", t.Context(), strings.Repeat("snow ", maxText), nil, 0, "", 1, 0},
		} {
			e.setResults(step.fails, step.slow)
			before, start := len(e.calls), time.Now()
			v, why := r.Query(step.ctx, step.question)
			if why != "" {
				time.Sleep(step.takes - time.Since(start)) // the end of the pause
			}
			if (v != nil) != (step.why == "") || step.why != "none" && !strings.Contains(why, step.why) ||
				len(e.calls)-before != step.calls || time.Since(start) != step.takes {
				t.Errorf("%s: got %v, %q, %d calls, after %v", step.name, v, why, len(e.calls)-before, time.Since(start))
			}
		}
		if long := e.calls[len(e.calls)-1][0]; len(long) > maxText {
			t.Errorf("a query of %d bytes", len(long))
		}
		for i := range maxQueries + 9 {
			r.Query(t.Context(), fmt.Sprint("weather", i))
		}
		if len(r.vectors) != maxQueries || len(r.order) != maxQueries {
			t.Errorf("%d queries are cached", len(r.vectors))
		}
		if v, why := reader(nil).Query(t.Context(), "rain"); v != nil || why != "" {
			t.Errorf("without an embedder: %v, %q", v, why)
		}
	})
}

// A shelf has Things by key, and their vectors.
type thingStore struct {
	things  map[[32]byte]*td.Description
	vectors map[[32]byte]*Vector
}

func (s *thingStore) find(key [32]byte) (Thing, bool) {
	desc := s.things[key]
	return Thing{Describe: func() *td.Description { return desc }, Store: func(v *Vector) { s.vectors[key] = v }}, desc != nil
}

// Queued Things get vectors in small batches when the endpoint works. A rejected Thing does not block others and is not requested again.
// Removed Things are not requested.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{fails: errors.New("not yet")}
		r := reader(e)
		s := &thingStore{map[[32]byte]*td.Description{}, map[[32]byte]*Vector{}}
		for i := range byte(2 * batchSize) {
			s.things[[32]byte{i}] = titled(fmt.Sprint("Weather ", i))
			r.Enqueue([32]byte{i})
		}
		s.things[[32]byte{7}] = titled("poison")
		r.Enqueue([32]byte{99})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx, s.find) }()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if calls := len(e.calls); len(s.vectors) != 0 || calls < 10 || calls > 20 || r.Len() < 2*batchSize-1 {
			t.Errorf("without an answer: %d vectors after %d calls, %d are queued", len(s.vectors), calls, r.Len())
		}
		e.setResults(nil, 0)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(s.vectors) != 2*batchSize-1 || r.Len() != 0 {
			t.Errorf("%d have a vector, %d are queued", len(s.vectors), r.Len())
		}
		for _, texts := range e.calls {
			if len(texts) == 0 || len(texts) > batchSize {
				t.Errorf("%d texts in one request", len(texts))
			}
		}
		e.setResults(nil, time.Hour)
		e.calls = nil
		s.things[[32]byte{100}] = titled(strings.Repeat("long ", maxText))
		r.Enqueue([32]byte{100})
		synctest.Wait()
		cancel()
		<-done
		if len(e.calls) != 1 || len(e.calls[0][0]) > maxText || len(s.vectors) != 2*batchSize-1 {
			t.Errorf("%d calls, %d vectors", len(e.calls), len(s.vectors))
		}
		none := reader(nil)
		none.Enqueue([32]byte{1})
		if none.Run(t.Context(), s.find); none.Len() != 0 {
			t.Error("Things are queued without an embedder")
		}
	})
}

// A stored vector is restored for the same text and model only.
func TestSaved(t *testing.T) {
	t.Parallel()
	r, desc := reader(&namedEndpoint{}), titled("Weather")
	v, err := newVector([]float32{1, -2, 3})
	if err != nil {
		t.Fatal(err)
	}
	saved := r.Save(v, desc)
	if got := r.Restore(saved, desc); got == nil || got.Cosine(v) < 0.999 {
		t.Errorf("got %v, want %v", got, v)
	}
	for name, change := range map[string]func(s *Saved){
		"another model": func(s *Saved) { s.Model = "two" }, "another text": func(s *Saved) { s.Text = []byte("x") },
		"no dimensions": func(s *Saved) { s.Dims = nil }, "no direction": func(s *Saved) { s.Dims = make([]byte, 3) },
		"too many": func(s *Saved) { s.Dims = []byte(strings.Repeat("\x01", maxDims+1)) }} {
		bad := *saved
		if change(&bad); r.Restore(&bad, desc) != nil {
			t.Errorf("%s: it is restored", name)
		}
	}
	nameless := reader(&endpoint{})
	if !r.Stores() || nameless.Stores() || nameless.Restore(nameless.Save(v, desc), desc) != nil {
		t.Error("vectors of a model without a name are stored")
	}
}
