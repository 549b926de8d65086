package directory

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/internal/words"
	"github.com/lmosd/lmosd/td"
)

// An Embedder turns texts into vectors of one length, whose angle says how alike the texts are in meaning. It must end soon after
// ctx does.
type Embedder interface {
	Embed(ctx context.Context, texts []string) ([][]float32, error)
}

// Bounds of embedding.
const (
	maxDims       = 4096
	maxEmbedText  = 4 << 10 // bytes of a thing or a question
	embedAtOnce   = 32      // things in one request
	embedTimeout  = 30 * time.Second
	askTimeout    = time.Second // for a question: then words are compared
	askAgain      = 5 * time.Second
	maxEmbedWait  = time.Minute // between failures
	maxQuestions  = 256         // that are remembered
	maxByMeaning  = 32          // things without a word of the question that an answer may have
	leastOfTheTop = 0.9         // and how near to the best they must be
)

// A vector is the direction of a text: a byte for each dimension is exact enough to rank by.
type vector struct {
	dims []int8
	per  float32 // 1 / length
}

// newVector returns the direction of v; an error if it has none.
func newVector(v []float32) (*vector, error) {
	if len(v) == 0 || len(v) > maxDims {
		return nil, fmt.Errorf("a vector of %d dimensions, 1 to %d are allowed", len(v), maxDims)
	}
	largest := 0.0
	for _, x := range v {
		largest = max(largest, math.Abs(float64(x)))
	}
	if !(largest > 0 && largest <= math.MaxFloat32) {
		return nil, errors.New("a vector without a direction")
	}
	dims := make([]int8, len(v))
	for i, x := range v {
		dims[i] = int8(math.Round(127 * float64(x) / largest))
	}
	return direction(dims), nil
}

// direction returns the vector of dims, which are not all zero.
func direction(dims []int8) *vector {
	sum := 0.0
	for _, n := range dims {
		sum += float64(n) * float64(n)
	}
	return &vector{dims, float32(1 / math.Sqrt(sum))}
}

// cosine returns how alike two directions are, 0 to 1; what is opposite or of another length is not.
func (v *vector) cosine(o *vector) float64 {
	if len(v.dims) != len(o.dims) {
		return 0
	}
	var sum int32 // 4096 × 127² fits
	b := o.dims[:len(v.dims)]
	for i, x := range v.dims {
		sum += int32(x) * int32(b[i])
	}
	return min(max(float64(sum)*float64(v.per)*float64(o.per), 0), 1)
}

// meaning knows what questions mean, and what things wait for their vectors.
type meaning struct {
	embedder Embedder
	model    string        // that embedder asks; "" if it does not say
	wake     chan struct{} // something waits
	// Only the goroutine that computes vectors uses these. After a failure a few are asked one by one: one text that the endpoint
	// refuses must not keep the others from theirs.
	single int  // so many are still asked one by one
	works  bool // the last request went well

	mu      sync.Mutex // owns the rest
	waiting map[[32]byte]bool
	asked   map[string]*vector
	eldest  []string // of asked
	silent  time.Time
	why     string // the endpoint is not asked until silent
}

func (m *meaning) start(e Embedder) {
	m.embedder, m.wake = e, make(chan struct{}, 1)
	if named, ok := e.(interface{ Model() string }); ok {
		m.model = named.Model()
	}
	m.waiting, m.asked = map[[32]byte]bool{}, map[string]*vector{}
}

// ask returns the vector of a question, or why there is none. Without an embedder that says nothing.
func (m *meaning) ask(ctx context.Context, question string) (v *vector, why string) {
	if m.embedder == nil || len(words.Content(question)) == 0 {
		return nil, ""
	}
	question = cutText(strings.TrimSpace(question))
	m.mu.Lock()
	v, why = m.asked[question], m.why
	silent := time.Now().Before(m.silent)
	m.mu.Unlock()
	switch {
	case v != nil:
		return v, ""
	case silent:
		return nil, why
	}
	limited, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	all, err := m.embed(limited, []string{question})
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && ctx.Err() != nil {
		return nil, "nobody waited for the embedding endpoint" // which says nothing of it
	}
	if err != nil {
		m.silent, m.why = time.Now().Add(askAgain), "the embedding endpoint failed: "+err.Error()
		return nil, m.why
	}
	if m.asked[question] == nil {
		if m.eldest = append(m.eldest, question); len(m.eldest) > maxQuestions {
			delete(m.asked, m.eldest[0])
			m.eldest = m.eldest[1:]
		}
		m.asked[question] = all[0]
	}
	return all[0], ""
}

// embed asks the endpoint and checks what it says.
func (m *meaning) embed(ctx context.Context, texts []string) ([]*vector, error) {
	raw, err := m.embedder.Embed(ctx, texts)
	if err != nil {
		return nil, err
	}
	if len(raw) != len(texts) {
		return nil, fmt.Errorf("%d vectors for %d texts", len(raw), len(texts))
	}
	all := make([]*vector, len(raw))
	for i, v := range raw {
		if all[i], err = newVector(v); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// wantVectorLocked notes that a living thing waits for its vector, unless another with the same TD has it.
func (d *Directory) wantVectorLocked(e *entry) {
	m := &d.meaning
	if m.embedder == nil {
		return
	}
	if twin := d.hashes[e.view.record.Hash]; twin != nil && twin.view.vector.Load() != nil {
		e.view.vector.Store(twin.view.vector.Load())
		d.keepVectorLocked(e.key)
	}
	if e.view.vector.Load() != nil {
		return
	}
	m.wait(e.key)
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// embedAll computes the vectors of what waits, until ctx ends.
func (d *Directory) embedAll(ctx context.Context) {
	m := &d.meaning
	if m.embedder == nil {
		return
	}
	wait := time.Second
	for {
		more, err := d.embedSome(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			d.log.Warn("vectors of things could not be computed; words are compared", "err", err, "again", wait)
			if !sleep(ctx, wait) {
				return
			}
			wait = min(2*wait, maxEmbedWait)
			continue
		}
		wait = time.Second
		if more {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		}
	}
}

// sleep reports whether ctx has not ended meanwhile.
func sleep(ctx context.Context, long time.Duration) bool {
	t := time.NewTimer(long)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// embedSome computes the vectors of a few of those that wait, and reports whether there were any.
func (d *Directory) embedSome(ctx context.Context) (some bool, err error) {
	m, most := &d.meaning, embedAtOnce
	if m.single > 0 {
		most = 1
	}
	views, keys, some := d.waiting(most)
	if !some {
		return false, nil
	}
	texts := make([]string, len(views))
	for i, v := range views {
		texts[i] = aboutThing(v.peek())
	}
	if len(texts) > 0 {
		ctx, cancel := context.WithTimeout(ctx, embedTimeout)
		defer cancel()
		all, err := m.embed(ctx, texts)
		worked := m.works
		if m.works = err == nil; err != nil && most == 1 && worked && ctx.Err() == nil {
			d.log.Warn("no vector for a thing: its words are compared", "thing", views[0].record.Thing, "err", err)
			return true, nil
		}
		if err != nil {
			m.single = embedAtOnce
			m.wait(keys...)
			return true, err
		}
		m.single = max(m.single-1, 0)
		for i, v := range views {
			v.vector.Store(all[i])
		}
		d.keepVectors(keys)
	}
	return true, nil
}

// A savedVector is what is kept of a vector. It is of use for the same text and the same model.
type savedVector struct {
	Model string `cbor:"1,keyasint"`
	Text  []byte `cbor:"2,keyasint"` // SHA-256
	Dims  []byte `cbor:"3,keyasint"`
}

// keepVectors has the next write keep the vectors of things.
func (d *Directory) keepVectors(keys [][32]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range keys {
		d.keepVectorLocked(key)
	}
}

func (d *Directory) keepVectorLocked(key [32]byte) {
	if d.opts.Store != nil && d.meaning.model != "" {
		d.dirtyVectors[key] = true
	}
}

// saved returns what is to be kept of the vector of a view; nil if there is none.
func (m *meaning) saved(v *view) *savedVector {
	if v == nil || v.vector.Load() == nil {
		return nil
	}
	vec := v.vector.Load()
	text := sha256.Sum256([]byte(aboutThing(v.peek())))
	s := &savedVector{Model: m.model, Text: text[:], Dims: make([]byte, len(vec.dims))}
	for i, n := range vec.dims {
		s.Dims[i] = byte(n)
	}
	return s
}

// keptVector returns the vector that was kept of a description, or nil if there is none that is of use.
func (d *Directory) keptVector(ctx context.Context, key [32]byte, desc *td.Description) *vector {
	if d.meaning.model == "" {
		return nil
	}
	raw, err := d.opts.Store.Get(ctx, storeKey(vectorKeys, key))
	if err != nil {
		return nil // it is asked for again
	}
	var s savedVector
	text := sha256.Sum256([]byte(aboutThing(desc)))
	err = unmarshal(raw, &s)
	if err != nil || s.Model != d.meaning.model || !bytes.Equal(s.Text, text[:]) || len(s.Dims) > maxDims {
		return nil
	}
	dims, some := make([]int8, len(s.Dims)), false
	for i, n := range s.Dims {
		dims[i] = int8(n)
		some = some || n != 0
	}
	if !some {
		return nil
	}
	return direction(dims)
}

func (m *meaning) wait(keys ...[32]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		m.waiting[key] = true
	}
}

// waiting takes some of the things that wait for a vector out of the line, and returns those that still have none; some is false if
// none waited.
func (d *Directory) waiting(most int) (views []*view, keys [][32]byte, some bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	d.meaning.mu.Lock()
	defer d.meaning.mu.Unlock()
	for key := range d.meaning.waiting {
		if len(keys) == most {
			break
		}
		some = true
		delete(d.meaning.waiting, key)
		if e := d.entries[key]; e != nil && e.view != nil && e.view.vector.Load() == nil {
			views, keys = append(views, e.view), append(keys, key)
		}
	}
	return views, keys, some
}

// aboutThing returns what a thing says of itself.
func aboutThing(desc *td.Description) string {
	var b strings.Builder
	for text := range desc.Texts() {
		if b.Len() > maxEmbedText {
			break
		}
		b.WriteString(text.Text)
		b.WriteByte('\n')
	}
	return cutText(b.String())
}

func cutText(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxEmbedText)], "") }

// vectorOf returns the vector of a TD, if it is there.
func (d *Directory) vectorOf(hash [32]byte) *vector {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e := d.hashes[hash]; e != nil {
		return e.view.vector.Load()
	}
	return nil
}

// byMeaning scores candidates by their meaning, as far as they have vectors, and adds the things nearest to the question that
// have none of its words.
func (d *Directory) byMeaning(ctx context.Context, q *td.Query, r *ranker, fit []candidate, total int) ([]candidate, int) {
	known := map[*view]bool{}
	top := 0.0
	for i := range fit {
		known[fit[i].view] = true
		if v := fit[i].view.vector.Load(); v != nil {
			fit[i].score = r.question.cosine(v)
			top = max(top, fit[i].score)
		}
	}
	near, cut := d.nearest(ctx, q, r)
	if cut {
		total = math.MaxInt
	}
	if len(near) > 0 {
		top = max(top, near[0].score)
	}
	near = slices.DeleteFunc(near, func(c candidate) bool { return known[c.view] || c.score < leastOfTheTop*top })
	if total < math.MaxInt {
		total += len(near)
	}
	return append(fit, near...), total
}

// nearest returns the things nearest to the question of those that fit the rest of q, and whether it had to stop looking.
func (d *Directory) nearest(ctx context.Context, q *td.Query, r *ranker) (all []candidate, cut bool) {
	rest := *q
	rest.Text = ""
	d.mu.RLock()
	c := d.index.Choose(&rest)
	var views []*view
	for e := range d.livingLocked(c.All(), d.dueLocked(r.now)) {
		views = append(views, e.view)
	}
	d.mu.RUnlock()
	for i, v := range views {
		if cut = i%1024 == 1023 && ctx.Err() != nil; cut {
			break
		}
		if vec := v.vector.Load(); vec != nil {
			all = append(all, candidate{v, r.question.cosine(vec)})
		}
	}
	slices.SortFunc(all, compareCandidates)
	if c.Exact {
		return all[:min(len(all), maxByMeaning)], cut
	}
	all, early := siftBest(ctx, &rest, all, maxByMeaning)
	return all, cut || early
}
